"""Dependency relations and trees: counts by loops over attention, trees against all trees, halves apart."""

import argparse
import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

import bertjax
from experiments.beyond import syntax
from experiments.shared.run import Run
from experiments.words.annotated import Annotated, Word
from experiments.words.annotation import SAMPLE
from experiments.words.conllu_files import read_sentences
from experiments.words.held_out import compare
from experiments.words.parses import Parsed, _parse, read_parsed, relation_hits
from experiments.words.spans import pieces_of
from experiments.words.trees import chain, rooted, spanning_edges, tree_hits
from experiments.words.word_attention import word_maps
from tests.factories import make_encoder
from tests.tiny_models import arrays_of

SENTENCE = Parsed(
    np.array([1, -1, 3, 1, 1]),
    ("nsubj", "root", "det", "obj", "punct"),
    np.zeros((2, 5), np.int64),
    np.zeros((3, 2), np.int64),
    3,
)


def trees_of(words):
    """All undirected trees over some words, by trying all sets of edges."""
    pairs = list(itertools.combinations(range(words), 2))
    for edges in itertools.combinations(pairs, words - 1):
        reached, waiting = {0}, [0]
        while waiting:
            word = waiting.pop()
            for first, second in edges:
                other = second if first == word else first if second == word else None
                if other is not None and other not in reached:
                    reached.add(other)
                    waiting.append(other)
        if len(reached) == words:
            yield list(edges)


@pytest.mark.parametrize("seed", range(5))
def test_spanning_trees_are_the_heaviest_of_all(seed):
    weights = np.random.default_rng(seed).gamma(0.3, size=(5, 5))
    best = max(trees_of(5), key=lambda edges: sum(weights[a, b] + weights[b, a] for a, b in edges))
    assert spanning_edges(weights) == sorted(best)
    assert len(list(trees_of(5))) == 5**3  # Cayley's formula


def test_trees_hang_from_their_root():
    edges = [(0, 1), (1, 3), (2, 3), (3, 4)]
    assert rooted(edges, 1, 5).tolist() == [1, -1, 3, 1, 3]
    assert rooted(edges, 4, 5).tolist() == [1, 3, 3, 4, -1]
    assert rooted(chain(4), 0, 4).tolist() == [-1, 0, 1, 2]
    counted = SENTENCE.counted
    assert counted.tolist() == [True, False, True, True, False]
    assert tree_hits(edges, SENTENCE.heads, counted) == (3, 3)
    assert tree_hits(chain(5), SENTENCE.heads, counted) == (2, 1)  # 0-1 and 2-3; from 1: 0, 2, 3, of which 0 is right


def test_trees_leave_punctuation_out():
    weights = np.random.default_rng(0).uniform(size=(2, 5, 5))
    weights[0, 0, 1] = weights[0, 2, 3] = weights[0, 3, 1] = 9  # the true tree
    words = tuple(
        Word("w", (0, 1), "", "", int(head), name)
        for head, name in zip(SENTENCE.heads, SENTENCE.relations, strict=True)
    )
    parsed = _parse(Annotated("", words), weights)
    assert parsed.in_trees == 3  # neither the root nor the full stop
    assert parsed.trees[0].tolist() == [3, 3]
    assert parsed.trees[2].tolist() == [2, 1]  # the chain 0-1-2-3


def test_word_attention_is_mean_over_queries_and_sum_over_keys():
    maps = np.random.default_rng(0).uniform(size=(3, 6, 6))
    pieces = [[1, 2], [3], [4]]
    found = word_maps(maps, pieces)
    for (head, one, other), value in np.ndenumerate(found):
        expected = np.mean([sum(maps[head, q, k] for k in pieces[other]) for q in pieces[one]])
        assert value == pytest.approx(expected)


def test_hits_are_counted_word_by_word():
    most = np.array([[1, 0, 3, 1, 0], [2, 3, 1, 2, 3]])
    parsed = replace(SENTENCE, most=most)
    hits, counts = relation_hits([parsed], ["all", "nsubj", "det"])
    assert counts.tolist() == [[3, 1, 1]]
    assert hits.shape == (1, 3, 2, 2 + 20)
    # To the head: 0 -> 1, 2 -> 3, 3 -> 1. From the head: 1 -> 0, 3 -> 2, 1 -> 3.
    assert hits[0, 0, 0, :2].tolist() == [3, 0]
    assert hits[0, 0, 1, :2].tolist() == [1, 2]
    offsets = [offset for offset in range(-10, 11) if offset]
    plus_one = 2 + offsets.index(1)
    assert hits[0, 1, :, plus_one].tolist() == [1, 0]  # the subject is before its verb
    assert hits[0, 2, :, plus_one].tolist() == [1, 0]
    assert hits[0, 0, :, plus_one].tolist() == [2, 0]
    assert hits[0, 0, 0, 2 + offsets.index(-2)] == 1  # from 3 to 1


