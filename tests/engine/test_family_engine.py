"""The engine equals the reference for every family: packed, in every mode and readout, on two devices, resumed."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax import BertModel
from bertjax.checkpoints import FAMILIES
from bertjax.engine import run as engine
from bertjax.engine import sizes
from bertjax.engine.journal import count_parts
from bertjax.errors import OverrideError, SweepInterrupted
from bertjax.interventions import MODES, readouts
from bertjax.interventions import ablations as ab
from bertjax.interventions import overrides as ov
from bertjax.models import packed_layer
from tests.engine_checks import (
    CLOSE,
    FAMILY_READOUTS,
    change_of,
    change_sets,
    draw_spans,
    family_model,
    reference_outputs,
    sum_over_tokens,
)
from tests.family_models import config_of, sometimes
from tests.interruptions import TINY_PARTS, StopAfter
from tests.tiny_models import comparable_environment, encodings, fixed_lengths, largest_difference, random_model


def texts(config, rng, lengths):
    """Random texts; where positions are counted by tokens, some tokens within have the padding's id."""
    return encodings(config, rng, lengths)


def check(family, size, name, dtype, rng, ablations, lengths, **options):
    """The engine against a full forward pass for each ablation."""
    model = family_model(family, size, name, dtype)
    config = model.config
    examples, sources = texts(config, rng, lengths), texts(config, rng, lengths)
    shape = (config.num_hidden_layers, config.num_attention_heads, config.head_dim)
    means = rng.normal(size=shape).astype(model.numerics.wide)
    found = engine.sweep(model, examples, ablations, FAMILY_READOUTS[name][1], means=means, sources=sources, **options)
    expected = reference_outputs(
        model, examples, ablations, FAMILY_READOUTS[name][1], means, sources, options.get("spans")
    )
    assert largest_difference(found.outputs, expected) <= CLOSE[dtype]
    return found


FEW = [
    *((family, 0, "logits") for family in ("albert", "mpnet", "deberta-v2", "modernbert")),
    *((family, 1, "hidden") for family in ("roberta", "modernbert")),
]
MANY = [(family, size, name) for family in FAMILIES for size in (0, 1) for name in sorted(FAMILY_READOUTS)]


@pytest.mark.parametrize(
    ("family", "size", "name"),
    [*FEW, *(pytest.param(*case, marks=pytest.mark.slow) for case in MANY if case not in FEW)],
)
def test_heads_and_layers_in_every_mode(family, size, name, rng, x64):
    config = config_of(family, size)
    sets = [one for mode in sorted(MODES) for one in (*ab.single_heads(config, mode), *ab.whole_layers(config, mode))]
    chosen = [sets[number] for number in sorted(rng.choice(len(sets), 9, replace=False))]
    ablations = [*chosen, ab.Ablation("base", ())]
    options = {"row_length": 23, "tokens_at_once": 69}
    found = check(family, size, name, "float64", rng, ablations, [3, 11, 1, 5, 5, 2], **options)
    assert np.array_equal(found.base, found.outputs[-1])


@pytest.mark.integration
@settings(max_examples=3, deadline=None)
@given(st.data())
def test_the_engine_equals_the_reference(data):
    check_any(data)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_engine_equals_the_reference_many_times(data):
    check_any(data)


