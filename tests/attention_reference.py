"""Attention in float64 by NumPy, and programs lowered for absent devices."""

import contextlib
import math
import re

import jax
import numpy as np

# Of one attention, inputs of variance 1, against float64. bfloat16 has 8 bits: outputs of size 1 to 4, and weights that
# are rounded before they meet the values.
ERROR = {"float32": 1e-5, "bfloat16": 2e-2}

CLOSE = 1e-5  # float32, values of size 1 to 10, sums in another order

PLACES, BATCH, HEADS = 4, 3, 2


def reference(queries, keys, values, segments, gates):
    """Weights and outputs after overrides, in float64."""
    queries, keys, values = (np.asarray(part, np.float64) for part in (queries, keys, values))
    query_segments, key_segments = (np.asarray(part) for part in segments)
    allowed = ((query_segments[:, :, None] == key_segments[:, None]) & (key_segments > 0)[:, None])[:, None]
    scores = np.einsum("bqhd,bkhd->bhqk", queries, keys) / math.sqrt(queries.shape[-1])
    share = np.exp(scores) * allowed
    weights = share / np.maximum(share.sum(-1, keepdims=True), 1e-300)
    factor = np.ones(queries.shape[2])
    if gates is not None:
        gate, uniform, factor = (np.asarray(part, np.float64) for part in (gates.weights, gates.uniform, gates.output))
        gate, uniform = gate[:, None, None], uniform[:, None, None]
        weights = gate * weights + (1 - gate) * uniform * allowed / np.maximum(allowed.sum(-1, keepdims=True), 1)
    return weights, np.einsum("bhqk,bkhd->bqhd", weights, values) * factor[:, None]


def normal(rng, dtype, *shape):
    return jax.device_put(rng.normal(size=shape).astype(np.float32).astype(dtype))


def lower(function, platform, *arguments):
    """Lower a function for an absent platform; JAX 0.11 and newer need the kind of GPU."""
    context = contextlib.nullcontext()
    if platform == "cuda" and hasattr(jax.sharding, "AbstractDevice"):
        device = jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", 132, "cuda")
        mesh = jax.sharding.AbstractMesh((1,), ("x",), (jax.sharding.AxisType.Auto,), abstract_device=device)
        context = jax.sharding.use_abstract_mesh(mesh)
    with context:
        return jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()


def largest_of(text):
    """Elements of the largest array in a lowered program."""
    return max(math.prod(map(int, shape.split("x")[:-1])) for shape in re.findall(r"tensor<((?:\d+x)+)\w+>", text))
