"""Means over examples with their intervals, as JSON stores them and tables and pictures read them."""

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
    """Means, and half the width of their 95 % intervals (normal theory); NaN where one example gives no spread."""

    mean: Float[np.ndarray, "..."]
    interval: Float[np.ndarray, "..."]

    def to_dict(self) -> dict[str, Any]:
        """The estimate as JSON."""
        return {"mean": listed(self.mean), "interval": listed(self.interval, ROUGH)}

    def p_values(self, reference: float = 0.0) -> Float[np.ndarray, "..."]:
        """Two-sided p-values of the mean's being the reference; 1 where there is no interval."""
        error = self.interval / norm.ppf(0.975)
        with np.errstate(divide="ignore", invalid="ignore"):
            score = np.abs(self.mean - reference) / error
        return np.where(np.isfinite(error), 2 * norm.sf(np.nan_to_num(score, nan=0.0)), 1.0)


def estimate(values: Float[np.ndarray, "examples ..."]) -> Estimate:
    """The mean over examples, with its interval."""
    exact = values.astype(np.float64)
    if len(exact) < 2:
        return Estimate(np.asarray(exact.mean(0)), np.full(exact.shape[1:], np.nan))
    half = norm.ppf(0.975) * exact.std(0, ddof=1) / np.sqrt(len(exact))
    return Estimate(np.asarray(exact.mean(0)), np.asarray(half))


def read_estimate(entry: Mapping[str, Any]) -> Estimate:
    """The estimate that `Estimate.to_dict` wrote."""
    return Estimate(*(np.array(entry[name], np.float64) for name in ("mean", "interval")))


def differing(estimates: Mapping[str, Estimate], reference: float = 0.0) -> dict[str, np.ndarray]:
    """Which means differ from a reference: q < 0.05 over all means of all estimates (Benjamini and Hochberg 1995)."""
    if not estimates:
        return {}
    p_values = [item.p_values(reference) for item in estimates.values()]
    q_values = false_discovery_control(np.concatenate([array.ravel() for array in p_values]))
    parts = np.split(q_values, np.cumsum([array.size for array in p_values])[:-1])
    return {
        name: (part < LEVEL).reshape(array.shape) for name, part, array in zip(estimates, parts, p_values, strict=True)
    }


def listed(values: Any, digits: int = DIGITS) -> Any:
    """Numbers for JSON: rounded to `digits` significant digits, None for what is undefined.

    >>> listed(np.array([[0.12345678, np.nan], [2.0, 1234567.0]]))
    [[0.123457, None], [2.0, 1234570.0]]
    """
    array = np.asarray(values, np.float64)
    if array.ndim:
        return [listed(value, digits) for value in array]
    return float(f"{array:.{digits}g}") if np.isfinite(array) else None