def test_what_is_chosen_on_one_half_is_judged_on_the_other():
    """Of guesses that are all noise, the best of one half is as good as chance on the other; a true one stays."""
    rng = np.random.default_rng(0)
    counts = np.ones(400, np.int64)
    noise = (rng.uniform(size=(400, 2, 60)) < 0.3).astype(np.int64)
    chosen_on = np.arange(400) % 2 == 0
    found = compare(noise, counts, 40, chosen_on, 0)
    assert found["head"]["chosen"] > 0.35  # the best of many
    assert abs(found["head"]["score"] - 0.3) < 0.08
    assert found["p"] > 0.01
    noise[:, 1, 7] = rng.uniform(size=400) < 0.9
    found = compare(noise, counts, 40, chosen_on, 0)
    assert (found["head"]["guess"], found["head"]["direction"]) == (7, "to its dependent")
    assert found["head"]["score"] == noise[~chosen_on, 1, 7].mean()
    assert found["p"] < 0.001
    assert found["difference"][0] > 0.4


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("syntax")
    encoder = make_encoder(folder / "encoder")
    arguments = ["--model", str(encoder), "--limit", "60", "--output", str(folder / "out")]
    assert syntax.main(arguments) == 0
    return folder, encoder, json.loads((folder / "out" / "numbers.json").read_text())


def test_numbers_are_those_of_single_calls(results):
    folder, encoder, numbers = results
    model, tokenizer = bertjax.load(encoder), bertjax.Tokenizer.from_pretrained(encoder)
    values, summary = arrays_of(folder / "out" / "values.npz"), numbers["results"]
    sentences = read_sentences(SAMPLE)[:7]
    run = Run(argparse.Namespace(), model)
    found = read_parsed(run, sentences)  # in the order of the sentences, whatever the batches
    usable = [one for one in sentences if len(one.words) > 1]
    assert len({len(one.words) for one in usable}) > 3
    assert len(found) == len(usable)
    for parsed, sentence in zip(found, usable, strict=True):
        (encoding,) = tokenizer.encode([sentence.text])
        maps = np.asarray(model(bertjax.collate([encoding], None, 0)).attentions, np.float64)[:, 0]
        pieces = [pieces_of(encoding, word.span) for word in sentence.words]
        for number, head_map in enumerate(maps.reshape(-1, *maps.shape[2:])):
            for word, tokens in enumerate(pieces):
                to = [
                    -1.0 if other == word else np.mean([sum(head_map[q, k] for k in pieces[other]) for q in tokens])
                    for other in range(len(pieces))
                ]
                assert to[parsed.most[number, word]] == pytest.approx(max(to), rel=1e-5)
    assert values["hits"].shape[1:] == (2, model.config.num_hidden_layers * model.config.num_attention_heads)
    assert summary["sentences"] + summary["left_out"] == 60
    assert values["counts"][0] >= values["counts"][1:].sum()
    chain_of_all = summary["trees"]["edges"]["chain_of_all"]
    assert 0.3 < chain_of_all < 0.6


def test_tables_say_what_was_found(results):
    _, _, numbers = results
    side = syntax.tables({"one": numbers, "other": numbers}).splitlines()
    assert len(side) == 2 + min(syntax.SHOWN, len(numbers["results"]["relations"])) + 2
    for line, summary in zip(side[2:-2], numbers["results"]["relations"], strict=False):
        head, distance = (100 * summary[kind]["score"] for kind in ("head", "distance"))
        assert line.startswith(f"| {summary['relation']} | {summary['head']['name']}: {head:.0f} / {distance:.0f}")
        assert summary["p"] <= summary["p_corrected"] <= 1
    summary = numbers["results"]["trees"]["edges"]
    assert side[-2].count(f"{summary['head']['name']}: {100 * summary['head']['score']:.0f} / ") == 2
    first = numbers["results"]["relations"][0]
    assert first["relation"] == "all"
