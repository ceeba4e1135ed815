"""What position explains of a link: the best distance, the nearest word of a kind, margins."""

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.words.links import link_statistics
from experiments.words.positions import hits_of, margin_of
from experiments.words.relations import Linked, best_nearest
from tests.tiny_models import largest_difference

pytestmark = pytest.mark.integration


def test_a_word_selects_the_word_with_the_largest_token_sum(rng):
    maps = rng.random((2, 3, 2, 7, 7)).astype(np.float32)
    words = [[1], [2, 3], [4], [5, 6]]
    members = np.zeros((3, 5, 7), bool)
    for word, pieces in enumerate(words):
        members[:, word, pieces] = True
    found = np.asarray(hits_of(jnp.asarray(maps), jnp.asarray(members)))
    for layer, example, head in np.ndindex(2, 3, 2):
        for source, queries in enumerate(words):
            to = [maps[layer, example, head][np.ix_(queries, keys)].mean(0).sum() for keys in words]
            assert np.flatnonzero(found[layer, example, head, source]).tolist() == [int(np.argmax(to))]


def test_links_that_fill_up_count_nothing(rng):
    """Every word attends to itself, and so would the last one, which fillers name."""
    maps = np.broadcast_to(np.eye(5, dtype=np.float32), (2, 3, 2, 5, 5))
    members = np.broadcast_to(np.eye(5, dtype=bool), (3, 5, 5))
    links = np.full((3, 4, 2, 2), -1)
    links[1, 2, 0] = links[2, 3, 1] = (3, 3)
    others = np.zeros((3, 2, 4, 2, 5), np.float32)
    others[:, :, :, :, 3] = links[:, None, :, :, 1] == 3
    inputs = (maps, np.ones((3, 5), np.int32), links, links, others, members)
    found = np.asarray(link_statistics(*(jnp.asarray(one) for one in inputs)))
    for part in np.split(found, 4, axis=1):  # largest, hits, and hits from others and neighbours
        assert part[1, 2].tolist() == part[2, 3].tolist() == [[1, 1], [1, 1]]
        assert part.sum() == 8


def test_margins_are_ratios_with_intervals_and_corrected_tests(rng):
    counts = rng.integers(1, 4, 60)
    differences = rng.normal(0, 1, (60, 10, 100)) * counts[:, None, None]
    differences[:, 1] += 1.5 * counts[:, None]
    found = margin_of(differences, counts, 999, rng)
    assert largest_difference(found.mean, differences.sum(0) / counts.sum()) < 1e-12
    draws, some = [rng.integers(0, 60, 60) for _ in range(2000)], differences[:, :2, :3]
    spread = np.std([some[draw].sum(0) / counts[draw].sum() for draw in draws], axis=0)
    assert np.abs(found.interval[:2, :3] / (1.96 * spread) - 1).max() < 0.2
    assert (found.q_values[1] < 0.02).all()
    assert (np.delete(found.q_values, 1, axis=0) < 0.05).mean() < 0.02  # 5 % without correction
    assert margin_of(-np.abs(differences), counts, 99, rng).q_values.min() > 0.9


def test_tests_are_of_random_signs_and_corrected_over_heads():
    """Literally, with so few draws that p-values end at 1/20; Benjamini and Hochberg's step by step."""
    rng = np.random.default_rng(5)
    differences = rng.normal(0.3, 1, (12, 2, 3))
    differences[:, 0, 0] = 1.0  # no draw reaches it
    found = margin_of(differences, np.ones(12, int), draws=19, rng=np.random.default_rng(8)).q_values.ravel()
    signs = np.random.default_rng(8).choice(np.array([-1.0, 1.0]), (19, 12))
    p_values = []
    for cell in differences.reshape(12, 6).T:
        reached = sum(bool((sign * cell).sum() >= cell.sum() - 1e-9) for sign in signs)
        p_values.append((1 + reached) / 20)
    assert min(p_values) == p_values[0] == 1 / 20
    order, expected, least = np.argsort(p_values), np.zeros(6), 1.0
    for rank in range(6, 0, -1):
        head = order[rank - 1]
        least = min(least, p_values[head] * 6 / rank)
        expected[head] = least
    assert largest_difference(found, expected) < 1e-12
    assert largest_difference(found, p_values) > 0.01


def test_the_nearest_word_of_a_kind_is_sought_on_the_better_side():
    one = Linked([], ["noun", "verb", "noun", "verb"], [0], [[(2, 3)], [(3, 2), (1, 0)], [], []])
    side, hits = best_nearest([one, Linked([], ["verb", "noun"], [0], [[], [(0, 1)], [], []])], 1)
    assert (side, hits.tolist()) == ("before", [2, 0])
    side, hits = best_nearest([one], 0)
    assert (side, hits.tolist()) == ("after", [1])
    pair = Linked([], ["verb", "noun", "noun", "verb"], [0, 2], [[(1, 3)], [(3, 1)], [], []])
    assert best_nearest([pair], 0)[1].tolist() == [0]  # the other text's words are not near
    assert best_nearest([pair], 1)[1].tolist() == [0]
