"""Analyses of attention heads, one file each: their fields are their options (`bertjax.jobs.Analysis`)."""

from collections.abc import Mapping

from bertjax.analyses.ablate import Ablate, plan_table
from bertjax.analyses.contrasts import contrasts_of_template
from bertjax.analyses.importance import Importance, trust_in
from bertjax.analyses.interactions import Interactions
from bertjax.analyses.merging import merge, run_merge
from bertjax.analyses.patch import STREAMS, Patch
from bertjax.analyses.paths import PatchPaths, parse_receivers
from bertjax.analyses.prune import ORDERS, Prune
from bertjax.analyses.roles import Roles
from bertjax.analyses.shapley import Shapley
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
    "ORDERS",
    "STREAMS",
    "Ablate",
    "Importance",
    "Interactions",
    "Patch",
    "PatchPaths",
    "Prune",
    "Roles",
    "Shapley",
    "contrasts_of_template",
    "merge",
    "parse_receivers",
    "plan_table",
    "run_merge",
    "trust_in",
]
