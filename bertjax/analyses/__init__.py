"""Analyses of attention heads, one module each. The fields of an analysis are its options (`bertjax.jobs.Analysis`)."""

from collections.abc import Mapping

from bertjax.analyses.ablate import Ablate, plan_table
from bertjax.analyses.gradients import head_gradients, normalise_by_layer
from bertjax.analyses.importance import Importance, compare_with_exact, trust_in
from bertjax.analyses.interactions import Interactions
from bertjax.analyses.learned_gates import (
    AT_FIRST,
    HIGHEST,
    LOWEST,
    TEMPERATURE,
    GateLearner,
    draw_gates,
    probabilities_open,
)
from bertjax.analyses.merging import merge
from bertjax.analyses.patching import (
    Patch,
    PatchPaths,
    contrasts_of_template,
    parse_receivers,
    patch_paths,
    patching_metrics,
)
from bertjax.analyses.probing import (
    CompareLayers,
    EdgeProbe,
    Geometry,
    Languages,
    Probe,
    Senses,
    Structure,
    random_encoder,
)
from bertjax.analyses.prune import Prune
from bertjax.analyses.restore import Restore
from bertjax.analyses.roles import Roles, load_encoder
from bertjax.analyses.second_model import MODELS
from bertjax.analyses.shapley import Drawn, Shapley
from bertjax.jobs import Analysis

# The analyses by the name of their method of `Study`.
ANALYSES: Mapping[str, type[Analysis]] = {
    "ablate": Ablate,
    "importance": Importance,
    "interactions": Interactions,
    "shapley": Shapley,
    "prune": Prune,
    "roles": Roles,
    "patch": Patch,
    "patch_paths": PatchPaths,
    "probe": Probe,
    "structure": Structure,
    "languages": Languages,
    "senses": Senses,
    "geometry": Geometry,
    "compare_layers": CompareLayers,
    "restore": Restore,
    "probe_edges": EdgeProbe,
}

__all__ = [
    "ANALYSES",
    "AT_FIRST",
    "HIGHEST",
    "LOWEST",
    "MODELS",
    "TEMPERATURE",
    "Ablate",
    "CompareLayers",
    "Drawn",
    "EdgeProbe",
    "GateLearner",
    "Geometry",
    "Importance",
    "Interactions",
    "Languages",
    "Patch",
    "PatchPaths",
    "Probe",
    "Prune",
    "Restore",
    "Roles",
    "Senses",
    "Shapley",
    "Structure",
    "compare_with_exact",
    "contrasts_of_template",
    "draw_gates",
    "head_gradients",
    "load_encoder",
    "merge",
    "normalise_by_layer",
    "parse_receivers",
    "patch_paths",
    "patching_metrics",
    "plan_table",
    "probabilities_open",
    "random_encoder",
    "trust_in",
]
