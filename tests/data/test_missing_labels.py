"""Labels that are missing, in every format: refused with all their rows, and never a class."""

import io
import json

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertjax.data.local_files import MISSING
from bertjax.errors import DataError
from bertjax.tasks import load_examples

TEXTS = ["a red boat", "a green tree", "a blue door", "the end"]
NAMES = ["no", "yes"]


def write(folder, kind, labels, column="label"):
    """Texts with labels in a format of this kind."""
    folder.mkdir(exist_ok=True)
    path = folder / f"rows.{kind}"
    rows = [{"text": text, column: label} for text, label in zip(TEXTS, labels, strict=True)]
    if kind in ("tsv", "csv"):
        mark = {"tsv": "\t", "csv": ","}[kind]
        path.write_text("".join(f"{mark.join(map(str, row))}\n" for row in (("text", column), *map(dict.values, rows))))
    elif kind == "jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        datasets.disable_progress_bars()
        datasets.Dataset.from_list(rows).save_to_disk(path)
    return path


def places(kind, *rows):
    """Where rows are, as messages name them; rows count from 0."""
    plural = "s" * (len(rows) > 1)
    if kind in ("parquet", "saved"):
        return f"row{plural} {' and '.join(map(str, rows))} (from 0): "
    first = 1 if kind == "jsonl" else 2
    return f"line{plural} {' and '.join(str(row + first) for row in rows)}: "


def refusal(path, **options):
    with pytest.raises(DataError) as raised:
        load_examples(**{"task": "custom", "data": path} | options)
    message = str(raised.value)
    assert "\n" not in message
    return message.removeprefix(f"{path}, ")


KINDS = ("tsv", "csv", "jsonl", "parquet", "saved")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "labels", [["1", "nan", "0", "None"], ["yes", "NaN", "no", "<NA>"], ["1.5", "NA", "2.5", "null"]]
)
def test_texts_that_mean_missing_are_refused_by_row(tmp_path, kind, labels):
    error = refusal(write(tmp_path, kind, labels))
    assert error.startswith(f"{places(kind, 1, 3)}labels '{labels[1]}', '{labels[3]}' are neither a number nor a name")
    assert error.endswith(
        "but missing values; leave out the rows, or add the value to --label-names (label_names=) if it is a class"
    )


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved"])
@pytest.mark.parametrize("known", [["yes", "no"], [1, 0], [1.5, 2.5]])
def test_nulls_are_refused_by_row(tmp_path, kind, known):
    path = write(tmp_path, kind, [known[0], None, known[1], None])
    assert refusal(path).startswith(f"{places(kind, 1, 3)}label null is neither a number nor a name, but a missing")


def test_nan_of_pandas_is_refused_by_row(tmp_path):
    """A column of whole numbers with gaps, which pandas writes as floats."""
    path = tmp_path / "rows.parquet"
    pd.DataFrame({"text": TEXTS, "label": [1, np.nan, 0, np.nan]}).to_parquet(path)
    assert refusal(path).startswith("rows 1 and 3 (from 0): label n")
    pq.write_table(pa.table({"text": TEXTS, "label": [1.0, float("nan"), 0.0, float("nan")]}), path)
    assert refusal(path).startswith("rows 1 and 3 (from 0): label nan is neither a number nor a name, but a missing")


