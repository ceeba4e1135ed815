"""What attention at links is by chance: where links may be moved to, and which heads are more than that."""

import itertools
from argparse import Namespace

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.data.tokenizer import Encoding
from experiments.frames import null as frame_null
from experiments.frames.links import Links, link_pairs
from experiments.frames.null import Chance, draw_nulls, draw_pairs, place_groups, score_nulls, word_numbers
from experiments.frames.sources import Sentence
from experiments.shared.run import Run

pytestmark = pytest.mark.integration

LAYERS, HEADS = 2, 3


def literal_places(sizes, words, apart):
    """All starts of the groups that keep them whole, among the pieces, without overlap and so many words apart."""
    found = set()
    for starts in itertools.product(range(1, len(words) + 1), repeat=len(sizes)):
        groups = [list(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)]
        tokens = [token for group in groups for token in group]
        if max(tokens) > len(words) or len(set(tokens)) < len(tokens):
            continue
        predicate, *elements = ([words[token - 1] for token in group] for group in groups)
        if all(abs(one - other) >= apart for element in elements for one in element for other in predicate):
            found.add(starts)
    return found


@pytest.mark.parametrize(("sizes", "apart"), [([1, 2], 3), ([2, 1, 1], 3), ([1, 2], 1)])
def test_links_move_to_all_allowed_positions_equally_often(rng, sizes, apart):
    words = np.array([0, 1, 1, 2, 3, 4, 4, 5])
    starts = place_groups(sizes, words, apart, 20000, rng)
    places, counts = np.unique(starts, axis=0, return_counts=True)
    expected = literal_places(sizes, words, apart)
    assert starts.shape == (20000, len(sizes))
    assert {tuple(place) for place in places.tolist()} == expected
    mean = 20000 / len(expected)
    assert np.abs(counts - mean).max() < 5.5 * np.sqrt(mean)


def test_pairs_of_moved_links_are_of_groups_at_their_positions(rng):
    groups, words = [[4, 5], [1], [9, 10, 11]], np.arange(12)
    drawn = draw_pairs(groups, words, 50, rng).reshape(50, 2, 8, 2)
    for forth, back in drawn:
        predicate, first, second = (np.unique(part).tolist() for part in (forth[:, 1], forth[:2, 0], forth[2:, 0]))
        assert [len(predicate), len(first), len(second)] == [2, 1, 3]
        assert [forth.tolist(), back.tolist()] == [
            [list(pair) for pair in pairs] for pairs in link_pairs([predicate, first, second])
        ]
        assert min(abs(one - other) for one in predicate for other in first + second) >= 3


def test_links_that_are_near_themselves_may_be_moved_as_near(rng):
    drawn = draw_pairs([[2], [3]], np.array([0, 1, 2]), 200, rng)
    assert {tuple(pair) for pair in drawn[::2, 0].tolist()} == {(a, b) for a in (1, 2, 3) for b in (1, 2, 3) if a != b}


def test_each_piece_has_the_word_it_begins_in():
    encoding = Encoding((1,) * 7, (0,) * 7, ("",) * 7, ((0, 0), (0, 2), (2, 4), (5, 6), (6, 7), (8, 9), (0, 0)), False)
    sentence = Sentence("abcd e, f", ((0, 4), (5, 6), (6, 7), (8, 9)), (0, 4), ((5, 6),))
    assert word_numbers(encoding, sentence).tolist() == [0, 0, 1, 2, 3]
    # Offsets that include the space before a word (DeBERTa), and those of a space that is a piece (RoBERTa).
    offsets = ((0, 0), (0, 4), (4, 6), (6, 7), (8, 8), (8, 9), (0, 0))
    spaced = Encoding((1,) * 7, (0,) * 7, ("",) * 7, offsets, False)
    assert word_numbers(spaced, sentence).tolist() == [0, 1, 2, 3, 3]


def drawn(monkeypatch, groups, weights, draws=500):
    """Nulls of made-up weights `[layers, examples, heads, query, key]` in sentences of one-piece words."""
    examples, tokens = weights.shape[1], weights.shape[-1]
    offsets = ((0, 0), *((2 * word, 2 * word + 1) for word in range(tokens - 2)), (0, 0))
    texts = [Encoding((1,) * tokens, (0,) * tokens, ("",) * tokens, offsets, False)] * examples
    sentences = [Sentence("", offsets[1:-1], (0, 1), ((2, 3),))] * examples
    both = np.zeros((examples, 2, *weights.shape[::2][:2]))
    for example, group in enumerate(groups):
        for direction, pairs in enumerate(link_pairs(group)):
            both[example, direction] = np.max([weights[:, example, :, query, key] for query, key in pairs], axis=0)

    def stream(model, texts, statistic, extras, **options):
        pairs = [jnp.asarray(extra) for extra in extras(np.arange(examples))]
        keep = jnp.ones((examples, tokens), jnp.int32)
        yield np.arange(examples), np.asarray(statistic(jnp.asarray(weights, jnp.float32), keep, *pairs))

    monkeypatch.setattr(frame_null, "stream_attention", stream)
    run = Run(Namespace(draws=draws, seed=0), None)
    return draw_nulls(run, Links(texts, groups, both), sentences)


