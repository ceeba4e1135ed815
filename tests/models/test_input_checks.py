"""Arguments that do not fit the model are refused with a message that names the value."""

import jax
import numpy as np
import pytest

from bertjax import BertModel
from bertjax.errors import InputError

IDS = np.array([[1, 2, 3], [4, 5, 6]])

WRONG_INPUTS = {
    "too long": ({"input_ids": np.ones((1, 20), int)}, "20 tokens.*max_position_embeddings 19"),
    "outside the vocabulary": ({"input_ids": [[1, 41]]}, "holds 41.*vocab_size is 41"),
    "negative id": ({"input_ids": [[-1, 2]]}, "holds -1"),
    "float ids": ({"input_ids": [[1.0, 2.0]]}, "must be integers, found float64"),
    "one example without batch": ({"input_ids": [1, 2]}, r"\[batch, token\].*\(2,\)"),
    "no example": ({"input_ids": np.zeros((0, 3), int)}, "not be empty"),
    "rows of different lengths": ({"input_ids": [[1, 2], [3]]}, "different lengths: pad them"),
    "mask of another shape": (
        {"input_ids": IDS, "attention_mask": np.ones((2, 4))},
        r"\(2, 4\), expected \(2, 3\)",
    ),
    "additive mask": ({"input_ids": IDS, "attention_mask": [[0.0, 0.0, -1e4]] * 2}, "no additive mask"),
    "mask of words": ({"input_ids": IDS, "attention_mask": [["a", "b", "c"]] * 2}, "an array of numbers"),
    "segments of another shape": ({"input_ids": IDS, "token_type_ids": [[0, 1]]}, r"\(1, 2\).*\(2, 3\)"),
    "no such segment": (
        {"input_ids": IDS, "token_type_ids": IDS * 0 + 2},
        "token_type_ids holds 2.*type_vocab_size",
    ),
    "no such position": ({"input_ids": IDS, "position_ids": IDS * 0 + 19}, "position_ids holds 19"),
}


@pytest.mark.parametrize("name", WRONG_INPUTS)
def test_input_that_does_not_fit_is_refused(small, name):
    arguments, message = WRONG_INPUTS[name]
    with pytest.raises(InputError, match=message) as caught:
        BertModel(small)(**arguments)
    assert "\n" not in str(caught.value)


def test_shapes_are_checked_inside_jit_too(small):
    model = BertModel(small)
    with pytest.raises(InputError, match="20 tokens"):
        jax.jit(lambda ids: model(ids).last_hidden_state)(np.ones((1, 20), np.int32))


def test_rows_may_exceed_the_positions_with_explicit_positions(small):
    ids = np.ones((1, 22), int)
    positions = np.concatenate([np.arange(11), np.arange(11)])[None]
    assert BertModel(small)(ids, position_ids=positions).last_hidden_state.shape == (1, 22, 12)
