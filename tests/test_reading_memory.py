"""Reading and tokenising stay within the memory that is told; what does not fit is told before it is done."""

import os
import re
import subprocess
import sys

import pytest

from bertjax import BertConfig, Tokenizer
from bertjax.data import long_texts
from bertjax.data.loading import TASKS, load_examples
from bertjax.data.local_files import read_examples
from bertjax.data.long_texts import shorten
from bertjax.errors import DataError, InputError
from bertjax.formatting import format_bytes
from bertjax.interventions import ablations as ab
from bertjax.machine import parse_bytes, resident_memory
from tests.factories import SENTENCES, add_tokenizer

HEADER = "sentence1\tsentence2\tlabel\n"
MEGABYTES = 10**6


@pytest.fixture
def tokenizer(tmp_path):
    return Tokenizer.from_pretrained(add_tokenizer(tmp_path))


def write(path, *rows):
    path.write_text(HEADER + "".join(f"{first}\t{second}\t1\n" for first, second in rows))
    return path


def test_columns_that_nobody_asked_for_take_no_memory(tmp_path):
    rows = "".join(f"{'x' * 5000}\ta\tb\t1\n" for _ in range(2000))
    (tmp_path / "dev.tsv").write_text(f"notes\t{HEADER}{rows}")
    given = {"path": tmp_path / "dev.tsv", "task": TASKS["mrpc"], "split": "validation", "room": 3 * MEGABYTES}
    assert len(read_examples(**given)) == 2000
    (tmp_path / "dev.tsv").write_text(f"{HEADER}" + rows.replace("x\ta\t", "x\t"))
    with pytest.raises(DataError, match=r"line \d+: .* but only 3 MB of memory are left to read with, .* taken by now"):
        read_examples(**given)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x" * 3 * MEGABYTES, "a line of more than .* bytes takes up to 16 times that"),
        ('{"sentence1": [' + "[]," * 200_000 + "[]]}", "an object of up to .* parts"),
    ],
)
def test_a_line_too_large_for_memory_is_refused_before_parsing(tmp_path, line, message):
    (tmp_path / "dev.jsonl").write_text(line)
    with pytest.raises(DataError, match=rf"dev\.jsonl, line 1: {message}"):
        load_examples("mrpc", data=tmp_path / "dev.jsonl", memory=resident_memory() + 20 * MEGABYTES)


def test_a_file_of_blank_lines_is_told_soon(tmp_path):
    (tmp_path / "dev.tsv").write_bytes(b"\n" * 3 * MEGABYTES)
    with pytest.raises(DataError, match=r"line 1000001: 1,000,000 blank lines before it"):
        load_examples("mrpc", data=tmp_path / "dev.tsv")


CHILD = """
import sys
from bertjax import Tokenizer
from bertjax.machine import memory_left, peak_resident, resident_memory
from bertjax.data.loading import load_examples
from bertjax.errors import BertjaxError
tokenizer, before = Tokenizer.from_pretrained(sys.argv[1]), resident_memory()
memory = before + int(sys.argv[3])
try:
    examples = load_examples("mrpc", data=sys.argv[2], memory=memory)
    texts = tokenizer.encode(examples.first, examples.second, 24, room=memory_left(memory))
    print(peak_resident() - before, len(texts))
except BertjaxError as error:
    print(peak_resident() - before, error)
"""


@pytest.mark.integration
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="Linux tells peak memory")
@pytest.mark.parametrize(
    ("rows", "came"),
    [
        ([(" ".join(SENTENCES) * 10_000, "a dog ran")], "^1$"),
        ([("." * 2 * MEGABYTES, "a dog ran")], "a text of 2,000,000 characters takes up to"),
        ([SENTENCES[:2]] * 50_000, "texts take .* of memory as tokens|taken by now"),
        ([SENTENCES[:2]] * 3_000, "^3000$"),
    ],
    ids=["a long text", "a long word", "many texts", "texts"],
)
def test_peak_memory_is_within_what_was_told(tmp_path, rows, came):
    data, room = write(tmp_path / "dev.tsv", *rows), 60 * MEGABYTES
    command = [sys.executable, "-c", CHILD, str(add_tokenizer(tmp_path)), str(data), str(room)]
    peak, said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split(" ", 1)
    assert int(peak) <= room
    assert re.search(came, said)


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
    monkeypatch.setattr("bertjax.data.tokenizer.shorten", lambda *given: taken.append(shorten(*given)) or taken[-1])
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
        with pytest.raises(InputError, match=r"sets with .* heads in all: only to list them takes .* of memory"):
            ask()
    assert len(ab.head_pairs(BertConfig())) == 10_296


def test_a_file_of_too_many_sets_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(ab, "MOST_SETS", 3)
    (tmp_path / "sets").write_text("0.0\n" * 4)
    with pytest.raises(InputError, match="A sweep takes 3 sets"):
        ab.read_sets(tmp_path / "sets", BertConfig())


@pytest.mark.parametrize("text", ["9" * 400, "1e9", "0", "0.1", "-1GB", "9999999999999TB", "٣GB"])
def test_what_is_no_amount_of_memory_is_told(text):
    with pytest.raises(InputError, match="not an amount of memory"):
        parse_bytes(text)


def test_amounts_of_memory_are_readable():
    assert [format_bytes(10.0**power) for power in (2, 3, 10, 13, 16)] == [
        *("100 bytes", "1 kB", "10 GB", "10 TB", "10,000 TB")
    ]