def scored(*arguments):
    """Their q-values."""
    return score_nulls(drawn(*arguments))


def random_links(rng, examples, words):
    """Predicates of one piece and elements of two, at least three words apart."""
    starts = place_groups([1, 2], np.arange(words), 3, examples, rng).tolist()
    return [[[predicate], [element, element + 1]] for predicate, element in starts]


def random_weights(rng, examples, tokens):
    return rng.dirichlet(np.ones(tokens), (LAYERS, examples, HEADS, tokens))


def test_only_a_head_that_follows_the_links_is_more_than_chance(rng, monkeypatch):
    """Head 0.1 looks from elements to the predicate, head 1.2 back, the others anywhere."""
    groups, weights = random_links(rng, 40, 10), random_weights(rng, 40, 12)
    for example, (predicate, element) in enumerate(groups):
        weights[0, example, 1, element] = np.eye(12)[predicate[0]]
        weights[1, example, 2, predicate] = np.eye(12)[element[1]]
    found = scored(monkeypatch, groups, weights)
    for name in ("moved", "swapped", "both"):
        assert found[name].shape == (2, LAYERS, HEADS)
        assert found[name][0, 0, 1] < 0.05
        assert found[name][1, 1, 2] < 0.05
        others = np.delete(found[name].ravel(), [1, 11])  # of ten, one in twenty is below 0.05 by chance
        assert (others < 0.05).sum() <= 2
        assert others.max() > 0.2
    assert (found["both"] >= np.maximum(found["moved"], found["swapped"]) - 1e-12).all()


def test_attention_to_neighbours_does_not_hide_links_beyond_them(rng, monkeypatch):
    """All heads attend to neighbours most; 0.0 also follows the links, 1.1 shuns them."""
    groups, weights = random_links(rng, 40, 10), 0.05 * random_weights(rng, 40, 12)
    weights += 0.4 * (np.eye(12, k=1) + np.eye(12, k=-1))
    for example, (predicate, element) in enumerate(groups):
        weights[0, example, 0, element, predicate[0]] += 0.1
        weights[1, example, 1, element, predicate[0]] = 0
    found = scored(monkeypatch, groups, weights)["moved"]
    assert found[0, 0, 0] < 0.05
    assert found[0, 1, 1] > 0.05


def test_a_head_that_attends_by_position_is_not_above_chance(rng, monkeypatch):
    """Elements begin most sentences, and head 0.2 looks to the beginning from everywhere; head 1.0 to the element."""
    groups = [[[predicate], [1, 2]] for predicate in rng.integers(5, 11, 36).tolist()]
    groups += [[[1], [6, 7]]] * 4
    weights = random_weights(rng, 40, 12)
    weights[0, :, 2] += np.eye(12)[1] * 5
    for example, (predicate, element) in enumerate(groups):
        weights[1, example, 0, predicate[0], element[0]] += 5
    found = scored(monkeypatch, groups, weights)
    assert found["moved"][1, 0, 2] < 0.05
    assert found["swapped"][1, 0, 2] > 0.05
    assert found["both"][1, 0, 2] > 0.05
    assert found["both"][1, 1, 0] < 0.05


def test_sentences_without_like_have_one_null(rng, monkeypatch):
    found = scored(monkeypatch, random_links(rng, 1, 8), random_weights(rng, 1, 10))
    assert set(found) == {"moved", "both"}
    assert found["both"].tolist() == found["moved"].tolist()


DRAWS = 7


def literal_means(groups, weights, starts):
    """Mean weights `[draws, directions, layers, heads]` where the groups are put at `starts` of each sentence."""
    found = np.zeros((DRAWS, 2, LAYERS, HEADS))
    for draw in range(DRAWS):
        for example, group in enumerate(groups):
            placed = [
                list(range(start, start + len(word))) for word, start in zip(group, starts[example][draw], strict=True)
            ]
            for direction, pairs in enumerate(link_pairs(placed)):
                several = [weights[:, example, :, query, key] for query, key in pairs]
                found[draw, direction] += np.max(several, axis=0) / len(groups)
    return found


