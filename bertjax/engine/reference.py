"""The reference implementation of a sweep: a forward pass as a function of overrides, mapped over them by `jax.vmap`.

`run` computes every override of a stack as a full forward pass of one batch. `sweep` does the same for a whole data
set, layer by layer, so that one small compiled step serves all layers. Each ablation is a full forward pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, ArrayLike, Float, Shaped

from bertjax import arguments
from bertjax.checkpoints import BertConfig
from bertjax.errors import InputError, OverrideError
from bertjax.formatting import table_name
from bertjax.interventions import READOUT, Ablation, Readout, read, stack
from bertjax.interventions import overrides as ov
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
        progress: True shows a bar. A function is called with the work done and the total work, in runs of one example.

    Returns: base and ablated outputs, float32 (float64 for a float64 model).

    Raises:
        OverrideError: overrides that do not fit the model, or that act at single examples or tokens (use `run`).
        InputError: batches that do not fit, or outputs that are not finite without any override.
    """
    overrides = _check_sweep(model, overrides, readout)
    with shown(progress, "sweep") as report:
        return _sweep(model, _check_batches(batches), overrides, readout, chunk_size, progress=report)


def _sweep(
    model: PretrainedModel,
    batches: Sequence[tuple[Sequence[int], Mapping[str, Any]]],
    overrides: Sequence[Overrides],
    readout: Readout,
    chunk_size: int | None,
    *,
    progress: Progress,
) -> SweepResult:
    """`sweep` after its arguments were checked."""
    encoder, runs = model.body.encoder, [ov.identity(model.config), *overrides]  # the base run is the first
    layers = [nnx.split(layer) for layer in encoder.applications()]
    head, embeddings = nnx.split(model), nnx.split(model.body.embeddings)
    chunks: dict[int, list[tuple[int, Overrides]]] = {}
    done, total = 0.0, float(len(runs) * sum(len(indices) for indices, _ in batches))
    examples = 1 + max(max(indices) for indices, _ in batches)
    outputs: np.ndarray | None = None
    for indices, batch in batches:
        inputs = model.inputs(batch)
        if len(indices) != len(inputs.input_ids):
            raise InputError(f"there are {len(indices)} indices for the {len(inputs.input_ids)} examples of a batch")
        for override in overrides if outputs is None else [each for each in overrides if each.edges is not None]:
            _check_sweepable(model.config, override, inputs)
        context, embedded = encoder.context(inputs), _embed(*embeddings, inputs)
        size = max(1, tokens_at_once() // inputs.input_ids.size) if chunk_size is None else chunk_size
        if size not in chunks:
            chunks[size] = _chunks(runs, size)
        for first, stacked in chunks[size]:
            hidden = jnp.broadcast_to(embedded[None], (len(stacked.weights_gate), *embedded.shape))
            for index, layer in enumerate(layers):
                hidden = _layer(*layer, hidden, context, stacked, index)
            found = np.asarray(_read(*head, hidden, inputs.keep, readout))[: len(runs) - first]
            if first == 0 and not np.isfinite(found[0]).all():
                raise InputError("the model's own outputs are not finite: look for NaN or infinity in its weights")
            if outputs is None:
                outputs = np.zeros((len(runs), examples, *found.shape[2:]), found.dtype)
            outputs[first : first + len(found), np.asarray(indices)] = found
            done += len(found) * len(indices)
            progress(done, total)
    assert outputs is not None  # `_check_batches` refuses an empty list
    return SweepResult(outputs[0], outputs[1:])


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


def _chunks(overrides: Sequence[Overrides], chunk_size: int) -> list[tuple[int, Overrides]]:
    """Stacks of successive overrides, with the index of their first one.

    All stacks have equal sizes, so that one program is compiled; the last one is filled up.
    """
    count = -(-len(overrides) // arguments.check_int(chunk_size, "chunk_size", 1))
    size = -(-len(overrides) // count)
    parts = [(first, [*overrides[first : first + size]]) for first in range(0, len(overrides), size)]
    return [(first, stack(part + part[-1:] * (size - len(part)))) for first, part in parts]


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


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def _layer(
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
