"""Attribution: what gradients say of heads, and how far that is from what ablation shows."""

from bertjax.attribution.gradients import (
    NUMBERS,
    HeadGradients,
    gradient_metrics,
    head_gradients,
    normalise_by_layer,
)
from bertjax.attribution.trust import Trust, compare_with_exact

__all__ = [
    "NUMBERS",
    "HeadGradients",
    "Trust",
    "compare_with_exact",
    "gradient_metrics",
    "head_gradients",
    "normalise_by_layer",
]
