"""What disabling heads or layers does to a score: how many help and hurt, by how much, and how sure that is."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Num

from bertjax import intervals
from bertjax.metrics import METRICS, predictions_from_logits, score
from bertjax.page import format_change
from bertjax.report import NOTHING
from bertjax.resampling import chunk_size, make_scorer, score_draws

LEVEL = 95  # per cent, of all intervals


@dataclass(frozen=True)
class Effects:
    """Scores by one metric with each place (head or layer) disabled in turn, in several modes.

    Args:
        metric: its name.
        base: the score with nothing disabled.
        scores: with each place disabled.
        resampled: changes against the base on examples drawn with replacement.
        flips: of a metric of predictions, how many examples become right and become wrong.
    """

    metric: str
    base: float
    scores: Float[np.ndarray, "modes places"]
    resampled: Float[np.ndarray, "draws modes places"]
    flips: Int[np.ndarray, "2 modes places"] | None = None

    @property
    def label(self) -> str:
        """The metric's name for people."""
        return METRICS[self.metric].label

    @property
    def changes(self) -> Float[np.ndarray, "modes places"]:
        """Against the base, in points."""
        return 100 * (self.scores - self.base)

    @property
    def intervals(self) -> Float[np.ndarray, "ends modes places"]:
        """Of each change, in points: how far it may be the luck of the examples."""
        return 100 * _interval(self.resampled)

    @property
    def mean_intervals(self) -> Float[np.ndarray, "ends modes"]:
        """Of the mean change over all places where it is defined, in points."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return 100 * _interval(np.nanmean(self.resampled, axis=-1))


def _interval(values: Float[np.ndarray, "draws ..."]) -> Float[np.ndarray, "ends ..."]:
    """Ends of an interval. Draws for which a score is undefined are left out; NaN where it always is."""
    return intervals.percentile(values.reshape(len(values), -1), LEVEL / 100).reshape(2, *values.shape[1:])


def measure(
    metric: str,
    outputs: Float[np.ndarray, "runs examples *labels"],
    labels: Num[np.ndarray, " examples"],
    positive: int,
    modes: int,
    counts: Int[np.ndarray, "draws examples"],
) -> Effects:
    """The effects by a metric.

    Args:
        outputs: of the base, then of every place in the first mode, in the second, and so on.
        positive: the label that counts as yes.
        counts: how often each example is drawn.
    """
    scores = score(metric, outputs, labels, positive)
    size = chunk_size(len(labels), len(outputs))
    chunks = [counts[start : start + size] for start in range(0, len(counts), size)]
    resampled = score_draws(make_scorer(metric, outputs, labels, positive), chunks)
    changes = (resampled[:, 1:] - resampled[:, :1]).reshape(len(counts), modes, -1)
    flips = None
    if METRICS[metric].reads == "predictions":
        right = predictions_from_logits(outputs) == labels
        became = np.stack([right[1:] & ~right[0], ~right[1:] & right[0]])
        flips = became.sum(-1).reshape(2, modes, -1)
    return Effects(metric, float(scores[0]), scores[1:].reshape(modes, -1), changes, flips)


def summarise(effects: Effects, mode: int, names: Sequence[str]) -> dict[str, Any]:
    """How many places raise, leave or lower the score when disabled, the extremes, and what a random one does.

    Args:
        mode: its number.
        names: of the places.
    """
    changes, (low, high) = effects.changes[mode], effects.intervals[:, mode]
    known = changes[np.isfinite(changes)]
    ends = effects.mean_intervals[:, mode]
    return {
        "raise": int((known >= NOTHING).sum()),
        "leave": int((np.abs(known) < NOTHING).sum()),
        "lower": int((known <= -NOTHING).sum()),
        "undefined": len(changes) - len(known),
        "raise_beyond_noise": int((low > 0).sum()),
        "lower_beyond_noise": int((high < 0).sum()),
        "largest_gain": _extreme(effects, mode, names, 1),
        "largest_loss": _extreme(effects, mode, names, -1),
        "random": {
            "mean": _rounded(known.mean()) if known.size else None,
            "interval": [_rounded(end) for end in ends],
            "spread": _rounded(known.std(ddof=1)) if known.size > 1 else None,
        },
    }


def _extreme(effects: Effects, mode: int, names: Sequence[str], sign: int) -> dict[str, Any] | None:
    """The place with the largest change of that sign; None where there is none."""
    changes = sign * effects.changes[mode]
    if not (changes >= NOTHING).any():
        return None
    place = int(np.nanargmax(changes))
    found = {
        "name": names[place],
        "score": _rounded(100 * effects.scores[mode, place]),
        "change": _rounded(effects.changes[mode, place]),
        "ties": int((np.abs(changes - changes[place]) < NOTHING / 2).sum()) - 1,
        "interval": [_rounded(end) for end in effects.intervals[:, mode, place]],
    }
    if effects.flips is not None:
        right, wrong = effects.flips[:, mode, place].tolist()
        found |= {"examples_become_right": right, "examples_become_wrong": wrong}
    return found


def _rounded(value: Any) -> float | None:
    return round(float(value), 4) if np.isfinite(value) else None


def rank_correlation(
    first: Float[np.ndarray, " places"], second: Float[np.ndarray, " places"], seed: int
) -> dict[str, Any]:
    """Spearman's correlation over places, with a bootstrap interval over them.

    None where it is undefined; the interval also for fewer than ten places.
    """
    found, *ends = intervals.rank_correlation(first, second, seed)
    return {"spearman": _rounded(found), "interval": [_rounded(end) for end in ends]}


def describe(found: dict[str, Any], mode: str, what: str, places: int) -> str:
    """A mode's summary as a line."""

    def extreme(name: str) -> str:
        one = found[name]
        if one is None:
            return "none"
        flips = ""
        if "examples_become_right" in one:
            flips = f" ({one['examples_become_right']} examples right, {one['examples_become_wrong']} wrong)"
        return f"{what} {one['name']} {format_change(one['change'])}{ties(one)}{flips}"

    def ties(one: dict[str, Any]) -> str:
        return f" (and {one['ties']} more)" if one["ties"] else ""

    random, (low, high) = found["random"], found["random"]["interval"]
    mean = "undefined" if random["mean"] is None else format_change(random["mean"])
    between = "" if low is None else f" ({format_change(low)} to {format_change(high)})"
    return (
        f"{mode}: of {places} {what}s disabled alone {found['raise']} raise the score "
        f"({found['raise_beyond_noise']} beyond noise), {found['leave']} leave it, {found['lower']} lower it "
        f"({found['lower_beyond_noise']} beyond noise); largest gain {extreme('largest_gain')}, "
        f"largest loss {extreme('largest_loss')}; a random {what} {mean}{between}"
    )
