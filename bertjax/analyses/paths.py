"""Path patching: which heads write what the receivers read. `Study.patch_paths`, `bertjax patch --paths-to`.

A row for each head that comes before the last receiver: the share of a contrast's score that the path from it to the
receivers restores, through nothing else (`attribution.patch_paths`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertjax import arguments
from bertjax.analyses.patches import PatchingAnalysis, PatchingJob, introduce_patches, outcome_of_patches
from bertjax.attribution import RECEIVING, patch_paths
from bertjax.data import Encoding, collate
from bertjax.errors import InputError
from bertjax.interventions import HEAD_OUTPUTS, Readout, ablation, parse_head, readouts
from bertjax.jobs import Context, Heads, Outcome, check_option, option
from bertjax.model import BertForSentenceEmbedding, ModelOutput
from bertjax.progress import Progress

AT_ONCE = 32  # contrasts


@dataclass(frozen=True, kw_only=True)
class PatchPaths(PatchingAnalysis):
    """Which paths are patched.

    Args:
        receivers: of 'queries', 'keys' and 'values' the heads that read, such as {'queries': ['3.7']}.
        freeze_feed_forward: freeze the feed-forward layers on the way too.

    Raises:
        InputError: no receivers, or other sites.
    """

    name, word = "paths", "contrasts-paths"
    reads = PatchingAnalysis.reads - {"memory", "attention"}
    own = ("receivers", "into", "only_right", "freeze_feed_forward")

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
    def explicit(self) -> bool:
        """Paths are computed by calls of the model with explicit attention."""
        return True

    @property
    def kind_of_spans(self) -> str:
        """One span of all tokens."""
        return "all"

    def run(self, context: Context) -> Outcome:
        """The scores of all paths."""
        job = context.job
        assert isinstance(job, PatchingJob)
        found = job.contrasts
        sides = (found.corrupted, found.clean) if self.into == "corrupted" else (found.clean, found.corrupted)
        to = ", ".join(f"{place} of {' '.join(heads)}" for place, heads in self.receivers.items())
        for name in (*(self.heads or ()), *(head for heads in self.receivers.values() for head in heads)):
            parse_head(name, job.model.config)
        introduce_patches(job, f"paths to {to}", context)
        senders: list[tuple[int, int]] = []
        parts: list[np.ndarray] = []
        count = len(job.examples)
        for start in range(0, count, AT_ONCE):
            index = slice(start, start + AT_ONCE)
            report = _part(context.progress, start, count)
            senders, outputs = _patch(job, self, sides[0][index], sides[1][index], start, report)
            parts.append(outputs)
        runs = np.concatenate(parts, axis=1)
        patches = [ablation(job.model.config, [sender], self.mode) for sender in senders]
        cells = [{"place": HEAD_OUTPUTS, "layer": layer, "head": head, "span": 0} for layer, head in senders]
        metadata: dict[str, Any] = {"places": [HEAD_OUTPUTS], "spans": list(found.names), "cells": cells}
        metadata |= {"receivers": {name: list(heads) for name, heads in self.receivers.items()}}
        metadata |= {"feed_forward": "frozen" if self.freeze_feed_forward else "computed"}
        return outcome_of_patches(job, self, patches, (runs[0], runs[1]), runs[2:], metadata=metadata, say=context.say)


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


def _patch(
    job: PatchingJob,
    paths: PatchPaths,
    own: Sequence[tuple[Encoding, ...]],
    donors: Sequence[tuple[Encoding, ...]],
    start: int,
    report: Progress,
) -> tuple[list[tuple[int, int]], Float[np.ndarray, "runs contrasts ..."]]:
    """The senders, and what is read of some contrasts: of their own run, of the donors', and of each path.

    Args:
        start: which contrast is the first.
    """
    model, scored, pad_id = job.model, job.contrasts.scored, job.encoded.pad_id
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
        senders=paths.heads,
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
