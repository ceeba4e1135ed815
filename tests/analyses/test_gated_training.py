"""Gates that are learned with weights: the loss by its definition, frozen parameters, and saved files."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax.analyses import draw_gates, probabilities_open
from bertjax.interventions import every_head, overrides
from bertjax.plots import Curve
from experiments.beyond import gated_training, pruning_curves
from experiments.shared import curves
from experiments.training.dropout import train_logits
from experiments.training.gates import GATES, PRICE, GateTrainer, gated_loss, gates_as_overrides, hard_gates
from experiments.training.trainer import Recipe, Skeleton, make_batch, predict
from tests.factories import make_classifier, write_glue, write_pairs
from tests.tiny_models import arguments, largest_difference
from tests.training_runs import NO_DROPOUT, make_training_examples, make_training_model

pytestmark = pytest.mark.integration


def train(model, rng, *, price=0.0, frozen=False, epochs=40, rate=0.5):
    """A trainer after so many epochs on a few examples."""
    encoded, labels = make_training_examples(model, rng)
    recipe = Recipe(learning_rate=1e-3, epochs=epochs, batch_size=4, warmup=0.0)
    trainer = GateTrainer(model, encoded, labels, recipe, price=price, gate_rate=rate, frozen=frozen)
    losses = [list(trainer.run_epoch(epoch)) for epoch in range(epochs)]
    return trainer, encoded, labels, losses


def test_gates_are_those_of_the_library_and_their_slopes_too(rng, x64):
    log_a, uniform = rng.normal(0, 2, (30, 4)), rng.uniform(0.01, 0.99, (30, 4, 50))
    expected, slopes = draw_gates(np.broadcast_to(log_a[..., None], uniform.shape), uniform)
    inputs = jnp.asarray(log_a), jnp.asarray(uniform)
    np.testing.assert_allclose(hard_gates(*inputs), expected, atol=1e-12)
    found = jax.grad(lambda log_a: hard_gates(log_a, inputs[1]).sum())(inputs[0])
    np.testing.assert_allclose(found, slopes.sum(axis=2), rtol=1e-9)
    assert 0.1 < (slopes > 0).mean() < 0.5


def test_each_example_has_separate_gates(config, rng):
    model = make_training_model(config, **NO_DROPOUT)
    batch = arguments(config, rng)
    inputs, rows = model.inputs(**batch), len(batch["input_ids"])
    gates = rng.uniform(0, 1, (config.num_hidden_layers, config.num_attention_heads, rows)).astype(np.float32)
    found = train_logits(model, inputs, jax.random.key(0), gates_as_overrides(jnp.asarray(gates)))
    for row in range(rows):
        alone = model(batch, overrides=overrides.factor(config, gates[..., row])).logits[row]
        assert largest_difference(found[row], alone) < 2e-5
    assert largest_difference(found, model.forward(inputs).logits) > 1e-3


def test_the_loss_has_the_price_of_open_gates(small, rng):
    """With open gates, the loss is that of the model plus the price of all heads."""
    model = make_training_model(small, **NO_DROPOUT)
    encoded, labels = make_training_examples(model, rng, count=5)
    batch = make_batch(encoded.encodings, labels, 5, 0, small.max_position_embeddings)
    shape = (small.num_hidden_layers, small.num_attention_heads)
    logits = jax.nn.log_softmax(jnp.asarray(predict(model, encoded)))
    loss_of_logits = -np.mean([logits[row, label] for row, label in enumerate(labels)])
    for log_a, price in ((30.0, 0.0), (30.0, 0.25), (1.0, 4.0)):
        gates = jnp.full(shape, log_a, jnp.float32)
        parameters = model.parameters() | {GATES: gates}
        found = gated_loss(Skeleton.of(model), parameters, {**batch, PRICE: np.full(5, price)}, jax.random.key(1))
        dear = price * float(probabilities_open(np.full(shape, log_a)).sum())
        assert float(found) - dear == pytest.approx(loss_of_logits, abs=1e-5 if log_a == 30 else 1.0)


def test_a_high_price_closes_all_and_none_leaves_the_score(small, rng):
    model = make_training_model(small, **NO_DROPOUT)
    free, encoded, labels, _ = train(model, np.random.default_rng(3), frozen=True)
    dear, *_ = train(model, np.random.default_rng(3), price=100.0, frozen=True)
    heads = every_head(small)
    assert all(dear.probabilities(model)[head] < 0.1 for head in heads)
    closed = [head for head in heads if free.probabilities(model)[head] < 0.5]
    before = np.asarray(model.bert.encoder.layers[0].output.kernel[...])
    assert (np.asarray(free.model.bert.encoder.layers[0].output.kernel[...]) == before).all()
    assert len(closed) < len(heads)
    assert encoded.examples == len(labels)


def test_weights_and_gates_are_learned_together(small, rng):
    model = make_training_model(small, **NO_DROPOUT)
    both, encoded, labels, losses = train(model, np.random.default_rng(3), price=0.01, rate=0.05)
    assert np.mean(losses[-1]) < 0.5 * np.mean(losses[0])
    assert (predict(both.model, encoded).argmax(axis=1) == labels).mean() > 0.9


@pytest.fixture(scope="module")
def pruned_model(tmp_path_factory):
    """A classifier, its data, and what `bertjax prune` found."""
    folder = tmp_path_factory.mktemp("gated")
    model, data = make_classifier(folder / "model"), write_glue(folder / "glue")
    write_pairs(data / "MRPC" / "dev.tsv", 30)
    gates = {"strengths": (0.0, 1000.0), "gate_steps": 20}
    few = {"orders": ("gradient", "greedy", "gates", "random"), "draws": 3, "points": 4, **gates}
    options = {"data": data, "mode": "zero", "progress": False, **few}
    return folder, model, data, bertjax.prune(model, "mrpc", output=folder / "pruned", **options)


def learn(pruned_model, output, *more):
    folder, model, data, _ = pruned_model
    words = ["--model", model, "--data", data, "--pruned", folder / "pruned", "--strengths", 0, 100]
    return gated_training.main([*map(str, [*words, "--output", output, "--gate-rate", 2, *more])])


def test_gated_training_uses_the_test_examples_of_the_orders(pruned_model, tmp_path, capsys):
    assert learn(pruned_model, tmp_path / "out", "--epochs", 3) == 0
    printed = capsys.readouterr().out
    _, path, _, found = pruned_model
    numbers = json.loads((tmp_path / "out" / "numbers.json").read_text())
    runs = numbers["results"]["runs"]
    assert gated_training.tables({"": numbers}) in printed
    assert [(one["kind"], one["strength"]) for one in runs] == [
        (kind, strength) for kind in ("gates", "gates and weights") for strength in (0, 100)
    ]
    model = bertjax.load(path)
    for one in runs:
        assert one["left"] == len(every_head(model.config)) - len(one["closed"])
        assert one["change"][1] <= one["change"][0] <= one["change"][2]
    dear = runs[1]
    assert dear["left"] == 0
    assert dear["score"] - dear["change"][0] == pytest.approx(found.base)
    all_gone = next(row for row in found.rows_of() if row.name == "greedy 0")
    assert dear["score"] == pytest.approx(all_gone.score)  # the same examples with frozen weights and without heads
    assert {"figure.png", "figure.pdf"} <= {file.name for file in (tmp_path / "out").iterdir()}


def test_curves_of_several_directories_show_their_saved_scores(pruned_model, tmp_path, capsys):
    folder, *_, found = pruned_model
    assert pruning_curves.main([str(folder / "pruned"), "--output", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    numbers = json.loads((tmp_path / "out" / "numbers.json").read_text())
    assert pruning_curves.tables({"": numbers}) in printed
    rows = {row.name: row for row in found.rows_of()}
    curves = {curve["name"]: curve["scores"] for curve in numbers["results"]["runs"][0]["curves"]}
    expected = [100 * rows[f"greedy {left}"].score for left in found.summary["pruning"]["points"]]
    assert curves["greedy"] == [pytest.approx(expected, rel=1e-4)]
    assert len(curves["random"]) == 3


def test_spared_heads_are_counted_before_the_first_loss():
    found = {"heads": 12, "points": [9, 6, 3, 0], "first_worse": {"a": 9, "b": 3, "c": None}}
    assert [pruning_curves._spared(found, name) for name in "abcd"] == ["0 of 12", "6 of 12", "12 of 12", ""]


def test_undefined_scores_are_recorded_as_none(tmp_path):
    """As a correlation with outputs that are all equal, where no head is left."""
    curve = Curve("greedy", np.array([[80.25, np.nan]]), np.array([[79.0, np.nan], [81.0, np.nan]]))
    described = json.loads(json.dumps(curves.describe_curve(curve), allow_nan=False))
    assert described["scores"] == [[80.25, None]]
    again = curves.curve_of(described)
    np.testing.assert_array_equal(again.scores, curve.scores)
    np.testing.assert_array_equal(again.ends, curve.ends)
    found = {"model": "m", "task": "stsb", "mode": "zero", "chosen_on": 3, "judged_on": 4, "heads": 4, "base": 84.0}
    found |= {"measure": {"label": "Pearson"}, "points": [2, 0], "first_worse": {"greedy": 2}, "curves": [described]}
    curves.draw_pruning(found)(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
