"""The study: the main job from its settings to its results."""

from bertjax.study import parity, torch_reference
from bertjax.study.conclusion import conclude
from bertjax.study.derived.contrasts import contrasts_of_template
from bertjax.study.derived.gradients import importance, run_importance, trust_in
from bertjax.study.derived.interactions import head_interactions, run_interactions
from bertjax.study.derived.merging import merge, run_merge
from bertjax.study.derived.patches import Direction
from bertjax.study.derived.patching import STREAMS, Grid, patch, run_patching
from bertjax.study.derived.paths import Paths, head_paths, run_paths
from bertjax.study.derived.pruning import ORDERS, Pruning, prune, run_pruning
from bertjax.study.derived.roles import head_roles, run_roles
from bertjax.study.derived.shapley import Budget, run_shapley, shapley_values
from bertjax.study.job import Job
from bertjax.study.outputs import mean_outputs, sweep_examples
from bertjax.study.parity import check_model
from bertjax.study.provenance import command_line, find_finished, versions, where_from
from bertjax.study.removal import heads_gone_in, save_without_heads
from bertjax.study.run import ABLATION, ablate, estimate_job, run_job
from bertjax.study.settings import COLLECTIONS, Settings, available_modes, check_settings, for_this_device
from bertjax.study.tables import (
    gates_table,
    importance_table,
    kinds_lines,
    parity_table,
    patching_table,
    plan_table,
    pruning_table,
    roles_table,
    shapley_line,
    trust_table,
)

__all__ = [
    "ABLATION",
    "COLLECTIONS",
    "ORDERS",
    "STREAMS",
    "Budget",
    "Direction",
    "Grid",
    "Job",
    "Paths",
    "Pruning",
    "Settings",
    "ablate",
    "available_modes",
    "check_model",
    "check_settings",
    "command_line",
    "conclude",
    "contrasts_of_template",
    "estimate_job",
    "find_finished",
    "for_this_device",
    "gates_table",
    "head_interactions",
    "head_paths",
    "head_roles",
    "heads_gone_in",
    "importance",
    "importance_table",
    "kinds_lines",
    "mean_outputs",
    "merge",
    "parity",
    "parity_table",
    "patch",
    "patching_table",
    "plan_table",
    "prune",
    "pruning_table",
    "roles_table",
    "run_importance",
    "run_interactions",
    "run_job",
    "run_merge",
    "run_patching",
    "run_paths",
    "run_pruning",
    "run_roles",
    "run_shapley",
    "save_without_heads",
    "shapley_line",
    "shapley_values",
    "sweep_examples",
    "torch_reference",
    "trust_in",
    "trust_table",
    "versions",
    "where_from",
]
