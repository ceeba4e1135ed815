"""Where it acts: `bertjax patch`.

Clean and corrupted texts are run; then each cell of a grid, a place of a layer or a head at a span of tokens, is a run
of the one with what the other has there. All cells are one sweep. `attribution.restoring` says what is made of them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from jaxtyping import Float

from bertjax import arguments
from bertjax.attribution import patching_metrics
from bertjax.checkpoints import DEFAULT_MODEL, BertConfig, locate
from bertjax.data import CONTRASTS, Contrasts, Tokenizer, contrasts_of_rows, read_contrasts
from bertjax.engine import budget_of_texts, estimate, sweep
from bertjax.errors import DataError, InputError
from bertjax.formatting import count_of, format_duration
from bertjax.interventions import HEAD_OUTPUTS, SWEPT, Ablation, Change, every_head, parse_head
from bertjax.model import PLACES
from bertjax.progress import Progress, silent
from bertjax.results import Results
from bertjax.study.derived.contrasts import SPANS, EncodedContrasts, encode_contrasts
from bertjax.study.derived.frame import Outcome, call, run_derived
from bertjax.study.derived.job import DerivedJob, settings_of_options
from bertjax.study.derived.options import JobOptions
from bertjax.study.job import Job, load_model
from bertjax.study.run import check_finite
from bertjax.study.settings import Settings, check_settings, for_this_device, in_float32
from bertjax.tasks import Encoded, TaskResult

KIND, JOURNAL, MODE = "patching", "patches", "patched"
STREAMS = ("hidden_states", "attention_outputs", "feed_forward_outputs")
DEFAULT_LENGTH = 128
INTO = ("corrupted", "clean")
ALLOWED = (
    "model",
    "heads",
    "output",
    "overwrite",
    "data",
    "limit",
    "seed",
    "max_length",
    "precision",
    "attention",
    "memory",
)
DEFINITION = (
    "what is at a place replaced by what is there on the other text of the contrast (activation patching; Vig et al. "
    "2020, Meng et al. 2022)"
)
WHOLE = "everything"  # the run that is the donor's own: the stream before layer 0 is all that a text is to the model


@dataclass(frozen=True)
class Grid:
    """Which places are patched, and in which direction.

    Args:
        places: names of `PLACES` that a sweep can patch; of heads a row for each head, else one for each layer.
        spans: as `encode_contrasts` takes it.
        into: 'corrupted', to see what brings the clean text's score back; or 'clean', to see what takes it away.

    Raises:
        InputError: a place, spans or a direction that there is not.
    """

    places: tuple[str, ...] = STREAMS
    spans: str = "auto"
    into: str = "corrupted"

    def __post_init__(self) -> None:
        places = arguments.several(self.places, "places", f"some of {', '.join(SWEPT)}", str)
        for place in places:
            arguments.one_of(place, "place", SWEPT)
        if not places or len(set(places)) < len(places):
            raise InputError("name each place to patch once, one at least")
        object.__setattr__(self, "places", places)
        arguments.one_of(self.spans, "spans", SPANS)
        arguments.one_of(self.into, "into", INTO)

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


def patch(
    model: str | Path = DEFAULT_MODEL,
    contrasts: str | Path | Sequence[Mapping[str, str]] = (),
    *,
    places: Iterable[str] = STREAMS,
    spans: str = "auto",
    into: str = "corrupted",
    progress: Progress | bool = True,
    **options: Unpack[JobOptions],
) -> Results:
    """Where in text and model a contrast acts: `bertjax patch` as a call.

    Args:
        model: a masked-word model, classifier or sentence embedder.
        contrasts: a file, or dicts, with `clean` and `corrupted` texts of as many tokens; for a masked-word model with
            one place marked by [MASK], and its `good` and `bad` words; for a sentence embedder with a `second` text.
        places: what is patched: 'hidden_states' (the residual stream before a layer), 'attention_outputs',
            'feed_forward_outputs', for each layer; 'head_outputs', 'queries', 'keys', 'values' for each head.
        spans: 'tokens', 'regions', or 'auto' for tokens where all texts have as many, and not too many.
        into: which text is run with the other's values: 'corrupted' or 'clean'.
        progress: True shows a bar; or a function called with the work done and the total work.
        options: `output`, `limit`, `heads` and others that do not say what is ablated.

    Returns: results with a row for each cell of the grid; metric 'restored' (into='clean': 'lost') is the share of the
        way from the patched text's score to the donor's, 'score' the score itself. `summary["patching"]` says what each
        cell is.

    Raises:
        BertjaxError: whatever is wrong with model, contrasts or options.

    >>> import bertjax
    >>> pairs = [{"clean": "A man is eating", "corrupted": "A man is running", "second": "A man eats"}]
    >>> found = bertjax.patch(contrasts=pairs, places=["hidden_states"], progress=False)
    >>> [row.name for row in sorted(found.rows_of("restored"), key=lambda row: -row.score)[:1]]
    ['hidden_states 0 at 4']
    """
    grid = Grid(tuple(places), spans, into)
    return call_on_contrasts(partial(run_patching, grid=grid), model, contrasts, options, progress)


def call_on_contrasts(
    run: Callable[..., Results],
    model: str | Path,
    contrasts: str | Path | Sequence[Mapping[str, str]],
    options: Mapping[str, Any],
    progress: Progress | bool,
) -> Results:
    """Run patches as a call does, on the contrasts of a file or of dicts."""
    in_file = isinstance(contrasts, str | Path)
    settings = settings_of_options(options, model=model, data=contrasts if in_file else None)
    given = None if isinstance(contrasts, str | Path) else contrasts_of_rows(contrasts)
    return call(partial(run, contrasts=given), settings, progress, "patching")


def run_patching(
    settings: Settings,
    grid: Grid,
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
    settings = settings_of_patches(settings, contrasts)
    if settings.heads is not None and not any(PLACES[place].of_heads for place in grid.places):
        raise InputError(f"{', '.join(grid.places)} are of whole layers: leave heads out")
    load = partial(load_contrasts, grid.spans, grid.into, contrasts, say)
    run = partial(_run, grid, say, progress, keep)
    return run_derived(settings, run, JOURNAL, say=say, weighing=weighing, keep=keep, load=load)


def settings_of_patches(settings: Settings, contrasts: Contrasts | None) -> Settings:
    """The settings of patches on this device.

    Raises:
        InputError: settings that patches do not have, or no contrasts.
    """
    check_settings(settings)
    defaults = Settings()
    for name in vars(defaults):
        if name not in ALLOWED and getattr(settings, name) != getattr(defaults, name):
            raise InputError(f"patches have no {name}: leave it out")
    if contrasts is None and settings.data is None:
        raise InputError("give contrasts: a file of clean and corrupted texts")
    if settings.precision == "bfloat16":
        raise InputError("patches are computed in float32: shares of small differences need it")
    return for_this_device(in_float32(replace(settings, task=CONTRASTS.name, mode=MODE)))


@dataclass(frozen=True)
class PatchingJob(DerivedJob):
    """A job of patches.

    Args:
        contrasts: as the model reads them.
    """

    contrasts: EncodedContrasts | None = None

    @property
    def texts(self) -> EncodedContrasts:
        """The contrasts."""
        assert self.contrasts is not None
        return self.contrasts


def load_contrasts(
    spans: str, into: str, contrasts: Contrasts | None, say: Callable[[str], None], settings: Settings
) -> PatchingJob:
    """Model and contrasts, tokenised; without ablations yet.

    Args:
        spans, into: as `Grid` has them.
        contrasts: in place of the settings' file.
        say: called with a line about those that are left out.
    """
    directory = locate(settings.model)
    model = load_model(settings, directory)
    if contrasts is None:
        assert settings.data is not None
        memory = budget_of_texts(settings.memory_budget)
        contrasts = read_contrasts(settings.data, memory)
    contrasts = contrasts.limited(settings.limit, settings.seed)
    tokenizer = Tokenizer.from_pretrained(directory)
    length = min(settings.max_length or DEFAULT_LENGTH, model.config.max_tokens)
    found = encode_contrasts(model, tokenizer, contrasts, length, spans)
    if found.note:
        say(found.note)
    examples = found.contrasts.examples
    encodings = tuple(own[0] for own in (found.corrupted if into == "corrupted" else found.clean))
    encoded = Encoded(KIND, encodings, tokenizer.pad_id, len(examples), labels=np.zeros(len(examples)))
    metrics = patching_metrics(found.scored.label, lost=into == "clean")
    return PatchingJob(settings, model, directory, (), examples, encoded, of_outputs=metrics, contrasts=found)


def _name(change: Change, span: int) -> str:
    """A cell's name: 'hidden_states 3 at 5', '3.1 at 5', 'queries 3.1 at 5'."""
    row = f"{change.layer}.{change.head}" if PLACES[change.place].of_heads else str(change.layer)
    place = "" if change.place == HEAD_OUTPUTS else f"{change.place} "
    return f"{place}{row} at {span}"


