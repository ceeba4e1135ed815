"""What fuzzed command lines may name: models, data, sets of heads and results, made once; and what none of these is."""

import gzip
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from bertjax import BertForSentenceEmbedding, BertForSequenceClassification
from tests.factories import SENTENCES, add_tokenizer, make_config, make_encoder, write_glue, write_pairs
from tests.fuzz_utilities import scratch
from tests.result_factories import make_results
from tests.tiny_models import random_model

ROWS = 12
LONG = "1" + "0" * 400
# What a terminal, rich, mathtext, XML, a shell or a spreadsheet would obey, and what is hardly a name.
NAMES = (
    *("$x^$", "\\frac{1$", "[/x]", "[red]x", ":smile:", "\x1b[31m", "\x9b1m", "\udcff\udcfe", "\ud800", "n" * 300),
    *("a\nb", "\u202eabc", "\u200f", "", " ", "a\tb", "=cmd|' /C calc'!A0", "--x", "-1", "é", "e\u0301", "<script>"),
    *("../x", "a/b", "%s", "{0}", "\x07", "\u2028", "1.1", "0.0", "auto", "\ufffe", "中文", "0", "a,b", "#", ":"),
)


@dataclass(frozen=True)
class CommandFixtures:
    """Where the models, data, sets and results are, by name."""

    root: Path
    models: dict[str, str]
    own: dict[str, tuple[str, Sequence[object]]]
    sets: dict[str, tuple[str, list[str]]]
    results: dict[str, str]
    odd: tuple[str, ...]


@cache
def make_command_fixtures() -> CommandFixtures:
    """Models, data, sets of heads, results, and names of what is none of these; made once for each process."""
    root = scratch() / "command_fixtures"
    root.mkdir()
    write_pairs(root / "pairs.tsv", ROWS)
    write_glue(root / "glue")
    (root / "empty").mkdir()
    return CommandFixtures(root, _models(root), _own(root), _sets(root), _results(root), _odd(root))


def _models(root: Path) -> dict[str, str]:
    config = replace(make_config(), num_attention_heads=2)
    three = {0: "$x^$", 1: "[/x]", 2: "[red]x"}
    made = {
        "classifier": (BertForSequenceClassification, config),
        "embedder": (BertForSentenceEmbedding, config),
        "rater": (BertForSequenceClassification, replace(config, id2label={0: "LABEL_0"})),
        "three": (BertForSequenceClassification, replace(config, id2label=three)),
    }
    for name, (kind, chosen) in made.items():
        random_model(kind, chosen).save_pretrained(root / name)
        add_tokenizer(root / name)
    make_encoder(root / "encoder")
    random_model(BertForSequenceClassification, config).save_pretrained(root / "mute")
    return {name: str(root / name) for name in (*made, "encoder", "mute")}


def _own(root: Path) -> dict[str, tuple[str, Sequence[object]]]:
    """Files of one's own, and the labels in them."""
    labels: dict[str, Sequence[object]] = {
        "plain": ["no", "yes"] * 6,
        "odd": ["$x^$", "[/x]", "[red]x"] * 4,
        "hidden": ["a\x1b[31mb", ":smile:"] * 6,
        "alone": ["one"] * ROWS,
        "ratings": [number / 2 for number in range(ROWS)],
        "whole": [number % 6 for number in range(ROWS)],
        "many": [f"label {number}" for number in range(ROWS)],
        "half": ["a\ud800", "b"] * 6,
        "huge": [1e308, -1e308] * 6,
        "large": [10**30, 0] * 6,
    }
    for name, several in labels.items():
        rows = (
            {"id": i, "first": SENTENCES[i % 7], "second": SENTENCES[(i + 1) % 7], "label": label}
            for i, label in enumerate(several)
        )
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "none.tsv").write_text("first\tsecond\tlabel\n")
    (root / "nothing.jsonl").write_bytes(b"")
    (root / "packed.tsv.gz").write_bytes(gzip.compress(b"first\tsecond\tlabel\nthe cat\ta dog\tyes\n" * 1, mtime=0))
    found = {name: (str(root / f"{name}.jsonl"), several) for name, several in labels.items()}
    return found | {name: (str(root / name), []) for name in ("none.tsv", "nothing.jsonl", "packed.tsv.gz")}


def _sets(root: Path) -> dict[str, tuple[str, list[str]]]:
    """Files of sets of heads, and what the sets are called."""
    seen = [name for name in NAMES if name.strip() == name and name.isprintable() and not set(name) & set("#:")]
    odd = [name for name in seen if name][:9]
    files: dict[str, tuple[bytes, list[str]]] = {
        "good": (b"one: 0.0 1.1\n0.1,1.0 # two\n\n0.0=zero 1.1=uniform\n", ["one", "0.1+1.0", "0.0=zero+1.1=uniform"]),
        "odd": ("".join(f"{name}: 0.{i % 2} 1.{i % 2}\n" for i, name in enumerate(odd)).encode(), odd),
        "alike": (b"a: 0.0\na: 0.1\n", ["a", "a"]),
        "a head's": (b"0.0: 1.1\n1: 0.0 0.1\n", ["0.0", "1"]),
        "twice": (b"0.0 0.0\n", []),
        "means": (b"0.0=mean 1.1\n", ["0.0=mean+1.1"]),
        "patched": (b"0.0=patched\n", []),
        "beyond": (b"0.0\n2.0\n", []),
        "empty": (b"# nothing\n", []),
        "latin": (b"\xe9: 0.0\n", []),
        "hidden": (b"\x1b[31m: 0.0\n", []),
        "large": (f"{LONG}.0\n".encode(), []),
        "larger": (b"9" * 5000 + b".0\n", []),
        "named long": (f"{'n' * 300}: 0.0\n{'$' * 300}: 0.1\n".encode(), ["n" * 300, "$" * 300]),
    }
    for name, (content, _) in files.items():
        (root / f"{name} sets.txt").write_bytes(content)
    return {name: (str(root / f"{name} sets.txt"), names) for name, (_, names) in files.items()}


def _results(root: Path) -> dict[str, str]:
    """Finished results of several kinds."""
    kinds: dict[str, dict] = {
        "mrpc": {},
        "stsb": {"task": "stsb", "mode": "zero"},
        "layers": {"ablate": "layers", "helpful": "0", "harmful": "2"},
    }
    made = {name: make_results(root / f"{name} results", examples=ROWS, **options) for name, options in kinds.items()}
    return {name: str(path) for name, path in made.items()}


def _odd(root: Path) -> tuple[str, ...]:
    """Names of what is no file or directory, or of nothing."""
    os.mkfifo(root / "fifo")
    for name, target in (("loop", "loop"), ("zero", "/dev/zero"), ("null", "/dev/null"), ("gone", "/nowhere")):
        (root / name).symlink_to(target)
    (root / "file").write_text("a file\n")
    (root / "closed").mkdir()
    (root / "closed").chmod(0)
    names = ("fifo", "loop", "zero", "null", "gone", "file", "file/below", "closed/x", "empty", "n" * 300)
    return (
        *(str(root / name) for name in names),
        *("~nosuchuser/x", "~nosuchuser", "", " ", ".", "..", "../..", "nul\0", "[/x]", ":smile:", "\x1b[31m"),
        *(
            os.fsdecode(b"\xff\xfe"),
            "\ud800",
            "$x^$",
            "-",
            "a\nb",
            "nowhere",
            "package:nothing",
            "package:",
            "a/b",
            "a b",
        ),
    )
