"""Where it acts: `bertjax patch`.

Clean and corrupted texts are run; then each cell of a grid, a place of a layer or a head at a span of tokens, is a run
of the one with what the other has there. All cells are one sweep. `attribution.restoring` says what is made of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from bertjax import arguments
from bertjax.checkpoints import BertConfig
from bertjax.data import Contrasts
from bertjax.engine import SweepResult, estimate, sweep
from bertjax.errors import InputError
from bertjax.formatting import count_of, format_duration
from bertjax.interventions import HEAD_OUTPUTS, SWEPT, Ablation, Change, every_head, parse_head
from bertjax.model import PLACES
from bertjax.progress import Progress, silent
from bertjax.results import Results
from bertjax.study.derived.contrasts import SPANS
from bertjax.study.derived.frame import Outcome, run_derived
from bertjax.study.derived.patches import (
    KIND,
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
from bertjax.study.options import Choices, option
from bertjax.study.run import ON_TOP, check_finite
from bertjax.study.settings import Settings
from bertjax.tasks import TaskResult

JOURNAL = "patches"
# The places of whole layers, which a grid has if none are named.
STREAMS = ("hidden_states", "attention_outputs", "feed_forward_outputs")
WHOLE = "everything"  # the run that is the donor's own: the stream before layer 0 is all that a text is to the model


@dataclass(frozen=True, kw_only=True)
class PatchOptions(ContrastOptions):
    """What is patched.

    Args:
        places: hidden_states (the residual stream), attention_outputs, feed_forward_outputs, of each layer;
            head_outputs, queries, keys, values, of each head.
        spans: tokens, where all texts have as many; regions (before, changed, after, ...); all, one span; auto, tokens
            where all texts have as many and at most 48, else regions.

    Raises:
        InputError: a site or spans that there are not.
    """

    places: Annotated[tuple[str, ...], f"some of {', '.join(SWEPT)}"] = option(STREAMS, "PLACE")
    spans: Annotated[str, Choices(SPANS)] = option("auto", "KIND")

    def __post_init__(self) -> None:
        if isinstance(self.places, str):
            object.__setattr__(self, "places", (self.places,))
        super().__post_init__()
        for place in self.places:
            if place in PLACES and place not in SWEPT:
                raise InputError(f"{place} are read and overridden, but not patched in a grid: take {', '.join(SWEPT)}")
            arguments.one_of(place, "place", SWEPT)
        if not self.places or len(set(self.places)) < len(self.places):
            raise InputError("name each place to patch once, one at least")

    @property
    def recorded(self) -> dict[str, Any]:
        """The options as `summary.json` has them."""
        return {"places": self.places, "spans": self.spans, "direction": self.direction}

    def cells(self, config: BertConfig, spans: int, heads: Sequence[str] | None = None) -> list[tuple[Change, int]]:
        """What each run patches, and at which span.

        Args:
            spans: how many there are.
            heads: only these, where places are of heads; None for all.

        Raises:
            OverrideError: a head that does not exist.
        """
        named = every_head(config) if heads is None else (parse_head(head, config) for head in heads)
        chosen = list(dict.fromkeys(named))
        cells = []
        for place in self.places:
            rows = chosen if PLACES[place].of_heads else [(layer, 0) for layer in range(config.num_hidden_layers)]
            cells += [
                (Change(layer, head, MODE, place=place, at=(span,)), span)
                for layer, head in rows
                for span in range(spans)
            ]
        return cells


def run_patching(
    settings: Settings,
    grid: PatchOptions,
    contrasts: Contrasts | None = None,
    *,
    say: Callable[[str], None] = lambda line: None,
    progress: Progress = silent,
    weighing: Progress = silent,
    keep: bool = True,
) -> Results:
    """Run a grid of patches, weigh what each restores, and write the directory.

    Args:
        settings: which model and data.
        grid: what is patched.
        contrasts: in place of the settings' file.
        say: called with a line at each step.
        progress, weighing: called with the work done and the total work.
        keep: whether anything is written.

    Raises:
        OutputError: the directory cannot be written, holds results already, or an unfinished run of other settings.
        SweepInterrupted: Ctrl-C; what is finished is kept, and the same call resumes.
        BertjaxError: whatever is wrong with model, contrasts or settings.
    """
    settings = settings_of_patches(settings, contrasts, KIND, grid.recorded, PatchOptions().recorded)
    if settings.heads is not None and not any(PLACES[place].of_heads for place in grid.places):
        raise InputError(f"{', '.join(grid.places)} are of whole layers: leave heads out")
    load = partial(load_contrasts, grid.spans, grid, contrasts, say)
    run = partial(_run, grid, say, progress, keep)
    analysis = analysis_of_patches("patching", grid.recorded, contrasts)
    return run_derived(settings, run, analysis, say=say, weighing=weighing, keep=keep, load=load)


def _name(change: Change, span: str) -> str:
    """A cell's name: 'hidden_states 3 at 5', '3.1 at changed', 'queries 3.1 at 5'."""
    row = f"{change.layer}.{change.head}" if PLACES[change.place].of_heads else str(change.layer)
    place = "" if change.place == HEAD_OUTPUTS else f"{change.place} "
    return f"{place}{row} at {span}"