def check_any(data):
    """Any family, plan, packing and size of steps."""
    family, size = data.draw(st.sampled_from(sorted(FAMILIES))), data.draw(st.sampled_from([0, 1]))
    name, dtype = data.draw(st.sampled_from(sorted(FAMILY_READOUTS))), data.draw(st.sampled_from(sorted(CLOSE)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    with jax.enable_x64(dtype == "float64"):
        lengths = data.draw(st.lists(st.integers(1, 13), min_size=1, max_size=7))
        spans = draw_spans(rng, lengths) if data.draw(st.booleans()) else None
        ablations = [
            ab.Ablation(str(number), tuple(change_of(*where, *how) for where, how in one.items()))
            for number, one in enumerate(data.draw(change_sets(config_of(family, size), 0 if spans is None else 3)))
        ]
        check(
            family,
            size,
            name,
            dtype,
            rng,
            ablations,
            lengths,
            spans=spans,
            row_length=data.draw(st.sampled_from([13, 16, 24])),
            one_per_row=data.draw(st.booleans()),
            tokens_at_once=data.draw(st.sampled_from([1, 48, 96])),
        )


@pytest.mark.parametrize(
    "family", sometimes(["roberta", "mpnet", "deberta-v2", "modernbert"], "mpnet", "deberta-v2", "modernbert")
)
def test_fused_attention_gives_the_same(family, rng):
    name = "hidden"
    config, model = config_of(family), family_model(family, 0, name, "float32")
    examples, heads = (
        encodings(config, rng, [5, 9, 2, 13, 7]),
        [*ab.single_heads(config), *ab.whole_layers(config, "zero")],
    )
    more = {"readout": FAMILY_READOUTS[name][1], "row_length": 16, "progress": False}
    explicit, fused = (engine.sweep(model, examples, heads, attention=form, **more) for form in ("explicit", "fused"))
    assert largest_difference(explicit.outputs, fused.outputs) < 2e-5


@pytest.mark.parametrize("family", sometimes(["bert", "modernbert"], "modernbert"))
def test_rows_in_blocks_of_queries_are_whole_rows(family, rng, monkeypatch):
    """Long rows are computed for some queries after others, and a window sees the keys around it alone."""
    config, model = config_of(family), family_model(family, 0, "hidden", "float32")
    examples = encodings(config, rng, fixed_lengths(1, 20, 14))
    heads = [*ab.single_heads(config), *ab.whole_layers(config, "zero")]
    whole = engine.sweep(model, examples, heads, sum_over_tokens, row_length=40, tokens_at_once=80)
    jax.clear_caches()
    for name, value in (("WHOLE_ROWS", 11), ("QUERIES", 7)):
        monkeypatch.setattr(packed_layer, name, value)
    blocks = engine.sweep(model, examples, heads, sum_over_tokens, row_length=40, tokens_at_once=80)
    jax.clear_caches()
    assert 0 < largest_difference(whole.outputs, blocks.outputs) < CLOSE["float32"]


def test_uniform_weights_average_over_the_local_window(rng):
    """By hand: a token of a local layer attends to 2 tokens on either side, in its text."""
    config = config_of("modernbert")
    assert [kind.window for kind in config.architecture.layers] == [None, 2, 2, None]
    model = random_model(BertModel, config)
    inputs = {"input_ids": rng.integers(0, 41, (1, 9)), "attention_mask": [[1] * 7 + [0] * 2]}
    output = model(**inputs, overrides=ab.to_overrides(config, ab.ablation(config, ["1.1", "3.0"])))
    weights = np.asarray(output.attentions)
    seen = [{key for key in range(7) if abs(key - query) <= 2} for query in range(7)]
    expected = np.array([[1 / len(keys) if key in keys else 0 for key in range(9)] for keys in seen])
    assert np.abs(weights[1, 0, 1, :7] - expected).max() < 1e-6
    assert np.abs(weights[3, 0, 0, :7] - np.array([1 / 7] * 7 + [0] * 2)).max() < 1e-6
    assert (weights[2, 0, :, 0, 3:] == 0).all()


def test_weights_and_edges_beyond_a_window_are_refused(rng):
    config = config_of("modernbert")
    model, ids = random_model(BertModel, config), rng.integers(3, 41, (1, 6))
    weights = np.eye(6, dtype=np.float32)
    model(ids, overrides=ov.fixed(config, {"1.0": weights}))
    model(ids, overrides=ov.fixed_edges(config, {(1, 0, 0, 2): 0.5}))
    weights[0, 3] = 0.5
    model(ids, overrides=ov.fixed(config, {"0.0": weights}))
    with pytest.raises(
        OverrideError, match="query 0 and key 3 in layer 1, but the key is beyond the window of 2 tokens"
    ):
        model(ids, overrides=ov.fixed(config, {"1.0": weights}))
    model(ids, overrides=ov.fixed_edges(config, {(0, 0, 0, 3): 0.5}))
    with pytest.raises(
        OverrideError, match="query 0 and key 3 in layer 1, but the key is beyond the window of 2 tokens"
    ):
        model(ids, overrides=ov.fixed_edges(config, {(1, 0, 0, 3): 0.5}))
    for change in (ov.fixed(config, {"1.0": weights}), ov.fixed_edges(config, {(1, 0, 0, 3): 0.5})):
        with pytest.raises(OverrideError, match="beyond the window"):  # also if JAX traces the mask
            jax.vmap(lambda mask, change=change: model(ids, mask[None], overrides=change).last_hidden_state)(
                np.ones((2, 6), np.int32)
            )


@pytest.mark.parametrize("family", sometimes(["albert", "mpnet", "deberta-v2", "modernbert"], "modernbert"))
def test_an_interrupted_sweep_resumes_with_the_same_bytes(family, tmp_path, rng, monkeypatch):
    """Of many parts some are finished; the resumed sweep begins behind them."""
    monkeypatch.setattr(sizes, "STEPS_OF_PART", TINY_PARTS)
    config, model = config_of(family), family_model(family, 0, "logits", "float32")
    examples, heads = (
        encodings(config, rng, fixed_lengths(1, 13, 12)),
        [*ab.single_heads(config), *ab.head_pairs(config)],
    )
    options = {"row_length": 16, "tokens_at_once": 48}
    whole = engine.sweep(model, examples, heads, readouts.logits, **options)
    kept = options | {"journal": tmp_path / "journal"}
    with pytest.raises(SweepInterrupted) as interruption:
        engine.sweep(model, examples, heads, readouts.logits, progress=StopAfter(0.6), **kept)
    saved = count_parts(tmp_path / "journal")
    assert 0 < interruption.value.finished == saved < interruption.value.parts
    seen = []
    progress = lambda done, total: seen.append(done / total)  # noqa: E731
    again = engine.sweep(model, examples, heads, readouts.logits, progress=progress, **kept)
    assert seen[0] > 0.2
    assert seen[-1] == 1
    assert whole.outputs.tobytes() == again.outputs.tobytes()
    assert whole.base.tobytes() == again.base.tobytes()


TWO_DEVICES = """
import json, sys
import jax, numpy as np
from bertjax.engine import run as engine
from bertjax.interventions import ablations as ab
from tests.engine_checks import FAMILY_READOUTS, family_model
from tests.family_models import config_of
from tests.tiny_models import encodings, largest_difference
assert len(jax.devices()) == 2
apart = []
for family, name in json.loads(sys.argv[1]):
    config, rng = config_of(family), np.random.default_rng(5)
    examples = encodings(config, rng, rng.integers(1, 13, 11))
    model, heads = family_model(family, 0, name, "float32"), ab.single_heads(config)
    readout = FAMILY_READOUTS[name][1]
    one, two = (
        engine.sweep(model, examples, heads, readout, devices=devices, row_length=16, tokens_at_once=48)
        for devices in (jax.devices()[:1], jax.devices())
    )
    apart.append(largest_difference(one.outputs, two.outputs))
print(json.dumps(apart))
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    "cases",
    [
        [("albert", "logits"), ("mpnet", "hidden"), ("modernbert", "hidden")],
        pytest.param([("deberta-v2", "logits"), ("modernbert", "logits")], marks=pytest.mark.slow),
        pytest.param([("albert", "hidden"), ("mpnet", "logits"), ("deberta-v2", "hidden")], marks=pytest.mark.slow),
    ],
    ids=["some", "others", "rest"],
)
def test_two_devices_give_the_same(cases):
    done = subprocess.run(
        [sys.executable, "-c", TWO_DEVICES, json.dumps(cases)],
        env=comparable_environment(2),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    apart = json.loads(done.stdout.strip().splitlines()[-1])
    assert len(apart) == len(cases)
    assert max(apart) < CLOSE["float32"]
