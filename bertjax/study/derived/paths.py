"""Which heads write what others read: `bertjax patch --paths-to`.

A row for each head that comes before the last receiver: the share of a contrast's score that the path from it to the
receivers restores, through nothing else (`attribution.patch_paths`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertjax import arguments
from bertjax.attribution import RECEIVING, patch_paths
from bertjax.checkpoints import DEFAULT_MODEL
from bertjax.data import Contrasts, Encoding, collate
from bertjax.errors import InputError
from bertjax.interventions import HEAD_OUTPUTS, Readout, ablation, parse_head, readouts
from bertjax.model import BertForSentenceEmbedding, ModelOutput
from bertjax.progress import Progress, silent
from bertjax.results import Results
from bertjax.study.derived.frame import Outcome, run_derived
from bertjax.study.derived.job import JobOptions
from bertjax.study.derived.patches import (
    MODE,
    RESTORING,
    Direction,
    PatchingJob,
    analysis_of_patches,
    call_on_contrasts,
    conclude_patches,
    introduce_patches,
    load_contrasts,
    settings_of_patches,
)
from bertjax.study.job import Job
from bertjax.study.settings import Settings

AT_ONCE = 32  # contrasts


@dataclass(frozen=True)
class Paths:
    """Which paths are patched.

    Args:
        receivers: of 'queries', 'keys' and 'values' the heads that read, such as {'queries': ('3.7',)}.
        direction: which text is patched from which.
        freeze_feed_forward: whether feed-forward layers on the way are frozen too.

    Raises:
        InputError: no receivers, or other places.
    """

    receivers: Mapping[str, tuple[str, ...]]
    direction: Direction = RESTORING
    freeze_feed_forward: bool = False

    def __post_init__(self) -> None:
        for place in self.receivers:
            arguments.one_of(place, "a receiver", RECEIVING)
        if not any(self.receivers.values()):
            raise InputError("name receivers: heads whose queries, keys or values receive")
        plain = {place: tuple(map(arguments.plain_head_name, heads)) for place, heads in self.receivers.items()}
        object.__setattr__(self, "receivers", plain)

    @classmethod
    def of_words(cls, words: Sequence[str], direction: Direction, freeze_feed_forward: bool) -> "Paths":
        """Receivers as they are written on a command line: 'queries=3.7', 'values=3.7,2.1'.

        Raises:
            InputError: a word that names none.
        """
        receivers: dict[str, tuple[str, ...]] = {}
        for word in words:
            place, equals, heads = word.partition("=")
            if not (place and equals and heads):
                raise InputError(f"{word!r} names no receivers: write queries=L.H, keys=L.H or values=L.H")
            receivers[place] = (*receivers.get(place, ()), *heads.split(","))
        return cls(receivers, direction, freeze_feed_forward)


def head_paths(
    model: str | Path = DEFAULT_MODEL,
    contrasts: str | Path | Sequence[Mapping[str, str]] = (),
    *,
    receivers: Mapping[str, Iterable[str]],
    into: str = "corrupted",
    only_right: bool = False,
    freeze_feed_forward: bool = False,
    progress: Progress | bool = True,
    **options: Unpack[JobOptions],
) -> Results:
    """Which heads write what others read: `bertjax patch --paths-to` as a call.

    Args:
        model, contrasts, into, only_right, progress: as in `patch`.
        receivers: of 'queries', 'keys' and 'values' the heads that read, such as {'queries': ['3.7']}.
        freeze_feed_forward: whether feed-forward layers on the way are frozen too.
        options: as in `patch`; `heads` are senders.

    Returns: results with a row for each sender; metrics as those of `patch`.

    Raises:
        BertjaxError: whatever is wrong with model, contrasts or options.

    >>> pairs = [{"clean": "A man is eating", "corrupted": "A man is running", "second": "A man eats"}]
    >>> found = head_paths(contrasts=pairs, receivers={"values": ["1.3"]}, heads=["0.1", "0.2"], progress=False)
    >>> found.names
    ['0.1', '0.2']
    """
    named = {place: tuple(heads) for place, heads in receivers.items()}
    paths = Paths(named, Direction(into, only_right), freeze_feed_forward)
    return call_on_contrasts(partial(run_paths, paths=paths), model, contrasts, options, progress)


def run_paths(
    settings: Settings,
    paths: Paths,
    contrasts: Contrasts | None = None,
    *,
    say: Callable[[str], None] = lambda line: None,
    progress: Progress = silent,
    weighing: Progress = silent,
    keep: bool = True,
) -> Results:
    """Patch the paths from all senders, weigh what each restores, and write the directory.

    Args:
        settings: which model and data; their heads are senders.
        paths: to which receivers.
        contrasts: in place of the settings' file.
        say: called with a line at each step.
        progress, weighing: called with the work done and the total work.
        keep: whether anything is written.

    Raises:
        OutputError: the directory cannot be written, or holds results already.
        BertjaxError: whatever is wrong with model, contrasts or settings.
    """
    if settings.memory is not None or settings.attention not in ("auto", "explicit"):
        raise InputError(
            "paths are computed by calls of the model with explicit attention: leave memory and attention out"
        )
    load = partial(load_contrasts, "all", paths.direction, contrasts, say)
    run = partial(_run, paths, say, progress, keep)
    usual = {"direction": asdict(RESTORING), "freeze_feed_forward": Paths.freeze_feed_forward}
    settings = settings_of_patches(settings, contrasts, "paths", asdict(paths), usual)
    settings = replace(settings, attention="explicit")
    analysis = analysis_of_patches("paths", asdict(paths), contrasts)
    return run_derived(settings, run, analysis, say=say, weighing=weighing, keep=keep, load=load)


def _run(paths: Paths, say: Callable[[str], None], progress: Progress, keep: bool, job: Job) -> Outcome:
    """The scores of all paths."""
    assert isinstance(job, PatchingJob)
    found, into = job.texts, paths.direction.into
    own, donors = (found.corrupted, found.clean) if into == "corrupted" else (found.clean, found.corrupted)
    to = ", ".join(f"{place} of {' '.join(heads)}" for place, heads in paths.receivers.items())
    for name in (*(job.settings.heads or ()), *(head for heads in paths.receivers.values() for head in heads)):
        parse_head(name, job.model.config)
    introduce_patches(job, f"paths to {to}", say, keep)
    senders: list[tuple[int, int]] = []
    parts: list[np.ndarray] = []
    for start in range(0, len(own), AT_ONCE):
        place = slice(start, start + AT_ONCE)
        senders, given = _patch(job, paths, own[place], donors[place], start, _part(progress, start, len(own)))
        parts.append(given)
    runs = np.concatenate(parts, axis=1)
    job = replace(job, ablations=[ablation(job.model.config, [sender], MODE) for sender in senders])
    cells = [{"place": HEAD_OUTPUTS, "layer": layer, "head": head, "span": 0} for layer, head in senders]
    receivers = {name: list(heads) for name, heads in paths.receivers.items()}
    told: dict[str, Any] = {"places": [HEAD_OUTPUTS], "spans": list(found.names), "cells": cells}
    told |= {"receivers": receivers, "feed_forward": "frozen" if paths.freeze_feed_forward else "computed"}
    return conclude_patches(job, paths.direction, runs[0], runs[1], runs[2:], told=told, say=say)


def _patch(
    job: PatchingJob,
    paths: Paths,
    own: Sequence[tuple[Encoding, ...]],
    donors: Sequence[tuple[Encoding, ...]],
    start: int,
    report: Progress,
) -> tuple[list[tuple[int, int]], Float[np.ndarray, "runs contrasts ..."]]:
    """The senders, and what is read of some contrasts: of their own run, of the donors', and of each path.

    Args:
        start: which contrast is the first.
    """
    model, scored, pad_id = job.model, job.texts.scored, job.encoded.pad_id
    batch, others = (collate([texts[0] for texts in side], None, pad_id) for side in (own, donors))
    readout = scored.readout
    if scored.at is not None and scored.targets is not None:
        chosen = slice(start, start + len(own))
        readout = _words_at(jnp.asarray(scored.at[chosen]), jnp.asarray(scored.targets[chosen]))
    senders, patched = patch_paths(
        model,
        batch,
        others,
        paths.receivers,
        readout,
        senders=job.settings.heads,
        freeze_feed_forward=paths.freeze_feed_forward,
        report=report,
    )
    runs = np.concatenate([np.stack([np.asarray(readout(model(part))) for part in (batch, others)]), patched])
    if isinstance(model, BertForSentenceEmbedding) and scored.combine is not None:
        second = np.asarray(readout(model(collate([texts[1] for texts in own], None, pad_id))))
        runs = scored.combine(runs, np.broadcast_to(second, runs.shape))
    return senders, runs


def _words_at(at: Array, targets: Array) -> Readout:
    """Log-probabilities of wanted words at chosen tokens of a batch."""

    def read(output: ModelOutput) -> Float[Array, "batch wanted"]:
        assert output.logits is not None
        chosen = jnp.take_along_axis(output.logits, at[:, :, None], axis=1)
        return readouts.log_probabilities(replace(output, logits=chosen), targets)

    return read


def _part(progress: Progress, start: int, contrasts: int) -> Progress:
    """The progress of some contrasts among all."""

    def report(done: float, total: float) -> None:
        progress(min(start + AT_ONCE * done / total, float(contrasts)), float(contrasts))

    return report
