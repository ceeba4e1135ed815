"""How experiments read their examples: as everybody does, and as the authors' code does."""

import csv
import gzip
import io
import json
from argparse import Namespace

import datasets
import numpy as np
import pytest

from bertjax.errors import DataError
from experiments.shared.data import read_examples, read_published_examples

pytestmark = pytest.mark.integration

MRPC = (
    "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    "1\t1\t2\tthe cat sat\ta dog ran\n"
    '0\t3\t4\tcats sleep\t"he ran home\n'
    "1\t5\t6\tred doors\tare old\n"
    '1\t7\t8\tan old man\tnear the door"\n'
    "0\t9\t10\tthe dog\tslept\n"
)
STSB = (
    "index\tsentence1\tsentence2\tscore\n"
    "0\tthe cat sat\ta dog ran\t3.5\n"
    '1\tcats sleep\t"he ran home\t1.0\n'
    '2\tred doors\tare old"\t2.0\n'
    '3\t"an old man\tnear the door\t4.5\n'
    '4\tthe dog\tslept"\t0.25\n'
    "5\tcats\tran\t5.0\n"
    '6\tred doors\tran"\tmany\n'
    '7\t"a cat\tslept\t4.0\n'
    '8\tthe door"\n'
)


def options_of(path, task, **more):
    return Namespace(
        **{"task": task, "data": str(path), "data_dir": None, "split": "validation", "limit": None, "seed": 0, **more}
    )


def test_an_unbalanced_quote_swallows_rows_only_as_published(tmp_path):
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


@pytest.mark.parametrize("read", [read_examples, read_published_examples])
def test_a_task_may_name_its_split(tmp_path, read):
    (tmp_path / "MRPC").mkdir()
    (tmp_path / "MRPC" / "dev.tsv").write_text(MRPC)
    (tmp_path / "MRPC" / "train.tsv").write_text(MRPC.replace("cat", "fox"))
    found = read(options_of(tmp_path, "mrpc:train"))
    assert (found.first[0], found.split, found.task.name) == ("the fox sat", "train", "mrpc")
    assert read(options_of(tmp_path, "mrpc")).split == "validation"
    with pytest.raises(DataError, match="'tset'"):
        read(options_of(tmp_path, "mrpc:tset"))


@pytest.mark.parametrize("packed", [False, True])
def test_rows_with_extra_fields_are_read_as_the_authors_do(tmp_path, packed):
    path = tmp_path / ("dev.tsv.gz" if packed else "dev.tsv")
    path.write_bytes(gzip.compress(STSB.encode()) if packed else STSB.encode())
    found = read_published_examples(options_of(path, "stsb"))
    rows = [row for row in csv.reader(io.StringIO(STSB, newline=""), delimiter="\t") if len(row) > 2][1:]
    assert [len(row) for row in rows] == [4, 4, 3, 4, 4]  # the third lost a field, the last row of all has two and goes
    assert list(zip(found.first, found.second, strict=True)) == [(row[-3], row[-2]) for row in rows]
    assert found.first[2] == "3"
    assert found.second[2].startswith("an old man\tnear")
    assert found.labels.dtype == np.float32
    assert found.labels.tolist()[:4] == [3.5, 2.0, 0.25, 5.0]
    assert np.isnan(found.labels[4])  # "many" is no score
    assert found.ids == (0, 1, 3, 5, 6)  # of the lines on which they begin


def make_file(columns, label, rows):
    """Rows of different texts, the label in its column, some of them with quotes that swallow a tab or a line."""
    texts = [[f"{name} of {number}" for name in columns] for number in range(rows)]
    for number, row in enumerate(texts):
        row[columns.index(label)] = "1"
        row[-3] = f'"opened {number}' if number % 5 == 1 else f'closed {number}"' if number % 5 == 2 else row[-3]
    return "\n".join("\t".join(row) for row in [columns, *texts]) + "\n"


