"""Means over examples with their intervals, as JSON keeps them and tables and pictures read them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.stats import false_discovery_control, norm

LEVEL = 0.05
DIGITS, ROUGH = 6, 3  # significant digits in JSON: of means, and of their intervals


@dataclass(frozen=True)
class Estimate:
    """Means, and half the width of their 95 % intervals (normal theory); NaN where one example has no spread."""

    mean: Float[np.ndarray, "..."]
    interval: Float[np.ndarray, "..."]

    def told(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"mean": listed(self.mean), "interval": listed(self.interval, ROUGH)}

    def p_values(self, reference: float = 0.0) -> Float[np.ndarray, "..."]:
        """Of the mean's being the reference, two-sided; 1 where there is no interval."""
        error = self.interval / norm.ppf(0.975)
        with np.errstate(divide="ignore", invalid="ignore"):
            score = np.abs(self.mean - reference) / error
        return np.where(np.isfinite(error), 2 * norm.sf(np.nan_to_num(score, nan=0.0)), 1.0)


def estimate(values: Float[np.ndarray, "examples ..."]) -> Estimate:
    """The mean over examples."""
    exact = values.astype(np.float64)
    if len(exact) < 2:
        return Estimate(np.asarray(exact.mean(0)), np.full(exact.shape[1:], np.nan))
    half = norm.ppf(0.975) * exact.std(0, ddof=1) / np.sqrt(len(exact))
    return Estimate(np.asarray(exact.mean(0)), np.asarray(half))


def read_estimate(found: Mapping[str, Any]) -> Estimate:
    """What `Estimate.told` gave."""
    return Estimate(*(np.array(found[name], np.float64) for name in ("mean", "interval")))


def differing(estimates: Mapping[str, Estimate], reference: float = 0.0) -> dict[str, np.ndarray]:
    """Which means differ from a reference, q < 0.05 over all means of all estimates (Benjamini and Hochberg 1995)."""
    if not estimates:
        return {}
    several = [one.p_values(reference) for one in estimates.values()]
    q_values = false_discovery_control(np.concatenate([one.ravel() for one in several]))
    parts = np.split(q_values, np.cumsum([one.size for one in several])[:-1])
    return {name: (part < LEVEL).reshape(one.shape) for name, part, one in zip(estimates, parts, several, strict=True)}


def listed(values: Any, digits: int = DIGITS) -> Any:
    """As JSON has it: rounded to so many significant digits, None for what is undefined.

    >>> listed(np.array([[0.12345678, np.nan], [2.0, 1234567.0]]))
    [[0.123457, None], [2.0, 1234570.0]]
    """
    array = np.asarray(values, np.float64)
    if array.ndim:
        return [listed(value, digits) for value in array]
    return float(f"{array:.{digits}g}") if np.isfinite(array) else None


def name_head(place: int, heads: int) -> str:
    """A head by its place in a flattened map.

    >>> name_head(14, 12)
    '1.2'
    """
    return f"{place // heads}.{place % heads}"
