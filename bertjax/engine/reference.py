"""The reference implementation of a sweep: a forward pass as a function of overrides, mapped over them by `jax.vmap`.

`run` computes every override of a stack as a full forward pass of one batch. `sweep` does the same for a whole data
set, layer by layer, so that one small compiled step serves all layers. Since an override changes nothing below its
first layer, each ablation starts there, from the hidden states of the base run (`share_prefix=False` starts all of them
at layer 0).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, ArrayLike, Float, Shaped

from bertjax import arguments
from bertjax.checkpoints import BertConfig
from bertjax.errors import InputError, OverrideError
from bertjax.formatting import table_name
from bertjax.interventions import READOUT, Ablation, Readout, read, stack
from bertjax.machine import import_pandas
from bertjax.models import (
    Context,
    Graph,
    Inputs,
    Overrides,
    PretrainedModel,
    State,
    check_not_traced,
    check_overrides,
    check_parameters,
    check_stack,
)
from bertjax.progress import Progress, shown

if TYPE_CHECKING:
    import pandas


def _table_name(ablation: Ablation) -> str:
    """The name of an ablation in tables, such as L3H10; a whole layer is named after its index."""
    heads = [f"{change.layer}.{change.head}" for change in ablation.changes]
    layers = {change.layer for change in ablation.changes}
    return table_name(ablation.name, heads, min(layers) if len(layers) == 1 else None)


@dataclass(frozen=True)
class SweepResult:
    """The result of a sweep, of the engine or of the reference implementation.

    Args:
        base: outputs without any override.
        outputs: outputs of each ablation, or of each override of the reference implementation.
        ablations: the ablations in the order of `outputs`; empty if the sweep ran overrides.
        attention: the form of attention.
        seconds: wall-clock time, compilation included; 0 if it was not measured.
    """

    base: Shaped[np.ndarray, "examples *readout"]
    outputs: Shaped[np.ndarray, "ablations examples *readout"]
    ablations: tuple[Ablation, ...] = ()
    attention: str = "explicit"
    seconds: float = 0.0

    def to_pandas(self) -> "pandas.DataFrame":
        """Convert to a `pandas.DataFrame` with a row for each ablation and example.

        Columns: `ablation`, a name such as L3H10; `heads`, its heads, separated by spaces; `example`, an index from 0;
        `base` and `output`, the readout without and with the ablation. Each number of a readout has its column:
        `base_0` ..., `output_0` ..., or `output_0_0` ... if it has several axes.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        dataframes = import_pandas()
        ablations, examples, *axes = self.outputs.shape
        names = [_table_name(ablation) for ablation in self.ablations] or [*map(str, range(ablations))]
        heads = [
            " ".join(f"L{one.layer}H{one.head}" for one in ablation.changes if one.of_heads)
            for ablation in self.ablations
        ]
        columns: dict[str, Any] = {
            "ablation": np.repeat(names, examples),
            "heads": np.repeat(heads or [""] * ablations, examples),
            "example": np.tile(np.arange(examples), ablations),
        }
        outputs = self.outputs.astype(np.float32) if self.outputs.dtype.kind == "V" else self.outputs  # of bfloat16
        for name, values in (("base", np.broadcast_to(self.base, outputs.shape)), ("output", outputs)):
            for index in np.ndindex(*axes):
                columns["_".join([name, *map(str, index)])] = values[:, :, *index].ravel().astype(outputs.dtype)
        return dataframes.DataFrame(columns)

    def _repr_html_(self) -> str:
        """A summary for notebooks."""
        shape, kind = list(self.outputs.shape), self.outputs.dtype.name
        what = f"<b>{shape[0]:,} ablations of {shape[1]:,} examples</b> in {self.seconds:.1f} s"
        where = f"<code>outputs</code> {shape} ({kind}), without ablation in <code>base</code>"
        return f"<p>{what}, {self.attention} attention; {where}</p>"


def run(
    model: PretrainedModel, inputs: Inputs | Mapping[str, Any], overrides: Overrides, readout: Readout
) -> Shaped[Array, "ablations ..."]:
    """Run every override of a stack on one batch, each as a full forward pass.

    Args:
        model: any model of bertjax.
        inputs: a batch, or `model.inputs(...)`.
        overrides: overrides with a leading axis `ablations` (`overrides.stack`).
        readout: what to keep of each run: returns one array of any shape, such as `output.attentions`. Define it once,
            since each new function is compiled again.

    Returns: the readouts.
    """
    check_parameters(model)
    arguments.check_function(readout, "readout", READOUT)
    checked = inputs if isinstance(inputs, Inputs) else model.inputs(inputs)
    check_stack(model.config, overrides, checked)
    return _run(*nnx.split(model), checked, overrides, readout)


@partial(jax.jit, static_argnums=(0, 4))
def _run(
    graphdef: Graph, state: State, inputs: Inputs, overrides: Overrides, readout: Readout
) -> Shaped[Array, "ablations ..."]:
    model = nnx.merge(graphdef, state)
    return jax.vmap(lambda override: read(readout, model.forward(inputs, override), of_each=False))(overrides)