def literal_chance(observed, means):
    """Each number of a null by a loop over heads: examples' mean, the draws' mean, their 95 % point, p."""
    mean, high, p_values = (np.zeros_like(observed) for _ in range(3))
    for place in np.ndindex(*observed.shape):
        several = sorted(means[(slice(None), *place)])
        mean[place] = sum(several) / DRAWS
        below = int(0.95 * (DRAWS - 1))  # so many draws are surely below; the rest of the way in a straight line
        high[place] = several[below] + (0.95 * (DRAWS - 1) - below) * (several[below + 1] - several[below])
        p_values[place] = (1 + sum(one >= observed[place] for one in several)) / (1 + DRAWS)
    return mean, high, p_values


def test_nulls_are_what_a_literal_loop_computes(rng, monkeypatch):
    """Few draws, so that the least p-value, 1/8, is far from 0: head 1.2 attends to all predicates and has it."""
    groups = [[[5], [1, 2]], [[1], [5, 6]], [[9], [2, 3]], [[2], [7, 8]], [[7], [3, 4]]]
    weights = random_weights(rng, 5, 12)
    for example, (predicate, _) in enumerate(groups):
        weights[1, example, 2] = np.eye(12)[predicate[0]]
    found = drawn(monkeypatch, groups, weights, DRAWS)
    generators = [np.random.default_rng((0, place)) for place in range(5)]
    sizes, others = [1, 2], [[other for other in range(5) if other != place] for place in range(5)]
    moved = [place_groups(sizes, np.arange(10), 3, DRAWS, generators[place]) for place in range(5)]
    begins = np.array([[group[0] for group in one] for one in groups])
    generators = [np.random.default_rng((0, place)) for place in range(5)]
    swapped = [begins[generators[place].choice(others[place], DRAWS)] for place in range(5)]
    for name, starts in (("moved", moved), ("swapped", swapped)):
        null = found[name]
        observed = literal_means(groups, weights, np.repeat(begins[:, None], DRAWS, 1))[0]
        mean, high, p_values = literal_chance(observed, literal_means(groups, weights, starts))
        assert null.examples == 5
        assert np.abs(null.observed - observed).max() < 1e-6
        assert np.abs(null.mean - mean).max() < 1e-6
        assert np.abs(null.high - high).max() < 1e-6
        assert (null.p_values == p_values).all()
        assert null.p_values.min() == null.p_values[0, 1, 2] == 1 / (DRAWS + 1)
        assert (null.high >= null.mean - 1e-12).all()


def literal_q_values(p_values):
    """Benjamini and Hochberg, one after the other: the least of p n / rank among those that are no smaller."""
    several = p_values.ravel().tolist()
    ranks = {p: sum(other <= p for other in several) for p in several}
    corrected = [min(min(1, other * len(several) / ranks[other]) for other in several if other >= p) for p in several]
    return np.array(corrected).reshape(p_values.shape)


def test_q_values_are_corrected_over_heads_of_both_directions():
    """Known p-values: corrected one direction at a time, or not at all, they would be lower."""
    first = np.array([[[0.001, 0.02, 0.03], [0.04, 0.5, 1]], [[0.9, 0.8, 0.7], [0.6, 0.4, 0.3]]])
    second = np.array([[[0.01, 0.015, 0.9], [0.001, 0.6, 1]], [[0.002, 0.8, 0.7], [0.6, 0.4, 0.3]]])
    nulls = {
        name: Chance(3, p_values, p_values, p_values, p_values)
        for name, p_values in (("moved", first), ("swapped", second))
    }
    found = score_nulls(nulls)
    assert found["moved"][0].ravel() == pytest.approx([0.012, 0.12, 0.12, 0.12, 6 / 7, 1])
    assert found["swapped"][:, 0, 0] == pytest.approx([0.04, 0.012])
    for name, p_values in (("moved", first), ("swapped", second), ("both", np.maximum(first, second))):
        assert found[name] == pytest.approx(literal_q_values(p_values), abs=1e-12)


def test_no_q_value_is_less_than_few_draws_allow(rng, monkeypatch):
    """All heads but one attend to predicates alone: eleven p-values are 1/8, and so are their q-values but for one."""
    groups = random_links(rng, 40, 10)
    weights = np.zeros((LAYERS, 40, HEADS, 12, 12))
    for example, (predicate, element) in enumerate(groups):
        weights[:, example, :, element, predicate[0]] = 1
        weights[:, example, :, predicate[0], element] = 1
    weights[0, :, 0] = 1 / 12
    found = scored(monkeypatch, groups, weights, DRAWS)["both"]
    assert found[:, 0, 0].tolist() == [1, 1]
    others = np.delete(found.reshape(2, -1), 0, axis=1)
    assert others == pytest.approx(np.full((2, 5), 1 / (DRAWS + 1) * 12 / 10))
