"""Damaged files of tasks with their formats: one clear line, or usable examples."""

import json
import random
from dataclasses import asdict

import pytest

from bertjax.errors import BertjaxError
from bertjax.tasks import load_examples
from tests.task_files import MINIMAL_PAIRS, ranking_rows, write_choices, write_conll, write_label_sets, write_squad

BITS = (
    *(b"\t", b"\n", b"\r", b"\0", b"\xff", b'"', b"{", b"}", b"[", b"]", b",", b":", b"null", b"1e999", b"-1", b"true"),
    *(b"\\ud800", b'"\\ud800"', b'{"text": 3}', b"[[[[", b"\xef\xbb\xbf", b" ", b"O", b"B-", b"label", b"[MASK]"),
)


def write_pairs(path):
    lines = [
        {"sentence_good": good, "sentence_bad": bad, "UID": group, "pairID": "0"} for good, bad, group in MINIMAL_PAIRS
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def write_templates(path):
    rows = [{"sentence": "the [MASK] sat", "good": "cat", "bad": "cats", "group": "one"}] * 3
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def write_ranking(path):
    rows = [{"query_id": row["query"][:5], "passage_id": str(place), **row} for place, row in enumerate(ranking_rows())]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


FILES = {
    "minimal-pairs": ("a.jsonl", write_pairs),
    "agreement": ("a.jsonl", write_templates),
    "token-classification": ("a.conll", write_conll),
    "multi-label": ("a.jsonl", write_label_sets),
    "multiple-choice": ("a.jsonl", write_choices),
    "question-answering": ("a.json", write_squad),
    "ranking": ("a.jsonl", write_ranking),
}


def damage(content, generator):
    """A file with bits put in, taken out, doubled or exchanged."""
    for _ in range(generator.choice([1, 1, 2, 4])):
        place, length = generator.randrange(len(content) + 1), generator.choice([0, 1, 3, 20])
        new = generator.choice([generator.choice(BITS), b"", content[place : place + length] * 2])
        content = content[:place] + new + content[place + length :]
    return content


@pytest.mark.integration  # fuzzing
@pytest.mark.parametrize("task", FILES)
def test_damaged_files_are_refused_in_a_line_or_read(task, tmp_path):
    name, write = FILES[task]
    path = write(tmp_path / name)
    whole, generator, messages = path.read_bytes(), random.Random(1), []
    for _ in range(400):
        path.write_bytes(damage(whole, generator))
        try:
            examples = load_examples(task, data=path)
        except BertjaxError as error:
            messages.append(str(error))
            continue
        assert len(examples) > 0
        assert len(examples.sha256) == 64
        json.dumps([asdict(content) for content in examples.content or ()], allow_nan=False).encode()
        for text in (*examples.first, *(examples.second or ()), *(examples.groups or ())):
            text.encode()
    assert 20 < len(messages) < 400
    assert not [message for message in messages if "\n" in message or str(path) not in message]
