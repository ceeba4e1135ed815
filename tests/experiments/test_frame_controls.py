"""Controls that keep one end of a link: what they let pass, what not, and that they are what they say."""

from argparse import Namespace

import numpy as np
import pytest

from bertjax.data.tokenizer import Encoding
from experiments.frames import controls
from experiments.frames.classes import classes_of
from experiments.frames.controls import (
    AT_DISTANCE,
    Contrast,
    contrast,
    heads_left,
    measure_controls,
    plan_controls,
    replace_ends,
    score_all,
)
from experiments.frames.links import Links, link_pairs
from experiments.frames.null import Chance
from experiments.frames.sources import Sentence
from experiments.shared.run import Run
from experiments.shared.sign_test import sign_test

pytestmark = pytest.mark.integration

LAYERS, HEADS, TOKENS = 2, 3, 12
TAGS = ("NOUN", "VERB", "NOUN", "DET", "NOUN", "VERB", "NOUN", "VERB", "NOUN", "PUNCT")
TEXT = "a b c d e f g h i ."


def sentence_of(predicate, *elements, tags=TAGS):
    """A sentence of ten one-piece words, the groups as tokens."""
    words = tuple((2 * place, 2 * place + 1) for place in range(10))
    spans = [(words[group[0] - 1][0], words[group[-1] - 1][1]) for group in (predicate, *elements)]
    return Sentence(TEXT, words, spans[0], tuple(spans[1:]), tags, "UPOS")


def measure(monkeypatch, groups, weights, draws=500):
    """Controls of made-up weights `[examples, layers, heads, query, key]`; of each sentence the groups as tokens."""
    offsets = ((0, 0), *((2 * word, 2 * word + 1) for word in range(TOKENS - 2)), (0, 0))
    texts = [Encoding((1,) * TOKENS, (0,) * TOKENS, ("",) * TOKENS, offsets, False)] * len(groups)
    links = Links(texts, groups, np.zeros((len(groups), 2, LAYERS, HEADS)))
    monkeypatch.setattr(
        controls, "stream_attention", lambda *some, **more: iter([(np.arange(len(groups)), np.float32(weights))])
    )
    run = Run(Namespace(draws=draws, seed=0), None)
    return measure_controls(run, links, plan_controls(links, [sentence_of(*group) for group in groups]))


def some_groups(rng, examples):
    """Predicates and one element each, three words apart or more; alternately before and behind."""
    found = []
    for number in range(examples):
        near, far = int(rng.integers(1, 4)), int(rng.integers(6, 10))
        found.append([[far], [near]] if number % 2 else [[near], [far]])
    return found


def random_weights(rng, examples):
    return rng.dirichlet(np.ones(TOKENS), (examples, LAYERS, HEADS, TOKENS))


def literal(groups, weights, name, direction):
    """Means of links and of what replaces one of their ends, by sentence; a loop over all pairs."""
    classes = classes_of(TEXT.split(), TAGS, "UPOS")
    rows = []
    for group, maps in zip(groups, weights, strict=True):
        taken = {piece for word in group for piece in word}
        kept, others = [], []
        for query, key in link_pairs(group)[direction]:
            several = []
            for piece in range(1, 11):
                if piece in taken or classes[piece - 1] == "mark":
                    continue
                if name == "same_key" and abs(piece - key) >= 3:
                    several.append(maps[:, :, piece, key])
                if name == "same_query" and abs(piece - query) >= 3 and classes[piece - 1] == classes[key - 1]:
                    several.append(maps[:, :, query, piece])
            if several:
                kept.append(maps[:, :, query, key])
                others.append(np.mean(several, axis=0))
        if kept:
            rows.append((np.mean(kept, axis=0), np.mean(others, axis=0)))
    return np.array(rows)


@pytest.mark.parametrize("name", ["same_key", "same_query"])
def test_controls_are_what_a_literal_loop_computes(rng, monkeypatch, name):
    groups = [[[5], [1, 2]], [[8], [1], [3]], [[4, 5], [10 - 1]], [[1], [6, 7]], [[6], [2]]]
    weights = random_weights(rng, len(groups))
    found = measure(monkeypatch, groups, weights)[name]
    for direction in range(2):
        rows = literal(groups, weights, name, direction)
        assert found.examples[direction] == len(rows)
        assert np.abs(found.links[direction] - rows[:, 0].mean(0)).max() < 1e-7
        assert np.abs(found.others[direction] - rows[:, 1].mean(0)).max() < 1e-7
        apart = rows[:, 0] - rows[:, 1]
        half = 1.96 * apart.std(0, ddof=1) / np.sqrt(len(rows))
        assert np.abs(found.interval[direction] - half).max() < 1e-7
    assert found.smallest == pytest.approx([0.25 / TOKENS] * 2)


