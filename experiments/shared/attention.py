"""Statistics of attention maps, reduced on the device, so that the maps of a data set are never all in memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, Shaped
from tqdm import tqdm

from bertjax import collate
from bertjax.attention import norm_shares
from bertjax.data import Encoding, batches_by_length
from bertjax.models import AttentionRecord, Context, Inputs

# Device memory for the maps of one batch and the intermediate values of the statistic.
BATCH_BYTES = 64 * 10**6
AT_ONCE = 2

# Batches are padded to one of these widths: 3 % padding for the lengths of MRPC.
WIDTHS = (*range(4, 256, 4), *range(256, 513, 16))

Maps = Float[Array, "layers batch heads query key"]
Statistic = Callable[..., Shaped[Array, "batch ..."]]


def stream_attention(
    models: Any,
    texts: Sequence[Encoding],
    statistic: Statistic,
    extras: Callable[[np.ndarray], Sequence[np.ndarray]] = lambda places: (),
    *,
    length: int | None = None,
    example_bytes: int = 0,
    norms: bool = False,
) -> Iterator[tuple[Int[np.ndarray, "batch"], Shaped[np.ndarray, "batch ..."]]]:
    """A statistic of the attention maps of every example, batch by batch, each batch split over all local devices.

    Args:
        models: a bertjax model, or a tuple of models of the same size.
        texts: the examples.
        statistic: a function of one batch that takes the attention weights `[layers, batch, heads, query, key]` of each
            model, the mask of real tokens `[batch, token]`, and the extras. Define it once, since each new function is
            compiled again.
        extras: returns additional arrays for the given examples, a row for each.
        length: pad every example to this many tokens; by default examples of similar length are padded together.
        example_bytes: memory that the statistic needs per example in addition to its maps.
        norms: take the shares of the norms of what heads add up (Kobayashi et al. 2020), in place of weights.

    Yields: indices of examples, and their statistic; each example once.
    """
    all_models = models if isinstance(models, tuple) else (models,)
    config, lengths = all_models[0].config, [length or len(text) for text in texts]
    map_bytes = 4 * len(all_models) * config.num_hidden_layers * config.num_attention_heads * max(lengths) ** 2
    devices = len(jax.local_devices())
    size = int(np.clip(BATCH_BYTES // (map_bytes + example_bytes), 1, max(1, len(texts) // devices))) * devices
    size = min(size, len(texts))
    mesh = Mesh(np.array(jax.local_devices()[: devices if size % devices == 0 else 1]), ("batch",))
    split, replicated = NamedSharding(mesh, PartitionSpec("batch")), NamedSharding(mesh, PartitionSpec())
    encoders = [_Encoder(model.body, replicated, norms) for model in all_models]
    widths = WIDTHS if length is None else (length,)
    batches = batches_by_length(lengths, size, widths, max_length=config.max_tokens)

    def compute(batch: dict[str, np.ndarray], extra_arrays: Sequence[np.ndarray]) -> np.ndarray:
        # Each model checks the tokens against its vocabulary: JAX would silently clamp an unknown id.
        inputs = [jax.device_put(model.inputs(**batch), split) for model in all_models]
        maps = [encoder.attend(model_inputs) for encoder, model_inputs in zip(encoders, inputs, strict=True)]
        arrays = jax.device_put([batch["attention_mask"], *extra_arrays], split)
        return np.asarray(_reduce(statistic, maps, arrays))

    tasks = (
        (collate([texts[place] for place in places], padded), extras(np.array(places))) for places, padded in batches
    )
    results = tqdm(_side_by_side(compute, tasks), total=len(batches), disable=None, leave=False)
    for number, values in enumerate(results):
        # A batch may be padded with repeats of its last example.
        members, first = np.unique(np.array(batches[number][0]), return_index=True)
        yield members, values[first]


def _side_by_side(compute: Callable[..., np.ndarray], tasks: Iterable[tuple[Any, ...]]) -> Iterator[np.ndarray]:
    """The results in order, two computed concurrently to keep all cores busy."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        waiting: deque[Future[np.ndarray]] = deque()
        for task in tasks:
            waiting.append(pool.submit(compute, *task))
            if len(waiting) > AT_ONCE:
                yield waiting.popleft().result()
        yield from (future.result() for future in waiting)


def reduce_attention(
    models: Any, texts: Sequence[Encoding], statistic: Statistic, extras: Sequence[np.ndarray] = (), **options: Any
) -> Shaped[np.ndarray, "examples ..."]:
    """A statistic of the attention maps of every example, in the order of the examples.

    Args:
        extras: additional arrays, each with a row for each example.
        options: `length`, `example_bytes` and `norms`, as for `stream_attention`.
    """
    reduced: Any = None
    for places, values in stream_attention(
        models, texts, statistic, lambda places: [extra[places] for extra in extras], **options
    ):
        reduced = np.zeros((len(texts), *values.shape[1:]), values.dtype) if reduced is None else reduced
        reduced[places] = values
    return reduced


