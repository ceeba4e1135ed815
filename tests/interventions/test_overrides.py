"""Every kind of override against NumPy on the record of an unchanged run, and every mistake refused."""

import dataclasses
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import BertConfig, BertModel
from bertjax.errors import OverrideError
from bertjax.interventions import overrides as ov
from bertjax.models import pretrained
from tests.tiny_models import arguments, largest_difference, random_model

CLOSE = 2e-6
LAYER, HEAD = 1, 2


@pytest.fixture
def run(small, rng):
    """A model, a call, and its unchanged output."""
    model, call = random_model(BertModel, small), arguments(small, rng)
    return model, call, model(**call)


def mixed(output, weights):
    """Head outputs of the layer from other weights `[batch, query, key]` of the head."""
    return np.einsum("bqk,bkd->bqd", weights, np.asarray(output.record.values)[LAYER][:, :, HEAD])


def expect(model, call, base, override, weights=None, outputs=None):
    """The override gives the head these weights and outputs, and changes nothing in earlier layers and other heads."""
    after = model(**call, overrides=override)
    if weights is not None:
        assert largest_difference(after.attentions[LAYER][:, HEAD], weights) < CLOSE
    outputs = mixed(base, weights) if outputs is None else outputs
    assert largest_difference(after.record.head_outputs[LAYER][:, :, HEAD], outputs) < CLOSE
    others = np.array([head for head in range(3) if head != HEAD])
    assert largest_difference(after.attentions[LAYER][:, others], base.attentions[LAYER][:, others]) < CLOSE
    assert largest_difference(after.hidden_states[: LAYER + 1], base.hidden_states[: LAYER + 1]) < CLOSE
    assert largest_difference(after.last_hidden_state, base.last_hidden_state, call["attention_mask"]) > 1e-3


def test_uniform_is_one_over_n_on_real_tokens_for_every_query(small, run):
    model, call, base = run
    mask = call["attention_mask"]
    weights = np.broadcast_to((mask / mask.sum(1, keepdims=True))[:, None], (4, 9, 9))
    expect(model, call, base, ov.uniform(small, ["1.2"]), weights)


def test_a_gate_blends_learned_and_uniform_weights(small, run):
    model, call, base = run
    mask = call["attention_mask"]
    learned = np.asarray(base.attentions[LAYER][:, HEAD])
    weights = 0.25 * learned + 0.75 * (mask / mask.sum(1, keepdims=True))[:, None]
    expect(model, call, base, ov.uniform(small, [(1, 2)], gate=0.25), weights)


@pytest.mark.parametrize("factor", [0.0, 0.5])
def test_a_factor_scales_the_head_s_output_alone(small, run, factor):
    model, call, base = run
    learned = np.asarray(base.record.head_outputs[LAYER][:, :, HEAD])
    override = ov.factor(small, ["1.2"], factor) if factor else ov.zero(small, ["1.2"])
    expect(model, call, base, override, np.asarray(base.attentions[LAYER][:, HEAD]), factor * learned)


def test_mean_gives_every_token_the_head_s_vector(small, run, rng):
    model, call, base = run
    means = rng.normal(size=(2, 3, 4)).astype(np.float32)
    outputs = np.broadcast_to(means[LAYER, HEAD], (4, 9, 4))
    expect(model, call, base, ov.mean(small, ["1.2"], jnp.asarray(means)), outputs=outputs)


@pytest.mark.parametrize("per_example", [False, True])
def test_fixed_weights_are_used_as_they_are(small, run, rng, per_example):
    model, call, base = run
    real = call["attention_mask"].astype(bool)
    common = real.all(0)  # keys that are real in every example, for weights that all examples share
    weights = rng.random((4, 9, 9)) * (real[:, None] if per_example else common[None, None])
    weights = weights if per_example else np.broadcast_to(weights[:1], weights.shape)
    fixed_weights = weights if per_example else weights[0]
    expect(model, call, base, ov.fixed(small, {"1.2": fixed_weights.astype(np.float32)}), weights)


def test_weights_and_outputs_are_patched_from_another_run(small, run, rng):
    model, call, base = run
    other = dict(call, input_ids=rng.integers(0, small.vocab_size, call["input_ids"].shape))
    source = model(**other)
    expect(
        model,
        call,
        base,
        ov.patched_weights(small, ["1.2"], source),
        np.asarray(source.attentions[LAYER][:, HEAD]),
    )
    outputs = np.asarray(source.record.head_outputs[LAYER][:, :, HEAD])
    expect(model, call, base, ov.patched_outputs(small, ["1.2"], source), outputs=outputs)


def test_patching_all_heads_of_layer_0_copies_the_source(small, run):
    model, call, _ = run
    source = model(**dict(call, token_type_ids=1 - call["token_type_ids"]))
    heads = ov.heads_of_layer(small, 0)
    after = model(**call, overrides=ov.patched_outputs(small, heads, source))
    assert largest_difference(after.record.head_outputs[0], source.record.head_outputs[0]) < CLOSE


