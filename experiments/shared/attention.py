"""Statistics of attention maps, reduced on the device: the maps of a whole data set are never in memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Shaped

from bertjax import collate
from bertjax.data import Encoding, batches_by_length
from bertjax.engine import BATCH, SPLIT, make_mesh, place_on_mesh
from bertjax.progress import Report
from experiments.shared.encoder import Encoder

# What the maps of one batch, and what the statistic makes of them, may take on a device.
BATCH_BYTES = 64 * 10**6
AT_ONCE = 2

# Batches are padded to one of these: 3 % of padding on MRPC's lengths.
WIDTHS = (*range(4, 256, 4), *range(256, 513, 16))

Statistic = Callable[..., Shaped[Array, "batch ..."]]


def stream_attention(
    models: Any,
    texts: Sequence[Encoding],
    statistic: Statistic,
    extras: Callable[[np.ndarray], Sequence[np.ndarray]] = lambda places: (),
    *,
    length: int | None = None,
    example_bytes: int = 0,
    report: Report = lambda done, total: None,
) -> Iterator[tuple[Int[np.ndarray, "batch"], Shaped[np.ndarray, "batch ..."]]]:
    """A statistic of the attention maps of every example, batch by batch, each shared by all devices of the process.

    Args:
        models: any model of bertjax, or several of one size as a tuple.
        texts: the examples.
        statistic: of one batch: attention weights `[layers, batch, heads, query, key]` of each model, what of the
            tokens is real `[batch, token]`, and the extras; a function defined once, since each new one is compiled
            anew.
        extras: more arrays for some examples, a row for each.
        length: pad every example to so many tokens; default with others of about its length.
        example_bytes: what the statistic takes for each example beside its maps.
        report: is told the batches done and in all.

    Yields: which examples, and their statistic; each example once.
    """
    several = models if isinstance(models, tuple) else (models,)
    config, lengths = several[0].config, [length or len(text) for text in texts]
    one_map = 4 * len(several) * config.num_hidden_layers * config.num_attention_heads * max(lengths) ** 2
    devices = len(jax.local_devices())
    size = int(np.clip(BATCH_BYTES // (one_map + example_bytes), 1, max(1, len(texts) // devices))) * devices
    mesh = make_mesh(None, size := min(size, len(texts)))
    encoders = [Encoder.of(model.body, mesh) for model in several]
    widths = WIDTHS if length is None else (length,)
    batches = batches_by_length(lengths, size, widths, max_length=config.max_position_embeddings)

    def compute(batch: dict[str, np.ndarray], more: Sequence[np.ndarray]) -> np.ndarray:
        # Each model checks the tokens by its own vocabulary: JAX would take an unknown one for the last it has.
        inputs = [place_on_mesh(model.inputs(**batch), mesh, BATCH) for model in several]
        maps = [encoder.attend(one) for encoder, one in zip(encoders, inputs, strict=True)]
        return np.asarray(_reduce(statistic, mesh, maps, [batch["attention_mask"], *more]))

    tasks = (
        (collate([texts[place] for place in places], padded), extras(np.array(places))) for places, padded in batches
    )
    for number, values in enumerate(_side_by_side(compute, tasks)):
        # A batch may be filled up by its last example.
        members, first = np.unique(np.array(batches[number][0]), return_index=True)
        yield members, values[first]
        report(float(number + 1), float(len(batches)))


def _side_by_side(compute: Callable[..., np.ndarray], tasks: Iterable[tuple[Any, ...]]) -> Iterator[np.ndarray]:
    """The results in order, two computed at once: cores that one leaves idle work for the other."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        waiting: deque[Future[np.ndarray]] = deque()
        for task in tasks:
            waiting.append(pool.submit(compute, *task))
            if len(waiting) > AT_ONCE:
                yield waiting.popleft().result()
        yield from (one.result() for one in waiting)


def reduce_attention(
    models: Any, texts: Sequence[Encoding], statistic: Statistic, extras: Sequence[np.ndarray] = (), **options: Any
) -> Shaped[np.ndarray, "examples ..."]:
    """A statistic of the attention maps of every example, in the order of the examples.

    Args:
        extras: more arrays, each with a row for each example.
        options: `length`, `example_bytes` and `report`, as for `stream_attention`.
    """
    found: Any = None
    for places, values in stream_attention(
        models, texts, statistic, lambda places: [extra[places] for extra in extras], **options
    ):
        found = np.zeros((len(texts), *values.shape[1:]), values.dtype) if found is None else found
        found[places] = values
    return found


@partial(jax.jit, static_argnums=(0, 1))
def _reduce(
    statistic: Statistic, mesh: Mesh | None, maps: Sequence[Array], others: Sequence[Array]
) -> Shaped[Array, "batch ..."]:
    if mesh is None:
        return statistic(*maps, *others)
    local = jax.shard_map(
        lambda maps, others: statistic(*maps, *others), mesh=mesh, in_specs=(SPLIT, BATCH), out_specs=BATCH
    )
    return local(list(maps), list(others))


def whole_maps(
    attentions: Float[Array, "layers batch heads query key"], keep: Int[Array, "batch token"]
) -> Float[Array, "batch layers heads query key"]:
    """All weights: for few or short texts, or to be reduced batch by batch on the host."""
    return jnp.moveaxis(attentions, 1, 0)


def at_pairs(
    attentions: Float[Array, "layers batch heads query key"], pairs: Int[Array, "batch sets pairs 2"]
) -> Float[Array, "batch sets pairs layers heads"]:
    """Weights at pairs of (query, key); a pair (-1, -1) fills up and gives some weight or other."""

    def one(maps: Array, wanted: Array) -> Array:
        return jnp.moveaxis(maps[:, :, wanted[..., 0], wanted[..., 1]], (0, 1), (-2, -1))

    return jax.vmap(one, in_axes=(1, 0))(attentions, pairs)


def largest_of_pairs(
    attentions: Float[Array, "layers batch heads query key"],
    keep: Int[Array, "batch token"],
    pairs: Int[Array, "batch sets pairs 2"],
) -> Float[Array, "batch sets layers heads"]:
    """The largest weight among each set of pairs (query, key); 0 for an empty set."""
    real = (pairs[..., 0] >= 0)[..., None, None]
    return jnp.where(real, at_pairs(attentions, pairs), 0.0).max(axis=2)


def mean_of_pairs(
    attentions: Float[Array, "layers batch heads query key"],
    keep: Int[Array, "batch token"],
    pairs: Int[Array, "batch sets pairs 2"],
) -> Float[Array, "batch sets layers heads"]:
    """The mean weight of each set of pairs (query, key); 0 for an empty set."""
    real = (pairs[..., 0] >= 0).astype(attentions.dtype)
    total = jnp.einsum("bsp,bsplh->bslh", real, at_pairs(attentions, pairs))
    return total / jnp.maximum(real.sum(-1), 1)[..., None, None]


def stack_pairs(
    several: Sequence[Sequence[Sequence[tuple[int, int]]]], most: int = 0
) -> Int[np.ndarray, "examples sets pairs 2"]:
    """Pairs of (query, key) by example and set as one array, filled up with -1.

    Args:
        several: for each example equally many sets of pairs.
        most: room for so many pairs at least, so that batches have one shape.
    """
    most = max(most, 1, *(len(pairs) for sets in several for pairs in sets))
    stacked = np.full((len(several), len(several[0]), most, 2), -1, np.int32)
    for example, sets in enumerate(several):
        for number, pairs in enumerate(sets):
            stacked[example, number, : len(pairs)] = np.array(pairs, np.int32).reshape(-1, 2)
    return stacked
