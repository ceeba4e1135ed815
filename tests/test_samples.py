"""How experiments read their examples: as everybody does, and as the authors' code does."""

import csv
import gzip
import io
from argparse import Namespace

import numpy as np
import pytest

from bertjax.errors import DataError
from experiments.shared.samples import read_examples, read_published_examples

MRPC = (
    "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    "1\t1\t2\tthe cat sat\ta dog ran\n"
    '0\t3\t4\tcats sleep\t"he ran home\n'
    "1\t5\t6\tred doors\tare old\n"
    '1\t7\t8\tan old man\tnear the door"\n'
    "0\t9\t10\tthe dog\tslept\n"
)
STSB = (
    "sentence1\tsentence2\tscore\n"
    "the cat sat\ta dog ran\t3.5\n"
    'cats sleep\t"he ran home\t1.0\n'
    'red doors\tare old"\t2.0\n'
    '"an old man\tnear the door\t4.5\n'
    'the dog\tslept"\t0.25\n'
    "cats\tran\t5.0\n"
)


def options_of(path, task, **more):
    return Namespace(
        **{"task": task, "data": str(path), "data_dir": None, "split": "validation", "limit": None, "seed": 0, **more}
    )


def test_an_unbalanced_quote_swallows_rows_and_their_labels_only_as_published(tmp_path):
    (tmp_path / "MRPC").mkdir()
    (tmp_path / "MRPC" / "dev.tsv").write_text(MRPC)
    plain, published = (read(options_of(tmp_path, "mrpc")) for read in (read_examples, read_published_examples))
    assert plain.labels.tolist() == [1, 0, 1, 1, 0]
    assert published.labels.tolist() == [1, 0, 0]  # the row with the quote keeps its own label, two rows are gone
    assert published.second[1].startswith("he ran home\n1\t5")
    assert published.first[2] == "the dog"
    assert "quote handling" in published.source
    rows = list(csv.reader(io.StringIO(MRPC, newline=""), delimiter="\t"))[1:]
    assert [row[3:5] for row in rows] == [list(pair) for pair in zip(published.first, published.second, strict=True)]


@pytest.mark.parametrize("packed", [False, True])
def test_a_row_whose_label_was_swallowed_is_unlabelled(tmp_path, packed):
    path = tmp_path / ("dev.tsv.gz" if packed else "dev.tsv")
    path.write_bytes(gzip.compress(STSB.encode()) if packed else STSB.encode())
    found = read_published_examples(options_of(path, "stsb"))
    assert found.labels.dtype == np.float32
    assert found.first[2].startswith("an old man\tnear")
    assert found.second[2] == "0.25"
    assert found.labels.tolist()[:2] == [3.5, 2.0]  # the second's score stands behind the closing quote
    assert np.isnan(found.labels[2])
    assert found.labels.tolist()[3:] == [5.0]


def test_classes_by_name_by_number_and_neither(tmp_path):
    rows = ["index\tquestion\tsentence\tlabel", "0\ta\tb\tnot_entailment", "1\tc\td\t0", "2\te\tf\tmaybe", "3\tg\th"]
    (tmp_path / "dev.tsv").write_text("\n".join(rows) + "\n")
    found = read_published_examples(options_of(tmp_path / "dev.tsv", "qnli"))
    assert found.labels.tolist() == [1, 0, -1, -1]


def test_what_is_drawn_is_one_choice_for_texts_and_labels(tmp_path):
    rows = ["sentence1\tsentence2\tscore", *(f"first {n}\tsecond {n}\t{n}.0" for n in range(30))]
    (tmp_path / "dev.tsv").write_text("\n".join(rows) + "\n")
    both = [
        read(options_of(tmp_path / "dev.tsv", "stsb", limit=7, seed=3))
        for read in (read_examples, read_published_examples)
    ]
    assert both[0].first == both[1].first  # without quotes both readings draw the same
    for found in both:
        assert len(found) == 7
        assert found.first == tuple(f"first {label:.0f}" for label in found.labels)
        assert found.second == tuple(f"second {label:.0f}" for label in found.labels)


def test_files_without_the_tasks_columns_or_rows_are_refused(tmp_path):
    path = tmp_path / "dev.tsv"
    for content, words in (("a\tb\n1\t2\n", "no column"), ("sentence1\tsentence2\tscore\n", "no examples")):
        path.write_text(content)
        with pytest.raises(DataError, match=words):
            read_published_examples(options_of(path, "stsb"))
    (tmp_path / "dev.tsv.gz").write_bytes(gzip.compress(STSB.encode())[:-9])
    with pytest.raises(DataError, match="cannot be read"):
        read_published_examples(options_of(tmp_path / "dev.tsv.gz", "stsb"))
