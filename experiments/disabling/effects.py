"""Effects of disabling heads or layers on a score: how many raise or lower it, by how much, and with what certainty."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Num

from bertjax.evidence import (
    METRICS,
    SCORE,
    Metric,
    Q,
    bootstrap_counts,
    make_scorer,
    percentile,
    rank_correlation,
    score_draws,
)
from bertjax.formatting import format_change, format_p, is_bound
from bertjax.results import Row, column

Places = Float[np.ndarray, " places"]
PARTS = ("change", "low", "high", "p", "q")


@dataclass(frozen=True)
class Effects:
    """The effect on one score, in one mode, of disabling each place (a head, a layer, or a set of them) alone.

    Args:
        metric: name of the score.
        base: the score with nothing disabled, as the metric defines it.
        change: from the base, in points; NaN where undefined.
        low, high: the 95 % interval of each change over examples.
        p, q: of the paired test, before and after correction by Benjamini and Hochberg over all places.
        mean: of the changes: the effect of a random place.
        mean_interval: its 95 % interval over examples.
        gains, losses: for a metric of predictions, the number of examples that become right and wrong.
        least_p: the smallest p that random swaps can give; None if the test is exact.
    """

    metric: str
    base: float
    change: Places
    low: Places
    high: Places
    p: Places
    q: Places
    mean: float
    mean_interval: tuple[float, float]
    gains: Int[np.ndarray, " places"] | None = None
    losses: Int[np.ndarray, " places"] | None = None
    least_p: float | None = None

    @property
    def label(self) -> str:
        """The display name of the metric."""
        return METRICS[self.metric].label

    @property
    def significant(self) -> Bool[np.ndarray, " places"]:
        """Which changes are significant at the false discovery rate `evidence.Q`."""
        return np.nan_to_num(self.q, nan=1.0) < Q

    @property
    def spread(self) -> float:
        """Standard deviation of the changes over places."""
        defined = self.change[np.isfinite(self.change)]
        return float(defined.std(ddof=1)) if defined.size > 1 else float("nan")

    def format_q(self, place: int) -> str:
        """The q of a place in two digits, as an upper bound where p is the smallest possible."""
        value = float(self.q[place])
        bounded = is_bound(float(self.p[place]), self.least_p)
        return format_p(value, value if bounded else None) if np.isfinite(value) else "undefined"

    def to_dict(self) -> dict[str, Any]:
        """For `numbers.json`: changes to 1/10,000 of a point, p and q to four digits, None where undefined."""
        exact = {name: [short_or_none(value) for value in getattr(self, name)] for name in ("p", "q")}
        rounded = {name: [rounded_or_none(value) for value in getattr(self, name)] for name in PARTS[:3]}
        flips = {name: getattr(self, name) for name in ("gains", "losses")}
        return {
            **rounded,
            **exact,
            **{name: values.tolist() for name, values in flips.items() if values is not None},
            "least_p": None if self.least_p is None else short_or_none(self.least_p),
            "mean": rounded_or_none(self.mean),
            "mean_interval": [rounded_or_none(end) for end in self.mean_interval],
        }


def read_effects(metric: str, base: float | None, entry: dict[str, Any]) -> Effects:
    """Read what `Effects.to_dict` wrote."""
    parts = {name: np.array([_number(value) for value in entry[name]]) for name in PARTS}
    flips = {name: np.array(entry[name]) for name in ("gains", "losses") if name in entry}
    low, high = (_number(end) for end in entry["mean_interval"])
    return Effects(
        metric,
        _number(base),
        **parts,
        **flips,
        mean=_number(entry["mean"]),
        mean_interval=(low, high),
        least_p=entry.get("least_p"),
    )


def make_effects(rows: Sequence[Row], mean_draws: Float[np.ndarray, " draws"], least_p: float | None = None) -> Effects:
    """The effects on one metric.

    Args:
        rows: of all places in one mode (`Results.rows_of`).
        mean_draws: their mean change in each draw of examples (`draw_means`).
        least_p: the smallest p that the test of the metric can give (`Results.least_p`).
    """
    columns = {name: column(rows, name) for name in ("difference", "low", "high", "p", "q")}
    gains, losses = (
        None if getattr(rows[0], name) is None else np.array([getattr(row, name) for row in rows])
        for name in ("gains", "losses")
    )
    change = 100 * columns["difference"]
    low, high = 100 * percentile(mean_draws[:, None])[:, 0]
    return Effects(
        metric=rows[0].metric,
        base=float(column(rows[:1], "base")[0]),
        change=change,
        low=100 * columns["low"],
        high=100 * columns["high"],
        p=columns["p"],
        q=columns["q"],
        mean=mean_of(change),
        mean_interval=(float(low), float(high)),
        gains=gains,
        losses=losses,
        least_p=least_p,
    )


def draw_changes(
    metric: Metric | str,
    outputs: Float[np.ndarray, "runs examples *labels"],
    labels: Num[np.ndarray, " examples"],
    positive: int,
    draws: int,
    seed: int,
) -> Float[np.ndarray, "draws places"]:
    """Changes of the metric on examples drawn with replacement; the first run is the base."""
    counts = bootstrap_counts(len(labels), draws, seed, len(outputs))
    drawn = score_draws(make_scorer(metric, outputs, labels, positive), counts)
    return drawn[:, 1:] - drawn[:, :1]


def draw_means(changes: Float[np.ndarray, "draws places"]) -> Float[np.ndarray, " draws"]:
    """The mean change in each draw over the places where it is defined; NaN if it is defined nowhere."""
    defined = np.isfinite(changes)
    sums, counts = np.where(defined, changes, 0.0).sum(1), defined.sum(1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def mean_of(values: Float[np.ndarray, "..."]) -> float:
    """The mean of the defined values; NaN if there are none."""
    defined = values[np.isfinite(values)]
    return float(defined.mean()) if defined.size else float("nan")


def summarise(effects: Effects, names: Sequence[str]) -> dict[str, Any]:
    """How many places raise, leave or lower the score when disabled, and the extremes.

    Args:
        names: of the places.
    """
    change, significant = effects.change, effects.significant
    defined = change[np.isfinite(change)]
    return {
        "raise": int((defined >= SCORE.least).sum()),
        "leave": int((np.abs(defined) < SCORE.least).sum()),
        "lower": int((defined <= -SCORE.least).sum()),
        "undefined": len(change) - len(defined),
        "raise_found": int((significant & (change > 0)).sum()),
        "lower_found": int((significant & (change < 0)).sum()),
        "largest_gain": _extreme(effects, names, 1),
        "largest_loss": _extreme(effects, names, -1),
    }


def _extreme(effects: Effects, names: Sequence[str], sign: int) -> dict[str, Any] | None:
    """The place with the largest change of that sign; None if there is none."""
    changes = sign * effects.change
    if not (changes >= SCORE.least).any():
        return None
    place = int(np.nanargmax(changes))
    extreme = {
        "name": names[place],
        "change": float(effects.change[place]),
        "ties": int((np.abs(changes - changes[place]) < SCORE.least / 2).sum()) - 1,
        "interval": [float(effects.low[place]), float(effects.high[place])],
        "q": effects.format_q(place),
    }
    if effects.gains is not None and effects.losses is not None:
        extreme |= {"gains": int(effects.gains[place]), "losses": int(effects.losses[place])}
    return extreme


def correlate_places(first: Places, second: Places, seed: int) -> dict[str, Any]:
    """Spearman's correlation over places, with a bootstrap interval over them.

    Both are None where undefined; the interval is None for fewer than ten places too.
    """
    coefficient, *ends = rank_correlation(first, second, seed)
    return {"spearman": rounded_or_none(coefficient), "interval": [rounded_or_none(end) for end in ends]}


def format_estimate(value: float | None, ends: Sequence[float | None] = ()) -> str:
    """A change in points with its interval.

    >>> format_estimate(-0.5, (-1.25, 0.2))
    '−0.50 (−1.25 to +0.20)'
    """
    if value is None or not np.isfinite(value):
        return "undefined"
    low, high = [*ends, None, None][:2]
    if low is None or high is None or not np.isfinite([low, high]).all():
        return format_change(value)
    return f"{format_change(value)} ({format_change(low)} to {format_change(high)})"


def format_extreme(extreme: dict[str, Any] | None, format_place: Callable[[str], str] = str) -> str:
    """An extreme as text: name, change with its interval, ties, flips and q."""
    if extreme is None:
        return "none"
    details = [f"{format_change(low)} to {format_change(high)}" for low, high in [extreme["interval"]] if low <= high]
    details += [f"{extreme['gains']} become right, {extreme['losses']} wrong"] if "gains" in extreme else []
    ties = f" and {extreme['ties']} more" if extreme["ties"] else ""
    change = format_change(extreme["change"])
    facts = "; ".join([*details, f"q {extreme['q']}"])
    return f"{format_place(extreme['name'])}{ties} {change} ({facts})"


def rounded_or_none(value: Any) -> float | None:
    """Rounded to 1/10,000; None, as JSON has it, where undefined."""
    return round(float(value), 4) if np.isfinite(value) else None


def short_or_none(value: float) -> float | None:
    """To four digits; None where undefined."""
    return float(f"{value:.4g}") if np.isfinite(value) else None


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
