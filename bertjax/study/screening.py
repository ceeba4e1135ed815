"""A screen: gradients choose which ablations are run; a few of those left out are run too, to see what it missed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import comb
from typing import Any

import numpy as np
from jaxtyping import Float

from bertjax.attribution import head_gradients
from bertjax.errors import InputError
from bertjax.evidence import LEVEL
from bertjax.formatting import count_of
from bertjax.interventions import Ablation, every_head
from bertjax.study.job import Derive, Job, Prepare
from bertjax.study.outputs import means_of
from bertjax.study.settings import Settings
from bertjax.tasks import TaskResult

FEWEST_AUDITED, AUDITED_SHARE = 10, 4  # of those left out: at least, and one for so many that are chosen


def screen_of(settings: Settings) -> Prepare | None:
    """What a job's screen does; None where the settings ask for none.

    Raises:
        InputError: settings that a screen cannot have.
    """
    if settings.screen is None:
        return None
    if settings.shard:
        raise InputError("--screen cannot be sharded: its gradients need all examples; leave out --screen or --shard")
    if settings.engine != "fast" or settings.precision == "bfloat16":
        raise InputError("a screen's gradients are computed by the fast engine, with --precision float32")
    return partial(_choose, settings.screen)


def _choose(count: int, job: Job, say: Callable[[str], None]) -> tuple[Job, Derive]:
    """The job of the ablations that gradients choose, and of some others drawn at random; and what the summary says."""
    settings, every = job.settings, job.ablations
    check_screen(count, len(every))
    if job.encoded.objective is None:
        raise InputError(f"{job.examples.task.name} has no loss whose gradients could choose: leave --screen out")
    say(f"gradients of the {job.encoded.objective.definition} choose {count} of {len(every):,}")
    found = head_gradients(job.model, job.encoded, settings.mode, means=means_of(job))
    labelled = found.changes[:, ~np.isnan(found.losses)]
    if not labelled.shape[1]:
        raise InputError("no example has a label: there is no loss whose gradients could choose")
    sizes = predicted_sizes(every, labelled, every_head(job.model.config), settings.mode)
    chosen = np.sort(np.argsort(-sizes, kind="stable")[:count])
    others = np.setdiff1d(np.arange(len(every)), chosen)
    audited = np.sort(np.random.default_rng(settings.seed).permutation(others)[: count_audited(count)])
    names = tuple(every[place].name for place in audited)
    chosen_job = replace(job, ablations=[every[place] for place in (*chosen, *audited)])
    return chosen_job, partial(_say_what_is_missed, names, len(others))


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


def _say_what_is_missed(
    audited: Sequence[str], left_out: int, job: Job, result: TaskResult
) -> tuple[Job, TaskResult, Mapping[str, Any]]:
    """What the summary says of a screen.

    Args:
        audited: names of those left out that were run all the same.
        left_out: how many were not chosen.
    """
    entries, _ = job.score(result)
    effects = {entry.name: entry.effect for entry in entries}
    kind = "set" if any(entry.layer is None for entry in entries) else "layer" if entries[0].head is None else "head"
    chosen = len(job.ablations) - len(audited)
    largest = max(audited, key=lambda name: effects[name])
    delta = next(entry.delta for entry in entries if entry.name == largest)
    smaller = sum(effects[name] < effects[largest] for name in effects if name not in audited)
    bound = most_larger(left_out, len(audited))
    measure = job.judges[0].metric.measure
    text = (
        f"Gradients chose {chosen} of {count_of(chosen + left_out, kind)}. Of the {left_out:,} left out, "
        f"{len(audited)} drawn at random were run too: the largest effect among them is "
        f"{measure.with_unit(measure.change(delta))} ({largest}), more than that of {smaller} of those chosen; with "
        f"{100 * LEVEL:.0f} % confidence at most {bound:,} of those left out have a larger one."
    )
    more = {"chosen": chosen, "left_out": left_out, "audited": list(audited), "most_larger": bound}
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
    missed = (1 - level) * comb(count, drawn)
    return next(most for most in range(count) if comb(count - most - 1, drawn) <= missed)
