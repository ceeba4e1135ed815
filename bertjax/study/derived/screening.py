"""A screen: gradients choose which ablations are run; a few of those left out are run too, to see what it missed."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import comb
from typing import Any

import numpy as np
from jaxtyping import Float

from bertjax.attribution import head_gradients
from bertjax.errors import InputError
from bertjax.evidence import LEVEL
from bertjax.formatting import count_of
from bertjax.interventions import Ablation, every_head, find_mode
from bertjax.study.job import Derivation, Job, with_ablations
from bertjax.study.outputs import mean_outputs
from bertjax.study.settings import Settings
from bertjax.tasks import TaskResult

FEWEST_AUDITED, AUDITED_SHARE = 10, 4  # of those left out: at least, and one for so many that are chosen


def screen_of(settings: Settings) -> Derivation | None:
    """What a job's screen does; None where the settings ask for none.

    Raises:
        InputError: settings that a screen cannot have.
    """
    if settings.screen is None:
        return None
    if settings.distributed:
        raise InputError("a screen's gradients are computed in one process: leave out --distributed or --screen")
    if settings.engine != "fast" or settings.precision == "bfloat16":
        raise InputError("a screen's gradients are computed by the fast engine, with --precision float32")
    return Derivation(partial(_choose, settings.screen), _say_what_is_missed)


def _choose(count: int, job: Job, say: Callable[[str], None]) -> Job:
    """The job of the ablations that gradients choose, and of some others drawn at random."""
    settings, every = job.settings, job.ablations
    check_screen(count, len(every))
    if job.encoded.objective is None:
        raise InputError(f"{job.examples.task.name} has no loss whose gradients could choose: leave --screen out")
    means = None
    if find_mode(settings.mode).replacement == "mean":
        means = mean_outputs(job.model, job.encoded, settings.texts_at_once)
    say(f"gradients of the {job.encoded.objective.definition} choose {count} of {len(every):,}")
    found = head_gradients(job.model, job.encoded, settings.mode, means=means)
    labelled = found.changes[:, ~np.isnan(found.losses)]
    if not labelled.shape[1]:
        raise InputError("no example has a label: there is no loss whose gradients could choose")
    sizes = predicted_sizes(every, labelled, every_head(job.model.config), settings.mode)
    chosen = np.sort(np.argsort(-sizes, kind="stable")[:count])
    others = np.setdiff1d(np.arange(len(every)), chosen)
    audited = np.sort(np.random.default_rng(settings.seed).permutation(others)[: count_audited(count)])
    return with_ablations(job, [every[place] for place in chosen], [every[place] for place in audited], len(others))


def check_screen(chosen: int, ablations: int) -> None:
    """Raise `InputError` where a screen would leave nothing out."""
    run = chosen + count_audited(chosen)
    if run >= ablations:
        raise InputError(
            f"a screen of {chosen} runs {run} with those it is checked by, of {ablations}: leave --screen out"
        )


def count_audited(chosen: int) -> int:
    """How many of those that a screen leaves out are run too."""
    return max(FEWEST_AUDITED, chosen // AUDITED_SHARE)


def predicted_sizes(
    ablations: Sequence[Ablation],
    changes: Float[np.ndarray, "heads examples"],
    heads: Sequence[tuple[int, int]],
    mode: str,
) -> Float[np.ndarray, " ablations"]:
    """How much gradients say that each ablation changes an example's loss, whichever way: the mean over examples.

    Args:
        changes: of the loss when a head is replaced, to first order.
        heads: which these are.
        mode: of the gradients.

    Raises:
        InputError: an ablation in another mode.
    """
    sizes, places = np.empty(len(ablations)), {head: place for place, head in enumerate(heads)}
    for place, ablation in enumerate(ablations):
        if any(change.mode != mode for change in ablation.changes):
            raise InputError(f"ablation {ablation.name} is not in mode {mode}, whose gradients choose: give one mode")
        rows = [places[change.layer, change.head] for change in ablation.changes]
        sizes[place] = np.abs(changes[rows].sum(axis=0)).mean()
    return sizes


def _say_what_is_missed(job: Job, result: TaskResult) -> tuple[Job, TaskResult, Mapping[str, Any]]:
    """What the summary says of the screen."""
    screen = job.screen
    assert screen is not None
    entries, _ = job.score(result)
    effects = {entry.name: entry.effect for entry in entries}
    kind = "set" if any(entry.layer is None for entry in entries) else "layer" if entries[0].head is None else "head"
    chosen, left_out = len(job.ablations) - len(screen.audited), screen.left_out
    largest = max(screen.audited, key=lambda name: effects[name])
    delta = next(entry.delta for entry in entries if entry.name == largest)
    smaller = sum(effects[name] < effects[largest] for name in effects if name not in screen.audited)
    bound = most_larger(left_out, len(screen.audited))
    measure = job.judges[0].metric.measure
    text = (
        f"Gradients chose {chosen} of {count_of(chosen + left_out, kind)}. Of the {left_out:,} left out, "
        f"{len(screen.audited)} drawn at random were run too: the largest effect among them is "
        f"{measure.with_unit(measure.change(delta))} ({largest}), more than that of {smaller} of those chosen; with "
        f"{100 * LEVEL:.0f} % confidence at most {bound:,} of those left out have a larger one."
    )
    more = {"chosen": chosen, "left_out": left_out, "audited": list(screen.audited), "most_larger": bound}
    return job, result, {"screen": {**more, "largest": largest, "sentence": text}}


def most_larger(count: int, drawn: int, level: float = LEVEL) -> int:
    """With this confidence at most so many of some numbers are larger than the largest of those drawn at random.

    Were there more, the draws would miss all of the largest with a probability below one minus the level.

    Args:
        count: how many numbers there are.
        drawn: how many of them were drawn, without replacement.

    >>> most_larger(52, 10)
    12
    """
    fits = (most for most in range(count) if comb(count - most - 1, drawn) <= (1 - level) * comb(count, drawn))
    return next(fits, max(0, count - drawn))
