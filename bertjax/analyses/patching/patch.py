"""Activation patching: locate the effect of a contrast in text and model. `Study.patch`, `bertjax patch`.

Each cell of a grid (a layer or a head, at a span of tokens) is a run of one text with activations of the other text in
this cell. All cells are one sweep. `patching_metrics` defines the metrics.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from bertjax import arguments
from bertjax.analyses.patching.contrasts import SPANS
from bertjax.analyses.patching.patches import PatchingAnalysis, PatchingJob, introduce_patches, outcome_of_patches
from bertjax.checkpoints import BertConfig
from bertjax.engine import SweepResult, plan_sweep, sweep
from bertjax.errors import InputError
from bertjax.formatting import count_of, format_duration
from bertjax.interventions import HEAD_OUTPUTS, SWEPT, Ablation, Change, list_heads
from bertjax.jobs import NOT_COUNTED, Choices, Context, Outcome, Settings, check_finite, option
from bertjax.models import SITES
from bertjax.tasks import TaskResult

JOURNAL = "patches"
# The default sites: those of whole layers.
STREAMS = ("hidden_states", "attention_outputs", "feed_forward_outputs")
WHOLE = "everything"  # the run that patches the hidden states before layer 0, and equals a run of the other text


@dataclass(frozen=True, kw_only=True)
class Patch(PatchingAnalysis):
    """Locate the effect of a contrast by activation patching.

    Run clean and corrupted texts, then one text with activations of the other, for each cell of a grid (a layer or a
    head, at a span of tokens), all in one sweep. The score of a masked-word model is the log-probability of the good
    word minus that of the bad word; of a classifier, the logit of the clean text's label minus that of the corrupted
    text's label; of a sentence embedder, the similarity with a second text. Results are shares of the difference
    between the scores of the two texts. An interrupted run resumes.

    Args:
        sites: the activations to patch: hidden_states (the residual stream), attention_outputs and
            feed_forward_outputs of each layer; head_outputs, queries, keys and values of each head.
        spans: the spans of tokens: tokens (texts of equal length only); regions (before, changed, after, ...); all
            (one span); auto (tokens if all texts have the same length of at most 48, else regions).

    Raises:
        InputError: an unknown site or kind of spans.
    """

    name, word = "patching", "contrasts-patching"
    example = "bertjax patch --template 'the {} near the door [MASK] old' --words keys/key --good are --bad is"
    own = ("sites", "spans", "into", "only_right")
    journals = JOURNAL

    sites: Annotated[tuple[str, ...], f"some of {', '.join(SWEPT)}"] = option(STREAMS, "SITE")
    spans: Annotated[str, Choices(SPANS)] = option("auto", "KIND")

    def __post_init__(self) -> None:
        if isinstance(self.sites, str):
            object.__setattr__(self, "sites", (self.sites,))
        super().__post_init__()
        for site in self.sites:
            if site in SITES and site not in SWEPT:
                raise InputError(f"{site} cannot be patched in a grid: take {', '.join(SWEPT)}")
            arguments.check_choice(site, "site", SWEPT)
        if not self.sites or len(set(self.sites)) < len(self.sites):
            raise InputError("name each site to patch once, one at least")

    def check(self, settings: Settings) -> None:
        """Raise `InputError` for heads if only whole layers are patched."""
        super().check(settings)
        if self.heads is not None and not any(SITES[site].of_heads for site in self.sites):
            raise InputError(f"{', '.join(self.sites)} are of whole layers: leave heads out")

    def run(self, context: Context) -> Outcome:
        """Run all cells of the grid as one sweep."""
        job = context.job
        assert isinstance(job, PatchingJob)
        found = job.contrasts
        every = self.cells(job.model.config, len(found.names))
        cells = [cell for cell in every if found.can_act(*cell, job.model.config.num_hidden_layers)]
        runs = [Ablation(_name(change, found.labels[span]), (change,)) for change, span in cells]
        sites = f"{', '.join(self.sites)} at {count_of(len(found.names), 'span')}"
        introduce_patches(job, f"{count_of(len(cells), 'cell')} ({sites})", context)
        if len(cells) < len(every):
            left_out = count_of(len(every) - len(cells), "cell")
            context.say(f"{left_out} left out: there texts are the same, or nothing is read of it")
        swept = _sweep(job, runs, self.into, context)
        described = [
            {"place": change.site, "layer": change.layer, "head": _head(change), "span": span} for change, span in cells
        ]
        there = [site for site in self.sites if any(change.site == site for change, _ in cells)]
        metadata = {"places": there, "spans": list(found.names), "cells": described}
        both = swept.base, swept.outputs[0]
        return outcome_of_patches(job, self, runs, both, swept.outputs[1:], metadata=metadata, say=context.say)

    def cells(self, config: BertConfig, spans: int) -> list[tuple[Change, int]]:
        """The patch and the span of each cell.

        Args:
            config: the config of the model.
            spans: the number of spans.

        Raises:
            OverrideError: a head does not exist.
        """
        chosen = list_heads(self.heads, config)
        cells = []
        for site in self.sites:
            rows = chosen if SITES[site].of_heads else [(layer, 0) for layer in range(config.num_hidden_layers)]
            cells += [
                (Change(layer, head, self.mode, site=site, at=(span,)), span)
                for layer, head in rows
                for span in range(spans)
            ]
        return cells


def _name(change: Change, span: str) -> str:
    """A cell's name: 'hidden_states 3 at 5', '3.1 at changed', 'queries 3.1 at 5'."""
    row = f"{change.layer}.{change.head}" if SITES[change.site].of_heads else str(change.layer)
    site = "" if change.site == HEAD_OUTPUTS else f"{change.site} "
    return f"{site}{row} at {span}"


def _sweep(job: PatchingJob, patches: Sequence[Ablation], into: str, context: Context) -> SweepResult:
    """Run the source text (as a patch of its embeddings), and then all patches."""
    found, settings = job.contrasts, job.settings
    texts, sources = (found.corrupted, found.clean) if into == "corrupted" else (found.clean, found.corrupted)
    runs = [Ablation(WHOLE, (Change(0, 0, settings.analysis.mode, site="hidden_states"),)), *patches]
    scored, journal = found.scored, context.journal(JOURNAL)
    options: dict[str, Any] = {
        "combine": scored.combine,
        "at": scored.at,
        "targets": scored.targets,
        "spans": found.spans,
    }
    limits: dict[str, Any] = {"memory": settings.memory, "attention": settings.attention}
    cost = plan_sweep(job.model, texts, runs, scored.readout, **options, **limits)
    context.say(f"all cells on this device: about {format_duration(cost.seconds)}; {NOT_COUNTED}")
    options |= settings.sweep_options(journal)
    reports: dict[str, Any] = {"progress": context.progress, "say": context.say}
    swept = sweep(job.model, texts, runs, scored.readout, **options, sources=sources, **reports)
    check_finite(runs, TaskResult(swept.base, swept.outputs, swept.ablations), journal)
    return swept


def _head(change: Change) -> int | None:
    return change.head if SITES[change.site].of_heads else None
