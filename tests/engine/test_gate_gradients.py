"""Gradients of examples' losses with respect to gates on heads, against `jax.grad` of a call of the model itself."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import BertConfig, BertForMaskedLM, BertForSequenceClassification, overrides, readouts
from bertjax.data import collate
from bertjax.engine import gates
from bertjax.engine.gates import GatePasses, GateTexts
from bertjax.engine.packing import first_fit
from bertjax.interventions import ablation, every_head
from tests.family_models import DISTINCT, config_of, sometimes
from tests.tiny_models import encodings, fixed_lengths, random_model

CONFIG = BertConfig(
    vocab_size=40,
    hidden_size=24,
    num_hidden_layers=3,
    num_attention_heads=3,
    intermediate_size=32,
    max_position_embeddings=40,
    initializer_range=0.4,
    id2label={number: str(number) for number in range(3)},
)


def replaced(mode):
    return ablation(CONFIG, every_head(CONFIG), mode)


def gated(mode, gate, means):
    """All heads blended with what a mode puts in their place."""
    if mode == "uniform":
        return overrides.uniform(CONFIG, every_head(CONFIG), gate)
    if mode == "zero":
        return overrides.factor(CONFIG, gate)
    return overrides.mean(CONFIG, every_head(CONFIG), means, gate)


def exact(model, texts, mode, means, gate, losses):
    """Losses of a padded batch of texts, and how each changes with the gates that they share."""
    inputs = model.inputs(collate(texts, max(map(len, texts)), 0))
    of_gates = jax.jit(lambda gates: losses(model.forward(inputs, gated(mode, gates, means))))
    gates = jnp.full((3, 3), gate)
    # Forward: of many losses at once, XLA (jaxlib 0.10.2) computes the gradients of norms wrongly on a CPU.
    return of_gates(gates), jnp.moveaxis(jax.jacfwd(of_gates)(gates), 0, -1)


def cross_entropy(label):
    def grade(outputs):
        shares = outputs - np.log(np.exp(outputs).sum())
        return -shares[label], np.exp(shares) - (np.arange(len(outputs)) == label)

    return grade


def several_groups(monkeypatch, keeps):
    """Groups of few rows, which keep what products gave, or not."""
    monkeypatch.setattr(gates, "default_tokens", lambda config: 40)
    monkeypatch.setattr(gates, "GROUP_BYTES", 200_000 if keeps else 10_000)
    passes = []

    class Pass(gates._Pass):
        def __init__(self, *args):
            super().__init__(*args)
            passes.append(self)

    monkeypatch.setattr(gates, "_Pass", Pass)
    return passes


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("mode", ["uniform", "zero", "mean"])
@pytest.mark.parametrize("gate", [1.0, 0.3])
def test_gradients_of_a_classifier_are_those_of_each_example(mode, gate, keeps, monkeypatch):
    passes = several_groups(monkeypatch, keeps)
    rng = np.random.default_rng(3)
    model = random_model(BertForSequenceClassification, CONFIG)
    texts, labels = encodings(CONFIG, rng, fixed_lengths(3, 20, 17)), rng.integers(0, 3, 17)
    means = rng.normal(size=(3, 3, 8)).astype(np.float32)

    def grade(example, logits):
        loss, slope = cross_entropy(labels[example])(logits[0].astype(np.float64))
        return loss, slope[None]

    found = GatePasses(
        model, GateTexts(texts, np.arange(17), 17), replaced(mode), readouts.logits, grade, means=means
    ).run_all(gate)
    assert found.gradients.shape == found.absolute.shape == (3, 3, 17)

    def of_batch(output):
        return -jax.nn.log_softmax(output.logits)[np.arange(17), labels]

    losses, gradients = exact(model, texts, mode, means, gate, of_batch)
    np.testing.assert_allclose(found.losses, losses, rtol=2e-5)
    np.testing.assert_allclose(found.gradients, gradients, atol=2e-5 * np.abs(gradients).max())
    assert (found.absolute >= np.abs(found.gradients) - 1e-6).all()
    assert np.abs(gradients).max() > 0.05
    assert [len(one.groups) > 1 and one.keeps == keeps for one in passes] == [True]


@pytest.mark.parametrize("mode", ["uniform", "zero", "mean"])
def test_each_example_can_have_separate_gates(mode, monkeypatch):
    several_groups(monkeypatch, True)
    rng = np.random.default_rng(4)
    model = random_model(BertForSequenceClassification, CONFIG)
    texts, labels = encodings(CONFIG, rng, fixed_lengths(3, 20, 12)), rng.integers(0, 3, 12)
    means = rng.normal(size=(3, 3, 8)).astype(np.float32)
    owner = np.array([0, 0, 1, 2, 3, 3, 3, 4, 5, 6, 7, 7])  # some examples have two texts, or three

    def grade(example, rows_of_output):
        graded = [
            cross_entropy(label)(row.astype(np.float64))
            for row, label in zip(rows_of_output, labels[owner == example], strict=True)
        ]
        return sum(loss for loss, _ in graded), np.stack([slope for _, slope in graded])

    @jax.jit
    @jax.value_and_grad
    def loss_of(gates, inputs, labels, counts):
        """Of three texts, each as often as it counts."""
        shares = jax.nn.log_softmax(model.forward(inputs, gated(mode, gates, means)).logits)
        return -(shares[np.arange(3), labels] * counts).sum()

    gate_texts = GateTexts(texts, owner, 8)
    passes = GatePasses(model, gate_texts, replaced(mode), readouts.logits, grade, means=means, tokens=50)
    assert len(passes.groups) > 2
    assert np.concatenate(passes.groups).tolist() == list(range(8))
    for number, examples in enumerate(passes.groups):
        several = rng.uniform(0, 1, (3, 3, len(examples)))
        found = passes.run(number, several)
        for place, example in enumerate(examples.tolist()):
            filled = np.resize(np.flatnonzero(owner == example), 3)
            inputs = model.inputs(collate([texts[text] for text in filled], 20, 0))
            counts = (np.arange(3) < (owner == example).sum()).astype(np.float32)
            loss, gradient = loss_of(jnp.asarray(several[..., place], jnp.float32), inputs, labels[filled], counts)
            np.testing.assert_allclose(found.losses[place], loss, rtol=2e-5)
            np.testing.assert_allclose(found.gradients[..., place], gradient, atol=3e-5 * np.abs(gradient).max())
        assert passes.run(number, several).gradients.tolist() == found.gradients.tolist()


@pytest.mark.parametrize("keeps", [True, False])
def test_gradients_of_words_and_of_examples_with_several_texts(keeps, monkeypatch):
    passes = several_groups(monkeypatch, keeps)
    rng = np.random.default_rng(5)
    model = random_model(BertForMaskedLM, CONFIG)
    texts = encodings(CONFIG, rng, fixed_lengths(4, 16, 13))
    examples = np.array([0, 0, 1, 2, 2, 2, 3, 4, 5, 5, 5, 5, 6])
    at = np.stack([rng.integers(0, len(text), 2) for text in texts]).astype(np.int32)
    targets = rng.integers(0, 40, (13, 2)).astype(np.int32)

    def grade(example, values):
        slope = np.zeros(values.shape)
        slope[..., 0] = -values[..., 0]  # of half the sum of squares of log-probabilities, with a minus
        return -0.5 * float((values[..., 0] ** 2).sum()), slope

    found = GatePasses(
        model, GateTexts(texts, examples, 7, at, targets), replaced("uniform"), readouts.words, grade
    ).run_all()

    def of_batch(output):
        shares = jax.nn.log_softmax(output.logits)
        of_targets = shares[np.arange(13)[:, None], at, targets]
        return -0.5 * jax.ops.segment_sum((of_targets**2).sum(-1), examples, 7)

    losses, gradients = exact(model, texts, "uniform", None, 1.0, of_batch)
    np.testing.assert_allclose(found.losses, losses, rtol=2e-5)
    np.testing.assert_allclose(found.gradients, gradients, atol=2e-5 * np.abs(gradients).max())
    assert [len(one.groups) > 1 and one.keeps == keeps for one in passes] == [True]


@pytest.mark.parametrize("family", sometimes(DISTINCT, "roberta", "deberta-v2", "modernbert"))
def test_gradients_of_every_family_are_those_of_its_model(family):
    rng, config = np.random.default_rng(7), config_of(family, 0)
    model = random_model(BertForSequenceClassification, config)
    texts = encodings(config, rng, [11, 3, 7, 9, 1])

    def grade(example, output):
        return 0.5 * float((output**2).sum()), output

    texts_of_each = GateTexts(texts, np.arange(5), 5)
    everything = ablation(config, every_head(config), "zero")
    found = GatePasses(model, texts_of_each, everything, readouts.logits, grade).run_all()
    batch = collate(texts, max(map(len, texts)), config.pad_token_id or 0)
    inputs = model.inputs(batch)

    def of_batch(gates):
        logits = model.forward(inputs, overrides.factor(config, gates)).logits
        return 0.5 * (logits**2).sum(axis=-1)

    gates_of_all = jnp.ones((config.num_hidden_layers, config.num_attention_heads))
    np.testing.assert_allclose(found.losses, of_batch(gates_of_all), rtol=3e-5)
    gradients = jnp.moveaxis(jax.jit(jax.jacfwd(of_batch))(gates_of_all), 0, -1)
    np.testing.assert_allclose(found.gradients, gradients, atol=5e-5 * np.abs(gradients).max())
    assert np.abs(gradients).max() > 1e-3


def test_groups_fill_their_rows_and_keep_examples_whole():
    rng = np.random.default_rng(9)
    examples = np.repeat(np.arange(120), rng.integers(1, 4, 120))
    lengths = fixed_lengths(3, 40, len(examples)).astype(np.int32)
    lengths[50:53] = 90  # more than a group holds, of one example
    examples[50:53] = examples[50]
    examples = np.sort(examples)
    groups = [*gates._split(examples, lengths, 96, 4)]
    assert [number for group in groups for number in group] == [*range(len(examples))]
    rows = []
    for group, after in itertools.pairwise(groups):
        members = examples[group.start : group.stop]
        assert members[-1] != examples[after.start]
        rows.append(len(first_fit(lengths[group.start : group.stop], 96)))
        assert rows[-1] <= 4 or len(set(members)) == 1
        following = int((examples == examples[after.start]).sum())
        more = lengths[group.start : group.stop + following]
        assert len(first_fit(more, 96)) > 4  # the row was full
    assert rows.count(4) > 0.8 * len(rows)