def sweep(
    model: PretrainedModel,
    batches: Sequence[tuple[Sequence[int], Mapping[str, np.ndarray]]],
    overrides: Sequence[Overrides],
    readout: Readout,
    *,
    chunk_size: int | None = None,
    share_prefix: bool = True,
    progress: Progress | bool = False,
) -> SweepResult:
    """Run every override on every example.

    Args:
        model: any model of bertjax.
        batches: pairs of example indices and the arguments of a call (`input_ids`, `attention_mask` ...). Together, the
            indices are 0 to examples - 1; repeated ones are allowed, as padding.
        overrides: one for each ablation.
        readout: what to keep of each run. Unlike in `run`, its output has no attention weights or hidden states of
            single layers.
        chunk_size: the largest number of ablations that are computed together; by default from `tokens_at_once`.
        share_prefix: start each ablation from the base run's hidden states at its first overridden layer. If False,
            each ablation is a full forward pass.
        progress: True shows a bar. A function is called with the work done and the total work, in runs of one layer on
            one example.

    Returns: base and ablated outputs, float32 (float64 for a float64 model).

    Raises:
        OverrideError: overrides that do not fit the model, or that act at single examples or tokens (use `run`).
        InputError: batches that do not fit, or outputs that are not finite without any override.
    """
    overrides = _check_sweep(model, overrides, readout)
    with shown(progress, "sweep") as report:
        return _sweep(model, _check_batches(batches), overrides, readout, chunk_size, share_prefix, progress=report)


