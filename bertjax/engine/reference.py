"""The sweep in its simplest form: an experiment is a function of an override, mapped over a stack by `jax.vmap`.

`run` is the oracle: every override of a stack as a full forward pass of one batch. `sweep` is the same
experiment over a whole data set, layer by layer, so that one small compiled step serves all layers; and since
an override changes nothing below its first layer, each ablation starts there, from the hidden states of the
unablated run (`share_prefix=False` starts all of them at layer 0).
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
    SITES,
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
    """The name of an ablation in tables for programs; a whole layer is named after its number."""
    heads = [f"{change.layer}.{change.head}" for change in ablation.changes]
    layers = {change.layer for change in ablation.changes}
    return table_name(ablation.name, heads, min(layers) if len(layers) == 1 else None)


@dataclass(frozen=True)
class SweepResult:
    """What a sweep gives, whichever form computed it.

    Args:
        base: outputs without any override.
        outputs: outputs of each ablation, or of each override of the plain form, in the order of the examples.
        ablations: what was run, in the order of `outputs`; empty where overrides were given themselves.
        attention: the form of attention that was used.
        seconds: wall-clock time, compilation included; 0 if it was not measured.
    """

    base: Shaped[np.ndarray, "examples *readout"]
    outputs: Shaped[np.ndarray, "ablations examples *readout"]
    ablations: tuple[Ablation, ...] = ()
    attention: str = "explicit"
    seconds: float = 0.0

    def to_pandas(self) -> "pandas.DataFrame":
        """A `pandas.DataFrame` with a row for each ablation and example, in their orders.

        Columns: `ablation`, its name, of a head such as L3H10; `heads`, its heads, separated by spaces; `example`, its
        place from 0; `base` and `output`, the readout without and with the ablation. Of a readout of several numbers
        each has a column of its own, `base_0` ..., `output_0` ..., of several axes `output_0_0` ...

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        dataframes = import_pandas()
        ablations, examples, *axes = self.outputs.shape
        names = [_table_name(ablation) for ablation in self.ablations] or [str(number) for number in range(ablations)]
        heads = [
            " ".join(f"L{one.layer}H{one.head}" for one in ablation.changes if SITES[one.site].of_heads)
            for ablation in self.ablations
        ]
        columns: dict[str, Any] = {
            "ablation": np.repeat(names, examples),
            "heads": np.repeat(heads or [""] * ablations, examples),
            "example": np.tile(np.arange(examples), ablations),
        }
        outputs = self.outputs.astype(np.float32) if self.outputs.dtype.kind == "V" else self.outputs  # of bfloat16
        for name, values in (("base", np.broadcast_to(self.base, outputs.shape)), ("output", outputs)):
            for place in np.ndindex(*axes):
                columns["_".join([name, *map(str, place)])] = values[:, :, *place].ravel().astype(outputs.dtype)
        return dataframes.DataFrame(columns)

    def _repr_html_(self) -> str:
        """For notebooks: what was run, and how."""
        shape, kind = list(self.outputs.shape), self.outputs.dtype.name
        what = f"<b>{shape[0]:,} ablations of {shape[1]:,} examples</b> in {self.seconds:.1f} s"
        where = f"<code>outputs</code> {shape} ({kind}), without ablation in <code>base</code>"
        return f"<p>{what}, {self.attention} attention; {where}</p>"


