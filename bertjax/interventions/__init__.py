"""Interventions: what is changed in which heads, and what is kept of a run, as values beside the model."""

from bertjax.interventions import ablations, overrides, patching, readouts
from bertjax.interventions.ablations import (
    GIVE_MEANS,
    HEAD_OUTPUTS,
    SWEPT,
    Ablation,
    Change,
    ablation,
    all_but_one,
    cumulative,
    hash_sets,
    head_names,
    head_pairs,
    name_layer_head,
    one_of_layer,
    random_subsets,
    read_sets,
    single_heads,
    to_overrides,
    whole_layers,
)
from bertjax.interventions.means import mean_head_outputs
from bertjax.interventions.modes import MODES, Mode, find_mode
from bertjax.interventions.overrides import Head, every_head, heads_of_layer, parse_head, stack
from bertjax.interventions.readouts import READOUT, Inspected, Readout, check_at_positions, inspect_readout, read
from bertjax.interventions.removal import remove_heads

__all__ = [
    "GIVE_MEANS",
    "HEAD_OUTPUTS",
    "MODES",
    "READOUT",
    "SWEPT",
    "Ablation",
    "Change",
    "Head",
    "Inspected",
    "Mode",
    "Readout",
    "ablation",
    "ablations",
    "all_but_one",
    "check_at_positions",
    "cumulative",
    "every_head",
    "find_mode",
    "hash_sets",
    "head_names",
    "head_pairs",
    "heads_of_layer",
    "inspect_readout",
    "mean_head_outputs",
    "name_layer_head",
    "one_of_layer",
    "overrides",
    "parse_head",
    "patching",
    "random_subsets",
    "read",
    "read_sets",
    "readouts",
    "remove_heads",
    "single_heads",
    "stack",
    "to_overrides",
    "whole_layers",
]
