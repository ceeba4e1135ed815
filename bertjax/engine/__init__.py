"""The engine: runs all ablations on all examples, computes shared hidden states once, and resumes after interruptions.

Terms:

    run     the model with one ablation, or without any (the base run); a node of the plan's trie
    row     several examples, packed into one sequence of fixed length
    place   an entry for a text of a row, among the texts of all rows
    chunk   a fixed number of rows
    block   what a compiled step takes and returns: a fixed number of slots
    slot    an entry of a block: the hidden states of one run on one chunk
    step    one run through one layer, from its own slot or its parent's
    part    some runs on some chunks, whose outputs the journal saves together
    group   the chunks of a part; in `gates`, the examples that run forward and backward together
"""

from bertjax.engine import compiled_steps, reference
from bertjax.engine.blocks import BlockRunner
from bertjax.engine.costs import Estimate, estimate_with_sizes, plan_sweep, price
from bertjax.engine.gates import GateGradients, GatePasses, GateTexts
from bertjax.engine.journal import (
    describe_settings,
    discard_journal,
    find_differences,
    is_unfinished,
    list_differences,
    model_facts,
    open_journal,
)
from bertjax.engine.packing import LANES, Packed, choose_row_length, first_fit, pack
from bertjax.engine.plan import Plan, make_plan
from bertjax.engine.reference import SweepResult
from bertjax.engine.run import compile_sweep, make_runner, merge_shards, sweep, sweep_shard
from bertjax.engine.schedule import DryRun
from bertjax.engine.sharding import AXIS, BATCH, SPLIT, WHOLE, make_mesh, place_on_mesh
from bertjax.engine.sizes import (
    Blocks,
    choose_blocks,
    choose_sizes,
    default_tokens,
    memory_in_use,
    peak_memory,
    sweep_bytes,
)
from bertjax.engine.sweep_input import Combine, SweepInput, choose_attention, fastest_attention, make_sweep_input

__all__ = [
    "AXIS",
    "BATCH",
    "LANES",
    "SPLIT",
    "WHOLE",
    "BlockRunner",
    "Blocks",
    "Combine",
    "DryRun",
    "Estimate",
    "GateGradients",
    "GatePasses",
    "GateTexts",
    "Packed",
    "Plan",
    "SweepInput",
    "SweepResult",
    "choose_attention",
    "choose_blocks",
    "choose_row_length",
    "choose_sizes",
    "compile_sweep",
    "compiled_steps",
    "default_tokens",
    "describe_settings",
    "discard_journal",
    "estimate_with_sizes",
    "fastest_attention",
    "find_differences",
    "first_fit",
    "is_unfinished",
    "list_differences",
    "make_mesh",
    "make_plan",
    "make_runner",
    "make_sweep_input",
    "memory_in_use",
    "merge_shards",
    "model_facts",
    "open_journal",
    "pack",
    "peak_memory",
    "place_on_mesh",
    "plan_sweep",
    "price",
    "reference",
    "sweep",
    "sweep_bytes",
    "sweep_shard",
]