def test_the_distance_control_uses_equally_distant_words(rng, monkeypatch):
    monkeypatch.setattr(controls, "FEWEST_PAIRS", 2)
    groups = [[[5], [1]], [[5], [2]], [[6], [2]], [[9], [2]]]
    weights = random_weights(rng, len(groups))
    found = measure(monkeypatch, groups, weights)[AT_DISTANCE]
    at = {}
    for group, maps in zip(groups, weights, strict=True):
        (key,), (element,) = group
        for query in range(1, 10):
            if query not in (key, element) and abs(query - key) >= 3:
                at.setdefault(query - key, []).append(maps[:, :, query, key])
    links, others = [], []
    for group, maps in zip(groups, weights, strict=True):
        (key,), (element,) = group
        if len(at.get(element - key, ())) >= 2:
            links.append(maps[:, :, element, key])
            others.append(np.mean(at[element - key], axis=0))
    assert 0 < found.examples[0] == len(links) < len(groups)
    assert np.abs(found.links[0] - np.mean(links, axis=0)).max() < 1e-7
    assert np.abs(found.others[0] - np.mean(others, axis=0)).max() < 1e-7


def all_above(groups, weights, monkeypatch):
    """The heads that are left, were every null passed."""
    shape = (2, LAYERS, HEADS)
    passed = Chance(len(groups), *[np.zeros(shape)] * 3, np.full(shape, 0.002))
    found = measure(monkeypatch, groups, weights)
    return heads_left(score_all({"moved": passed, "swapped": passed}, found), found, 0.05)


def test_controls_leave_only_the_head_that_follows_links(rng, monkeypatch):
    """0.1 looks at the predicate from all words, 0.2 from its elements; 1.1 from the predicate at elements, 1.2 from
    the predicate at all nouns, 1.0 at elements from everywhere."""
    groups = some_groups(rng, 60)
    weights = 0.2 * random_weights(rng, 60)
    for example, ((predicate,), (element,)) in enumerate(groups):
        weights[example, 0, 1, :, predicate] += 0.5
        weights[example, 0, 2, element, predicate] += 0.5
        weights[example, 1, 1, predicate, element] += 0.5
        weights[example, 1, 2, predicate] += 0.1
        weights[example, 1, 0, :, element] += 0.5
    left = all_above(groups, weights, monkeypatch)
    assert np.argwhere(left[0]).tolist() == [[0, 2]]
    assert np.argwhere(left[1]).tolist() == [[1, 1]]


def test_an_effect_that_is_sure_but_small_is_not_left(rng, monkeypatch):
    groups = some_groups(rng, 60)
    weights = np.full((60, LAYERS, HEADS, TOKENS, TOKENS), 1 / TOKENS) + 1e-4 * random_weights(rng, 60)
    for example, ((predicate,), (element,)) in enumerate(groups):
        weights[example, 0, 0, element, predicate] *= 1.2
        weights[example, 0, 1, element, predicate] *= 1.35
    found = measure(monkeypatch, groups, weights)
    assert (found["same_key"].p_values[0, 0, :2] < 0.01).all()
    left = all_above(groups, weights, monkeypatch)
    assert np.argwhere(left[0]).tolist() == [[0, 1]]


def test_a_difference_must_be_large_by_ratio_and_by_weight():
    links, others = np.array([[[0.6, 0.03, 0.1]]] * 2), np.array([[[0.5, 0.02, 0.05]]] * 2)
    zero = np.zeros_like(links)
    found = Contrast(np.array([1, 1]), links, others, zero, zero, np.array([0.02, 0.02]))
    assert found.large[0, 0].tolist() == [False, False, True]


def test_control_words_are_not_elements_but_as_far_as_elements():
    words, classes = np.array([0, 1, 1, 2, 3, 4, 5, 6]), ["noun", "verb", "noun", "mark", "noun", "noun", "verb"]
    found = replace_ends([(1, 8)], [[8], [1], [5]], words, classes, "same_key")
    assert found.others == [[(2, 8), (3, 8), (4, 8)]]  # 6 and 7 are too near
    assert replace_ends([(8, 1)], [[8], [1], [5]], words, classes, "same_query").others == [[(8, 4)]]
    assert replace_ends([(1, 3)], [[3], [1]], words[:3], classes, "same_key").links == []


def test_a_sentence_without_other_words_has_no_control(rng, monkeypatch):
    groups = [[[10 - 1], [1, 2, 3, 4, 5, 6]]]
    found = measure(monkeypatch, groups, random_weights(rng, 1))["same_key"]
    assert found.examples.tolist() == [0, 1]
    assert found.p_values[0].tolist() == np.ones((LAYERS, HEADS)).tolist()


def test_random_signs_give_the_share_that_all_signs_give(rng):
    differences = rng.normal(0.4, 1, (9, 1, 2))
    signs = np.array(np.meshgrid(*[[-1, 1]] * 9)).reshape(9, -1).T
    exact = (np.einsum("se,elh->slh", signs, differences) >= differences.sum(0) - 1e-9).mean(0)
    found = sign_test(differences, 20000, rng)
    assert np.abs(found - exact).max() < 4 * 0.5 / np.sqrt(20000)
    differences[3, 0, 1] = np.nan
    one, undefined = sign_test(differences, 200, rng)[0]
    assert 0 < one <= 1
    assert np.isnan(undefined)


def test_p_values_are_uniform_where_there_is_nothing(rng):
    run = Run(Namespace(draws=400, seed=1), None)
    values = rng.normal(size=(2, 2, 40, 20, 40))
    p_values = contrast(values[0], values[1], np.full(40, 0.1), run).p_values
    assert (p_values < 0.05).mean() == pytest.approx(0.05, abs=0.035)
    assert p_values.mean() == pytest.approx(0.5, abs=0.05)