def _sweep(
    model: PretrainedModel,
    batches: Sequence[tuple[Sequence[int], Mapping[str, Any]]],
    overrides: Sequence[Overrides],
    readout: Readout,
    chunk_size: int | None,
    share_prefix: bool,
    *,
    progress: Progress,
) -> SweepResult:
    """`sweep` after its arguments were checked."""
    encoder = model.body.encoder
    layers = [nnx.split(layer) for layer in encoder.applications()]
    head, embeddings = nnx.split(model), nnx.split(model.body.embeddings)
    depth = len(layers)
    starts = [first_layer(override, depth) if share_prefix else 0 for override in overrides]
    chunks: dict[int, list[tuple[list[int], int, Overrides]]] = {}
    done, total = 0.0, float(sum(depth - start for start in starts) * sum(len(indices) for indices, _ in batches))
    examples = 1 + max(max(indices) for indices, _ in batches)
    base: np.ndarray | None = None
    outputs = np.zeros(0)
    for indices, batch in batches:
        inputs = model.inputs(batch)
        if len(indices) != len(inputs.input_ids):
            raise InputError(f"there are {len(indices)} indices for the {len(inputs.input_ids)} examples of a batch")
        for override in overrides if base is None else [each for each in overrides if each.edges is not None]:
            _check_sweepable(model.config, override, inputs)
        context = encoder.context(inputs)
        prefixes = _run_base(embeddings, layers, inputs, context)
        first = np.asarray(_read(*head, prefixes[-1][None], inputs.keep, readout))[0]
        if not np.isfinite(first).all():
            raise InputError("the model's own outputs are not finite: look for NaN or infinity in its weights")
        if base is None:
            base = np.zeros((examples, *first.shape[1:]), first.dtype)
            outputs = np.zeros((len(overrides), *base.shape), first.dtype)
        base[np.asarray(indices)] = first
        size = max(1, tokens_at_once() // inputs.input_ids.size) if chunk_size is None else chunk_size
        if size not in chunks:
            chunks[size] = _chunks(overrides, starts, size)
        for members, start, stacked in chunks[size]:
            hidden = prefixes[start]
            for layer in range(start, depth):
                step = _fork if layer == start else _continue
                hidden = step(*layers[layer], hidden, context, stacked, layer)
            ablated = np.asarray(_read(*head, hidden, inputs.keep, readout))[: len(members)]
            outputs[np.asarray(members)[:, None], np.asarray(indices)[None]] = ablated
            done += len(members) * (depth - start) * len(indices)
            progress(done, total)
    assert base is not None  # `_check_batches` refuses an empty list
    return SweepResult(base, outputs)


def _run_base(
    embeddings: tuple[Graph, State], layers: Sequence[tuple[Graph, State]], inputs: Inputs, context: Context
) -> list[Float[Array, "batch token embed"]]:
    """Hidden states without overrides, before the first layer and after each."""
    prefixes = [_embed(*embeddings, inputs)]
    for graphdef, state in layers:
        prefixes.append(_layer(graphdef, state, prefixes[-1], context))
    return prefixes


def _check_sweep(model: PretrainedModel, overrides: Any, readout: Readout) -> tuple[Overrides, ...]:
    arguments.check_instance(model, "model", PretrainedModel, "a model of bertjax (bertjax.load)")
    check_not_traced("a sweep", model.parameters())
    check_parameters(model)
    arguments.check_function(readout, "readout", READOUT)
    return arguments.check_sequence(overrides, "overrides", "a list of Overrides, one for each ablation", Overrides)


def _check_batches(batches: Any) -> list[tuple[tuple[int, ...], Mapping[str, Any]]]:
    """Batches whose example indices are 0, 1, 2 ... Raises `InputError` for others."""
    expected, checked = "a list of pairs: example indices, and a batch", []
    for pair in arguments.check_sequence(batches, "batches", expected, tuple | list):
        if len(pair) != 2 or not isinstance(pair[1], Mapping):
            arguments.refuse("batches", expected, batches)
        indices = arguments.check_sequence(pair[0], "the example indices of a batch", "integers")
        checked.append((tuple(arguments.check_int(index, "an example index", 0) for index in indices), pair[1]))
    named = {index for indices, _ in checked for index in indices}
    if not named or named != set(range(len(named))):
        raise InputError("the example indices of all batches must be 0, 1, 2 ..., with none left out")
    return checked


def _check_sweepable(config: BertConfig, overrides: Overrides, inputs: Inputs) -> None:
    """Raise `OverrideError` for overrides that do not apply to all examples, whatever their lengths."""
    edges, outputs = overrides.edges, overrides.outputs
    at_some = edges is not None and bool((np.asarray(edges.example) >= 0).any())
    at_some |= outputs is not None and outputs.values.shape[1:3] != (1, 1)
    others = overrides.tokens, overrides.vectors, overrides.states, overrides.weights
    if at_some or any(part is not None for part in others):
        raise OverrideError(
            "an override of single examples, tokens or sites cannot be swept: use reference.run on one batch"
        )
    check_overrides(config, overrides, inputs)


def first_layer(overrides: Overrides, layers: int) -> int:
    """The first layer that an override may change (the last layer for the identity).

    Args:
        overrides: overrides of one model.
        layers: the number of layers of the model.
    """
    changed = [np.asarray(overrides.weights_gate) != 1, np.asarray(overrides.output_gate) != 1]
    changed_layers = [int(layer) for layer in np.nonzero(np.any(changed, axis=(0, 2)))[0]]
    for part in (overrides.weights, overrides.outputs, overrides.edges):
        if part is not None:
            changed_layers += [int(layer) for layer in np.asarray(part.layer) if layer >= 0]
    return min([*changed_layers, layers - 1])


def _chunks(
    overrides: Sequence[Overrides], starts: Sequence[int], chunk_size: int
) -> list[tuple[list[int], int, Overrides]]:
    """Groups of overrides with the same first layer: their indices, that layer, and their stack.

    All stacks of a layer have equal sizes, so that each size compiles once; the last one is filled up.
    """
    chunk_size = arguments.check_int(chunk_size, "chunk_size", 1)
    chunks = []
    for layer in sorted(set(starts)):
        members = [index for index, start in enumerate(starts) if start == layer]
        size = -(-len(members) // -(-len(members) // chunk_size))
        for start in range(0, len(members), size):
            chunk = members[start : start + size]
            filled = [overrides[index] for index in chunk + chunk[-1:] * (size - len(chunk))]
            chunks.append((chunk, layer, stack(filled)))
    return chunks


def tokens_at_once() -> int:
    """The number of tokens times ablations of a step.

    A CPU is fastest if a step's hidden states fit into its caches (measured: `benchmarks/RESULTS.md`). An accelerator
    needs many tokens to be busy.
    """
    return 1536 if jax.default_backend() == "cpu" else 65536


Hidden: TypeAlias = Float[Array, "batch token embed"]
Ablated: TypeAlias = Float[Array, "ablations batch token embed"]
Keep: TypeAlias = Float[Array, "batch #query key"]


@partial(jax.jit, static_argnums=0)
def _embed(graphdef: Graph, state: State, inputs: Inputs) -> Hidden:
    return nnx.merge(graphdef, state)(inputs)


@partial(jax.jit, static_argnums=0)
def _layer(graphdef: Graph, state: State, hidden: Hidden, context: Context) -> Hidden:
    return nnx.merge(graphdef, state)(hidden, context)[0]


@partial(jax.jit, static_argnums=0)
def _fork(
    graphdef: Graph, state: State, hidden: Hidden, context: Context, overrides: Overrides, index: ArrayLike
) -> Ablated:
    """One layer for each override, all from the same hidden states."""
    layer = nnx.merge(graphdef, state)
    return jax.vmap(lambda override: layer(hidden, context, override, index)[0])(overrides)


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def _continue(
    graphdef: Graph, state: State, hidden: Ablated, context: Context, overrides: Overrides, index: ArrayLike
) -> Ablated:
    """One layer for each override, each from its hidden states."""
    layer = nnx.merge(graphdef, state)
    return jax.vmap(lambda states, override: layer(states, context, override, index)[0])(hidden, overrides)


@partial(jax.jit, static_argnums=(0, 4))
def _read(
    graphdef: Graph, state: State, hidden: Ablated, keep: Keep, readout: Readout
) -> Shaped[Array, "ablations batch *readout"]:
    model = nnx.merge(graphdef, state)
    return jax.vmap(lambda states: read(readout, model.finish(states, keep)))(hidden)