@partial(jax.jit, static_argnums=0)
def _reduce(statistic: Statistic, maps: Sequence[Array], arrays: Sequence[Array]) -> Shaped[Array, "batch ..."]:
    return statistic(*maps, *arrays)


class _Encoder:
    """The attention maps of an encoder. Single layers are compiled for each shape: batches can have many widths.

    Args:
        place: where its parameters are.
        norms: whether maps are of the norms of what is added up, in place of weights.
    """

    def __init__(self, body: Any, place: NamedSharding, norms: bool):
        parts = map(nnx.split, [body.embeddings, *body.encoder.applications()])
        self.embeddings, *self.layers = [(graph, jax.device_put(state, place)) for graph, state in parts]
        self.context, self.norms = body.encoder.context, norms

    def attend(self, inputs: Inputs) -> Maps:
        """The attention weights of all layers, or shares of norms."""
        hidden, context = _embed(*self.embeddings, inputs), self.context(inputs)
        maps = []
        for layer in self.layers[:-1]:
            hidden, weights = _layer(*layer, hidden, context, self.norms)
            maps.append(weights)
        return _stack(*maps, _last_layer(*self.layers[-1], hidden, context, self.norms))


@partial(jax.jit, static_argnums=0)
def _embed(graph: Any, state: Any, inputs: Inputs) -> Float[Array, "batch token embed"]:
    return nnx.merge(graph, state)(inputs)


@partial(jax.jit, static_argnums=(0, 4), donate_argnums=2)
def _layer(graph: Any, state: Any, hidden: Array, context: Context, norms: bool) -> tuple[Array, Array]:
    layer = nnx.merge(graph, state)
    hidden, inside, _ = layer(hidden, context)
    return hidden, _norms(layer, inside) if norms else inside.weights


@partial(jax.jit, static_argnums=(0, 4))
def _last_layer(graph: Any, state: Any, hidden: Array, context: Context, norms: bool) -> Array:
    """The maps alone: the compiler removes whatever they do not need."""
    return _layer(graph, state, hidden, context, norms)[1]


def _norms(layer: Any, inside: AttentionRecord) -> Float[Array, "batch heads query key"]:
    """The shares that keys have of the norms of what a head adds up (Kobayashi et al. 2020)."""
    weights = inside.weights
    assert weights is not None  # attention is explicit
    kernel = layer.attention.output.kernel[...]  # heads, head_dim, embed; removed heads add nothing
    gram = jnp.einsum("hde,hce->hdc", kernel, kernel, precision="highest")
    heads = jnp.array(layer.attention.kind.heads, jnp.int32)
    products = jnp.zeros((weights.shape[1], *gram.shape[1:]), gram.dtype).at[heads].set(gram)
    return norm_shares(weights[None], inside.values[None], products[None])[0]


@jax.jit
def _stack(*maps: Array) -> Maps:
    """Stack the maps in a separate function: compiled into its consumer, stacking would be repeated at every read."""
    return jnp.stack(maps)


def whole_maps(
    attentions: Float[Array, "layers batch heads query key"], keep: Int[Array, "batch token"]
) -> Float[Array, "batch layers heads query key"]:
    """All weights: for few or short texts, or for reduction batch by batch on the host."""
    return jnp.moveaxis(attentions, 1, 0)


def at_pairs(
    attentions: Float[Array, "layers batch heads query key"], pairs: Int[Array, "batch sets pairs 2"]
) -> Float[Array, "batch sets pairs layers heads"]:
    """Weights at pairs of (query, key); a pair (-1, -1) is padding and gives an arbitrary weight."""

    def pick(maps: Array, example_pairs: Array) -> Array:
        return jnp.moveaxis(maps[:, :, example_pairs[..., 0], example_pairs[..., 1]], (0, 1), (-2, -1))

    return jax.vmap(pick, in_axes=(1, 0))(attentions, pairs)


def largest_of_pairs(
    attentions: Float[Array, "layers batch heads query key"],
    keep: Int[Array, "batch token"],
    pairs: Int[Array, "batch sets pairs 2"],
) -> Float[Array, "batch sets layers heads"]:
    """The largest weight in each set of pairs (query, key); 0 for an empty set."""
    real = (pairs[..., 0] >= 0)[..., None, None]
    return jnp.where(real, at_pairs(attentions, pairs), 0.0).max(axis=2)


def stack_pairs(
    example_sets: Sequence[Sequence[Sequence[tuple[int, int]]]], most: int = 0
) -> Int[np.ndarray, "examples sets pairs 2"]:
    """Pairs of (query, key) by example and set as one array, padded with -1.

    Args:
        example_sets: sets of pairs for each example, the same number for all.
        most: pad to at least this many pairs, so that batches have one shape.
    """
    most = max(most, 1, *(len(pairs) for sets in example_sets for pairs in sets))
    stacked = np.full((len(example_sets), len(example_sets[0]), most, 2), -1, np.int32)
    for example, sets in enumerate(example_sets):
        for number, pairs in enumerate(sets):
            stacked[example, number, : len(pairs)] = np.array(pairs, np.int32).reshape(-1, 2)
    return stacked
