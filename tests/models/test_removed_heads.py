"""Checkpoints with removed heads equal the full model with the same heads zeroed."""

import json
from dataclasses import replace
from itertools import product

import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax import BertConfig, overrides
from bertjax.checkpoints import FAMILIES
from bertjax.cli import main
from bertjax.engine import reference
from bertjax.engine.costs import Work, flops, spans_of_rows
from bertjax.errors import ConfigError, OverrideError
from bertjax.interventions import Ablation, Change, every_head, head_pairs, remove_heads, single_heads, whole_layers
from bertjax.models import ops
from tests.factories import make_classifier, make_config, make_embedder, write_pairs
from tests.family_models import arguments, config_of, sometimes
from tests.tiny_models import encodings, fixed_lengths, random_model

# Of three layers of three heads: all but one, one, and none of a layer's are gone.
GONE = ((0, 0), (0, 2), (1, 1))
WHOLE_LAYER = ((0, 1), (1, 0), (1, 1), (1, 2))
MODES = ("zero", "uniform", "mean")


def first_token(output):
    return output.last_hidden_state[:, 0]


def gone_in(config, gone=GONE):
    """Removed heads; the same in layers that share weights."""
    if len(set(config.architecture.parameters_of)) < config.num_hidden_layers:
        return tuple((layer, head) for layer in range(config.num_hidden_layers) for head in (0, 2))
    return gone


@pytest.fixture
def both(request, tmp_path):
    """A random model, and the model loaded from its checkpoint without some heads."""

    def make(family="bert", gone=GONE, cls=bertjax.BertModel):
        whole = random_model(cls, config_of(family))
        heads = gone_in(whole.config, gone)
        whole.save_pretrained(tmp_path / "smaller", without=heads)
        return whole, cls.from_pretrained(tmp_path / "smaller"), heads

    return make


def zeroed(config, heads, change=None):
    gone = overrides.factor(config, heads, 0.0)
    return gone if change is None else overrides.combine(gone, change)


@pytest.mark.parametrize("family", sometimes(FAMILIES, "bert", "albert", "mpnet", "deberta-v2", "modernbert"))
def test_a_smaller_model_equals_zeroed_heads(family, both, rng):
    whole, smaller, gone = both(family)
    assert sum(array.size for array in smaller.weights().values()) < sum(one.size for one in whole.weights().values())
    assert {*every_head(smaller.config)} == {*every_head(whole.config)} - {*gone}
    inputs = arguments(whole.config, rng)
    before, after = whole(**inputs, overrides=zeroed(whole.config, gone)), smaller(**inputs)
    real = np.asarray(inputs["attention_mask"]) > 0
    assert np.abs(np.asarray(whole(**inputs).last_hidden_state - before.last_hidden_state)[real]).max() > 1e-3
    np.testing.assert_allclose(after.last_hidden_state[real], before.last_hidden_state[real], atol=2e-5)
    for layer, head in gone:
        assert not np.asarray(after.attentions[layer, :, head]).any()
    layer, head = every_head(smaller.config)[0]
    np.testing.assert_allclose(after.attentions[layer, :, head], before.attentions[layer, :, head], atol=1e-5)


@pytest.mark.parametrize(("attention", "gone"), [("explicit", GONE), ("fused", WHOLE_LAYER)])
def test_remaining_heads_are_overridden_as_before(gone, attention, both, rng, tmp_path):
    whole, smaller, _ = both(gone=gone)
    if attention == "fused":
        smaller = bertjax.BertModel.from_pretrained(tmp_path / "smaller", attention="fused")
    config, batch = whole.config, arguments(whole.config, rng)
    left = [f"{layer}.{head}" for layer, head in every_head(smaller.config)]
    source = whole(**arguments(whole.config, rng))
    changes = [
        lambda config: overrides.uniform(config, left[:2], [0.3, 0.6]),
        lambda config: overrides.factor(config, left[-1:], 1.7),
        lambda config: overrides.mean(config, left[1:3], np.ones((3, 3, 4), np.float32)),
        lambda config: overrides.patched_outputs(config, left[1:3], source),
    ]
    if attention == "explicit":
        changes += [
            lambda config: overrides.patched_weights(config, left[1:3], source),
            lambda config: overrides.fixed_edges(config, {(*every_head(smaller.config)[1], 1, 2): 0.4}, example=0),
        ]
    real = np.asarray(batch["attention_mask"]) > 0
    for change in changes:
        expected = whole(**batch, overrides=zeroed(config, gone, change(config))).last_hidden_state
        found = smaller(**batch, overrides=change(smaller.config)).last_hidden_state
        np.testing.assert_allclose(found[real], expected[real], atol=2e-5)


