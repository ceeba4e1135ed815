"""The mathematics against float64 NumPy, and its edge cases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf, ndtr, softmax
from scipy.stats import norm

from bertjax.models import ops
from bertjax.models.types import Numerics
from tests.tiny_models import largest_difference

F32 = Numerics()

# float32 carries 24 bits; sums of a few dozen terms of size 1 lose two or three of them.
CLOSE = 2e-6


def normal(rng, *shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def test_layer_norm_is_accurate_where_the_mean_is_large(rng):
    # The fast variance E[x^2] - E[x]^2 would lose all digits at a mean of 1,000.
    x, scale, bias = 1000 + normal(rng, 3, 5, 8), normal(rng, 8), normal(rng, 8)
    wide = np.asarray(x, np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    expected = np.asarray(scale) * centred / np.sqrt(centred.var(-1, keepdims=True) + 1e-12) + np.asarray(bias)
    assert largest_difference(ops.layer_norm(x, scale, bias, 1e-12, F32), expected) < 1e-3


def test_layer_norm_uses_its_epsilon(rng):
    x, one, none = normal(rng, 1, 1, 6) * 1e-3, jnp.ones(6), jnp.zeros(6)
    small, large = (np.abs(ops.layer_norm(x, one, none, epsilon, F32)).max() for epsilon in (1e-12, 1e-2))
    assert large < 0.1 * small


def test_gelu_is_the_exact_one_and_gelu_new_is_not(rng):
    x = 3 * normal(rng, 50)
    exact = 0.5 * np.asarray(x) * (1 + erf(np.asarray(x, np.float64) / np.sqrt(2)))
    assert largest_difference(ops.ACTIVATIONS["gelu"](x), exact) < CLOSE
    assert largest_difference(ops.ACTIVATIONS["gelu_new"](x), exact) > 1e-5


@pytest.mark.parametrize(("dtype", "close"), [("float32", 2.5e-7), ("bfloat16", 1.001 * 2.0**-8)])
def test_gelu_is_accurate_to_the_last_bits(rng, dtype, close):
    x = jnp.asarray(4 * rng.normal(size=10_000), dtype)
    wide = np.asarray(x, np.float64)
    exact = wide * ndtr(wide)
    found = ops.gelu(x)
    assert found.dtype == x.dtype
    assert (np.abs(np.asarray(found, np.float64) - exact) <= close * np.maximum(1, np.abs(exact))).all()


def test_the_gradient_of_gelu_has_no_kink_at_zero(rng):
    x = jnp.asarray([0.0, *3 * rng.normal(size=50)], jnp.float32)
    wide = np.asarray(x, np.float64)
    exact = ndtr(wide) + wide * norm.pdf(wide)
    assert largest_difference(jax.vmap(jax.grad(ops.gelu))(x), exact) < 1e-6


def test_attention_weights_are_a_softmax_over_kept_keys(rng):
    scores, keep = 5 * normal(rng, 2, 3, 4, 6), (rng.random((2, 1, 4, 6)) < 0.6).astype(np.float32)
    keep[..., 0] = 1
    expected = softmax(np.where(keep > 0, np.asarray(scores, np.float64), -np.inf), axis=-1)
    weights = np.asarray(ops.attention_weights(scores, jnp.asarray(keep)))
    assert largest_difference(weights, expected) < CLOSE
    assert (weights[np.broadcast_to(keep, weights.shape) == 0] == 0).all()


def test_a_row_without_keys_has_weights_zero(rng):
    weights = ops.attention_weights(normal(rng, 1, 2, 3, 4), jnp.zeros((1, 1, 1, 4)))
    assert (np.asarray(weights) == 0).all()


@pytest.mark.parametrize(
    "scores",
    [[1.0, np.inf, 0.0], [np.nan, 1.0, 0.0], [-np.inf] * 3, [-np.inf, 1.0, 0.0], [np.inf, -np.inf, np.inf]],
)
def test_weights_of_scores_that_are_not_finite_are_pytorchs(scores):
    import torch

    expected = torch.softmax(torch.tensor(scores), dim=-1).numpy()
    padded = jnp.asarray([[[[*scores, 0.5]]]], jnp.float32)
    weights = np.asarray(ops.attention_weights(padded, jnp.array([[[[1.0, 1.0, 1.0, 0.0]]]])))[0, 0, 0]
    np.testing.assert_allclose(weights[:3], expected, atol=CLOSE)


@pytest.mark.parametrize("size", [1e4, 1e30])
def test_huge_scores_on_masked_keys_change_nothing(rng, size):
    scores, keep = normal(rng, 1, 1, 1, 3), jnp.array([[[[1.0, 0.0, 1.0]]]])
    expected = ops.attention_weights(scores, keep)
    huge = scores.at[..., 1].set(size)
    assert np.array_equal(ops.attention_weights(huge, keep), expected)


def test_the_share_of_a_key_is_differentiable_where_it_is_zero(rng, x64):
    # In float64: a difference of two weights in float32 has an error that is too large for a small slope.
    scores, keep = (
        jnp.asarray(part, jnp.float64) for part in (rng.normal(size=(1, 1, 1, 4)), [[[[1.0, 0.0, 1.0, 1.0]]]])
    )

    def first(keep):
        return ops.attention_weights(scores, keep)[0, 0, 0, 0]

    slope = jax.grad(first)(keep)[0, 0, 0, 1]
    step = keep.at[..., 1].set(1e-6)
    assert abs(slope - (first(step) - first(keep)) / 1e-6) < 1e-3 * abs(slope)


def test_uniform_weights_count_real_keys_and_survive_none():
    keep = jnp.array([[[1.0, 1, 0, 1]], [[0, 0, 0, 0]]])
    expected = np.array([[[1 / 3, 1 / 3, 0, 1 / 3]], [[0, 0, 0, 0]]])
    assert largest_difference(ops.uniform_weights(keep), expected) < 1e-7


def test_the_gate_is_differentiable_at_both_ends(rng):
    learned, replacement = normal(rng, 5), normal(rng, 5)
    for gate in (0.0, 1.0):
        slope = jax.jacfwd(lambda g: ops.blend(g, learned, replacement))(jnp.float32(gate))
        assert largest_difference(slope, learned - replacement) < 1e-6


def test_bfloat16_products_are_summed_in_float32(rng):
    # 4,096 ones summed in bfloat16 would stop at 256.
    x = jnp.ones((1, 4096), jnp.bfloat16)
    product = ops.contract("ae,be->ab", x, x, Numerics("bfloat16", "default"))
    assert product.dtype == jnp.float32
    assert float(product[0, 0]) == 4096


@pytest.mark.parametrize("shape", [(3, 5, 7), (400, 36, 256), (6, 30, 54, 64)])
def test_the_derivative_of_norms_is_exact_for_any_number_of_rows(shape):
    """jaxlib 0.12 compiles for CPUs a wrong form of what JAX derives by itself, of some thousands of rows."""
    rng = np.random.default_rng(8)
    x, change = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    exact, w = (array.astype(np.float64) for array in (x, change))
    deviation = exact - exact.mean(-1, keepdims=True)
    scale = 1 / np.sqrt((deviation**2).mean(-1, keepdims=True) + 1e-12)
    y = deviation * scale
    expected = scale * (w - w.mean(-1, keepdims=True) - y * (w * y).mean(-1, keepdims=True))

    def norm(x):
        return ops.normalise(x, 1e-12)

    back = jax.jit(lambda x, w: jax.vjp(norm, x)[1](w)[0])(x, change)
    forward = jax.jit(lambda x, w: jax.jvp(norm, (x,), (w,))[1])(x, change)
    for found in (back, forward):
        np.testing.assert_allclose(found, expected, atol=2e-6 * np.abs(expected).max())
    by_example = jax.jit(jax.vmap(lambda x, w: jax.vjp(norm, x)[1](w)[0]))(x, change)
    np.testing.assert_allclose(by_example, expected, atol=2e-6 * np.abs(expected).max())