def test_the_weight_of_a_forbidden_edge_goes_to_the_other_keys(small, run):
    model, call, base = run
    weights = np.array(base.attentions[LAYER][:, HEAD])
    weights[0, 4, 3] = 0
    weights[0, 4] /= weights[0, 4].sum()
    expect(model, call, base, ov.forbidden_edges(small, [(LAYER, HEAD, 4, 3)], example=0), weights)


def test_a_fixed_edge_leaves_the_rest_of_the_row(small, run):
    model, call, base = run
    weights = np.array(base.attentions[LAYER][:, HEAD])
    weights[:, 5, 0] = 0.75
    expect(model, call, base, ov.fixed_edges(small, {(LAYER, HEAD, 5, 0): 0.75}), weights)


def test_forbidding_every_key_of_a_query_gives_it_nothing(small, run):
    model, call, _ = run
    edges = [(LAYER, HEAD, 2, key) for key in range(9)]
    after = model(**call, overrides=ov.forbidden_edges(small, edges))
    assert (np.asarray(after.attentions[LAYER][:, HEAD, 2]) == 0).all()
    assert np.isfinite(after.last_hidden_state).all()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("size", "dtype"),
    [
        ("three heads", "float32"),
        pytest.param("five heads", "bfloat16", marks=pytest.mark.slow),
        pytest.param("one head", "float64", marks=pytest.mark.slow),
    ],
)
def test_the_identity_changes_nothing_at_all(size, dtype):
    """To the bit, compiled as users compile it: what these tests let the compiler leave out changes the rounding."""
    code = f"from tests.override_checks import check_identity; check_identity({size!r}, {dtype!r})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_overrides_of_several_kinds_combine(small, run):
    model, call, base = run
    parts = [
        ov.uniform(small, ["0.0"]),
        ov.zero(small, ["0.1"]),
        ov.mean(small, ["1.0"], jnp.full((2, 3, 4), 0.3)),
        ov.patched_weights(small, ["1.1"], base),
        ov.fixed_edges(small, {(1, 2, 0, 0): 0.1}),
        ov.forbidden_edges(small, [(1, 2, 1, 0)], example=2),
        ov.fixed(small, {"0.2": np.eye(9, dtype=np.float32) * call["attention_mask"].min(0)}),
    ]
    after = model(**call, overrides=ov.combine(*parts))
    mask = call["attention_mask"]
    assert largest_difference(after.attentions[0][:, 0, 0], mask / mask.sum(1, keepdims=True)) < CLOSE
    assert (np.asarray(after.record.head_outputs[0][:, :, 1]) == 0).all()
    assert largest_difference(after.record.head_outputs[1][:, :, 0], np.full((4, 9, 4), 0.3)) < CLOSE
    assert largest_difference(after.attentions[1][:, 1], base.attentions[1][:, 1]) < CLOSE
    assert largest_difference(after.attentions[1][:, 2, 0, 0], np.full(4, 0.1)) < CLOSE
    assert float(after.attentions[1][2, 2, 1, 0]) == 0


def test_stacked_overrides_under_vmap_equal_single_ones(small, run, rng):
    model, call, _ = run
    source = model(**dict(call, input_ids=rng.integers(0, small.vocab_size, call["input_ids"].shape)))
    single = [
        ov.identity(small),
        ov.uniform(small, ["0.1", "1.2"]),
        ov.zero(small, ov.heads_of_layer(small, 1)),
        ov.patched_weights(small, ["0.0", "1.0"], source),
        ov.patched_outputs(small, ["0.2"], source),
        ov.mean(small, ["1.1"], jnp.full((2, 3, 4), 0.2)),
        ov.forbidden_edges(small, [(0, 1, 2, 3), (1, 1, 0, 0)]),
        ov.fixed_edges(small, {(0, 2, 1, 1): 0.4}, example=3),
    ]
    together = jax.vmap(lambda one: model(**call, overrides=one).last_hidden_state)(ov.stack(single))
    for one, found in zip(single, together, strict=True):
        assert largest_difference(found, model(**call, overrides=one).last_hidden_state) < 1e-5


