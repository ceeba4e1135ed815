"""Very long texts and very many sets: only the necessary part is tokenised; excessive inputs are refused first."""

import pytest

from bertjax import BertConfig, Tokenizer
from bertjax.data import long_texts
from bertjax.data.long_texts import shorten
from bertjax.errors import InputError
from bertjax.formatting import format_bytes
from bertjax.interventions import ablations as ab
from bertjax.machine import parse_bytes
from tests.factories import SENTENCES, add_tokenizer


@pytest.fixture
def tokenizer(tmp_path):
    return Tokenizer.from_pretrained(add_tokenizer(tmp_path))


@pytest.mark.parametrize("most", [5, 6, 7, 12])
@pytest.mark.parametrize("long", ["first", "second", "both", "alike"])
def test_a_long_text_gives_the_same_tokens_as_its_beginning(tokenizer, monkeypatch, most, long):
    texts = {
        "first": (" ".join(SENTENCES), "a dog ran"),
        "second": ("a dog", " ".join(SENTENCES * 2)),
        "both": (" ".join(SENTENCES * 3), " ".join(SENTENCES)),
        "alike": (" ".join(SENTENCES[::-1]), " ".join(SENTENCES)),
    }[long]
    pairs = [texts, texts[::-1]]
    seconds = [second for _, second in pairs]
    whole = tokenizer.encode([first for first, _ in pairs], seconds, most), tokenizer.encode(seconds, None, most)
    monkeypatch.setattr(long_texts, "LONG", 12)
    taken = []
    monkeypatch.setattr("bertjax.data.tokenizer.shorten", lambda *args: taken.append(shorten(*args)) or taken[-1])
    short = tokenizer.encode([first for first, _ in pairs], seconds, most), tokenizer.encode(seconds, None, most)
    assert short == whole
    assert sum(map(len, taken[0])) < sum(map(len, pairs[0]))


def test_sets_are_counted_before_they_are_listed():
    config = BertConfig(hidden_size=400, num_attention_heads=100, num_hidden_layers=100)
    for ask in (
        lambda: ab.random_subsets(BertConfig(), size=2, count=10**9),
        lambda: ab.random_subsets(BertConfig(), size=2, count=10**6),
        lambda: ab.random_subsets(BertConfig(), size=100, count=50_000),
        lambda: ab.head_pairs(config),
        lambda: ab.all_but_one(config),
        lambda: ab.cumulative(config, order=[(0, 0)] * 10_000),
    ):
        with pytest.raises(InputError, match=r"sets with .* heads in all: listing them alone takes .* of memory"):
            ask()
    assert len(ab.head_pairs(BertConfig())) == 10_296


def test_a_file_of_too_many_sets_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(ab, "MOST_SETS", 3)
    (tmp_path / "sets").write_text("0.0\n" * 4)
    with pytest.raises(InputError, match="A sweep has at most 3 sets"):
        ab.read_sets(tmp_path / "sets", BertConfig())


@pytest.mark.parametrize("text", ["9" * 400, "1e9", "0", "0.1", "-1GB", "9999999999999TB", "٣GB"])
def test_invalid_amounts_of_memory_are_refused(text):
    with pytest.raises(InputError, match="not an amount of memory"):
        parse_bytes(text)


def test_amounts_of_memory_are_readable():
    assert [format_bytes(10.0**power) for power in (2, 3, 10, 13, 16)] == [
        *("100 bytes", "1 kB", "10 GB", "10 TB", "10,000 TB")
    ]
