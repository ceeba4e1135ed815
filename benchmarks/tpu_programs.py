"""Everything that runs on a TPU, lowered for absent chips: shapes stand for arrays."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.common import draw_lengths
from bertjax import BertConfig, BertForSentenceEmbedding, BertForSequenceClassification
from bertjax.engine import (
    BATCH,
    LANES,
    SPLIT,
    WHOLE,
    Blocks,
    DryRun,
    Plan,
    choose_blocks,
    choose_row_length,
    compiled_steps,
    first_fit,
    make_plan,
    sweep_bytes,
)
from bertjax.interventions import HEAD_OUTPUTS, readouts, single_heads
from bertjax.models import Inputs, LayerInterventions, Numerics, Recipe, layer_weights, pallas_attention
from experiments.training.trainer import Skeleton, dropout_key, make_optimizer, train_step

STEPS_OF_PART, TOKENS = 2048, 65536  # the engine's values for an accelerator
MEMORY_SHARE = 0.8  # of a chip's memory, for the sweep
BATCH_OF_CHIP, LENGTH = 32, 128  # of the forward pass and of fine-tuning
SITES = 8  # most examples in a row
KERNEL_ROWS = ((128, 64), (512, 12), (512, 64), (1024, 12), (2048, 12))  # tokens and heads that its parts differ for


@dataclass(frozen=True)
class Sizes:
    """How the engine would cut a sweep into steps, for a model, a data set and a number of chips.

    Args:
        steps: how often each step runs in the whole sweep.
    """

    rows: int
    row_length: int
    blocks: Blocks
    steps: dict[str, int]


@dataclass(frozen=True)
class Target:
    """The target that programs are compiled for.

    Args:
        mesh: the chips.
        numerics: the models' numerics.
        memory: bytes of a chip's memory.
    """

    mesh: Mesh
    numerics: Numerics
    memory: int

    def describe(self, tree: Any, where: PartitionSpec = WHOLE) -> Any:
        """Shapes of arrays on the chips."""
        place = NamedSharding(self.mesh, where)
        return jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=place), tree)

    def split(self, module: nnx.Module) -> tuple[Any, Any]:
        """A module's structure, and its parameters on this target."""
        structure, parameters = compiled_steps.take_apart(module)
        return structure, self.describe(parameters)

    def array(self, shape: tuple[int, ...], dtype: Any, where: PartitionSpec = WHOLE) -> Any:
        """The shape of one array on the chips."""
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(self.mesh, where))


