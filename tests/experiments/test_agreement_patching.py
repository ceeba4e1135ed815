"""Agreement by patches: which nouns count, and that what is told of a grid is what `bertjax patch` finds."""

import json
from pathlib import Path

import numpy as np
import pytest

import bertjax
from experiments.beyond import agreement_patching as program
from tests.factories import make_masked

pytestmark = pytest.mark.integration

SMALL = Path(__file__).parents[2] / "experiments/data/small_mlm"
ROWS = [
    ("house", "house", "Sing"),
    ("Houses", "house", "Plur"),
    ("school", "school", "Sing"),
    ("schools", "school", "Plur"),
    ("door", "door", "Sing"),
    ("unheardof", "unheardof", "Sing"),
    ("unheardofs", "unheardof", "Plur"),
    ("sheep", "sheep", "Sing"),
    ("sheep", "sheep", "Plur"),
]


def write_nouns(path, rows=ROWS):
    lines = ["# text = " + " ".join(form for form, _, _ in rows)]
    lines += [
        "\t".join([str(number), form, lemma, "NOUN", "NN", f"Number={value}", str(number - 1), "dep", "_", "_"])
        for number, (form, lemma, value) in enumerate(rows, 1)
    ]
    path.write_text("\n".join(lines) + "\n\n")
    return path


@pytest.fixture(scope="module")
def agreement_inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agreement")
    model = make_masked(folder / "model")
    tokenizer = bertjax.Tokenizer.from_pretrained(model)
    words = tokenizer_words(tokenizer)[:8]
    rows = [(words[place], words[place - place % 2], ("Sing", "Plur")[place % 2]) for place in range(8)]
    return folder, model, write_nouns(folder / "nouns.conllu", rows), words


def tokenizer_words(tokenizer):
    """Words of one piece that the tiny tokenizer knows."""
    candidates = ["cat", "dog", "door", "man", "mat", "sat", "the", "near", "by", "saw", "ran", "a"]
    return [word for word in candidates if tokenizer.encode([word])[0].tokens[1:-1] == (word,)]


def test_nouns_are_of_both_numbers_and_of_one_piece(tmp_path):
    tokenizer = bertjax.Tokenizer.from_pretrained(SMALL)
    found = program.read_nouns(write_nouns(tmp_path / "nouns.conllu"), tokenizer)
    assert found == [("house", "houses"), ("school", "schools")]


def test_contrasts_turn_and_controls_keep_the_number():
    nouns = [("cat", "cats"), ("dog", "dogs"), ("man", "men")]
    contrasts = [(row["clean"], row["corrupted"], row["good"]) for row in program.contrasts_of("{} [MASK]", nouns)]
    assert contrasts == [("cats", "cat", "were"), ("dog", "dogs", "was"), ("men", "man", "were")]
    kept = [(row["clean"], row["corrupted"], row["good"]) for row in program.controls_of("{} [MASK]", nouns)]
    assert kept == [("cats", "dogs", "were"), ("dog", "man", "was")]


def test_results_equal_those_of_patches(agreement_inputs, monkeypatch):
    folder, model, nouns, words = agreement_inputs
    monkeypatch.setattr(program, "TEMPLATES", ("{} the [MASK]", "the {} a [MASK]", "a {} [MASK]"))
    monkeypatch.setattr(program, "VERBS", (words[0], words[1]))
    arguments = ["--model", str(model), "--nouns", str(nouns), "--output", str(folder / "out")]
    assert program.main(arguments) == 0
    numbers = json.loads((folder / "out" / "numbers.json").read_text())
    first = numbers["results"]["templates"][0]
    rows = program.contrasts_of("{} the [MASK]", [tuple(noun) for noun in numbers["results"]["nouns"]])
    found = bertjax.patch(model, rows, sites=["head_outputs"], spans="regions", progress=False)
    assert first["heads"]["score"] == pytest.approx([row.score for row in found.rows_of()], rel=1e-4, abs=1e-6)
    outputs = np.asarray(found.outputs["outputs"], np.float64)
    assert first["moved"] == pytest.approx(np.abs(outputs[..., 0] - outputs[..., 1]).mean(axis=1), abs=1e-4)
    text = program.tables({"": numbers})
    assert "{} the [MASK]" in text
