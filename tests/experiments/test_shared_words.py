"""Words that both texts of a pair share, against literal loops; and a tagger that learns."""

import json

import numpy as np
import pytest

import bertjax
from experiments.fig7_cls import main, tables
from experiments.words.shared_words import KINDS, Shared, link_shares, report_change, report_shared
from experiments.words.tagging import learn_tagger, split_words
from tests.annotated_sentences import conllu
from tests.factories import write_glue
from tests.tiny_models import largest_difference

pytestmark = pytest.mark.integration

PAIR = ("the cat sat near the dogs , old", "a door , the old dog")  # dogs are two tokens


def literal(weights, words, kind):
    """Means over the links of one head's weights, and of each control, by loops over words (side, place, form, tokens).

    Words that share a stem: the same, and dog and dogs.
    """
    stem = lambda form: form.removesuffix("s")  # noqa: E731

    def weight(one, other):
        return np.mean([sum(weights[query, key] for key in other[3]) for query in one[3]])

    def others(one, other):
        return one[0] != other[0] and stem(one[2]) != stem(other[2])

    found = []
    for one in words:
        for other in words:
            same = one[2] == other[2] if kind == "same word" else stem(one[2]) == stem(other[2]) and one[2] != other[2]
            if one[0] == other[0] or not same:
                continue
            query = [weight(one, third) for third in words if third[0] == other[0] and others(one, third)]
            key = [weight(third, other) for third in words if third[0] == one[0] and others(third, other)]
            place = [
                weight(a, b)
                for a in words
                for b in words
                if a[0] == one[0] and others(a, b) and b[1] - a[1] == other[1] - one[1]
            ]
            if query and key and place:
                found.append([weight(one, other), *(np.mean(several) for several in (query, place, key))])
    return np.mean(found, axis=0), len(found)


def test_links_and_controls_are_what_literal_loops_find(embedder, rng):
    tokenizer = bertjax.Tokenizer.from_pretrained(embedder)
    (encoding,) = tokenizer.encode([PAIR[0]], [PAIR[1]])
    shares, counts = link_shares(encoding, [split_words(text) for text in PAIR])
    places = {"dogs": [6, 7], "dog": [16]}
    tokens = list(encoding.tokens)
    words, used = [], 1
    for side, text in enumerate(PAIR):
        for place, form in enumerate(text.split()):
            size = len(tokenizer.encode([form])[0].tokens) - 2
            if form != ",":
                words.append((side, place, form, list(range(used, used + size))))
            used += size
        used += 1
    assert {word[2]: word[3] for word in words if word[2] in places} == places
    weights = rng.dirichlet(np.ones(len(tokens)), len(tokens))
    for kind, share, count in zip(KINDS, shares, counts, strict=True):
        expected, links = literal(weights, words, kind)
        assert count == links > 0
        assert largest_difference(np.einsum("cqk,qk->c", share, weights), expected) < 1e-6


def test_only_a_head_that_attends_the_same_word_beats_controls(rng):
    values = np.zeros((50, 2, 4, 1, 3), np.float32)
    values[:, 0, :, 0, 0] = [0.5, 0.1, 0.1, 0.1]
    values[:, 0, :, 0, 1] = [0.5, 0.1, 0.6, 0.1]
    values[:, 0, :, 0, 2] = [0.5, 0.1, 0.1, 0.6]
    values += rng.normal(0, 0.01, values.shape).astype(np.float32)
    links = np.array([[2, 0]] * 50)
    report = report_shared(Shared(values, links))
    assert set(report) == {"same word"}
    from experiments.words.relation_report import weakest_shared

    least, beyond = weakest_shared(report["same word"])
    assert beyond.tolist() == [[True, False, False]]
    assert least[0, 0] == pytest.approx(0.4, abs=0.02)
    after = Shared(values + np.float32(0.1), links)
    assert (
        largest_difference(report_change(Shared(values, links), [after])["same word"]["mean"], np.full((1, 3), 0.1))
        < 1e-5
    )


def test_uniform_attention_treats_shared_words_as_controls(embedder):
    tokenizer = bertjax.Tokenizer.from_pretrained(embedder)
    pair = ("the cat sat on the mat", "the dog sat near a mat")
    (encoding,) = tokenizer.encode([pair[0]], [pair[1]])
    shares, _ = link_shares(encoding, [split_words(text) for text in pair])
    size = len(encoding)
    assert np.einsum("cqk->c", shares[0]) / size == pytest.approx(np.full(4, 1 / size), abs=1e-6)


def test_pairs_of_tasks_are_measured_without_a_parser(embedder, tmp_path):
    data, output = write_glue(tmp_path / "glue"), tmp_path / "out"
    arguments = ["--model", str(embedder), "--task", "mrpc", "--data", str(data), "--output", str(output)]
    assert main([*arguments, "--tuned", str(embedder), "--tuned", str(embedder), "--as-published"]) == 0
    found = json.loads((output / "numbers.json").read_text())
    one = found["results"]["sources"]["mrpc"]
    assert len(one["models"]) == 3
    assert one["models"][1] == one["models"][0]
    assert np.abs(one["shared_words_change"]["same word"]["mean"]).max() == 0
    assert {path.name for path in output.iterdir()} >= {"shared_words.png", "cls_row.png"}
    assert "| mrpc | " in tables({"": found})


def tagged(count):
    rows = (
        "1 the DT DET 2 det",
        "2 cat NN NOUN 3 nsubj",
        "3 sat VBD VERB 0 root",
        "4 near IN ADP 5 case",
        "5 it PRP PRON 3 obl",
    )
    return conllu(*[("the cat sat near it", *rows)] * count)


def test_a_tagger_learns_parts_of_speech_and_says_how_well(tmp_path):
    path = tmp_path / "some.conllu"
    path.write_text(tagged(20), encoding="utf-8")
    tagger = learn_tagger(path)
    assert tagger.accuracy == 1
    (found,) = tagger.annotate(["the cat sat near it"])
    assert [word.kind for word in found.words] == ["", "noun", "verb", "", "pronoun"]
    assert [found.text[slice(*word.span)] for word in found.words] == found.text.split()