def test_the_texts_that_mean_missing_are_those_of_pandas():
    listed = io.StringIO("".join(f"{text},x\n" for text in sorted(MISSING)))
    assert pd.read_csv(listed, header=None)[0].isna().all()
    assert not pd.read_csv(io.StringIO("none,x\nNONE,x\nNan,x\n"), header=None)[0].isna().any()
    assert not MISSING & {"none", "NONE", "Nan"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_that_is_named_is_a_class(tmp_path, kind):
    """Relations of NYT10 have the class NA; stances have None."""
    path = write(tmp_path, kind, ["NA", "None", "yes", "NA"])
    examples = load_examples("custom", data=path, label_names=["yes", "None", "NA"])
    assert examples.labels.tolist() == [2, 1, 0, 2]
    assert (
        refusal(path, label_names=["yes", "NA"]).split(": ", 1)[1].startswith("label 'None' is not one of yes, NA, but")
    )
    other = write(tmp_path / "other", kind, ["NONE", "none", "Nothing", "none"])
    assert load_examples("custom", data=other).task.label_names == ("NONE", "Nothing", "none")


@pytest.mark.parametrize("kind", KINDS)
def test_ratings_are_finite_numbers(tmp_path, kind):
    for infinite in ("inf", "-Infinity", "1e999"):
        path = write(tmp_path / str(len(infinite)), kind, ["2.5", "1.0", infinite, "3.0"])
        expected = f"{places(kind, 2)}label '{infinite}' is not a finite number"
        assert refusal(path) == refusal(path, label_names=[]) == expected


def test_ratings_and_names_are_not_mixed(tmp_path):
    path = write(tmp_path, "tsv", ["2.5", "1", "good", "3"])
    assert refusal(path).startswith("line 4: label 'good' is a name, but label '2.5' on line 2 is a number; name the")
    assert load_examples("custom", data=path, label_names=["1", "2.5", "3", "good"]).labels.tolist() == [1, 0, 3, 2]
    word = write(tmp_path, "tsv", ["inf", "sup", "inf", "sup"])  # none is a number: these are names
    assert load_examples("custom", data=word).task.label_names == ("inf", "sup")


@pytest.mark.parametrize(("task", "column"), [("sst2", "label"), ("stsb", "score")])
def test_tasks_of_glue_refuse_them_too(tmp_path, task, column):
    texts = "sentence" if task == "sst2" else "sentence1\tsentence2"
    lines = [
        f"{texts}\t{column}",
        *(f"{'a' if task == 'sst2' else 'a	b'}\t{label}" for label in ("1", "nan", "", "None")),
    ]
    (tmp_path / "dev.tsv").write_text("".join(f"{line}\n" for line in lines))
    assert refusal(tmp_path / "dev.tsv", task=task).startswith("lines 3, 4 and 5: labels 'nan', '', 'None' are not ")
    (tmp_path / "test.tsv").write_text("".join(f"{line}\n" for line in lines))
    found = load_examples(task, data=tmp_path / "test.tsv").labels
    assert found[0] == 1
    assert (np.isnan(found[1:]) if task == "stsb" else found[1:] == -1).all()


def test_a_local_test_split_has_no_class_for_them(tmp_path):
    (tmp_path / "test.tsv").write_text("text\tlabel\na\tyes\nb\tnan\nc\t\nd\tno\ne\t-1\n")
    examples = load_examples("custom", data=tmp_path / "test.tsv")
    assert examples.task.label_names == ("no", "yes")
    assert examples.labels.tolist() == [1, -1, -1, 0, -1]


def test_minus_one_may_be_a_class_or_a_rating(tmp_path):
    for labels, names, expected in (
        (["-1", "0", "1"], ("-1", "0", "1"), [0, 1, 2]),
        (["-1", "0.5", "0.75"], None, [-1.0, 0.5, 0.75]),
        (["-1", "yes", "no"], ("no", "yes"), [-1, 1, 0]),
    ):
        (tmp_path / "test.tsv").write_text("text\tlabel\n" + "".join(f"a\t{label}\n" for label in labels))
        examples = load_examples("custom", data=tmp_path / "test.tsv")
        assert examples.task.label_names == names
        assert examples.labels.tolist() == expected


def test_a_test_split_without_any_set_of_labels(tmp_path):
    (tmp_path / "test.tsv").write_text("text\tlabels\na\tnan\nb\tnan\n")
    with pytest.raises(DataError, match="no row has labels; name them with --label-names"):
        load_examples("multi-label", data=tmp_path / "test.tsv")
    examples = load_examples("multi-label", data=tmp_path / "test.tsv", label_names=["x", "y"])
    assert [one.labels for one in examples.content] == [None, None]


@pytest.mark.parametrize("kind", KINDS)
def test_sets_of_labels_refuse_them(tmp_path, kind):
    labels = ["joy", "nan", "anger", "joy,None"]
    if kind in ("jsonl", "parquet", "saved"):
        labels = [["joy"], ["nan"], ["anger"], ["joy", "None"]]
    else:
        labels[3] = "joy|None"
    message = refusal(write(tmp_path, kind, labels, "labels"), task="multi-label")
    assert message.startswith(places(kind, 1, 3))
    assert "are not a set of labels, but missing values" in message
    named = ["joy", "nan", "anger", "None"]
    examples = load_examples("multi-label", data=tmp_path / f"rows.{kind}", label_names=named)
    assert [one.labels for one in examples.content] == [("joy",), ("nan",), ("anger",), ("joy", "None")]
    if kind != "saved":
        examples = load_examples("multi-label", data=tmp_path / f"rows.{kind}", split="test")
        assert [one.labels for one in examples.content] == [("joy",), None, ("anger",), None]