@pytest.mark.parametrize(
    ("task", "columns", "texts", "label"),
    [
        ("mrpc", "Quality a b", ("#1 String", "#2 String"), (0, -2, -1)),
        ("stsb", "index genre file", ("sentence1", "sentence2", "score"), (-1, -3, -2)),
        ("rte", "index", ("sentence1", "sentence2", "label"), (-1, 1, 2)),
        ("qnli", "index", ("question", "sentence", "label"), (-1, 1, 2)),
        ("qqp", "id qid1 qid2", ("question1", "question2", "is_duplicate"), (-1, 3, 4)),
        ("mnli", "index a b c d e f g", ("sentence1", "sentence2", *"hijkl", "gold_label"), (-1, -8, -7)),
    ],
)
def test_pairs_are_read_from_the_columns_of_the_authors(tmp_path, task, columns, texts, label):
    """The numbers are those in the authors' notebook."""
    header, (place, one, two) = [*columns.split(), *texts], label
    content = make_file(header, header[place], 17)
    (tmp_path / "dev.tsv").write_text(content)
    found = read_published_examples(options_of(tmp_path / "dev.tsv", task))
    rows = list(csv.reader(io.StringIO(content, newline=""), delimiter="\t"))[1:]
    assert len({len(row) for row in rows}) > 1
    whole = [row for row in rows if len(row) > max(one, two, -one - 1, -two - 1)]
    assert list(zip(found.first, found.second, strict=True)) == [(row[one], row[two]) for row in whole]
    right = [row[place] == "1" for row in whole]
    assert (np.isfinite(found.labels) & (found.labels >= 0)).tolist() == right
    assert any(right)


def test_data_without_quote_handling_is_read_with_a_note(tmp_path):
    rows = [{"idx": n, "sentence1": f'say "{n}', "sentence2": "done", "label": n % 2} for n in range(4)]
    path = tmp_path / "dev.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    for data in (path, tmp_path / "saved"):
        usual, found = (read(options_of(data, "mrpc")) for read in (read_examples, read_published_examples))
        assert found.first == usual.first == tuple(row["sentence1"] for row in rows)
        assert found.source == f"{usual.source}, no TSV file, so read without quote handling"


def test_classes_by_name_by_number_and_neither(tmp_path):
    rows = ["index\tquestion\tsentence\tlabel", "0\ta\tb\tnot_entailment", "1\tc\td\t0", "2\te\tf\tmaybe", "3\tg\th"]
    (tmp_path / "dev.tsv").write_text("\n".join(rows) + "\n")
    found = read_published_examples(options_of(tmp_path / "dev.tsv", "qnli"))
    assert found.labels.tolist() == [1, 0, -1, -1]


def test_blank_lines_and_carriage_returns_do_not_shift_the_ids(tmp_path):
    (tmp_path / "MRPC").mkdir()
    rows = MRPC.replace('"', "").splitlines()
    rows[2:2] = [""]
    rows[-2] = rows[-2].replace("an old man", "an old\rman")
    (tmp_path / "MRPC" / "dev.tsv").write_bytes("\n".join([*rows, ""]).encode())
    plain, published = (read(options_of(tmp_path, "mrpc")) for read in (read_examples, read_published_examples))
    assert plain.ids == (0, 1, 2, 3, 4)
    assert published.ids == (0, 1, 2, 3, 3, 4)  # the authors' rows end at the carriage return too
    whole = [place for place, number in enumerate(published.ids) if number != 3]
    assert [published.second[place] for place in whole] == [plain.second[number] for number in (0, 1, 2, 4)]


def test_a_sample_keeps_the_same_examples_that_remain(tmp_path):
    (tmp_path / "dev.tsv").write_text(STSB.rsplit("6\tred", 1)[0])
    for seed in range(5):
        plain, published = (
            read(options_of(tmp_path / "dev.tsv", "stsb", limit=4, seed=seed))
            for read in (read_examples, read_published_examples)
        )
        assert len(plain) == 4
        assert published.ids == tuple(number for number in plain.ids if number in (0, 1, 3, 5))


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
