"""Chosen tokens: each is computed once, and the last layer at them alone; what comes out is as if all were."""

from collections import Counter

import numpy as np
import pytest

from bertjax import BertForMaskedLM
from bertjax.engine import compiled_steps, sweep_input
from bertjax.engine import run as engine
from bertjax.engine.packing import make_picks, pack, round_up
from bertjax.engine.sweep_input import make_sweep_input
from bertjax.interventions import MODES, readouts
from bertjax.interventions import ablations as ab
from tests.family_models import config_of
from tests.tiny_models import encodings, largest_difference, random_model

LENGTHS = [3, 11, 1, 5, 5, 2, 9, 4, 1, 1, 1]


@pytest.fixture(autouse=True)
def _whatever_it_saves(monkeypatch):
    """Compute the last layer only at the readout's tokens, however many they are."""
    monkeypatch.setattr(sweep_input, "LARGEST_SHARE", 1.0)


def positions_and_targets(rng, lengths):
    """One to three tokens of each text, the last repeated where there are fewer; the same one with two targets."""
    positions, targets = np.zeros((2, len(lengths), 3), np.int32)
    for number, length in enumerate(lengths):
        count = min(int(rng.integers(1, 4)), length)
        chosen = np.sort(rng.choice(length, count, replace=False))
        positions[number], targets[number] = np.resize(chosen, 3), rng.integers(0, 20, 3)
        positions[number, count:], targets[number, count:] = positions[number, count - 1], targets[number, count - 1]
    positions[1], targets[1] = 7, [4, 5, 5]
    return positions, targets


def words_of_texts(output, targets):
    """As `readouts.words`, but not known to read each token by itself."""
    return readouts.words(output, targets)


def test_every_target_token_is_picked_once(small, rng):
    lengths = [3, 9, *rng.integers(1, 9, 38).tolist()]
    texts = [[text] for text in encodings(small, rng, lengths)]
    positions, targets = positions_and_targets(rng, lengths)
    packed = pack(texts, 19)
    picks = make_picks(packed, positions, targets)
    found = picks.tokens[picks.rows[:, None], picks.places]
    for number in range(40):
        row, place = (axis[0] for axis in np.nonzero(packed.examples == number))
        assert picks.rows[number] == row
        assert (found[number] == packed.starts[row, place] + positions[number]).all()
    assert (picks.targets[picks.rows[:, None], picks.places, 0] == targets).all()
    expected = {
        (row, *pick)
        for row, several, known in zip(picks.rows, found, targets, strict=True)
        for pick in zip(several, known, strict=True)
    }
    assert picks.counts.sum() == len({(int(row), int(token), int(target)) for row, token, target in expected})
    assert picks.tokens.shape[1] == round_up(int(picks.counts.max()))
    assert picks.width(np.array([0, 2])) == round_up(int(max(picks.counts[[0, 2]])))
    alone = make_picks(packed, positions[:, :1], None)
    assert alone.targets is None
    assert (alone.counts == (packed.examples >= 0).sum(axis=1)).all()


@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("family", ["bert", "mpnet", "modernbert"])
def test_outputs_are_those_of_whole_texts(family, mode, rng, x64):
    config = config_of(family, 0)
    model = random_model(BertForMaskedLM, config, "float64")
    texts, sources = encodings(config, rng, LENGTHS), encodings(config, rng, LENGTHS)
    at, targets = positions_and_targets(rng, LENGTHS)
    shape = config.num_hidden_layers, config.num_attention_heads, config.head_dim
    options = {"at": at, "targets": targets, "sources": sources, "means": rng.normal(size=shape)}
    ablations = [*ab.single_heads(config, mode), *ab.whole_layers(config, mode)]
    ours, theirs = (
        engine.sweep(model, texts, ablations, readout, row_length=23, tokens_at_once=69, **options)
        for readout in (readouts.words, words_of_texts)
    )
    assert ours.outputs.shape == theirs.outputs.shape == (len(ablations), len(LENGTHS), 3, 2)
    assert largest_difference(ours.base, theirs.base) < 1e-10
    assert largest_difference(ours.outputs, theirs.outputs) < 1e-10
    assert np.ptp(ours.outputs[..., 0], axis=0).max() > 1e-3


