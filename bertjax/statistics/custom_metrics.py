"""Metrics from any function of labels and outputs; `module:function` on the command line.

Such a function has no fast form, so it is called for each draw and run. `seconds_of_statistics` estimates the time.
"""

import importlib
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Num

from bertjax import arguments
from bertjax.errors import DataError
from bertjax.statistics.effects import PARTS, RESAMPLES
from bertjax.statistics.metrics import METRICS, Metric, Targets, find_metric
from bertjax.statistics.significance import HALVES, count_draws

Function = Callable[[Any, Any], float]
NAMED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
EXPECTED = "a name, a Metric, or a function of labels and outputs that returns a number"


def as_metric(metric: Metric | str | Function, targets: Targets = "numbers") -> Metric:
    """Make a metric from its name, from `module:function`, or from a function.

    The function takes the labels `[examples]` and one run's outputs, `[examples, ...]`, and returns a number. It may
    have the attributes `label`, `unit` and `greater_is_better` of a `Metric`; by default scores have no unit, and
    greater is better.

    Args:
        metric: a name, a function or a Metric, which is returned unchanged.
        targets: type of the labels, for functions: "classes" or "numbers".

    Raises:
        DataError: there is no such metric, module or function, or the module cannot be imported.

    >>> def worst(labels, outputs):
    ...     return float(outputs.min())
    >>> as_metric(worst).name
    'worst'
    """
    if isinstance(metric, str) and metric not in METRICS and NAMED.fullmatch(metric):
        found = _load(metric)
        return found if isinstance(found, Metric) else _of_function(found, metric, targets)
    if callable(metric) and not isinstance(metric, Metric):
        return _of_function(metric, getattr(metric, "__name__", type(metric).__name__), targets)
    if not isinstance(metric, str | Metric):
        arguments.refuse("metric", EXPECTED, metric, DataError)
    return find_metric(metric)


def _load(name: str) -> Any:
    module, function = name.split(":")
    here = str(Path.cwd())
    added = here not in sys.path  # for files in the working directory, where an installed program does not look
    if added:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), function, None)
    except Exception as error:
        raise DataError(f"metric {name}: {module} cannot be imported ({type(error).__name__}: {error})") from error
    finally:
        if added:
            sys.path.remove(here)
    if found is None:
        raise DataError(f"metric {name}: {module} has no {function}")
    if not callable(found) and not isinstance(found, Metric):
        arguments.refuse(f"metric {name}", EXPECTED, found, DataError)
    return found


def _of_function(function: Function, name: str, targets: Targets) -> Metric:
    def score_each(outputs: Num[np.ndarray, "runs examples numbers"], labels: Any, positive: int) -> np.ndarray:
        single = outputs.shape[-1] == 1
        return np.array([_call(function, name, labels, run[..., 0] if single else run) for run in outputs])

    return Metric(
        name,
        str(getattr(function, "label", name)),
        "outputs",
        targets,
        score_each,
        lowest=-np.inf,
        highest=np.inf,
        unit=getattr(function, "unit", ""),
        greater_is_better=getattr(function, "greater_is_better", True),
        ranks=True,  # at least as slow as ranks: fewer swaps
    )


def _call(function: Function, name: str, labels: Any, outputs: Any) -> float:
    try:
        value = function(labels, outputs)
    except Exception as error:
        raise DataError(f"metric {name} failed ({type(error).__name__}: {error})") from error
    try:
        return float(value)
    except (TypeError, ValueError):
        arguments.refuse(f"what metric {name} returns", "a number", value, DataError)


def seconds_of_statistics(
    metric: Metric,
    outputs: Num[np.ndarray, "examples ..."],
    labels: Num[np.ndarray, " examples"],
    runs: int,
    positive: int = 1,
) -> float:
    """Estimate the seconds for intervals and tests of a metric without a fast form, by timing one call.

    Args:
        metric: a metric without `scorer` and `sums`.
        outputs: outputs of one run.
        labels: labels of the examples.
        runs: number of ablations.
        positive: the positive class, as in `score`.
    """
    once = outputs.reshape(1, len(outputs), -1).astype(np.float64)
    started = time.perf_counter()
    metric.function(once, labels, positive)
    seconds = time.perf_counter() - started
    examples = len(labels)
    draws = RESAMPLES + min(examples, PARTS) + 2 * HALVES + 4 * count_draws(metric, runs, examples)
    return seconds * draws * (runs + 1)
