"""Sweeps over eight devices. `test_sharding.py` runs this file in a process that has them."""

import jax
import numpy as np
import pytest

from bertjax import BertConfig, BertForSentenceEmbedding, BertForSequenceClassification, BertModel
from bertjax.engine import blocks, compiled_steps, gates, sizes
from bertjax.engine import run as engine
from bertjax.engine.blocks import Slot, Step
from bertjax.engine.gates import GateTexts
from bertjax.engine.journal import count_parts
from bertjax.engine.sizes import Sizes
from bertjax.engine.sweep_input import make_sweep_input
from bertjax.interventions import ablations as ab
from bertjax.interventions import every_head, readouts
from experiments.shared.attention import reduce_attention
from tests.engine_checks import pooled, sum_squared_cls_weights
from tests.interruptions import TINY_PARTS, StopAfter
from tests.tiny_models import SIZES, encodings, fixed_lengths, largest_difference, random_model

FIVE = BertConfig(**SIZES["five heads"])


def hidden_of_first(output):
    return output.last_hidden_state[:, 0]


def sweep(cls, ablations, readout, lengths, devices, **options):
    """A sweep of texts of these lengths in small steps."""
    rng = np.random.default_rng(0)
    texts = encodings(FIVE, rng, lengths)
    if ablations[0].changes[0].replacement == "source":
        options["sources"] = encodings(FIVE, rng, lengths)
    if ablations[0].changes[0].replacement == "mean":
        options["means"] = rng.normal(size=(3, 5, 6)).astype(np.float32)
    model = random_model(cls, FIVE)
    return engine.sweep(model, texts, ablations, readout, devices=devices, tokens_at_once=90, row_length=16, **options)


KINDS, SHARES = ("pairs", "patched", "mean", "embedding", "hidden", "at", "picked"), [(3, 31), (2, 9), (8, 1), (8, 31)]
# Each kind once and each number of devices once; the other combinations are slow.
FAST = [(KINDS[n], *SHARES[n % 4]) for n in range(len(KINDS))]
OTHER = [(kind, *share) for kind in KINDS for share in SHARES if (kind, *share) not in FAST]


@pytest.mark.parametrize(
    ("kind", "count", "examples"), [*FAST, *(pytest.param(*one, marks=pytest.mark.slow) for one in OTHER)]
)
def test_results_are_those_of_one_device(rng, kind, examples, count):
    lengths = rng.integers(2, 12, examples)
    picked = np.minimum(np.arange(3) * (np.arange(examples) % 2)[:, None], lengths[:, None] - 1)  # one or three of each
    cases = {
        "pairs": (BertForSequenceClassification, ab.head_pairs(FIVE)[::7], readouts.logits, {}),
        "patched": (BertForSequenceClassification, ab.single_heads(FIVE, "patched"), readouts.logits, {}),
        "mean": (BertModel, ab.single_heads(FIVE, "mean"), pooled, {}),
        "embedding": (BertForSentenceEmbedding, ab.single_heads(FIVE), readouts.sentence_embedding, {}),
        "hidden": (BertModel, ab.single_heads(FIVE, "zero"), hidden_of_first, {}),
        "at": (BertModel, ab.single_heads(FIVE), hidden_of_first, {"at": np.full((examples, 1), 1)}),
        "picked": (BertModel, ab.single_heads(FIVE, "patched"), readouts.hidden_state, {"at": picked}),
    }
    cls, ablations, readout, options = cases[kind]
    one, several = (sweep(cls, ablations, readout, lengths, jax.devices()[:some], **options) for some in (1, count))
    assert largest_difference(one.base, several.base) < 2e-6
    assert largest_difference(one.outputs, several.outputs) < 2e-6
    assert np.ptp(one.outputs, axis=0).max() > 1e-3  # the ablations do something


def test_by_default_all_devices_share_the_rows(monkeypatch):
    seen = []
    apply_layer = compiled_steps.apply_layer

    def seeing(*arrays, mesh, **options):
        seen.append(mesh)
        return apply_layer(*arrays, mesh=mesh, **options)

    monkeypatch.setattr(compiled_steps, "apply_layer", seeing)
    for devices in (None, jax.devices()[5:6]):
        sweep(BertModel, ab.single_heads(FIVE), hidden_of_first, [9] * 64, devices)
    assert {mesh.size for mesh in seen} == {8, 1}
    assert seen[-1].devices.tolist() == jax.devices()[5:6]