SWEPT = [*(("bert", mode) for mode in MODES), ("mpnet", "zero"), ("deberta-v2", "mean"), ("modernbert", "uniform")]


@pytest.mark.parametrize(
    ("family", "mode"),
    [one if one in SWEPT else pytest.param(*one, marks=pytest.mark.slow) for one in product(FAMILIES, MODES)],
)
def test_a_sweep_of_a_smaller_model_equals_that_of_all_heads(family, mode, both, rng):
    whole, smaller, gone = both(family)
    examples = encodings(whole.config, rng, fixed_lengths(3, 9, 6))
    sets = [
        *single_heads(smaller.config, mode),
        *whole_layers(smaller.config, mode),
        *head_pairs(smaller.config, mode)[:4],
    ]
    means = rng.normal(size=(smaller.config.num_hidden_layers, 3, smaller.config.head_dim)).astype(np.float32)
    options = {"readout": first_token, "means": means, "progress": False}
    found = bertjax.sweep(smaller, examples, sets, **options)
    zero = tuple(Change(*head, "zero") for head in gone)
    expected = bertjax.sweep(whole, examples, [Ablation(one.name, (*one.changes, *zero)) for one in sets], **options)
    assert np.abs(found.outputs - found.base).max() > 1e-3
    np.testing.assert_allclose(found.outputs, expected.outputs, atol=2e-5)


def test_gradients_of_a_smaller_model_are_those_of_its_heads(tmp_path):
    model, data = make_embedder(tmp_path / "whole"), write_pairs(tmp_path / "pairs.tsv", 24)
    whole = bertjax.load(model)
    whole.save_pretrained(tmp_path / "smaller", bertjax.Tokenizer.from_pretrained(model), without=[(0, 1), (1, 0)])
    found = bertjax.importance(tmp_path / "smaller", "mrpc", data=data, progress=False)
    assert found.names == ["0.0", "0.2", "1.1", "1.2"]
    exact = bertjax.ablate(tmp_path / "smaller", "mrpc", data=data, mode="zero", progress=False)
    assert exact.names == found.names
    few = {"draws": 1}
    pruned = bertjax.prune(tmp_path / "smaller", "mrpc", data=data, mode="zero", progress=False, **few)
    assert {*pruned.summary["pruning"]["orders"][0]["heads"]} == {*found.names}


def test_a_smaller_model_can_lose_more(both, rng, tmp_path):
    whole, smaller, gone = both()
    smaller.save_pretrained(tmp_path / "again", without=[(0, 1), (2, 2)])
    again = bertjax.BertModel.from_pretrained(tmp_path / "again")
    assert again.config.heads_of(0) == ()
    inputs = arguments(whole.config, rng)
    real = np.asarray(inputs["attention_mask"]) > 0
    expected = whole(**inputs, overrides=zeroed(whole.config, (*gone, (0, 1), (2, 2)))).last_hidden_state
    np.testing.assert_allclose(again(**inputs).last_hidden_state[real], expected[real], atol=2e-5)
    remove_heads(smaller, [(0, 1), (2, 2)])
    np.testing.assert_allclose(smaller(**inputs).last_hidden_state[real], expected[real], atol=2e-5)


def test_the_reference_engine_agrees(both, rng):
    _, smaller, _ = both()
    examples = encodings(smaller.config, rng, [5] * 4)
    batch = bertjax.collate(examples)
    runs = [overrides.uniform(smaller.config, [head]) for head in every_head(smaller.config)]
    swept = bertjax.sweep(smaller, examples, single_heads(smaller.config), first_token, progress=False)
    slow = reference.sweep(smaller, [([*range(4)], batch)], runs, first_token)
    np.testing.assert_allclose(swept.outputs, slow.outputs, atol=2e-5)


