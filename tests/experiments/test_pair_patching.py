"""Where a classifier of pairs notices another word: which words count, and that grids are those of `bertjax patch`."""

import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

import bertjax
from bertjax.tasks import load_examples
from experiments.beyond import pair_patching as program
from tests.factories import make_classifier, write_pairs

pytestmark = pytest.mark.integration

SMALL = Path(__file__).parents[2] / "experiments/data/small_mlm"
PAIRS = [
    ("The dog saw a door near the house", "A dog ran by the gate"),
    ("The cat saw a door near the house", "A tree ran by the gate"),
    ("The bird bird zorbled", "A bird was near"),
]


def examples_of(pairs, tmp_path):
    rows = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
    rows += [f"1\t{number}\t{number + 50}\t{first}\t{second}" for number, (first, second) in enumerate(pairs)]
    (tmp_path / "dev.tsv").write_text("\n".join(rows) + "\n")
    return load_examples("mrpc", data=tmp_path / "dev.tsv")


def test_rare_words_are_of_one_piece_long_and_in_few_texts(monkeypatch):
    monkeypatch.setattr(program, "RARE", 0.4)
    texts = [text for pair in PAIRS for text in pair]
    tokenizer = bertjax.Tokenizer.from_pretrained(SMALL)
    assert program.rare_words(texts, tokenizer) == ["bird", "door", "gate", "house", "tree"]


def test_the_exchanged_word_is_in_both_texts_or_in_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(program, "LEAST_LETTERS", 3)
    examples, rare = examples_of(PAIRS, tmp_path), ["bird", "cat", "dog", "door", "house"]
    for seed in range(5):
        rng = np.random.default_rng(seed)
        (shared,) = program.contrasts_of(examples, rare, rng, shared=True)
        assert shared["clean"], shared["second"] == PAIRS[0]
        assert "dog" not in shared["corrupted"]
        put_in = ({*shared["corrupted"].split()} - {*shared["clean"].split()}).pop()
        assert put_in in {"bird", "cat"}
        assert shared["corrupted"].replace(put_in, "dog") == shared["clean"]
        for one, (first, second) in zip(
            program.contrasts_of(examples, rare, rng, shared=False), PAIRS[:2], strict=True
        ):
            gone = ({*first.split()} - {*one["corrupted"].split()}).pop()
            assert gone in rare
            assert gone not in second
            new = ({*one["corrupted"].split()} - {*first.split()}).pop()
            assert new in rare
            assert new not in second


def test_equal_pairs_are_those_of_the_label(tmp_path):
    examples = load_examples("mrpc", data=write_pairs(tmp_path / "dev.tsv", 30))
    chosen = program.similar_pairs(examples)
    assert {*chosen.labels.tolist()} == {1}
    assert len(chosen) == (examples.labels == 1).sum()


@pytest.fixture
def few_letters(monkeypatch):
    monkeypatch.setattr(program, "LEAST_LETTERS", 3)
    monkeypatch.setattr(program, "RARE", 1.0)


def test_the_grids_are_those_of_patches(tmp_path, few_letters, capsys):
    model, data = make_classifier(tmp_path / "model"), write_pairs(tmp_path / "dev.tsv", 40)
    words = ["--model", model, "--task", "mrpc", "--data", data, "--output", tmp_path / "out", "--limit", 6]
    assert program.main([*map(str, words)]) == 0
    printed = capsys.readouterr().out
    numbers = json.loads((tmp_path / "out" / "numbers.json").read_text())
    assert program.tables({"": numbers}) in printed
    both = numbers["results"]["contrasts"]
    assert [one["shared"] for one in both] == [True, False]
    chosen = program.similar_pairs(load_examples("mrpc", data=data))
    tokenizer = bertjax.Tokenizer.from_pretrained(model)
    rare = program.rare_words([*chosen.first, *chosen.second], tokenizer)
    rows = program.contrasts_of(chosen, rare, np.random.default_rng([0, 0]), shared=True)
    rows = [rows[place] for place in program.draw_sample(len(rows), Namespace(limit=6, seed=0))]
    found = bertjax.patch(model, rows, spans="regions", progress=False)
    assert both[0]["streams"]["score"] == pytest.approx([row.score for row in found.rows_of()], rel=1e-3, abs=1e-4)
    assert both[0]["changed"] > 0
    assert "other text" in both[0]["streams"]["spans"]
    assert (tmp_path / "out" / "figure.png").read_bytes().startswith(b"\x89PNG")