def _run(grid: PatchOptions, say: Callable[[str], None], progress: Progress, keep: bool, job: Job) -> Outcome:
    """Run all cells, and keep of each contrast the score of the patched run, of its own and of the donor's."""
    assert isinstance(job, PatchingJob)
    found, settings = job.texts, job.settings
    every = grid.cells(job.model.config, len(found.names), settings.heads)
    cells = [cell for cell in every if found.can_act(*cell, job.model.config.num_hidden_layers)]
    job = replace(job, ablations=[Ablation(_name(change, found.labels[span]), (change,)) for change, span in cells])
    places = f"{', '.join(grid.places)} at {count_of(len(found.names), 'span')}"
    introduce_patches(job, f"{count_of(len(cells), 'cell')} ({places})", say, keep)
    if len(cells) < len(every):
        say(f"{count_of(len(every) - len(cells), 'cell')} left out: there texts are the same, or nothing is read of it")
    swept = _sweep(job, grid.into, say, progress, keep)
    described = [
        {"place": change.place, "layer": change.layer, "head": _head(change), "span": span} for change, span in cells
    ]
    there = [place for place in grid.places if any(change.place == place for change, _ in cells)]
    metadata = {"places": there, "spans": list(found.names), "cells": described}
    outputs = swept.base, swept.outputs[0], swept.outputs[1:]
    return conclude_patches(job, grid, *outputs, metadata=metadata, say=say)


def _sweep(job: PatchingJob, into: str, say: Callable[[str], None], progress: Progress, keep: bool) -> SweepResult:
    """Run the donors' texts, as the run of all patches at once, and then all cells."""
    found, settings = job.texts, job.settings
    texts, donors = (found.corrupted, found.clean) if into == "corrupted" else (found.clean, found.corrupted)
    runs = [Ablation(WHOLE, (Change(0, 0, MODE, place="hidden_states"),)), *job.ablations]
    journal = settings.directory / JOURNAL if keep else None
    given: dict[str, Any] = {
        "combine": found.scored.combine,
        "at": found.scored.at,
        "targets": found.scored.targets,
        "spans": found.spans,
        "memory": settings.memory,
        "attention": settings.attention,
    }
    cost = estimate(job.model, texts, runs, found.scored.readout, **given)
    say(f"all cells on this device: about {format_duration(cost.seconds)}; {ON_TOP}")
    swept = sweep(
        job.model,
        texts,
        runs,
        found.scored.readout,
        **given,
        donors=donors,
        journal=journal,
        replace_journal=settings.overwrite,
        settings=settings.compared(),
        progress=progress,
        say=say,
    )
    check_finite(runs, TaskResult(swept.base, swept.outputs, swept.ablations), journal)
    return swept


def _head(change: Change) -> int | None:
    return change.head if PLACES[change.place].of_heads else None
