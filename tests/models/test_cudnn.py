"""Fused attention in half precision uses cuDNN on GPUs from Ampere on; the tests only lower it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo

from bertjax.models import fused_attention
from bertjax.models.types import Numerics
from tests.attention_reference import BATCH, CLOSE, ERROR, HEADS, largest_of, lower, normal, reference
from tests.tiny_models import largest_difference

HALF = Numerics("bfloat16", "default", "fused")


@pytest.fixture
def pretend_cudnn(monkeypatch):
    """Replace the queries of cuDNN's version and the GPU's compute capability, which need a GPU."""
    monkeypatch.setattr(fused_attention, "has_cudnn", lambda numerics, head_dim: True)
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91300)
    monkeypatch.setattr(fused_attention_stablehlo, "check_compute_capability", lambda capability: True)
    monkeypatch.setattr(fused_attention_stablehlo, "is_cuda_compute_capability_equal", lambda capability: False)


def padded(part, keep):
    return fused_attention.attend(part, part, part, keep, None, 0, numerics=HALF).sum()


@pytest.mark.parametrize("tokens", [1, 33, 512])
@pytest.mark.parametrize("differentiate", [False, True])
def test_fused_half_precision_attention_uses_cudnn_on_a_gpu(pretend_cudnn, differentiate, tokens):
    part, keep = jnp.ones((2, tokens, 3, 64), jnp.bfloat16), jnp.ones((2, 1, tokens))
    text = lower(jax.grad(padded) if differentiate else padded, "cuda", part, keep)
    assert ("fmhaSoftmaxBackward" if differentiate else "fmhaSoftmax") in text
    assert largest_of(text) < max(2 * tokens * tokens, 2 * (tokens + 1) * 3 * 64 + 1)  # no weights and no mask of pairs


@pytest.mark.parametrize("over", ["queries", "mask", "both"])
@pytest.mark.parametrize("differentiate", [False, True])
def test_cudnn_attention_supports_vmap(pretend_cudnn, over, differentiate):
    part, keep = jnp.ones((4, 2, 33, 3, 64), jnp.bfloat16), jnp.ones((4, 2, 1, 33))
    axes = {"queries": (0, None), "mask": (None, 0), "both": (0, 0)}[over]
    arguments = [one if axis == 0 else one[0] for one, axis in zip((part, keep), axes, strict=True)]
    function = jax.vmap(jax.grad(padded) if differentiate else padded, axes)
    assert "fmhaSoftmax" in lower(function, "cuda", *arguments)


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_vmapped_cudnn_attention_equals_single_calls(rng, axes):
    """Values and gradients of the arguments for cuDNN, computed by XLA."""
    part = normal(rng, "float32", 4, BATCH, 7, HEADS, 32)
    keep = jnp.asarray(rng.integers(0, 2, (4, BATCH, 7)), jnp.float32).at[..., 0].set(1)

    def value(part, keep):
        return (fused_attention.real_keys_first(part, 2 * part, part, keep, "xla") ** 2).sum()

    arguments = [one if axis == 0 else one[0] for one, axis in zip((part, keep), axes, strict=True)]
    alone = jax.jit(jax.value_and_grad(value))
    found, gradient = jax.jit(jax.vmap(alone, axes))(*arguments)
    for number in range(4):
        one = [each[number] if axis == 0 else each for each, axis in zip(arguments, axes, strict=True)]
        expected = alone(*one)
        assert abs(found[number] / expected[0] - 1) < CLOSE
        assert largest_difference(gradient[number], expected[1]) < CLOSE * 10


def test_packed_rows_use_cudnn_with_a_mask(pretend_cudnn):
    part, segments = jnp.ones((2, 64, 3, 64), jnp.bfloat16), jnp.ones((2, 64), jnp.int32)

    def function(part, segments):
        return fused_attention.attend_in_rows(part, part, part, segments, HALF)

    assert "fmhaScaleBiasSoftmax" in lower(function, "cuda", part, segments)


def test_cudnn_needs_half_precision_and_ampere(monkeypatch):
    class Device:
        compute_capability = "8.0"

    assert not fused_attention.has_cudnn(HALF, 64)  # a CPU
    monkeypatch.setattr(jax, "local_devices", lambda: [Device])
    assert fused_attention.has_cudnn(HALF, 64)
    assert not fused_attention.has_cudnn(HALF, 12)
    assert not fused_attention.has_cudnn(Numerics(), 64)
    for other in ("7.5", "gfx942"):  # Turing, and AMD's
        Device.compute_capability = other
        assert not fused_attention.has_cudnn(HALF, 64)


@pytest.mark.parametrize("tokens", [1, 7, 130])
def test_a_mask_equals_a_number_of_reordered_keys(rng, tokens):
    """The arguments for cuDNN, computed by XLA."""
    queries, keys, values = (normal(rng, "float32", BATCH, tokens, HEADS, 32) for _ in range(3))
    keep = jnp.asarray(rng.integers(0, 2, (BATCH, tokens)), jnp.float32).at[0].set(1).at[1].set(0)
    found = np.asarray(fused_attention.real_keys_first(queries, keys, values, keep, "xla"))
    some = np.asarray(keep.sum(1) > 0)
    asking, key_mask = np.ones((BATCH, tokens)), np.asarray(keep)
    expected = reference(queries, keys, values, (asking, key_mask), None)[1]
    assert np.isfinite(found).all()
    assert largest_difference(found[some], expected[some]) <= ERROR["float32"]
