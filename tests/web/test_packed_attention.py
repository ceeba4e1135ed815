"""Attention weights as the pages read them."""

import base64
import gzip

import numpy as np
import pytest

from bertjax.errors import InputError
from bertjax.web import pack_attention


def unpack(packed):
    content = gzip.decompress(base64.b64decode(packed["weights"]))
    count = len(packed["tokens"])
    return np.frombuffer(content, "<u2").reshape(packed["layers"], packed["heads"], count, count) / 65535


def test_weights_are_kept_to_half_a_step_in_16_bits():
    weights = np.random.default_rng(0).dirichlet(np.ones(5), size=(2, 3, 5))
    packed = pack_attention(["[CLS]", "a", "b", "c", "[SEP]"], weights)
    assert (packed["layers"], packed["heads"]) == (2, 3)
    np.testing.assert_allclose(unpack(packed), weights, atol=0.5 / 65535 + 1e-12)


def test_the_same_weights_give_the_same_text():
    weights = np.full((1, 1, 2, 2), 0.5, np.float32)
    assert pack_attention(["a", "b"], weights) == pack_attention(["a", "b"], weights)


def test_rounding_of_low_precision_is_cut():
    assert unpack(pack_attention(["a"], np.full((1, 1, 1, 1), 1.004))).item() == 1


@pytest.mark.parametrize(
    ("tokens", "weights", "message"),
    [
        (["a"], np.ones((1, 2, 2)), r"\[layers, heads, 1, 1\] for 1 tokens, not \[1, 2, 2\]"),
        (["a"], np.ones((1, 1, 2, 2)), r"for 1 tokens, not \[1, 1, 2, 2\]"),
        (["a", "b"], np.ones((1, 1, 2, 3)), r"for 2 tokens, not \[1, 1, 2, 3\]"),
        (["a"], np.full((1, 1, 1, 1), np.nan), "from 0 to 1"),
        (["a"], np.full((1, 1, 1, 1), -0.5), "from 0 to 1"),
        (["a"], np.full((1, 1, 1, 1), 2.0), "from 0 to 1"),
    ],
)
def test_other_arrays_are_refused(tokens, weights, message, unchecked):
    with pytest.raises(InputError, match=message):
        pack_attention(tokens, weights)
