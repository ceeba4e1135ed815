"""Attention weights in the form that the pages read."""

import base64
import gzip
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from bertjax.errors import InputError

STEPS = 65535  # the integer of weight 1, in 16 bits


def pack_attention(tokens: Sequence[str], weights: Float[np.ndarray, "layers heads query key"]) -> dict[str, Any]:
    """Pack the attention of one text for the JavaScript function `readAttention`.

    Args:
        tokens: the tokens of the text, without padding.
        weights: weights from 0 to 1, `[layers, heads, query, key]`, one query and one key for each token.

    Returns:
        `tokens`; `layers`; `heads`; `weights`: each weight times 65535 as a little-endian 16-bit integer, in the order
        of the array, compressed by gzip and encoded in base64.

    Raises:
        InputError: the shape of the array does not fit the tokens, or a weight is not from 0 to 1.

    >>> packed = pack_attention(["[CLS]", "cat"], np.full((1, 3, 2, 2), 0.5))
    >>> packed["tokens"], packed["layers"], packed["heads"]
    (['[CLS]', 'cat'], 1, 3)
    """
    weights = np.asarray(weights, np.float64)
    count = len(tokens)
    if weights.ndim != 4 or weights.shape[2:] != (count, count):
        expected = f"[layers, heads, {count}, {count}] for {count} tokens"
        raise InputError(f"attention weights must be {expected}, not {[*weights.shape]}")
    # A softmax in low precision can exceed 1 by its rounding error.
    if not (np.isfinite(weights).all() and weights.min(initial=0) >= -0.01 and weights.max(initial=0) <= 1.01):
        raise InputError("attention weights must be from 0 to 1")
    steps = np.round(STEPS * weights.clip(0, 1)).astype("<u2")
    content = base64.b64encode(gzip.compress(steps.tobytes(), 5, mtime=0)).decode()
    layers, heads = weights.shape[:2]
    return {"tokens": [str(token) for token in tokens], "layers": layers, "heads": heads, "weights": content}
