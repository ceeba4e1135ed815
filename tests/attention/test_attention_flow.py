"""Rollout and flow by their definitions: paths summed one by one, and linear programs."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

from bertjax.attention import attention_flow, attention_rollout
from bertjax.errors import InputError


def random_weights(layers, heads, tokens, seed=0):
    weights = np.random.default_rng(seed).gamma(0.5, size=(layers, heads, tokens, tokens))
    return weights / weights.sum(-1, keepdims=True)


def test_rollout_is_the_sum_over_all_paths():
    weights = random_weights(3, 2, 4)
    mixed = 0.5 * weights.mean(axis=1) + 0.5 * np.eye(4)
    expected = np.zeros((4, 4))
    for path in itertools.product(range(4), repeat=4):  # tokens from the last layer's output to the input
        shares = [mixed[2 - step][path[step], path[step + 1]] for step in range(3)]
        expected[path[0], path[-1]] += np.prod(shares)
    np.testing.assert_allclose(attention_rollout(weights), expected)
    np.testing.assert_allclose(attention_rollout(weights).sum(axis=1), 1)


@pytest.mark.parametrize("reading", ["first", "mean"])
def test_flow_is_the_optimum_of_a_linear_program(reading):
    layers, tokens = 2, 4
    weights = random_weights(layers, 3, tokens, 1)
    mixed = 0.5 * weights.mean(axis=1) + 0.5 * np.eye(tokens)
    readers = np.eye(tokens)[0] if reading == "first" else np.full(tokens, 1 / tokens)
    edges = [((layer + 1, q), (layer, k), mixed[layer, q, k]) for layer, q, k in np.ndindex(mixed.shape)]
    edges += [("source", (layers, token), readers[token]) for token in range(tokens)]
    found = attention_flow(weights, readers)
    for sink in range(tokens):
        target = (0, sink)
        inner = [(layer, t) for layer in range(layers + 1) for t in range(tokens) if (layer, t) != target]
        balance = [[(end == node) - (start == node) for start, end, _ in edges] for node in inner]
        gain = [-float(end == target) for _, end, _ in edges]
        bounds = [(0, capacity) for *_, capacity in edges]
        # What does not go on is let out, as at the other inputs: nothing may come from nowhere.
        best = linprog(gain, A_ub=-np.array(balance, float), b_ub=np.zeros(len(inner)), bounds=bounds)
        assert found[sink] == pytest.approx(-best.fun, abs=1e-5)
    assert np.ptp(found) > 0.01


def test_weights_of_another_form_are_refused():
    with pytest.raises(InputError, match=r"must be \[layers, heads, query, key\]"):
        attention_rollout(np.ones((2, 3, 4, 5)))
    with pytest.raises(InputError, match="2 readers for 4 tokens"):
        attention_flow(random_weights(1, 1, 4), np.ones(2))
