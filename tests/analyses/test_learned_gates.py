"""Learned gates: the distribution by its definition, and what the learner finds where the answer is known."""

import numpy as np
import pytest

from bertjax.analyses import learned_gates
from bertjax.analyses.learned_gates import GateLearner, Learning, draw_gates, probabilities_open
from bertjax.analyses.prune import ablated_losses
from bertjax.interventions import ablation, every_head
from tests.task_factories import load_task_job


def test_gates_are_open_with_the_computed_probability():
    """The mean of 1[g > 0] over draws is P(open)."""
    rng = np.random.default_rng(0)
    log_a = rng.normal(0, 3, 12)
    gates, _ = draw_gates(np.broadcast_to(log_a[:, None], (12, 200_000)), rng.uniform(1e-6, 1 - 1e-6, (12, 200_000)))
    expected = probabilities_open(log_a)
    spread = np.sqrt(expected * (1 - expected) / 200_000)
    assert (np.abs((gates > 0).mean(axis=1) - expected) <= 4 * spread + 1e-5).all()
    assert gates.min() == 0
    assert gates.max() == 1
    assert 0.01 < expected.min() < 0.3 < 0.9 < expected.max()


def test_gates_are_those_of_the_formula_and_so_are_their_slopes():
    rng = np.random.default_rng(1)
    log_a, uniform = rng.normal(0, 2, 500), rng.uniform(0.01, 0.99, 500)

    def formula(log_a):
        s = 1 / (1 + np.exp(-(np.log(uniform) - np.log(1 - uniform) + log_a) / 0.33))
        return np.minimum(1, np.maximum(0, s * 1.2 - 0.1))

    gates, slopes = draw_gates(log_a, uniform)
    np.testing.assert_allclose(gates, formula(log_a), atol=1e-12)
    measured = (formula(log_a + 1e-6) - formula(log_a - 1e-6)) / 2e-6
    between = (np.abs(formula(log_a) - 0.5) < 0.499) | (slopes == 0)
    np.testing.assert_allclose(slopes[between], measured[between], atol=1e-5)
    assert 0.1 < (slopes > 0).mean() < 0.9


@pytest.mark.parametrize("task", ["mlm", "question-answering", "embedder"])
def test_gates_without_price_keep_the_loss_and_a_high_one_closes(task, tmp_path):
    job = load_task_job(task, tmp_path, "zero")
    learner = GateLearner(job.model, job.encoded, "zero", Learning(steps=60, rate=0.3, tokens=200))
    heads = every_head(job.model.config)
    whole = ablated_losses(job.model, job.encoded, [ablation(job.model.config, heads, "zero")])
    np.testing.assert_allclose(learner.base, np.nanmean(whole[0]), rtol=1e-4)
    free, dear = learner.learn(0.0), learner.learn(1000.0)
    assert (probabilities_open(dear) < 0.1).all()
    closed = [head for head in heads if probabilities_open(free)[head] < 0.5]
    losses = ablated_losses(job.model, job.encoded, [ablation(job.model.config, closed, "zero", "closed")])
    assert np.nanmean(losses[1]) <= np.nanmean(losses[0]) + 1e-6
    assert learner.learn(0.0).tolist() == free.tolist()


def test_slopes_are_those_of_the_expected_loss(tmp_path):
    """The mean of many draws' slopes against the difference of mean losses, the same draws at both ends."""
    job = load_task_job("embedder", tmp_path, "zero")
    learner = GateLearner(job.model, job.encoded, "zero", Learning(tokens=10_000))
    assert len(learner.passes.groups) == 1
    layers, heads = learner.heads
    log_a = np.random.default_rng(2).normal(0, 1, len(layers))
    found = np.mean([learner._gradient(0, log_a, np.random.default_rng(seed)) for seed in range(40)], axis=0)

    def expected(log_a):
        means = []
        for seed in range(40):
            examples = len(learner.passes.groups[0])
            uniform = np.random.default_rng(seed).uniform(1e-6, 1 - 1e-6, (len(log_a), examples))
            gates = np.ones((*learner.shape, examples))
            gates[layers, heads] = draw_gates(np.broadcast_to(log_a[:, None], uniform.shape), uniform)[0]
            means.append(np.nanmean(learner.passes.run(0, gates).losses))
        return np.mean(means)

    place = int(np.abs(found).argmax())
    step = 0.1 * (np.arange(len(log_a)) == place)
    measured = (expected(log_a + step) - expected(log_a - step)) / 0.2
    assert abs(measured - found[place]) < 0.1 * abs(found[place])


def test_groups_are_taken_in_turn():
    batches = [*learned_gates._batches(3, 8, np.random.default_rng(0))]
    assert sorted(batches[:3]) == sorted(batches[3:6]) == [0, 1, 2]
    assert len(batches) == 8