MISTAKES = {
    "no such head": (lambda c: ov.uniform(c, ["1.3"]), "no head 1.3.*heads 0 to 2"),
    "no such layer": (lambda c: ov.zero(c, [(2, 0)]), "no head 2.0.*layers 0 to 1"),
    "not a head": (lambda c: ov.zero(c, ["one"]), "'one' names no head"),
    "a string of heads": (lambda c: ov.zero(c, "1.0"), "must be a list"),
    "twice": (lambda c: ov.zero(c, ["1.0", (1, 0)]), "1.0 is named twice"),
    "gate not finite": (lambda c: ov.uniform(c, ["0.0"], gate=np.nan), "gate must be finite"),
    "means not finite": (lambda c: ov.mean(c, ["0.0"], jnp.full((2, 3, 4), jnp.inf)), "finite"),
    "weights not square": (lambda c: ov.fixed(c, {"0.0": np.ones((4, 5))}), r"\(4, 5\).*query, key"),
    "edge of no head": (lambda c: ov.forbidden_edges(c, [(0, 5, 0, 0)]), "no head 0.5"),
    "edge twice": (lambda c: ov.forbidden_edges(c, [(0, 1, 0, 0)] * 2), "twice"),
    "edge negative": (lambda c: ov.fixed_edges(c, {(0, 1, -1, 0): 0.5}), "negative"),
    "clash": (
        lambda c: ov.combine(ov.uniform(c, ["0.1"]), ov.uniform(c, ["0.1"])),
        "both|two.*weights of head 0.1",
    ),
    "clash behind an open gate": (
        lambda c: ov.combine(ov.uniform(c, ["0.1"], gate=1.0), ov.fixed(c, {"0.1": np.eye(4, dtype=np.float32)})),
        "two overrides change the weights of head 0.1",
    ),
    "clash behind the gate of given weights": (
        lambda c: ov.combine(
            dataclasses.replace(ov.fixed(c, {"0.1": np.eye(4, dtype=np.float32)}), weights_gate=jnp.ones((2, 3))),
            ov.uniform(c, ["0.1"]),
        ),
        "two overrides change the weights of head 0.1",
    ),
    "clash of outputs": (
        lambda c: ov.combine(ov.zero(c, ["1.1"]), ov.mean(c, ["1.1"], np.ones((2, 3, 4), np.float32))),
        "the output of head 1.1",
    ),
    "one edge twice": (
        lambda c: ov.combine(ov.fixed_edges(c, {(0, 1, 2, 3): 0.5}), ov.forbidden_edges(c, [(0, 1, 2, 3)], example=1)),
        r"the edge \(0, 1, 2, 3\)",
    ),
    "a forbidden edge of a uniform head": (
        lambda c: ov.combine(ov.forbidden_edges(c, [(0, 1, 2, 3)]), ov.uniform(c, ["0.1"])),
        "acts on learned weights only",
    ),
    "nothing to stack": (lambda c: ov.stack([]), "at least one"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_constructor_is_refused(small, name):
    make, message = MISTAKES[name]
    with pytest.raises(OverrideError, match=message):
        make(small)


MISFITS = {
    "of another model": (lambda c, out: ov.identity(BertConfig()), r"\(12, 12\).*\(2, 3\)"),
    "a stack": (lambda c, out: ov.stack([ov.identity(c)] * 2), "jax.vmap"),
    "integers": (lambda c, out: jax.tree.map(lambda x: x.astype(int), ov.identity(c)), "floats, found int"),
    "gate not finite": (lambda c, out: jax.tree.map(lambda x: x * np.nan, ov.identity(c)), "not finite"),
    "fixed for other tokens": (lambda c, out: ov.fixed(c, {"0.0": np.eye(8)}), r"\(1, 8, 8\).*\(4, 9, 9\)"),
    "fixed on padding": (
        lambda c, out: ov.fixed(c, {"0.0": np.ones((9, 9))}),
        "padding in example 1, .* keeps weight 0",
    ),
    "edge beyond the tokens": (
        lambda c, out: ov.forbidden_edges(c, [(0, 0, 0, 9)]),
        "key 9, but there are 9",
    ),
    "edge beyond the batch": (lambda c, out: ov.forbidden_edges(c, [(0, 0, 0, 1)], 4), "example 4"),
    "source of fewer examples": (
        lambda c, out: ov.patched_weights(c, ["0.0"], out),
        "same number",
    ),
    "edge to padding": (
        lambda c, out: ov.fixed_edges(c, {(0, 0, 0, 8): 0.5}),
        "padding in example 1",
    ),
    "source padded on the other side": (lambda c, out: ov.patched_outputs(c, ["0.0"], out), "in the same places"),
    "source of other real tokens": (lambda c, out: ov.patched_outputs(c, ["0.0"], out), "same number"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_an_override_that_does_not_fit_the_call_is_refused(small, run, name):
    model, call, base = run
    if name == "source of other real tokens":
        base = model(call["input_ids"], np.ones((4, 9)))
    if name == "source of fewer examples":
        base = model(**{key: value[:2] for key, value in call.items()})
    if name == "source padded on the other side":
        base = model(call["input_ids"], call["attention_mask"][:, ::-1])
    override = MISFITS[name][0](small, base)
    with pytest.raises(OverrideError, match=MISFITS[name][1]) as caught:
        model(**call, overrides=override)
    assert "\n" not in str(caught.value)


def aligned(*shape: int) -> np.ndarray:
    """Ones at an address that JAX may use without a copy."""
    buffer = np.zeros(4 * int(np.prod(shape)) + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    array = buffer[start : start + 4 * int(np.prod(shape))].view(np.float32).reshape(shape)
    array[...] = 1
    return array


def test_values_stay_when_the_callers_array_changes():
    original = aligned(4, 8)
    values = ov.as_floats(original, "values")
    original[...] = 7
    assert (np.asarray(values) == 1).all()


def test_parameters_stay_when_the_arrays_read_change(small):
    model = random_model(BertModel, small)
    weights = {name: aligned(*array.shape) for name, array in model.weights().items()}
    loaded = pretrained.build(lambda key: BertModel(small, key), weights, small, "encoder", 0)
    for array in weights.values():
        array[...] = 7
    assert all((np.asarray(array) == 1).all() for array in loaded.weights().values())
