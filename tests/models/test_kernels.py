"""The implementations of attention agree, and fused ones refuse overrides of weights."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import bertjax
from bertjax import BertConfig, BertForSequenceClassification, BertModel
from bertjax.engine import reference as reference_engine
from bertjax.errors import InputError, OverrideError
from bertjax.interventions import overrides as ov
from bertjax.interventions import readouts
from bertjax.models import fused_attention, ops, pallas_attention
from bertjax.models.types import Numerics, Overrides
from tests.attention_reference import BATCH, CLOSE, ERROR, HEADS, PLACES, largest_of, lower, normal, reference
from tests.tiny_models import arguments, largest_difference, random_model

FUSED = ["fused", "pallas"]


def packed(rng, tokens):
    """Three rows: segments in random order with padding between them, only padding, one segment."""
    order = rng.permutation(PLACES + 1)
    rows = [order[np.sort(rng.integers(0, PLACES + 1, tokens))], np.zeros(tokens), np.ones(tokens)]
    return jnp.asarray(np.stack(rows), jnp.int32)


def random_gates(rng):
    return pallas_attention.HeadGates(*(jnp.asarray(rng.uniform(size=HEADS), jnp.float32) for _ in range(3)))


def as_overrides(gates):
    """Gates of one layer as overrides."""
    return None if gates is None else Overrides(gates.weights[None], gates.uniform[None], gates.output[None])


def mask_of(segments):
    return ((segments[:, :, None] == segments[:, None]) & (segments > 0)[:, None]).astype(jnp.float32)


@functools.partial(jax.jit, static_argnums=(0, 6))
def attend(form, queries, keys, values, segments, gates, numerics):
    """Attention of packed segments by any implementation."""
    if form == "kernel":
        return pallas_attention.attend(queries, keys, values, (segments, segments), gates, numerics, places=PLACES)
    if form == "blocks":
        return pallas_attention.attend_by_blocks(queries, keys, values, (segments, segments), gates, numerics)
    keep = mask_of(segments)
    if form == "fused":
        return fused_attention.attend(queries, keys, values, keep, as_overrides(gates), 0, numerics=numerics)
    weights = ops.attention_weights(ops.attention_scores(queries, keys, numerics), keep[:, None])
    if gates is None:
        return ops.mix(weights, values, numerics)
    weights = ops.override_weights(weights, keep, as_overrides(gates), 0)
    return ops.override_outputs(ops.mix(weights, values, numerics), as_overrides(gates), 0)


COMBINATIONS = [
    (1, 32, "float32", True),
    (2, 64, "float32", False),
    (7, 32, "bfloat16", True),
    (64, 64, "float32", True),
    (65, 32, "float32", False),
    (129, 32, "float32", True),
    (129, 64, "bfloat16", False),
    (200, 64, "float32", True),
    (511, 32, "float32", True),
    (511, 64, "bfloat16", True),
    (512, 64, "float32", False),
    (512, 32, "bfloat16", False),
    (65, 24, "float32", False),
    (300, 48, "bfloat16", False),
]


@pytest.mark.parametrize(("tokens", "head_dim", "dtype", "gated"), COMBINATIONS)
def test_all_implementations_are_close_to_float64(rng, tokens, head_dim, dtype, gated):
    parts = [normal(rng, dtype, BATCH, tokens, HEADS, head_dim) for _ in range(3)]
    segments, gates = packed(rng, tokens), random_gates(rng) if gated else None
    expected = reference(*parts, (segments, segments), gates)[1]
    for form in ("kernel", "blocks", "fused"):
        numerics = Numerics(dtype, "highest", "fused" if form == "fused" else "explicit")
        found = np.asarray(attend(form, *parts, segments, gates, numerics))
        assert found.dtype == np.float32, form
        assert largest_difference(found, expected) <= ERROR[dtype], form
        assert (found[np.asarray(segments) == 0] == 0).all(), form


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize(
    ("tokens", "heads", "head_dim", "dtype"),
    [
        (1, 3, 8, "float32"),
        (16, 5, 64, "float32"),
        (130, 12, 32, "bfloat16"),
        (7, 3, 128, "float32"),
        (40, 1, 256, "bfloat16"),
        (384, 2, 64, "float32"),
    ],
)
def test_whole_rows_are_computed_with_all_heads_in_one_axis(rng, tokens, heads, head_dim, dtype, narrow):
    parts = [normal(rng, dtype, BATCH, tokens, heads, head_dim) for _ in range(3)]
    segments, numerics = packed(rng, tokens), Numerics(dtype, narrow=narrow)
    assert pallas_attention.choose_part(parts[0].shape, tokens, numerics) is not None
    found = attend("kernel", *parts, segments, None, numerics)
    assert found.dtype == jnp.float32
    assert largest_difference(found, reference(*parts, (segments, segments), None)[1]) <= ERROR[dtype]
    assert (found[np.asarray(segments) == 0] == 0).all()
    rounded = bool((found == found.astype(dtype).astype("float32")).all())
    assert rounded == (narrow or dtype == "float32")


@pytest.mark.parametrize(
    ("shape", "dtype", "part"),
    [
        ((264, 128, 12, 64), "bfloat16", (4, 128, 768)),
        ((264, 128, 12, 64), "float32", (3, 128, 768)),
        ((264, 128, 16, 64), "float32", (2, 128, 1024)),
        ((264, 128, 64, 64), "bfloat16", (1, 128, 4096)),
        ((7, 100, 3, 64), "bfloat16", (1, 100, 192)),
        ((66, 512, 12, 64), "bfloat16", (1, 128, 768)),
        ((33, 1024, 12, 64), "float32", (1, 128, 384)),
        ((5, 512, 64, 64), "bfloat16", (1, 128, 2048)),
        ((5, 2048, 12, 64), "bfloat16", (1, 128, 128)),
        ((5, 4096, 12, 64), "bfloat16", None),
        ((264, 128, 3, 48), "bfloat16", None),
        ((264, 128, 3, 4), "bfloat16", None),
    ],
)
def test_row_blocks_are_the_largest_that_fit_on_the_chip(shape, dtype, part):
    numerics = Numerics(dtype, narrow=True)
    assert pallas_attention.choose_part(shape, shape[1], numerics) == part
    if part is not None:
        most = pallas_attention.part_bytes(part, shape[1], numerics)
        assert most <= 12 * 2**20
        assert all(whole % of == 0 for whole, of in zip((shape[0], shape[1], shape[2] * shape[3]), part, strict=True))


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize(("query_tokens", "key_tokens"), [(5, 130), (130, 5)])
def test_numbers_of_keys_and_queries_may_differ(rng, query_tokens, key_tokens, gated):
    queries = normal(rng, "float32", BATCH, query_tokens, HEADS, 32)
    keys, values = (normal(rng, "float32", BATCH, key_tokens, HEADS, 32) for _ in range(2))
    segments, gates = (packed(rng, query_tokens), packed(rng, key_tokens)), random_gates(rng) if gated else None
    expected = reference(queries, keys, values, segments, gates)[1]
    for form in (functools.partial(pallas_attention.attend, places=PLACES), pallas_attention.attend_by_blocks):
        found = jax.jit(form, static_argnums=5)(queries, keys, values, segments, gates, Numerics())
        assert largest_difference(found, expected) <= ERROR["float32"]


@pytest.mark.parametrize(("tokens", "gated"), [(7, True), (130, True), (65, False)])
def test_gradients_equal_those_of_explicit_attention(rng, tokens, gated):
    parts = [normal(rng, "float32", BATCH, tokens, HEADS, 32) for _ in range(3)]
    segments, gates = packed(rng, tokens), random_gates(rng) if gated else None
    cotangent = normal(rng, "float32", BATCH, tokens, HEADS, 32)

    def gradient(form):
        def total(queries, keys, values, gates):
            numerics = Numerics(attention="fused" if form == "fused" else "explicit")
            return jnp.sum(attend(form, queries, keys, values, segments, gates, numerics) * cotangent)

        return jax.jit(jax.grad(total, (0, 1, 2, 3) if gated else (0, 1, 2)))(*parts, gates)

    expected = gradient("explicit")
    sizes = [max(1.0, float(jnp.abs(leaf).max())) for leaf in jax.tree.leaves(expected)]  # gates' are sums of thousands
    for form in ("kernel", "blocks", "fused"):
        for found, leaf, size in zip(jax.tree.leaves(gradient(form)), jax.tree.leaves(expected), sizes, strict=True):
            assert bool(jnp.abs(leaf).max() > 0)
            assert largest_difference(found, leaf) <= CLOSE * size, form


def models(config, cls=BertModel):
    """Models with the same weights for each implementation."""
    return {form: random_model(cls, config, attention=form) for form in ("explicit", *FUSED)}


def several(config, rng):
    """Overrides that all implementations support."""
    means = jnp.asarray(rng.normal(size=(2, 3, 4)), jnp.float32)
    return {
        "none": None,
        "uniform": ov.uniform(config, ["0.1", "1.2"]),
        "blend": ov.uniform(config, ["0.0"], gate=0.3),
        "zero": ov.zero(config, ["1.0"]),
        "factor": ov.factor(config, ["1.2"], 0.5),
        "mean": ov.mean(config, ["0.1", "1.1"], means),
        "two": ov.combine(ov.uniform(config, ["0.1"]), ov.factor(config, ["0.1"], 0.5)),
    }


def test_a_model_agrees_in_all_implementations(small, rng):
    forms, call = models(small), arguments(small, rng)
    for name, override in several(small, rng).items():
        explicit, *others = (model(**call, overrides=override) for model in forms.values())
        for other in others:
            for field in ("last_hidden_state", "pooler_output", "hidden_states"):
                assert largest_difference(getattr(other, field), getattr(explicit, field)) < CLOSE, name
            for field in ("queries", "keys", "values", "head_outputs"):
                assert largest_difference(getattr(other.record, field), getattr(explicit.record, field)) < CLOSE, name


def test_stacks_and_sweeps_agree_in_all_implementations(small, rng):
    forms, call = models(small, BertForSequenceClassification), arguments(small, rng)
    stack = [one for one in several(small, rng).values() if one is not None and one.outputs is None]
    found, swept = [], []
    for model in forms.values():
        found.append(reference_engine.run(model, model.inputs(**call), ov.stack(stack), readouts.logits))
        swept.append(reference_engine.sweep(model, [(range(4), call)], stack, readouts.logits, chunk_size=2))
    expected = [forms["explicit"](**call, overrides=one).logits for one in stack]
    for run, sweep in zip(found, swept, strict=True):
        assert largest_difference(run, jnp.stack(expected)) < CLOSE
        assert largest_difference(sweep.outputs, jnp.stack(expected)) < CLOSE
        assert largest_difference(sweep.base, forms["explicit"](**call).logits) < CLOSE


def test_gradients_of_gates_agree_in_all_implementations(small, rng):
    override, call, found = ov.uniform(small, ov.every_head(small), gate=0.4), arguments(small, rng), []
    for model in models(small).values():
        inputs = model.inputs(**call)
        gradient = jax.jit(jax.grad(lambda override, m=model, i=inputs: m.forward(i, override).pooler_output.sum()))
        found.append(gradient(override))
    for other in found[1:]:
        for one, expected in zip(jax.tree.leaves(other), jax.tree.leaves(found[0]), strict=True):
            assert largest_difference(one, expected) < CLOSE * max(1.0, float(jnp.abs(expected).max()))


@pytest.mark.parametrize("form", FUSED)
def test_a_real_token_s_output_does_not_depend_on_padding(small, rng, form):
    model, call = random_model(BertModel, small, attention=form), arguments(small, rng)
    before, mask = model(**call).last_hidden_state, call["attention_mask"].astype(bool)
    call["input_ids"] = np.where(mask, call["input_ids"], rng.integers(0, small.vocab_size, mask.shape))
    assert np.array_equal(before[mask], model(**call).last_hidden_state[mask])


def test_packed_rows_by_a_mask_for_each_query(small, rng):
    forms, call = models(small), arguments(small, rng)
    call["attention_mask"] = np.asarray(mask_of(jnp.asarray(rng.integers(0, 3, (4, 9)))))
    explicit, other = (forms[form](**call, overrides=ov.uniform(small, ["0.1"])) for form in ("explicit", "fused"))
    assert largest_difference(other.last_hidden_state, explicit.last_hidden_state) < CLOSE
    with pytest.raises(InputError, match=r"attention='pallas' supports only .*\[batch, token\]"):
        forms["pallas"](**call)


@pytest.mark.parametrize("form", FUSED)
def test_overrides_of_weights_need_explicit_attention(small, rng, form):
    explicit, model = (random_model(BertModel, small, attention=one) for one in ("explicit", form))
    call = arguments(small, rng)
    output = model(**call)
    assert output.record.weights is None
    with pytest.raises(InputError, match="attention='explicit'"):
        _ = output.attentions
    with pytest.raises(InputError, match="attention='explicit'"):
        ov.patched_weights(small, ["0.0"], output)
    weights = np.zeros((9, 9), np.float32)
    for override, what in (
        (ov.fixed(small, {"0.0": weights}), "weights"),
        (ov.patched_weights(small, ["0.0"], explicit(**call)), "weights"),
        (ov.forbidden_edges(small, [(0, 0, 0, 0)]), "single weights"),
        (ov.fixed_edges(small, {(0, 0, 0, 0): 0.5}), "single weights"),
    ):
        with pytest.raises(OverrideError, match=f"{what} need attention='explicit', found '{form}'"):
            model(**call, overrides=override)
    patched = ov.patched_outputs(small, ["0.0"], output)  # whole outputs need no weights
    assert (
        largest_difference(model(**call, overrides=patched).record.head_outputs[0], output.record.head_outputs[0]) == 0
    )


def test_the_implementation_is_an_option_of_loading(small, rng, tmp_path):
    random_model(BertModel, small).save_pretrained(tmp_path)
    call = arguments(small, rng)
    explicit = BertModel.from_pretrained(tmp_path)
    assert explicit.numerics.attention == "explicit"
    for model in (BertModel.from_pretrained(tmp_path, attention="fused"), bertjax.load(tmp_path, attention="fused")):
        assert model.numerics.attention == "fused"
        assert model(**call).record.weights is None
        assert largest_difference(model(**call).pooler_output, explicit(**call).pooler_output) < CLOSE
    with pytest.raises(InputError, match="attention 'flash' is not one of explicit, fused, pallas"):
        BertModel.from_pretrained(tmp_path, attention="flash")


# A GPU has no kernel: XLA compiles the plain form.
CALLS = {"cuda": {"custom_call": False}, "tpu": {"tpu_custom_call": True}}


@pytest.mark.parametrize(("dtype", "highest"), [("bfloat16", False), ("float32", True)])
def test_products_of_bfloat16_use_default_precision(dtype, highest):
    """They are exact, and the TPU's compiler rejects a higher precision."""
    part, numerics = jnp.zeros((16, 64), dtype), Numerics(dtype, "highest")
    program = jax.make_jaxpr(lambda part: pallas_attention.product(part, part, 1, numerics))(part)
    assert ("Precision.HIGHEST" in str(program)) == highest