def _run(grid: Grid, say: Callable[[str], None], progress: Progress, keep: bool, job: Job) -> Outcome:
    """Run all cells, and keep of each contrast the score of the patched run, of its own and of the donor's."""
    assert isinstance(job, PatchingJob)
    found, settings = job.texts, job.settings
    cells = grid.cells(job.model.config, len(found.names), settings.heads)
    job = replace(job, ablations=[Ablation(_name(change, span), (change,)) for change, span in cells])
    places = f"{', '.join(grid.places)} at {count_of(len(found.names), 'span')}"
    introduce_patches(job, f"{count_of(len(cells), 'cell')} ({places})", say, keep)
    whole = Ablation(WHOLE, (Change(0, 0, MODE, place="hidden_states"),))
    texts, donors = (found.corrupted, found.clean) if grid.into == "corrupted" else (found.clean, found.corrupted)
    journal = settings.directory / JOURNAL if keep else None
    given: dict[str, Any] = {
        "combine": found.scored.combine,
        "at": found.scored.at,
        "targets": found.scored.targets,
        "spans": found.spans,
        "memory": settings.memory,
        "attention": settings.attention,
    }
    cost = estimate(job.model, texts, [whole, *job.ablations], found.scored.readout, **given)
    say(f"all cells on this device: about {format_duration(cost.seconds)}")
    swept = sweep(
        job.model,
        texts,
        [whole, *job.ablations],
        found.scored.readout,
        **given,
        donors=donors,
        journal=journal,
        replace_journal=settings.overwrite,
        settings=settings.compared(),
        progress=progress,
        say=say,
    )
    check_finite([whole, *job.ablations], TaskResult(swept.base, swept.outputs, swept.ablations), journal)
    described = [
        {"place": change.place, "layer": change.layer, "head": _head(change), "span": span} for change, span in cells
    ]
    told = {"places": list(grid.places), "into": grid.into, "spans": list(found.names), "cells": described}
    return conclude_patches(job, swept.base, swept.outputs[0], swept.outputs[1:], told)