def lowered_steps(devices):
    """Every step of a sweep of 96 texts, compiled for some devices."""
    rng = np.random.default_rng(0)
    model, texts = random_model(BertForSequenceClassification, FIVE), encodings(FIVE, rng, [11] * 96)
    sweep_input = make_sweep_input(
        model, texts, ab.single_heads(FIVE), readouts.logits, combine=None, means=None, sources=None, at=None
    )
    sizes = Sizes(row_length=12, rows=48, runs=5, steps_of_part=1)
    runner = engine.make_runner(sweep_input, sizes, devices)
    block, rows, root = runner.embed([0] * 5), runner.rows([0] * 5), sweep_input.plan.root
    changes = runner.changes(0, [((change,)) for one in ab.single_heads(FIVE)[:5] for change in one.changes])
    weights, tail = runner.weights[0], {"recipe": runner.recipes[0], "mesh": runner.mesh}
    first = runner.apply_layer(2, [Step(Slot(block, 0, root, 0), root, ())])
    block = runner.embed([0] * 5)
    for cls_only in (False, True):
        options, parent = tail | {"cls_only": cls_only}, (weights, block, 0, runner.rows([0]), changes, None)
        yield f"layer {cls_only}", compiled_steps.apply_layer.lower(weights, block, rows, changes, None, **options)
        yield f"fork {cls_only}", compiled_steps.fork_from_parent.lower(*parent, **options)
    yield "gather", compiled_steps.gather.lower([block] * 5, np.arange(5))
    reading = runner.reading([0] * 5, cls_only=True)
    yield "read", compiled_steps.read.lower(*runner.head, first, reading, **runner.read_options(reading))


def test_work_is_split_evenly_among_devices_without_waiting():
    steps = {count: dict(lowered_steps(jax.devices()[:count])) for count in (1, 2, 4, 8)}
    for name in steps[1]:
        flops = {}
        for count, several in steps.items():
            program = several[name].compile()
            flops[count] = program.cost_analysis().get("flops", 0.0)
            text = program.as_text()
            assert not [word for word in ("all-", "collective", "reduce-scatter") if word in text], (name, count)
        if name != "gather":
            for count in (2, 4, 8):
                assert abs(flops[2] / flops[count] / count * 2 - 1) < 0.01, (name, flops)
            assert abs(flops[1] / flops[2] / 2 - 1) < 0.1, (name, flops)  # one device alone is compiled otherwise


def test_a_sweep_goes_on_with_another_number_of_devices(tmp_path, monkeypatch):
    monkeypatch.setattr(sizes, "STEPS_OF_PART", TINY_PARTS)
    inputs = BertForSequenceClassification, ab.head_pairs(FIVE), readouts.logits, [9] * 50
    whole = sweep(*inputs, jax.devices())
    with pytest.raises(engine.SweepInterrupted):
        sweep(*inputs, jax.devices(), journal=tmp_path / "journal", progress=StopAfter(0.5))
    found = count_parts(tmp_path / "journal")
    assert found > 0
    messages = []
    resumed = sweep(*inputs, jax.devices()[:3], journal=tmp_path / "journal", say=messages.append)
    assert messages[0].startswith(f"{found} finished parts")
    assert largest_difference(whole.outputs, resumed.outputs) < 2e-6


@pytest.mark.parametrize("examples", [1, 21, *(pytest.param(count, marks=pytest.mark.slow) for count in (7, 8))])
def test_statistics_of_attention_maps_are_those_of_one_device(rng, examples, monkeypatch):
    model, texts = random_model(BertModel, FIVE), encodings(FIVE, rng, fixed_lengths(2, 12, examples))
    several = reduce_attention(model, texts, sum_squared_cls_weights)
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])
    assert largest_difference(several, reduce_attention(model, texts, sum_squared_cls_weights)) < 1e-6


def test_gradients_of_gates_are_those_of_one_device(rng, monkeypatch):
    model, texts = random_model(BertForSequenceClassification, FIVE), encodings(FIVE, rng, fixed_lengths(2, 12, 31))

    def grade(example, output):
        return 0.5 * float((output**2).sum()), output

    replaced = ab.ablation(FIVE, every_head(FIVE), "uniform")
    several = GateTexts(texts, np.arange(31), 31)
    monkeypatch.setattr(gates, "choose_length", lambda config, lengths: 16)
    monkeypatch.setattr(gates, "default_tokens", lambda config: 128)  # eight rows
    found = gates.GatePasses(model, several, replaced, readouts.logits, grade).run_all()
    with monkeypatch.context() as alone:
        alone.setattr(blocks, "make_mesh", lambda devices, rows: None)
        expected = gates.GatePasses(model, several, replaced, readouts.logits, grade).run_all()
    assert np.abs(expected.gradients).max() > 1e-6
    for name in ("losses", "gradients", "absolute"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max())
