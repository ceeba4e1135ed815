"""The study: the main job from its settings to its results."""

from bertjax.study.conclusion import conclude
from bertjax.study.derived.contrasts import contrasts_of_template
from bertjax.study.derived.gradients import ImportanceOptions, run_importance, trust_in
from bertjax.study.derived.interactions import InteractionsOptions, run_interactions
from bertjax.study.derived.merging import merge, run_merge
from bertjax.study.derived.patching import STREAMS, PatchOptions, run_patching
from bertjax.study.derived.paths import PathsOptions, parse_receivers, run_paths
from bertjax.study.derived.pruning import ORDERS, PruneOptions, run_pruning
from bertjax.study.derived.roles import run_roles
from bertjax.study.derived.shapley import ShapleyOptions, run_shapley
from bertjax.study.job import Job
from bertjax.study.options import (
    AblateOptions,
    Choices,
    ComputeOptions,
    DataOptions,
    ModelOptions,
    OutputOptions,
    TaskOptions,
    available_modes,
    base_of,
    descriptions,
    kinds,
    names,
    title_of,
)
from bertjax.study.outputs import mean_outputs, sweep_examples
from bertjax.study.provenance import command_line, find_finished, versions, where_from
from bertjax.study.pytorch import parity, torch_reference
from bertjax.study.pytorch.parity import check_model
from bertjax.study.removal import heads_gone_in, save_without_heads
from bertjax.study.run import ABLATION, estimate_job, run_job
from bertjax.study.settings import COLLECTIONS, DEFAULTS, Settings, check_settings, for_this_device
from bertjax.study.study import (
    OPTIONS,
    READS,
    Baseline,
    Study,
    StudyOptions,
    ablate,
    importance,
    interactions,
    patch,
    patch_paths,
    prune,
    roles,
    shapley,
)
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
    "DEFAULTS",
    "OPTIONS",
    "ORDERS",
    "READS",
    "STREAMS",
    "AblateOptions",
    "Baseline",
    "Choices",
    "ComputeOptions",
    "DataOptions",
    "ImportanceOptions",
    "InteractionsOptions",
    "Job",
    "ModelOptions",
    "OutputOptions",
    "PatchOptions",
    "PathsOptions",
    "PruneOptions",
    "Settings",
    "ShapleyOptions",
    "Study",
    "StudyOptions",
    "TaskOptions",
    "ablate",
    "available_modes",
    "base_of",
    "check_model",
    "check_settings",
    "command_line",
    "conclude",
    "contrasts_of_template",
    "descriptions",
    "estimate_job",
    "find_finished",
    "for_this_device",
    "gates_table",
    "heads_gone_in",
    "importance",
    "importance_table",
    "interactions",
    "kinds",
    "kinds_lines",
    "mean_outputs",
    "merge",
    "names",
    "parity",
    "parity_table",
    "parse_receivers",
    "patch",
    "patch_paths",
    "patching_table",
    "plan_table",
    "prune",
    "pruning_table",
    "roles",
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
    "shapley",
    "shapley_line",
    "sweep_examples",
    "title_of",
    "torch_reference",
    "trust_in",
    "trust_table",
    "versions",
    "where_from",
]