def choose_sizes(config: BertConfig, task: str, count: int, target: Target) -> Sizes:
    """How the engine would run all single heads on `count` examples of a task, with only [CLS] read."""
    lengths, chips = np.array(draw_lengths(task, count), np.int32), target.mesh.size
    length = choose_row_length(lengths, config.hidden_size, config.intermediate_size, step=LANES)
    rows, tokens = len(first_fit(lengths, length)), TOKENS
    itemsize = np.dtype(target.numerics.dtype).itemsize
    while True:
        chip_blocks = choose_blocks(-(-rows // chips), length, config.num_attention_heads, tokens)
        if sweep_bytes(config, itemsize, length, chip_blocks) <= MEMORY_SHARE * target.memory or tokens <= length:
            break
        tokens = tokens * 3 // 4
    blocks = Blocks(chip_blocks.rows * chips, chip_blocks.runs)
    plan = make_plan(config, single_heads(config))
    return Sizes(rows, length, blocks, count_steps(config, plan, -(-rows // blocks.rows), blocks))


def kind_labels(config: BertConfig) -> list[str]:
    """What tells the steps of each layer from those of other kinds of layers: the first layer of its kind."""
    kinds = config.architecture.layers
    return ["" if len(set(kinds)) == 1 else f", as layer {kinds.index(kind)}" for kind in kinds]


def count_steps(config: BertConfig, plan: Plan, chunks: int, blocks: Blocks) -> dict[str, int]:
    """How often the engine's own schedule takes each step."""
    dry_run = DryRun(config, plan, blocks, kind_labels(config))
    dry_run.run(chunks, STEPS_OF_PART)
    return dict(dry_run.taken)


def abstract(cls: Any, config: BertConfig, numerics: Numerics) -> Any:
    """A model whose parameters are shapes."""
    return nnx.eval_shape(lambda: cls(config, jax.random.key(0), numerics))


Lower = Callable[[], jax.stages.Lowered]


def sweep_programs(config: BertConfig, sizes: Sizes, target: Target) -> Iterator[tuple[str, Lower]]:
    """Every step of a sweep. `compiled_steps.py` documents them."""
    numerics, mesh = target.numerics, target.mesh
    runs, rows, tokens, embed = sizes.blocks.runs, sizes.blocks.rows, sizes.row_length, config.hidden_size
    model = abstract(BertForSequenceClassification, config, numerics)
    block = target.array((runs, rows, tokens, embed), numerics.dtype, SPLIT)
    share = target.array((runs, config.num_attention_heads), numerics.wide)
    absent = dict.fromkeys(("removed", "mean", "patched", "means", "sources"))
    changes = _record(LayerInterventions, uniform=share, **absent)

    def block_rows(slots: int) -> compiled_steps.BlockRows:
        segments, starts = (target.array((slots, rows, size), jnp.int32, SPLIT) for size in (tokens, SITES))
        record: compiled_steps.BlockRows = _record(compiled_steps.BlockRows, segments=segments, starts=starts)
        return record

    all_rows, index = block_rows(runs), target.array((), jnp.int32)
    graph_embed, state_embed = target.split(model.bert.embeddings)
    texts = [target.array((runs, rows, tokens), jnp.int32, SPLIT) for _ in range(3)]
    keep = target.array((runs, rows, 1, tokens), numerics.wide, SPLIT)
    inputs = _record(Inputs, input_ids=texts[0], keep=keep, token_type_ids=texts[1], position_ids=texts[2])
    yield "embed", partial(_lower, compiled_steps.embed, graph_embed, state_embed, inputs, mesh)
    yield "gather", partial(_lower, compiled_steps.gather, [block] * runs, target.array((runs,), jnp.int32))
    for label, weights, recipe in _kinds(model.bert.encoder, config, target):
        static: dict[str, Any] = {"recipe": recipe, "mesh": mesh}
        for last, cls_only in (("", False), ("last ", True)):
            options = static | {"cls_only": cls_only}
            for name, changed in (("layer", None), ("changed layer", changes)):
                arguments = (weights, block, all_rows, changed, None)
                yield last + name + label, partial(_lower, compiled_steps.apply_layer, *arguments, **options)
            parent = (weights, block, index, block_rows(1), changes, None)
            yield last + "fork" + label, partial(_lower, compiled_steps.fork_from_parent, *parent, **options)
        for short, name in enumerate(("sources", "last sources")):
            options = static | {"short": bool(short), "sites": (HEAD_OUTPUTS,)}
            yield name + label, partial(_lower, compiled_steps.source_activations, weights, block, all_rows, **options)
    first = target.array((runs, rows, SITES, embed), numerics.wide, SPLIT)
    yield from _readout_programs(config, sizes, target, first, (block, all_rows))


def _kinds(encoder: Any, config: BertConfig, target: Target) -> Iterator[tuple[str, Any, Recipe]]:
    """For each kind of layer what tells its steps from others, the shapes of its weights, and what it computes."""
    numerics, (graph, state) = target.numerics, nnx.split(encoder)
    plan, labels = config.architecture, kind_labels(config)
    for kind in dict.fromkeys(plan.layers):
        layer = plan.layers.index(kind)

        def weights(state: Any, number: int = plan.parameters_of[layer]) -> Any:
            merged = nnx.merge(graph, state)
            table = None if merged.relative is None else merged.relative()
            return layer_weights(merged.layers[number], numerics, table)

        yield labels[layer], target.describe(jax.eval_shape(weights, state)), Recipe(kind, numerics)


def _readout_programs(
    config: BertConfig, sizes: Sizes, target: Target, first: Any, tokens: tuple[Any, Any]
) -> Iterator[tuple[str, Lower]]:
    """The steps that read outputs: of [CLS] alone, of all tokens, and at chosen ones.

    Args:
        first: the shape of the hidden states at [CLS].
        tokens: the shapes of all hidden states and of the rows that they belong to.
    """
    (runs, rows), mesh = (sizes.blocks.runs, sizes.blocks.rows), target.mesh
    whole, values = target.split(abstract(BertForSequenceClassification, config, target.numerics))
    read, (block, all_rows) = compiled_steps.read, tokens
    static = {"longest": 0, "readout": readouts.logits, "mesh": mesh}
    yield "read first", partial(_lower, read, whole, values, first, compiled_steps.Reading(), **static)
    parts = (*target.split(abstract(BertForSentenceEmbedding, config, target.numerics)), block)
    counts, positions = (target.array((runs, rows, SITES, *more), jnp.int32, SPLIT) for more in ((), (1,)))
    every, some = (
        _record(compiled_steps.Reading, rows=all_rows, **{"at": None, "lengths": None, "targets": None} | more)
        for more in ({"lengths": counts}, {"at": positions})
    )
    static |= {"longest": sizes.row_length, "readout": readouts.sentence_embedding}
    yield "read", partial(_lower, read, *parts, every, **static)
    yield "read at", partial(_lower, read, *parts, some, **static | {"longest": 0, "readout": _hidden})


def _hidden(output: Any) -> Any:
    return output.last_hidden_state


def _record(cls: Any, **fields: Any) -> Any:
    """A record of shapes, made without the class's own checks, which would reject them."""
    record = cls.__new__(cls)
    for name, value in fields.items():
        object.__setattr__(record, name, value)
    return record


def model_programs(config: BertConfig, target: Target) -> Iterator[tuple[str, Lower]]:
    """The model's forward pass and a step of fine-tuning."""
    numerics, batch = target.numerics, BATCH_OF_CHIP * target.mesh.size
    model = abstract(BertForSequenceClassification, config, numerics)
    graph, state = nnx.split(model)
    ids = target.array((batch, LENGTH), jnp.int32, BATCH)
    keep = target.array((batch, 1, LENGTH), numerics.wide, BATCH)
    inputs = _record(Inputs, input_ids=ids, keep=keep, token_type_ids=ids, position_ids=ids)
    forward = jax.jit(lambda state, inputs: nnx.merge(graph, state).forward(inputs).logits)
    yield "forward", partial(_lower, forward, target.describe(state), inputs)
    skeleton = Skeleton(graph, jax.tree.structure(state), tuple(_paths(state)))
    parameters = dict(zip(skeleton.names, jax.tree.leaves(state), strict=True))
    optimizer = make_optimizer(0.01, 1.0)
    memory = jax.eval_shape(optimizer.init, parameters)
    examples = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), ids)
    examples |= {
        "labels": target.array((batch,), jnp.int32, BATCH),
        "share": target.array((batch,), jnp.float32, BATCH),
    }
    key, rate = jax.eval_shape(lambda: dropout_key(0, "tpu")), target.array((), jnp.float32)
    options = target.describe(parameters), target.describe(memory), examples, target.describe(key)
    yield "train step", partial(_lower, train_step, skeleton, optimizer, *options, rate=rate)


def _paths(state: Any) -> list[str]:
    return [".".join(str(part) for part in path) for path, _ in nnx.to_flat_state(state)]


def kernel_programs(config: BertConfig, target: Target) -> Iterator[tuple[str, Lower]]:
    """The Pallas kernels on each chip's share of a batch: attention, overridden attention, gradient."""
    numerics, heads = target.numerics, config.num_attention_heads
    queries = target.array((BATCH_OF_CHIP * target.mesh.size, LENGTH, heads, config.head_dim), numerics.dtype, BATCH)
    marks = target.array(queries.shape[:2], jnp.int32, BATCH)
    per_head = target.array((heads,), jnp.float32)
    gates = _record(pallas_attention.HeadGates, weights=per_head, uniform=per_head, output=per_head)

    def attend(queries: Any, marks: Any, gates: Any) -> Any:
        return pallas_attention.attend(queries, queries, queries, (marks, marks), gates, numerics)

    def plain(queries: Any, marks: Any, gates: Any) -> Any:
        return attend(queries, marks, None)

    def gradient(queries: Any, marks: Any, gates: Any) -> Any:
        return jax.grad(lambda queries: attend(queries, marks, gates).sum())(queries)

    def on_chips(step: Any, inputs: Sequence[PartitionSpec], result: PartitionSpec = BATCH) -> Any:
        return jax.jit(jax.shard_map(step, mesh=target.mesh, in_specs=tuple(inputs), out_specs=result, check_vma=False))

    specs = (BATCH, BATCH, WHOLE)
    yield "kernel", partial(_lower, on_chips(plain, specs), queries, marks, gates)
    for tokens, count in KERNEL_ROWS:
        longer = target.array((8 * target.mesh.size, tokens, count, config.head_dim), numerics.dtype, BATCH)
        numbers = target.array(longer.shape[:2], jnp.int32, BATCH)
        yield f"kernel, {tokens} tokens, {count} heads", partial(_lower, on_chips(plain, specs), longer, numbers, gates)
    yield "kernel, overridden", partial(_lower, on_chips(attend, specs), queries, marks, gates)
    yield "kernel's gradient", partial(_lower, on_chips(gradient, specs), queries, marks, gates)


def _lower(step: Any, *arguments: Any, **static: Any) -> jax.stages.Lowered:
    lowered: jax.stages.Lowered = step.trace(*arguments, **static).lower(lowering_platforms=("tpu",))
    return lowered
