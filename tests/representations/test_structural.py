"""Structural probes against PyTorch, and trees by hand."""

from itertools import combinations

import numpy as np
import pytest

from bertjax.errors import InputError
from bertjax.representations import (
    attachment_counts,
    fit_structural_probe,
    mean_rank_correlation,
    split_texts,
    tree_depths,
    tree_distances,
    tree_edges,
)
from bertjax.representations.structural import _batches, _loss


def random_tree(rng, count):
    """Heads of a random tree."""
    order = rng.permutation(count)
    heads = np.zeros(count, int)
    for place in range(1, count):
        heads[order[place]] = order[rng.integers(place)] + 1
    return heads.tolist()


def path_length(heads, one, other):
    """The number of edges between two words, by their ancestors."""
    chains = []
    for word in (one, other):
        chain = [word]
        while heads[chain[-1]]:
            chain.append(heads[chain[-1]] - 1)
        chains.append(chain)
    return min(i + j for i, first in enumerate(chains[0]) for j, second in enumerate(chains[1]) if first == second)


@pytest.fixture
def layer(rng):
    """Sentences whose words lie where a hidden rotation puts their tree, plus noise in other dimensions."""
    trees = [random_tree(rng, count) for count in rng.integers(4, 13, 200)]
    turn = np.linalg.qr(rng.normal(size=(24, 24)))[0]
    rows, states, start = [], [], 0
    for heads in trees:
        count = len(heads)
        values, vectors = np.linalg.eigh(gram_of(tree_distances(heads)))
        embedded = np.zeros((count, 24))
        embedded[:, :count] = vectors * np.sqrt(np.maximum(values, 0))
        embedded[:, 12:] = 0.5 * rng.normal(size=(count, 12))
        states.append(embedded @ turn)
        rows.append(np.arange(start, start + count))
        start += count
    return np.concatenate(states).astype(np.float32), rows, trees


def gram_of(distances):
    """Inner products of points with these squared distances (a tree's distances have such points)."""
    centre = np.eye(len(distances)) - 1 / len(distances)
    return -centre @ distances @ centre / 2


def test_distances_and_depths_count_edges(rng):
    heads = random_tree(rng, 11)
    distances = tree_distances(heads)
    for one, other in combinations(range(11), 2):
        assert distances[one, other] == distances[other, one] == path_length(heads, one, other)
    root = heads.index(0)
    assert tree_depths(heads).tolist() == [path_length(heads, word, root) for word in range(11)]


@pytest.mark.parametrize("heads", [[2, 1], [0, 0], [0, 3, 2]])
def test_heads_that_are_no_tree_are_refused(heads):
    with pytest.raises(InputError, match="no tree"):
        tree_distances(heads)


@pytest.mark.needs_torch
@pytest.mark.parametrize("target", ["distance", "depth"])
def test_loss_and_gradient_are_those_of_pytorch(layer, target, rng):
    torch = pytest.importorskip("torch")
    states, rows, trees = layer
    gold = [tree_distances(heads) if target == "distance" else tree_depths(heads) for heads in trees]
    (inputs,) = _batches(states, rows, gold, np.arange(7), target=target, size=7)
    projection = rng.uniform(-0.1, 0.1, (24, 5)).astype(np.float32)
    weights = torch.tensor(projection, requires_grad=True)
    total = 0.0
    for index in range(7):
        projected = torch.tensor(states[rows[index]]) @ weights
        if target == "distance":
            found = ((projected[:, None] - projected[None]) ** 2).sum(-1)
        else:
            found = (projected**2).sum(-1)
        total = total + (found - torch.tensor(gold[index])).abs().mean()
    total.backward()
    import jax

    loss, gradient = jax.value_and_grad(_loss)(projection, *inputs, target)
    assert float(loss) == pytest.approx(total.item(), rel=1e-5)
    np.testing.assert_allclose(gradient, weights.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_trees_that_are_in_the_geometry_are_found(layer):
    states, rows, trees = layer
    split = split_texts(len(trees), 0)
    probe = fit_structural_probe(states, rows, trees, split.train, split.select, rank=12, batch=4)
    counts = np.array([attachment_counts(probe.distances(states[rows[i]]), trees[i]) for i in split.test])
    chains = np.array([attachment_counts(chain(len(trees[i])), trees[i]) for i in split.test])
    (found, by_chain) = (part[:, 0].sum() / part[:, 1].sum() for part in (counts, chains))
    assert found > by_chain + 0.2
    predicted = [probe.distances(states[rows[i]]) for i in split.test]
    assert mean_rank_correlation(predicted, [tree_distances(trees[i]) for i in split.test]) > 0.7
    again = fit_structural_probe(states, rows, trees, split.train, split.select, rank=12, batch=4)
    np.testing.assert_array_equal(probe.projection, again.projection)


def chain(count):
    """Distances of a linear chain."""
    return np.abs(np.arange(count)[:, None] - np.arange(count)[None])


def test_edges_of_words_that_are_kept(rng):
    heads = [2, 0, 2, 3]
    assert tree_edges(tree_distances(heads)) == {(0, 1), (1, 2), (2, 3)}
    keep = np.array([True, False, True, True])
    assert attachment_counts(tree_distances(heads), heads, keep) == (2, 2)
    assert attachment_counts(chain(4), [3, 3, 0, 3], None) == (2, 3)


def test_rank_correlations_are_means_of_lengths(rng):
    lengths = (5, 5, 6, 3, 51)
    true = [tree_depths(random_tree(rng, count)) for count in lengths]
    predicted = [rng.normal(size=count) for count in lengths]
    from scipy.stats import spearmanr

    values = [spearmanr(one, other).statistic for one, other in zip(predicted, true, strict=True)]
    assert mean_rank_correlation(predicted, true) == pytest.approx(((values[0] + values[1]) / 2 + values[2]) / 2)
    assert np.isnan(mean_rank_correlation(predicted[3:], true[3:]))


def test_sentences_that_do_not_fit_are_refused(layer):
    states, rows, trees = layer
    with pytest.raises(InputError, match="sentence 0 has"):
        fit_structural_probe(states, rows[:2], [[0], trees[1]], np.arange(1), np.arange(1, 2))
    with pytest.raises(InputError, match="train on"):
        fit_structural_probe(states, rows, trees, np.arange(0), np.arange(1))
