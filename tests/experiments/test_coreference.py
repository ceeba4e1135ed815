"""Anaphors and their antecedents: found by definition, heads and baselines judged by hand on a sentence."""

import json

import numpy as np
import pytest

from experiments.beyond import coreference
from experiments.words.anaphors import BASELINES, Anaphor, find_anaphors, resolve
from experiments.words.annotated import Annotated, Word
from tests.factories import make_encoder

pytestmark = pytest.mark.integration

# "Ann saw a dog before she fed Bob and the dog ."
WORDS = ["Ann", "saw", "a", "dog", "before", "she", "fed", "Bob", "and", "the", "dog", "."]
TAGS = ["NNP", "VBD", "DT", "NN", "IN", "PRP", "VBD", "NNP", "CC", "DT", "NN", "."]


def sentence():
    words, start = [], 0
    for form, tag in zip(WORDS, TAGS, strict=True):
        words.append(Word(form, (start, start + len(form)), tag, "", -1, "dep"))
        start += len(form) + 1
    mentions = (("ann", 0), ("dog", 3), ("ann", 5), ("bob", 7), ("dog", 10))
    return Annotated(" ".join(WORDS), tuple(words), mentions)


def test_anaphors_have_a_choice():
    she, dog = find_anaphors(sentence())
    assert she == Anaphor(5, (0, 3), (True, False), (3, 7, 10))
    assert dog == Anaphor(10, (0, 3, 5, 7), (False, True, False, False), (5, 7))
    assert (she.antecedent, dog.antecedent) == (0, 3)
    alone = Annotated("a b", sentence().words[:6], (("x", 0), ("x", 5)))
    assert find_anaphors(alone) == []  # all candidates are true: there is nothing to get wrong
    assert find_anaphors(Annotated("a", (), None)) == []


def test_heads_and_baselines_are_judged():
    one = sentence()
    weights = np.full((2, 12, 12), 0.01)
    weights[0, 5, 0] = weights[0, 10, 3] = 0.9  # right about both, and only from the anaphors
    weights[1, :, 3] = 0.9  # the dog, whoever asks
    found = resolve(one, find_anaphors(one), weights)
    assert found.count == found.compared == 2
    assert found.hits[:2].tolist() == [2, 1]
    # "she": the nearest is the dog, no pronoun is before it; "dog": the nearest is Bob, of its kind too.
    assert found.hits[2:].tolist() == [0, 0, 1]
    assert len(BASELINES) == 3
    assert found.chance == pytest.approx(1 / 2 + 1 / 4)
    assert found.higher.tolist() == [2, 0]  # the second head gives every query's weight to the dog


def write_mentions(path):
    """Sentences with entities in GUM's form, of words that the tests' tokenizer has."""
    rows, forms = [], ["the", "cat", "and", "a", "dog", "sat", "on", "the", "mat", "with", "the", "cat", "."]
    heads, marks = {2: "(1-animal)", 5: "(2-animal)", 9: "(3-thing)", 12: "(1-animal)"}, 0
    for sentence in range(24):
        rows.append(f"# sent_id = {sentence}\n# text = {' '.join(forms)}")
        for place, form in enumerate(forms, 1):
            noun, misc = form in ("cat", "dog", "mat"), f"Entity={heads[place]}" if place in heads else "_"
            head, relation = (0, "root") if place == 6 else (6, "dep")
            part, tag = ("NOUN", "NN") if noun else ("X", "XX")
            rows.append("\t".join([str(place), form, form, part, tag, "_", str(head), relation, "_", misc]))
            marks += place in heads
        rows.append("")
    path.write_text("\n".join(rows) + "\n")
    return path


def test_the_program_says_what_it_found(tmp_path, capsys):
    data = write_mentions(tmp_path / "mentions.conllu")
    encoder = make_encoder(tmp_path / "encoder")
    arguments = ["--model", str(encoder), "--conllu", str(data), "--output", str(tmp_path / "out")]
    assert coreference.main(arguments) == 0
    numbers = json.loads((tmp_path / "out" / "numbers.json").read_text())
    results, printed = numbers["results"], capsys.readouterr().out
    assert coreference.tables({"": numbers}) in printed
    side = coreference.tables({"one": numbers, "other": numbers}).splitlines()
    assert [line.count("0.0 (0.0 to 0.0)") for line in side if line.startswith("| nearest |")] == [2]
    assert results["anaphors"] == results["sentences"] == 24
    assert results["chance"] == pytest.approx(1 / 3)
    assert results["against"]["nearest"]["distance"]["score"] == 0
    assert results["against"]["nearest with its word"]["distance"]["score"] == 1  # "the cat" again
    assert np.array(results["of_all_heads"]).shape == (6,)
    assert (tmp_path / "out" / "figure.png").exists()
