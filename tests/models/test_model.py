"""Properties of the model that hold for any weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax import BertForSequenceClassification, BertModel
from bertjax.errors import ConfigError, InputError
from bertjax.interventions import overrides
from bertjax.models.pretrained import _run
from bertjax.models.types import Context, Numerics
from tests.family_models import arguments as family_arguments
from tests.family_models import config_of
from tests.tiny_models import arguments, largest_difference, random_model

CLOSE = 1e-5  # float32, values of size 1 to 10, sums in another order


def test_shapes_of_everything_in_the_output(small, rng):
    output = random_model(BertModel, small)(**arguments(small, rng, batch=4, tokens=9))
    assert output.last_hidden_state.shape == (4, 9, 12)
    assert output.pooler_output.shape == (4, 12)
    assert output.hidden_states.shape == (3, 4, 9, 12)
    assert output.attentions.shape == (2, 4, 3, 9, 9)
    for name in ("queries", "keys", "values", "head_outputs"):
        assert getattr(output.record, name).shape == (2, 4, 9, 3, 4)


def test_the_record_is_what_was_computed(small, rng):
    model = random_model(BertModel, small)
    record = model(**arguments(small, rng)).record
    outputs = np.einsum("lbhqk,lbkhd->lbqhd", record.weights, record.values)
    assert largest_difference(outputs, record.head_outputs) < CLOSE
    hidden, inside, rest = model.encoder.layers[1](
        record.hidden_states[1], Context(record.keep, jnp.arange(9)[None].repeat(4, 0))
    )
    assert largest_difference(hidden, record.hidden_states[2]) < CLOSE
    assert largest_difference(inside.queries, record.queries[1]) < CLOSE
    assert largest_difference(rest.feed_forward_outputs, record.feed_forward_outputs[1]) < CLOSE
    layers = model.encoder.layers
    for number, layer in enumerate(layers):
        attended = layer.attention.merge(record.head_outputs[number])
        assert largest_difference(attended, record.attention_outputs[number]) < CLOSE
        read = layer.attention_norm(record.hidden_states[number] + attended)
        assert largest_difference(read, record.feed_forward_inputs[number]) < CLOSE
        after = layer.output_norm(read + record.feed_forward_outputs[number])
        assert largest_difference(after, record.hidden_states[number + 1]) < CLOSE


@pytest.mark.parametrize("left", [False, True])
def test_padding_never_changes_a_real_token(small, rng, left):
    model, call = random_model(BertModel, small), arguments(small, rng, left=left)
    before = model(**call)
    mask = call["attention_mask"].astype(bool)
    call["input_ids"] = np.where(mask, call["input_ids"], rng.integers(0, small.vocab_size, mask.shape))
    after = model(**call)
    assert np.array_equal(before.last_hidden_state[mask], after.last_hidden_state[mask])
    assert (np.asarray(before.attentions)[:, ~mask[:, None, None].repeat(9, 2).repeat(3, 1)] == 0).all()


def test_right_padding_gives_what_no_padding_gives(small, rng):
    model, call = random_model(BertModel, small), arguments(small, rng)
    padded = model(**call).last_hidden_state
    for row, length in enumerate(call["attention_mask"].sum(1)):
        alone = model(**{name: value[row : row + 1, :length] for name, value in call.items()})
        assert largest_difference(alone.last_hidden_state[0], padded[row, :length]) < CLOSE


def test_permuting_heads_permutes_the_record_and_nothing_else(small, rng):
    model, call, order = random_model(BertModel, small), arguments(small, rng), np.array([2, 0, 1])
    before = model(**call)
    attention = model.encoder.layers[0].attention
    for part in (attention.query, attention.key, attention.value):
        part.kernel[...], part.bias[...] = part.kernel[...][:, order], part.bias[...][order]
    attention.output.kernel[...] = attention.output.kernel[...][order]
    after = model(**call)
    assert largest_difference(after.attentions[0], before.attentions[0][:, order]) < CLOSE
    assert largest_difference(after.last_hidden_state, before.last_hidden_state) < CLOSE


def test_examples_do_not_see_each_other(small, rng):
    model, call = random_model(BertModel, small), arguments(small, rng)
    order = [2, 0, 3, 1]
    shuffled = model(**{name: value[order] for name, value in call.items()})
    assert largest_difference(shuffled.last_hidden_state, model(**call).last_hidden_state[jnp.array(order)]) < CLOSE


def test_a_mask_for_each_query_packs_examples_into_one_row(small, rng):
    model = random_model(BertModel, small)
    ids = rng.integers(0, small.vocab_size, (1, 7))
    segment, positions = np.array([0, 0, 0, 1, 1, 1, 1]), np.array([[0, 1, 2, 0, 1, 2, 3]])
    mask = (segment[:, None] == segment[None])[None]
    packed = model(ids, mask, position_ids=positions)
    apart = [model(ids[:, :3]), model(ids[:, 3:])]
    together = np.concatenate([np.asarray(one.last_hidden_state) for one in apart], axis=1)
    assert largest_difference(packed.last_hidden_state, together) < CLOSE
    disabled = overrides.uniform(small, ["0.1", "1.2"])
    packed = model(ids, mask, position_ids=positions, overrides=disabled)
    second = model(ids[:, 3:], overrides=disabled)
    assert largest_difference(packed.last_hidden_state[:, 3:], second.last_hidden_state) < CLOSE


def test_a_plain_call_compiles_once_for_each_shape(small, rng):
    model = random_model(BertModel, small)
    before = _run._cache_size()
    for _ in range(3):
        model(**arguments(small, rng, batch=3, tokens=6))
        model(**arguments(small, rng, batch=3, tokens=8))
    assert _run._cache_size() - before == 2


@pytest.mark.parametrize("name", ["bert", "deberta-v2", "modernbert"])
def test_layers_of_a_kind_are_traced_once(name, rng):
    """BERT-base has twelve layers, and a program for each shape of input."""
    config = config_of(name, num_hidden_layers=5)
    model = random_model(BertModel, config)
    traced = jax.make_jaxpr(model.forward)(model.inputs(family_arguments(config, rng)))
    layers = [step.params["jaxpr"] for step in traced.eqns if step.params.get("name") == "_apply"]
    assert len(layers) == 5
    assert len({id(layer) for layer in layers}) == len(set(config.architecture.layers))


def test_weights_are_arguments_not_constants(small, rng):
    model, call = random_model(BertModel, small), arguments(small, rng)
    before, compiled = model(**call), _run._cache_size()
    model.embeddings.word[...] = model.embeddings.word[...] * 2
    assert largest_difference(model(**call).last_hidden_state, before.last_hidden_state) > 1e-2
    assert _run._cache_size() == compiled


def test_a_model_works_inside_jit_and_vmap_and_grad(small, rng):
    model, call = random_model(BertForSequenceClassification, small), arguments(small, rng)
    expected = model(**call).logits
    inside = jax.jit(lambda ids: model(ids, call["attention_mask"], call["token_type_ids"]).logits)
    assert largest_difference(inside(call["input_ids"]), expected) < CLOSE
    stacked = [np.stack([call[name], call[name][::-1]], axis=1) for name in ("input_ids", "attention_mask")]
    mapped = jax.vmap(lambda ids, mask: model(ids, mask).logits, in_axes=1)(*stacked)
    several = [model(*(both[:, place] for both in stacked)).logits for place in (0, 1)]
    assert largest_difference(mapped, np.stack(several)) < CLOSE
    gates = jnp.ones((2, 3))

    def total(gates):
        override = bertjax.Overrides(gates, jnp.ones((2, 3)), jnp.ones((2, 3)))
        return jnp.sum(model(**call, overrides=override).logits)

    slopes = jax.grad(total)(gates)
    assert slopes.shape == (2, 3)
    assert (np.abs(np.asarray(slopes)) > 0).all()


def test_bfloat16_stays_near_float32_and_keeps_wide_softmax(small, rng):
    call = arguments(small, rng)
    exact, coarse = (random_model(BertModel, small, dtype)(**call) for dtype in ("float32", "bfloat16"))
    assert coarse.last_hidden_state.dtype == jnp.bfloat16
    assert coarse.attentions.dtype == jnp.float32
    real = call["attention_mask"]
    assert 1e-4 < largest_difference(coarse.last_hidden_state, exact.last_hidden_state, real) < 0.3
    rows = np.asarray(coarse.attentions).sum(-1).transpose(1, 3, 0, 2)[real.astype(bool)]
    assert largest_difference(rows, np.ones_like(rows)) < 1e-6


def test_one_example_of_one_token(small):
    output = random_model(BertModel, small)([[7]])
    assert float(output.attentions.min()) == 1.0
    assert np.isfinite(output.last_hidden_state).all()


def test_a_row_that_is_all_padding_is_finite_with_weights_zero(small, rng):
    call = arguments(small, rng)
    call["attention_mask"][2] = 0
    output = random_model(BertModel, small)(**call)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(output))
    assert (np.asarray(output.attentions[:, 2]) == 0).all()
    disabled = random_model(BertModel, small)(**call, overrides=overrides.uniform(small, ["0.0"]))
    assert (np.asarray(disabled.attentions[:, 2]) == 0).all()


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.bool_, np.float32, np.float64])
def test_masks_of_every_dtype_mean_the_same(small, rng, dtype):
    model, call = random_model(BertModel, small), arguments(small, rng)
    expected = model(**call).last_hidden_state
    call["attention_mask"] = call["attention_mask"].astype(dtype)
    assert np.array_equal(model(**call).last_hidden_state, expected)


def test_without_a_pooler_there_is_no_pooler_output(small, rng):
    call = arguments(small, rng)
    without = random_model(BertModel, small, add_pooling_layer=False)(**call)
    assert without.pooler_output is None


def test_an_unknown_keyword_is_an_error(small):
    model = BertModel(small)
    with pytest.raises(TypeError, match="head_mask"):
        model([[1, 2]], head_mask=np.ones((2, 3)))


def test_invalid_numerics_are_refused(small):
    with pytest.raises(InputError, match="jax_enable_x64"):
        Numerics("float64")
    with pytest.raises(InputError, match="precision"):
        Numerics(precision="exact")
    with pytest.raises(ConfigError, match="pooling"):
        bertjax.BertForSentenceEmbedding(small, pooling="median")