@pytest.mark.parametrize(("family", "short"), [("bert", True), ("roberta", True), ("mpnet", False)])
def test_the_last_layer_is_short_without_position_dependence(family, short, rng, monkeypatch):
    config = config_of(family, 0)
    model, texts = random_model(BertForMaskedLM, config), encodings(config, rng, LENGTHS)
    at, targets = positions_and_targets(rng, LENGTHS)
    steps = ("apply_layer", "fork_from_parent", "read")
    traced = Counter()

    def counted(name, step):
        def run(*arrays, cls_only=None, **options):
            traced[name, bool(cls_only) if name != "read" else arrays[3].rows is None] += 1
            return step(*arrays, **options, **({} if cls_only is None else {"cls_only": cls_only}))

        return run

    for name in steps:
        monkeypatch.setattr(compiled_steps, name, counted(name, getattr(compiled_steps, name)))
    heads = ab.single_heads(config)
    for readout, shortened in ((readouts.words, short), (words_of_texts, False)):
        traced.clear()
        engine.sweep(model, texts, heads, readout, at=at, targets=targets)
        assert [traced[name, True] > 0 for name in steps] == [shortened] * 3
        assert (traced["read", False] > 0) == (not shortened)


def test_memory_is_counted_by_the_tokens_that_are_read(small, rng):
    """If one text has many tokens to read and the others have one, rows are not counted as if all had many."""
    model, texts = random_model(BertForMaskedLM, small), encodings(small, rng, [9] * 6)
    at = np.array([[1, 2, 3, 4, 5, 6], *[[3] * 6] * 5])
    heads = ab.single_heads(small)
    ours, theirs = (
        make_sweep_input(model, texts, heads, readout, at=at, targets=at)
        for readout in (readouts.words, words_of_texts)
    )
    assert ours.readings.tolist() == [6, 1, 1, 1, 1, 1]
    assert theirs.readings.tolist() == [1] * 6
    assert ours.row_bytes(7, 1) == -(-theirs.row_bytes(7, 1) // 6)
    assert ours.cls_only
    assert not theirs.cls_only


def test_many_target_tokens_compute_the_last_layer_at_all_tokens(small, rng, monkeypatch):
    monkeypatch.undo()
    model, texts = random_model(BertForMaskedLM, small), encodings(small, rng, [10] * 4)
    for count_of_each, short in ((1, True), (4, True), (5, False), (10, False)):
        at = np.tile(np.arange(count_of_each), (4, 1))
        sweep_input = make_sweep_input(model, texts, ab.single_heads(small), readouts.words, at=at, targets=at)
        assert sweep_input.by_token
        assert sweep_input.cls_only == short
    few, all_of_them = (
        engine.sweep(model, texts, ab.single_heads(small), readouts.words, at=at[:, :count], targets=at[:, :count])
        for count in (2, 10)
    )
    assert np.abs(few.outputs[..., 0] - all_of_them.outputs[:, :, :2, 0]).max() < 2e-5


def test_targets_of_another_shape_are_those_of_whole_texts(small, rng):
    model, texts = random_model(BertForMaskedLM, small), encodings(small, rng, [9, 4])

    def first_logits(output, targets):
        return output.logits[:, 0] * targets[:, None]

    first_logits.of_each_token = True  # as far as there are targets of each
    options = {"at": [[1, 2], [0, 3]], "targets": np.array([1.0, 0.0], np.float32)}
    assert not make_sweep_input(model, texts, ab.single_heads(small), first_logits, **options).by_token
    swept = engine.sweep(model, texts, ab.single_heads(small), first_logits, **options)
    assert np.abs(swept.base[0]).max() > 0
    assert np.abs(swept.base[1]).max() == 0