def test_the_config_is_that_of_transformers_4(tmp_path):
    config = make_config().without_heads([(1, 2), (1, 0)])
    assert config.to_dict()["pruned_heads"] == {"1": [0, 2]}
    assert BertConfig.from_dict(config.to_dict()) == config
    assert BertConfig.from_dict(make_config().to_dict() | {"pruned_heads": {"1": [2, 0], "0": []}}) == config
    assert "pruned_heads" not in make_config().to_dict()
    assert make_config().without_heads([]) == make_config()
    random_model(bertjax.BertModel, make_config()).save_pretrained(tmp_path / "m", without=[(1, 2), (1, 0)])
    written = json.loads((tmp_path / "m" / "config.json").read_text())
    assert written["pruned_heads"] == {"1": [0, 2]}
    with pytest.raises(OverrideError, match=r"there is no head 1\.2: it was pruned"):
        overrides.uniform(config, ["1.2"])


def test_removed_heads_accept_all_head_names(tmp_path):
    model = random_model(bertjax.BertModel, make_config())
    for place, form in enumerate((["1.2", "1.0"], [(1, 2), "1.0"], ((1, 0), (1, 2)))):
        model.save_pretrained(tmp_path / f"{place}", without=form)
        assert bertjax.load(tmp_path / f"{place}").config.pruned_heads == ((1, (0, 2)),)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (["x"], "'x' is not a head: give LAYER.HEAD"),
        (["1.3"], r"names head 1\.3: there are 2 layers of 3 heads"),
        ("1.2", "heads must be a list of heads, found the string '1.2'"),
    ],
)
def test_removed_heads_that_do_not_exist_are_refused(wrong, line, tmp_path):
    model = random_model(bertjax.BertModel, make_config())
    with pytest.raises(ConfigError, match=line):
        model.save_pretrained(tmp_path / "m", without=wrong)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    "wrong",
    [{"1": [3]}, {"2": [0]}, {"-1": [0]}, {"1": 2}, {"1": ["x"]}, {"1": [True]}, "1.2", 7, {"1": [0.5]}],
    ids=str,
)
def test_invalid_pruned_heads_are_refused(wrong):
    with pytest.raises(ConfigError, match="pruned_heads"):
        BertConfig.from_dict(make_config().to_dict() | {"pruned_heads": wrong})


def test_layers_that_share_their_weights_lose_a_head_together():
    with pytest.raises(ConfigError, match="share its weights"):
        config_of("albert").without_heads([(0, 1)])


def test_a_plan_counts_the_remaining_heads():
    config = replace(BertConfig(), num_hidden_layers=2)
    half = config.without_heads([(layer, head) for layer in range(2) for head in range(6)])
    work = [Work(full=1)] * 2
    whole, less = (flops(work, one, 100.0, spans_of_rows(one, 64), 0) for one in (config, half))
    attention = 2 * 100 * (8 * 768**2 + 4 * 64 * 768)
    np.testing.assert_allclose(whole - less, attention / 2)


def test_the_command_writes_a_smaller_checkpoint(tmp_path, capsys):
    model, output = make_classifier(tmp_path / "model"), str(tmp_path / "smaller")
    options = ["--model", str(model), "--heads", "0.1", "1.0", "--output", output]
    assert main(["remove-heads", *options, "--smaller"]) == 0
    loaded = bertjax.load(output)
    assert loaded.config.pruned_heads == ((0, (1,)), (1, (0,)))
    assert main(["parity", "--model", output]) == 2
    assert "has pruned heads, which transformers reads no more" in capsys.readouterr().err


def test_records_use_original_head_indices():
    ones = jnp.ones((1, 3, 2, 4))
    spread = ops.spread_record(ops.AttentionRecord(ones, ones, ones, None, ones), (0, 2), 3)
    assert spread.values.shape == (1, 3, 3, 4)
    assert np.asarray(spread.values).any(axis=(0, 1, 3)).tolist() == [True, False, True]
