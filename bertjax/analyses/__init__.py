"""Analyses of attention heads, one file each: their fields are their options (`bertjax.jobs.Analysis`)."""

from collections.abc import Mapping

from bertjax.analyses.ablate import Ablate, plan_table
from bertjax.analyses.contrasts import contrasts_of_template
from bertjax.analyses.gradients import (
    NUMBERS,
    HeadGradients,
    gradient_metrics,
    head_gradients,
    normalise_by_layer,
)
from bertjax.analyses.importance import Importance, Trust, compare_with_exact, trust_in
from bertjax.analyses.interactions import Interactions, interaction_metrics, pair_interactions, with_singles
from bertjax.analyses.learned_gates import (
    AT_FIRST,
    HIGHEST,
    LOWEST,
    TEMPERATURE,
    GateLearner,
    Learning,
    draw_gates,
    probabilities_open,
)
from bertjax.analyses.merging import merge, run_merge
from bertjax.analyses.patch import STREAMS, Patch
from bertjax.analyses.patches import patching_metrics
from bertjax.analyses.paths import RECEIVING, PatchPaths, parse_receivers, patch_paths
from bertjax.analyses.prune import (
    ORDERS,
    Prune,
    ablated_losses,
    gradient_costs,
    heads_left,
    magnitudes,
    order_by,
    steps_of,
)
from bertjax.analyses.roles import Roles
from bertjax.analyses.shapley import (
    Drawn,
    Shapley,
    added_in_order,
    all_subsets,
    draw_orders,
    exact_values,
    runs_of_order,
    shapley_metric,
)
from bertjax.jobs import Analysis

# By the name of the method of `Study`.
ANALYSES: Mapping[str, type[Analysis]] = {
    "ablate": Ablate,
    "importance": Importance,
    "interactions": Interactions,
    "shapley": Shapley,
    "prune": Prune,
    "roles": Roles,
    "patch": Patch,
    "patch_paths": PatchPaths,
}

__all__ = [
    "ANALYSES",
    "AT_FIRST",
    "HIGHEST",
    "LOWEST",
    "NUMBERS",
    "ORDERS",
    "RECEIVING",
    "STREAMS",
    "TEMPERATURE",
    "Ablate",
    "Drawn",
    "GateLearner",
    "HeadGradients",
    "Importance",
    "Interactions",
    "Learning",
    "Patch",
    "PatchPaths",
    "Prune",
    "Roles",
    "Shapley",
    "Trust",
    "ablated_losses",
    "added_in_order",
    "all_subsets",
    "compare_with_exact",
    "contrasts_of_template",
    "draw_gates",
    "draw_orders",
    "exact_values",
    "gradient_costs",
    "gradient_metrics",
    "head_gradients",
    "heads_left",
    "interaction_metrics",
    "magnitudes",
    "merge",
    "normalise_by_layer",
    "order_by",
    "pair_interactions",
    "parse_receivers",
    "patch_paths",
    "patching_metrics",
    "plan_table",
    "probabilities_open",
    "run_merge",
    "runs_of_order",
    "shapley_metric",
    "steps_of",
    "trust_in",
    "with_singles",
]