@pytest.mark.parametrize("platform", CALLS)
def test_the_kernels_lower_for_accelerators(platform):
    part, marks, ones = jnp.zeros((2, 130, HEADS, 64)), jnp.ones((2, 130), jnp.int32), jnp.ones(HEADS)
    gates = pallas_attention.HeadGates(ones, ones, ones)

    def kernel(part, marks, gates):
        return pallas_attention.attend(part, part, part, (marks, marks), gates, Numerics(), places=PLACES)

    def gradient(part, marks, gates):
        return jax.value_and_grad(lambda part: kernel(part, marks, gates).sum())(part)

    for function in (kernel, gradient):
        text = lower(function, platform, part, marks, gates)
        assert {call: call in text for call in CALLS[platform]} == CALLS[platform]


def largest_array(form, platform, differentiate):
    """Elements of the largest array in a lowered model of three heads, for one text of 512 tokens."""
    config = BertConfig(vocab_size=11, hidden_size=96, num_hidden_layers=2, num_attention_heads=3, intermediate_size=7)
    graphdef, state = nnx.split(random_model(BertModel, config, attention=form))
    inputs = nnx.merge(graphdef, state).inputs(np.ones((1, 512), int))

    def value(override, state):
        return nnx.merge(graphdef, state).forward(inputs, override).last_hidden_state.sum()

    function = jax.grad(value) if differentiate else value
    return largest_of(lower(function, platform, ov.identity(config), state))


@pytest.mark.parametrize("differentiate", [False, True])
@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_the_kernel_has_no_array_of_all_weights(platform, differentiate):
    assert largest_array("pallas", platform, differentiate) < 512 * 512
    assert largest_array("explicit", platform, differentiate) >= 3 * 512 * 512