def run(
    model: PretrainedModel, inputs: Inputs | Mapping[str, Any], overrides: Overrides, readout: Readout
) -> Shaped[Array, "ablations ..."]:
    """The experiment itself: every override of a stack on one batch, each as a full forward pass.

    Args:
        model: any model of bertjax.
        inputs: a batch, or `model.inputs(...)` of it.
        overrides: with a leading axis `ablations` (`overrides.stack`).
        readout: what to keep of each run, one array of any shape, such as `output.attentions`; a function defined once,
            since each new one is compiled again.

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
        batches: pairs of example indices and the arguments of a call (`input_ids`, `attention_mask` ...); the
            indices of all batches together are 0 to examples - 1, an index may come twice (filling).
        overrides: one for each ablation.
        readout: what to keep of each run; there is no record of the layers in it, which `run` has.
        chunk_size: at most this many ablations are computed at once; default by `tokens_at_once`.
        share_prefix: start each ablation from the base run's hidden states at its first overridden layer.
            Without it each ablation is a full forward pass.
        progress: True shows a bar; or a function called with the work done and the total work, in runs of one layer on
            one example.

    Returns: base and ablated outputs, float32 (float64 for a float64 model).

    Raises:
        OverrideError: overrides that do not fit the model, or that are for single examples (use `run`).
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
    """`sweep` with its arguments checked."""
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
            raise InputError(f"there are {len(indices)} numbers for the {len(inputs.input_ids)} examples of a batch")
        for override in overrides if base is None else [each for each in overrides if each.edges is not None]:
            _check_for_all(model.config, override, inputs)
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
            for number in range(start, depth):
                step = _branch if number == start else _continue
                hidden = step(*layers[number], hidden, context, stacked, number)
            ablated = np.asarray(_read(*head, hidden, inputs.keep, readout))[: len(members)]
            outputs[np.asarray(members)[:, None], np.asarray(indices)[None]] = ablated
            done += len(members) * (depth - start) * len(indices)
            progress(done, total)
    assert base is not None  # as `_check_batches` sees
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
    """Batches whose examples are numbered 0, 1, 2 ... Raises `InputError` where they are not."""
    expected, checked = "a list of pairs: examples' numbers, and a batch", []
    for pair in arguments.check_sequence(batches, "batches", expected, tuple | list):
        if len(pair) != 2 or not isinstance(pair[1], Mapping):
            arguments.refuse("batches", expected, batches)
        numbers = arguments.check_sequence(pair[0], "the numbers of a batch's examples", "whole numbers")
        checked.append((tuple(arguments.check_int(number, "an example's number", 0) for number in numbers), pair[1]))
    named = {number for numbers, _ in checked for number in numbers}
    if not named or named != set(range(len(named))):
        raise InputError("the numbers of the batches' examples must be 0, 1, 2 ..., with none left out")
    return checked


def _check_for_all(config: BertConfig, overrides: Overrides, inputs: Inputs) -> None:
    """An override in a sweep means the same in every example, whatever its length."""
    edges, outputs = overrides.edges, overrides.outputs
    single = edges is not None and bool((np.asarray(edges.example) >= 0).any())
    at_tokens = any(part is not None for part in (overrides.tokens, overrides.vectors, overrides.states))
    if (
        single
        or at_tokens
        or overrides.weights is not None
        or (outputs is not None and outputs.values.shape[1:3] != (1, 1))
    ):
        raise OverrideError(
            "an override for single examples, tokens or places cannot be swept: use reference.run on one batch"
        )
    check_overrides(config, overrides, inputs)


def first_layer(overrides: Overrides, layers: int) -> int:
    """The first layer in which an override may change anything (the last one for the identity)."""
    changed = [np.asarray(overrides.weights_gate) != 1, np.asarray(overrides.output_gate) != 1]
    changed_layers = [int(layer) for layer in np.nonzero(np.any(changed, axis=(0, 2)))[0]]
    for part in (overrides.weights, overrides.outputs, overrides.edges):
        if part is not None:
            changed_layers += [int(layer) for layer in np.asarray(part.layer) if layer >= 0]
    return min([*changed_layers, layers - 1])


def _chunks(
    overrides: Sequence[Overrides], starts: Sequence[int], chunk_size: int
) -> list[tuple[list[int], int, Overrides]]:
    """Groups of overrides with the same first layer: their numbers, that layer, and the stack of them.

    Within a group all stacks are equally large, so that each size compiles once; the last is filled up.
    """
    chunk_size = arguments.check_int(chunk_size, "chunk_size", 1)
    chunks = []
    for layer in sorted(set(starts)):
        members = [number for number, start in enumerate(starts) if start == layer]
        size = -(-len(members) // -(-len(members) // chunk_size))
        for start in range(0, len(members), size):
            chunk = members[start : start + size]
            filled = [overrides[number] for number in chunk + chunk[-1:] * (size - len(chunk))]
            chunks.append((chunk, layer, stack(filled)))
    return chunks


def tokens_at_once() -> int:
    """How many tokens, times ablations, a step should hold.

    A CPU is fastest when a step's hidden states stay in its caches (measured: `benchmarks/RESULTS.md`); an
    accelerator needs many to be busy.
    """
    return 1536 if jax.default_backend() == "cpu" else 65536


Hidden: TypeAlias = Float[Array, "batch token embed"]
Branches: TypeAlias = Float[Array, "ablations batch token embed"]
Keep: TypeAlias = Float[Array, "batch #query key"]


@partial(jax.jit, static_argnums=0)
def _embed(graphdef: Graph, state: State, inputs: Inputs) -> Hidden:
    return nnx.merge(graphdef, state)(inputs)


@partial(jax.jit, static_argnums=0)
def _layer(graphdef: Graph, state: State, hidden: Hidden, context: Context) -> Hidden:
    return nnx.merge(graphdef, state)(hidden, context)[0]


@partial(jax.jit, static_argnums=0)
def _branch(
    graphdef: Graph, state: State, hidden: Hidden, context: Context, overrides: Overrides, number: ArrayLike
) -> Branches:
    """One layer for each override, all from the same hidden states: what precedes the override runs once."""
    layer = nnx.merge(graphdef, state)
    return jax.vmap(lambda override: layer(hidden, context, override, number)[0])(overrides)


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def _continue(
    graphdef: Graph, state: State, hidden: Branches, context: Context, overrides: Overrides, number: ArrayLike
) -> Branches:
    """One layer for each override, each from hidden states of its own."""
    layer = nnx.merge(graphdef, state)
    return jax.vmap(lambda own, override: layer(own, context, override, number)[0])(hidden, overrides)


@partial(jax.jit, static_argnums=(0, 4))
def _read(
    graphdef: Graph, state: State, hidden: Branches, keep: Keep, readout: Readout
) -> Shaped[Array, "ablations batch *readout"]:
    model = nnx.merge(graphdef, state)
    return jax.vmap(lambda own: read(readout, model.finish(own, keep)))(hidden)
