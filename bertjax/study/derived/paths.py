"""Which heads write what others read: `bertjax patch --paths-to`.

A row for each head that comes before the last receiver: the share of a contrast's score that the path from it to the
receivers restores, through nothing else (`attribution.patch_paths`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertjax import arguments
from bertjax.attribution import RECEIVING, patch_paths
from bertjax.data import Contrasts, Encoding, collate
from bertjax.errors import InputError
from bertjax.interventions import HEAD_OUTPUTS, Readout, ablation, parse_head, readouts
from bertjax.model import BertForSentenceEmbedding, ModelOutput
from bertjax.progress import Progress, silent
from bertjax.results import Results
from bertjax.study.derived.frame import Outcome, run_derived
from bertjax.study.derived.patches import (
    MODE,
    ContrastOptions,
    PatchingJob,
    analysis_of_patches,
    conclude_patches,
    introduce_patches,
    load_contrasts,
    settings_of_patches,
)
from bertjax.study.job import Job
from bertjax.study.options import Heads, check_option, option
from bertjax.study.settings import Settings

AT_ONCE = 32  # contrasts


@dataclass(frozen=True, kw_only=True)
class PathsOptions(ContrastOptions):
    """Which paths are patched.

    Args:
        receivers: of 'queries', 'keys' and 'values' the heads that read, such as {'queries': ['3.7']}.
        freeze_feed_forward: freeze the feed-forward layers on the way too.

    Raises:
        InputError: no receivers, or other sites.
    """

    receivers: Any = option(None, "PLACE=L.H", flag="--paths-to")
    freeze_feed_forward: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.instance(self.receivers or {}, "receivers", Mapping, "a dict such as {'queries': ['3.7']}")
        for place in self.receivers or {}:
            arguments.one_of(place, "a receiver", RECEIVING)
        plain = {place: check_option(heads, place, Heads) for place, heads in (self.receivers or {}).items()}
        if not any(plain.values()):
            raise InputError("name receivers: heads whose queries, keys or values receive")
        object.__setattr__(self, "receivers", plain)

    @property
    def recorded(self) -> dict[str, Any]:
        """The options as `summary.json` has them."""
        feed_forward = {"freeze_feed_forward": self.freeze_feed_forward}
        return {"receivers": self.receivers, "direction": self.direction, **feed_forward}


def parse_receivers(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
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
    return receivers


def run_paths(
    settings: Settings,
    paths: PathsOptions,
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
    load = partial(load_contrasts, "all", paths, contrasts, say)
    run = partial(_run, paths, say, progress, keep)
    usual = {"direction": ContrastOptions().direction, "freeze_feed_forward": False}
    settings = settings_of_patches(settings, contrasts, "paths", paths.recorded, usual)
    settings = replace(settings, attention="explicit")
    analysis = analysis_of_patches("paths", paths.recorded, contrasts)
    return run_derived(settings, run, analysis, say=say, weighing=weighing, keep=keep, load=load)


def _run(paths: PathsOptions, say: Callable[[str], None], progress: Progress, keep: bool, job: Job) -> Outcome:
    """The scores of all paths."""
    assert isinstance(job, PatchingJob)
    found, into = job.texts, paths.into
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
    metadata: dict[str, Any] = {"places": [HEAD_OUTPUTS], "spans": list(found.names), "cells": cells}
    metadata |= {"receivers": receivers, "feed_forward": "frozen" if paths.freeze_feed_forward else "computed"}
    return conclude_patches(job, paths, runs[0], runs[1], runs[2:], metadata=metadata, say=say)


def _patch(
    job: PatchingJob,
    paths: PathsOptions,
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
