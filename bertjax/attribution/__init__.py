"""Attribution: what gradients say of heads and how far that is to be trusted, and what heads do together."""

from bertjax.attribution.gradients import (
    NUMBERS,
    HeadGradients,
    gradient_metrics,
    head_gradients,
    normalise_by_layer,
)
from bertjax.attribution.interactions import interaction_metrics, pair_interactions, with_singles
from bertjax.attribution.learned_gates import (
    AT_FIRST,
    HIGHEST,
    LOWEST,
    TEMPERATURE,
    GateLearner,
    Learning,
    draw_gates,
    probabilities_open,
)
from bertjax.attribution.losses import ablated_losses
from bertjax.attribution.paths import RECEIVING, patch_paths
from bertjax.attribution.pruning import gradient_costs, heads_left, magnitudes, order_by, steps_of
from bertjax.attribution.restoring import patching_metrics
from bertjax.attribution.shapley import (
    Drawn,
    added_in_order,
    all_subsets,
    draw_orders,
    exact_values,
    runs_of_order,
    shapley_metric,
)
from bertjax.attribution.trust import Trust, compare_with_exact

__all__ = [
    "AT_FIRST",
    "HIGHEST",
    "LOWEST",
    "NUMBERS",
    "RECEIVING",
    "TEMPERATURE",
    "Drawn",
    "GateLearner",
    "HeadGradients",
    "Learning",
    "Trust",
    "ablated_losses",
    "added_in_order",
    "all_subsets",
    "compare_with_exact",
    "draw_gates",
    "draw_orders",
    "exact_values",
    "gradient_costs",
    "gradient_metrics",
    "head_gradients",
    "heads_left",
    "interaction_metrics",
    "magnitudes",
    "normalise_by_layer",
    "order_by",
    "pair_interactions",
    "patch_paths",
    "patching_metrics",
    "probabilities_open",
    "runs_of_order",
    "shapley_metric",
    "steps_of",
    "with_singles",
]