def introduce_patches(job: PatchingJob, what: str, say: Callable[[str], None], keep: bool) -> None:
    """Say what is going to be done.

    Args:
        what: how many patches, and of which kind.
        keep: whether anything is written.
    """
    settings, examples = job.settings, job.examples
    say(f"{job.model.class_name} {settings.model}: {what}, {count_of(len(examples), 'contrast')} ({examples.source})")
    if keep:
        say(f"results go to {settings.directory}")


def conclude_patches(
    job: PatchingJob,
    own: Float[np.ndarray, "contrasts ..."],
    donors: Float[np.ndarray, "contrasts ..."],
    patched: Float[np.ndarray, "runs contrasts ..."],
    told: Mapping[str, Any],
) -> Outcome:
    """Scores of all patches beside those of both texts.

    Args:
        own, donors: what was read of the texts that are patched, and of their donors.
        patched: of all patches.
        told: what a summary says of them: `into` and others.

    Raises:
        DataError: there is nothing to restore.
    """
    runs = [part.astype(np.float64) for part in (own, donors)]
    clean, corrupted = runs[::-1] if told["into"] == "corrupted" else runs
    scores = job.texts.scored.score(np.stack([*runs, *patched.astype(np.float64)]), clean, corrupted)
    _check_scores(scores)
    numbers = np.stack([scores, *(np.broadcast_to(scores[run], scores.shape) for run in (0, 1))], axis=-1)
    ends = {"own_score": float(scores[0].mean()), "donor_score": float(scores[1].mean())}
    described = {**told, "score": job.texts.scored.label, **ends}
    result = TaskResult(numbers[0], numbers[2:], tuple(job.ablations))
    mode = {"name": MODE, "definition": DEFINITION, "title": "patched from the other text"}
    return Outcome(job, result, None, {"patching": described, "mode": mode})


def _head(change: Change) -> int | None:
    return change.head if PLACES[change.place].of_heads else None


def _check_scores(scores: Float[np.ndarray, "runs contrasts"]) -> None:
    """Raise `DataError` where there is nothing to restore."""
    if np.abs(scores[1].mean() - scores[0].mean()) <= 1e-6 * max(1.0, np.abs(scores[:2]).max()):
        raise DataError("clean and corrupted texts have the same score on average: there is nothing to restore")
