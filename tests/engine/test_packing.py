"""Packing: every token once, examples apart, rows full."""

from functools import partial

import numpy as np
import pytest

from bertjax.engine import packing
from bertjax.engine.packing import ATTENTION_WEIGHT, STEP, choose_row_length, first_fit, pack, total_lengths
from bertjax.errors import InputError
from tests.tiny_models import encodings


def slow_first_fit(lengths, row_length):
    """One example after another, the longest first, into the first row with room."""
    rows, room = [], []
    for example in sorted(range(len(lengths)), key=lambda example: -lengths[example]):
        length = lengths[example]
        row = next((row for row, left in enumerate(room) if left >= length), None)
        if row is None:
            rows.append([])
            room.append(row_length)
            row = len(rows) - 1
        rows[row].append(example)
        room[row] -= length
    return rows


def test_first_fit_decreasing_equals_a_loop_over_examples(rng):
    for longest in (3, 30):
        for _ in range(50):
            lengths = rng.integers(1, longest, rng.integers(1, 200)).astype(np.int32)
            row_length = int(rng.integers(longest, 70))
            assert first_fit(lengths, row_length) == slow_first_fit(lengths.tolist(), row_length)


@pytest.mark.parametrize("one_per_row", [False, True])
def test_every_token_of_every_example_is_in_one_place(small, rng, one_per_row):
    examples = [encodings(small, rng, rng.integers(1, 9, count)) for count in rng.integers(1, 3, 23)]
    packed = pack(examples, 17, one_per_row=one_per_row)
    found = [(packed.examples[at], packed.texts[at]) for at in map(tuple, np.argwhere(packed.examples >= 0))]
    assert sorted(found) == [(number, text) for number, texts in enumerate(examples) for text in range(len(texts))]
    for row, place in np.argwhere(packed.examples >= 0):
        example = examples[packed.examples[row, place]][packed.texts[row, place]]
        start = packed.starts[row, place]
        here = slice(start, start + packed.lengths[row, place])
        assert packed.input_ids[row, here].tolist() == list(example.input_ids)
        assert packed.token_type_ids[row, here].tolist() == list(example.token_type_ids)
        assert packed.position_ids[row, here].tolist() == list(range(len(example)))
        assert (packed.segments[row] == place + 1).sum() == len(example)
    assert (packed.lengths[packed.examples < 0] == 0).all()
    assert (packed.segments > 0).sum() == sum(len(text) for texts in examples for text in texts)
    assert packed.filled == (packed.segments > 0).mean()
    assert packed.rows == (23 if one_per_row else len(first_fit(total_lengths(examples), 17)))
    for number in range(23):
        assert len({row for row, _ in np.argwhere(packed.examples == number)}) == 1  # the texts share a row


def test_the_row_length_fits_the_longest_and_fills_rows(rng):
    lengths = rng.integers(9, 90, 400).astype(np.int32)
    row_length = choose_row_length(lengths, 768, 3072)
    assert row_length >= lengths.max()
    assert row_length % STEP == 0
    assert lengths.sum() / (len(first_fit(lengths, row_length)) * row_length) > 0.9


def test_the_row_length_is_the_cheapest_without_packing_examples(rng, monkeypatch):
    """There may be hundreds of thousands of texts: their lengths are counted once, and no length packs them."""

    def cost(lengths, row_length):
        slots = len(slow_first_fit(lengths.tolist(), row_length)) * row_length
        return slots * (2 * 24 * (4 * 24 + 2 * 40) + ATTENTION_WEIGHT * 4 * row_length * 24)

    several = [rng.integers(1, 40, count).astype(np.int32) for count in (1, 7, 90, 200)]
    cheapest = [min(range(-(-max(each) // STEP) * STEP, 81, STEP), key=partial(cost, each)) for each in several]
    monkeypatch.setattr(packing, "first_fit", None)
    assert [choose_row_length(each, 24, 40, most=80) for each in several] == cheapest


def test_what_cannot_be_packed_is_refused(small, rng):
    with pytest.raises(InputError, match="no examples"):
        pack([], 8)
    with pytest.raises(InputError, match=r"9 tokens, but a row only 8: give a larger row_length, .* max_length=8"):
        pack([encodings(small, rng, [4, 5])], 8)
    for without in ([2, 0], [0], []):
        with pytest.raises(InputError, match="example 1 has no tokens"):
            pack([encodings(small, rng, [3]), encodings(small, rng, without), encodings(small, rng, [0])], 8)
