"""Claims about CSV, Parquet and saved datasets: the same rows as from other files, and the same care with bad ones."""

import csv
import gzip
import io
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.errors import DataError, MissingDependencyError
from bertjax.tasks import load_examples

# What a file in UTF-8 can hold; a NUL is refused in CSV.
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
ROWS = st.lists(st.tuples(TEXTS, TEXTS, st.sampled_from(["0", "1"])), min_size=1, max_size=9)
HEADER = ("sentence1", "sentence2", "label")
FEATURES = {"sentence1": datasets.Value("string"), "sentence2": datasets.Value("string")}


@pytest.fixture(autouse=True)
def _no_bars():
    datasets.disable_progress_bars()


def csv_of(rows, **options: Any) -> bytes:
    written = io.StringIO(newline="")
    csv.writer(written, **options).writerows([HEADER, *rows])
    return written.getvalue().encode()


def columns_of(rows) -> dict[str, list]:
    first, second, labels = (list(column) for column in zip(*rows, strict=True))
    return {"sentence1": first, "sentence2": second, "label": [int(label) for label in labels]}


def save(directory: Path, columns: dict[str, list], names=("not_equivalent", "equivalent")) -> Path:
    features = datasets.Features(FEATURES | {"label": datasets.ClassLabel(names=list(names))})
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(directory)
    return directory


def write_parquet(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def refusal(path: Path, **options: Any) -> str:
    """The message for an invalid file, without the name of the file, which must be its beginning."""
    with pytest.raises(DataError) as raised:
        load_examples(**{"task": "custom", "data": path} | options)
    message = str(raised.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message.removeprefix(str(path))


# ---- the same rows --------------------------------------------------------------------------------------------------
@settings(max_examples=60, deadline=None)
@given(rows=ROWS, line_end=st.sampled_from(["\n", "\r\n"]), always=st.booleans())
def test_what_csv_is_written_from_is_what_is_read(rows, line_end, always):
    always = always or any("\r" in text for row in rows for text in row)  # which the writer else leaves unquoted
    content = csv_of(rows, lineterminator=line_end, quoting=csv.QUOTE_ALL if always else csv.QUOTE_MINIMAL)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rows.csv"
        path.write_bytes(content)
        examples = load_examples("mrpc", data=path)
    assert list(zip(examples.first, examples.second or (), strict=True)) == [row[:2] for row in rows]
    assert examples.labels.tolist() == [int(row[2]) for row in rows]


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, group=st.integers(1, 4), dictionary=st.booleans(), large=st.booleans(), packed=st.booleans())
def test_what_parquet_is_written_from_is_what_is_read(rows, group, dictionary, large, packed):
    columns: dict[str, Any] = columns_of(rows)
    columns["sentence1"] = pa.array(columns["sentence1"], pa.large_string() if large else pa.string())
    if dictionary:
        columns["sentence2"] = pa.array(columns["sentence2"]).dictionary_encode()
    with tempfile.TemporaryDirectory() as directory:
        path = write_parquet(Path(directory) / "rows.parquet", columns, row_group_size=group, use_dictionary=dictionary)
        if packed:
            path.with_suffix(".parquet.gz").write_bytes(gzip.compress(path.read_bytes()))
            path = path.with_suffix(".parquet.gz")
        examples = load_examples("mrpc", data=path)
    assert list(zip(examples.first, examples.second or (), strict=True)) == [row[:2] for row in rows]
    assert examples.labels.tolist() == [int(row[2]) for row in rows]


def test_the_same_rows_have_the_same_hash_in_every_format(tmp_path):
    rows = [(f'a "{number}", b', f"naïve {number}", str(number % 2)) for number in range(2500)]
    columns = columns_of(rows)
    (tmp_path / "rows.tsv").write_text("".join("\t".join(row) + "\n" for row in [HEADER, *rows]))
    (tmp_path / "rows.csv").write_bytes(csv_of(rows))
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(csv_of(rows)))
    lines = (json.dumps(dict(zip(HEADER, row, strict=True))) for row in rows)
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    write_parquet(tmp_path / "rows.parquet", columns, row_group_size=700)
    save(tmp_path / "saved", columns)
    hashes = {path.name: load_examples("mrpc", data=path).sha256 for path in sorted(tmp_path.iterdir())}
    assert len(hashes) == 6
    assert len(set(hashes.values())) == 1, hashes


def test_types_of_labels_and_ids_are_kept(tmp_path):
    columns = {"key": [7, 5], "text": ["a", "b"], "score": [2.5, 1.0], "sure": [True, False], "kind": ["x", None]}
    path = write_parquet(tmp_path / "own.parquet", columns)
    ratings = load_examples("custom", data=path, id_column="key")
    assert (ratings.ids, ratings.labels.tolist(), ratings.task.kind) == ((7, 5), [2.5, 1.0], "regression")
    sure = load_examples("custom", data=path, label_column="sure")
    assert (sure.labels.tolist(), sure.task.label_names) == ([1, 0], ("0", "1"))


def test_masked_words_have_texts_from_every_format(tmp_path):
    (tmp_path / "texts.csv").write_text('text\n"two\nlines"\nthe end\n')
    write_parquet(tmp_path / "texts.parquet", {"text": ["two\nlines", "the end"]})
    for path in tmp_path.iterdir():
        assert load_examples("mlm", data=path).first == ("two\nlines", "the end")


# ---- CSV ------------------------------------------------------------------------------------------------------------
def test_csv_may_have_quotes_blank_lines_and_long_fields(tmp_path):
    path = tmp_path / "own.csv"
    long = "x" * 200_000  # more than Python's reader takes by default
    path.write_bytes(f'\ufefftext,label\r\n"a ""b"", c\r\n\r\nd",1\r\n\r\n5" disk,0\r\n{long},1\r\n'.encode())
    before = csv.field_size_limit()
    examples = load_examples("custom", data=path)
    assert examples.first == ('a "b", c\r\n\r\nd', '5" disk', long)
    assert examples.labels.tolist() == [1, 0, 1]
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('text,label\n"a\nb",1\nc,2,3\n', ", line 4: 3 fields separated by commas, expected 2 .text, label."),
        ('text,label\na,1\n"b\nc",1,2\n', ", line 3: 3 fields .*; is a quotation mark not closed"),
        ('text,label\na,1\n"b,2\nc,3\n', ", line 3: a quoted field is not closed"),
        ('text,label\na,1\n\nb,"2\nc,3\n', ", line 4: a quoted field is not closed"),
        ('label,text\n1,"a\n0,"b"\n1,"c"\n', ", line 2: text after a closing quotation mark"),  # not two rows
        (
            'text,label\n\n"a" b,1\n',
            ", line 3: text after a closing quotation mark; inside a quoted field write the mark",
        ),
        ('text,label\n"a\nb\0",1\n', ", line 3: contains a NUL character"),
        (b'text,label\n"a\n\xff",1\n', ", line 3: not UTF-8 .invalid start byte.; save the file as UTF-8"),
        ("text,label\na,1\n".encode("utf-16"), ", line 1: not UTF-8, but looks like UTF-16"),
        ("text,label\ra,1\rb,2\r", ", line 1: a carriage return without a line feed"),
        ("text,label\n", ": holds no examples"),
        ("\n\n", ": holds no examples"),
        ("text,text\na,1\n", ", line 1: a column name appears twice in text, text"),
        ("text,label\na,1\nb,\n", ", line 3: label '' is neither a number nor a name"),
        ("text,label\na,1.5\nb,\n", ", line 3: label '' is neither a number nor a name"),
        ("text\na\n", ", line 1: no label column found .*; the columns are 'text'; name it with --label-column"),
        ("text;label\na;1\n", ", line 1: .* the only column is 'text;label', which has semicolons"),
        (
            "text;label\na,b;1\n",
            ", line 2: 2 fields .* the only column is 'text;label', which has semicolons",
        ),
        ("text\tlabel\na\t1\n", ", line 1: .* which has tabs: name the file .tsv"),
    ],
)
def test_errors_in_csv_name_the_line(content, message, tmp_path):
    path = tmp_path / "own.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    printed = refusal(path)
    assert re.match(message, printed), printed


def test_tsv_with_commas_is_reported_and_quotes_are_kept(tmp_path):
    path = tmp_path / "own.tsv"
    path.write_text("text,label\na,1\n")
    assert "which has commas: name the file .csv" in refusal(path)
    assert "which has commas" in refusal(path, task="sst2")
    path.write_text('text\tlabel\n"a\t1\nb"\t0\n')
    assert load_examples("custom", data=path).first == ('"a', 'b"')
    path.write_text("a, b\tlabel\nc\t1\n")
    assert load_examples("custom", data=path, text_columns=["a, b"]).first == ("c",)


def test_only_glues_tsv_of_cola_and_qqp_is_read_with_leniency(tmp_path):
    (tmp_path / "cola.csv").write_text("a,1,,He runs.\nb,0,*,Runs he.\n")
    assert "no column 'sentence'" in refusal(tmp_path / "cola.csv", task="cola")
    (tmp_path / "qqp.csv").write_text("question1,question2,is_duplicate\na,b\n")
    assert "line 2: 2 fields" in refusal(tmp_path / "qqp.csv", task="qqp")


# ---- Parquet --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a"] * 12 + [None], "label": [1] * 13}, ", row 12 (from 0): column 'text' is null"),
        ({"text": ["a"] * 13, "label": [1.5] * 12 + [None]}, ", row 12 (from 0): label null is neither"),
        ({"text": ["a"] * 3, "label": ["x", None, "y"]}, ", row 1 (from 0): label null is neither"),
        ({"text": ["a"] * 2, "label": [1.0, float("nan")]}, ", row 1 (from 0): label nan is neither"),
        ({"text": [1, 2], "label": [1, 0]}, ", row 0 (from 0): column 'text' holds 1, which is not a string"),
        ({"text": [["a"]], "label": [1]}, ", row 0 (from 0): column 'text' holds ['a'], which is not a string"),
        (
            {"text": [{"a": "b"}], "label": [1]},
            ", row 0 (from 0): column 'text' holds {'a': 'b'}, which is not a string",
        ),
        ({"text": [b"a"], "label": [1]}, ", row 0 (from 0): column 'text' holds b'a', which is not a string"),
        ({"text": pa.array([], pa.string()), "label": pa.array([], pa.int64())}, ": holds no examples"),
        ({"words": ["a"], "label": [1]}, ": no text column found"),
        ({"text": ["a"], "label": [1], "labels": [1]}, ": labels may be in label, or in labels: choose with"),
    ],
)
def test_errors_in_parquet_name_the_row(columns, message, tmp_path):
    assert refusal(write_parquet(tmp_path / "own.parquet", columns)).startswith(message)


def test_a_row_that_is_not_utf8_is_named(tmp_path):
    hidden = pa.array([b"a"] * 1500 + [b"\xff", b"b"]).view(pa.string())
    path = write_parquet(tmp_path / "own.parquet", {"text": hidden, "label": [1] * 1502})
    assert refusal(path).startswith(", row 1500 (from 0): column 'text' is not UTF-8 (invalid start byte)")
    path = write_parquet(tmp_path / "own.parquet", {"text": hidden, "label": [1] * 1502}, use_dictionary=False)
    assert refusal(path).startswith(", row 1500 (from 0): column 'text' is not UTF-8 (invalid start byte)")


def test_ids_come_from_a_column_and_errors_name_the_row(tmp_path):
    path = write_parquet(tmp_path / "own.parquet", {"text": ["a"] * 3, "label": [0, 1, 1], "key": ["x", "y", "x"]})
    assert refusal(path, id_column="key") == ", row 2 (from 0): id 'x' of column 'key' is also in row 0 (from 0)"
    path = write_parquet(tmp_path / "own.parquet", {"text": ["a"] * 2, "label": [0, 1], "key": ["x", None]})
    assert refusal(path, id_column="key") == ", row 1 (from 0): column 'key' is null, but needs an id"


def test_two_columns_of_one_name_are_refused(tmp_path):
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"]), pa.array([1])], ["text", "text", "label"])
    pq.write_table(table, tmp_path / "own.parquet")
    assert refusal(tmp_path / "own.parquet") == ": a column name appears twice in text, text, label"


@pytest.mark.parametrize("damage", ["cut", "empty", "middle", "gzip"])
def test_a_damaged_parquet_file_is_one_line(damage, tmp_path):
    path = write_parquet(tmp_path / "own.parquet", {"text": ["a dog", "a cat"], "label": [1, 0]})
    content = path.read_bytes()
    if damage == "gzip":
        path = path.with_suffix(".parquet.gz")
        content = gzip.compress(content)[:-9]
    elif damage == "middle":
        content = content[:4] + b"\xff" * 60 + content[64:]
    else:
        content = content[: -9 if damage == "cut" else 0]
    path.write_bytes(content)
    assert refusal(path).startswith(": cannot be read as Parquet; copy it again (")


def test_a_column_whose_name_has_a_dot_is_not_one_inside_another(tmp_path):
    path = write_parquet(tmp_path / "own.parquet", {"a.b": ["dog"], "a": ["cat"], "label": [1]})
    assert load_examples("custom", data=path, text_columns=["a.b", "a"]).second == ("cat",)


# ---- classes that a file names --------------------------------------------------------------------------------------
def write_classes(path: Path, names: list[str], labels: list[int]) -> Path:
    features = datasets.Features({"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=names)})
    dataset = datasets.Dataset.from_dict({"sentence": ["a"] * len(labels), "label": labels}, features=features)
    if path.suffix == ".parquet":
        with path.open("wb") as file:
            dataset.to_parquet(file)
    else:
        dataset.save_to_disk(path)
    return path


@pytest.mark.parametrize("name", ["own.parquet", "saved"])
def test_a_files_class_numbers_stand_for_its_names(name, tmp_path):
    path = write_classes(tmp_path / name, ["positive", "negative"], [0, 1, 1])
    custom = load_examples("custom", data=path)
    assert (custom.task.label_names, custom.labels.tolist()) == (("positive", "negative"), [0, 1, 1])
    assert load_examples("sst2", data=path).labels.tolist() == [1, 0, 0]  # negative is 0 there
    assert load_examples("custom", data=path, label_names=["negative", "positive"]).labels.tolist() == [1, 0, 0]
    assert load_examples("custom", data=path, label_names=[]).labels.tolist() == [0, 1, 1]
    with pytest.raises(DataError, match=r"row 0 \(from 0\): label 0 is 'positive' in the file, not one of"):
        load_examples("cola", data=path)


def test_names_that_are_numbers_leave_their_meaning_to_the_task(tmp_path):
    path = write_classes(tmp_path / "own.parquet", ["0", "1"], [0, 1])
    assert load_examples("sst2", data=path).labels.tolist() == [0, 1]
    path = write_classes(tmp_path / "own.parquet", ["1", "2"], [0, 1])
    assert load_examples("custom", data=path).task.label_names == ("1", "2")
    with pytest.raises(DataError, match="label 0 is '1' in the file, not one of negative, positive"):
        load_examples("sst2", data=path)


def test_unnamed_label_numbers_are_refused_except_in_test_splits(tmp_path):
    path = write_classes(tmp_path / "test", ["no", "yes"], [1, -1])
    assert load_examples("custom", data=path, split="test").labels.tolist() == [1, -1]
    assert "row 1 (from 0): label -1 is not a class id: the classes of the file are no, yes" in refusal(path)
    pq.write_table(pq.read_table(parquet_of(path, tmp_path)), tmp_path / "copy.parquet")
    assert "row 1 (from 0): label -1 is not a class id" in refusal(tmp_path / "copy.parquet")


def parquet_of(saved: Path, directory: Path) -> Path:
    with (directory / "made.parquet").open("wb") as file:
        datasets.load_from_disk(str(saved)).to_parquet(file)
    return directory / "made.parquet"


@pytest.mark.parametrize("metadata", [b"\xff", b"[", b"[]", b'{"info": 5}', b'{"info": {"features": {"label": 7}}}'])
def test_metadata_of_other_kinds_changes_nothing(metadata, tmp_path):
    table = pa.table({"text": ["a", "b"], "label": [1, 0]}).replace_schema_metadata({b"huggingface": metadata})
    pq.write_table(table, tmp_path / "own.parquet")
    assert load_examples("custom", data=tmp_path / "own.parquet").task.label_names == ("0", "1")


# ---- directories of `datasets` --------------------------------------------------------------------------------------
@pytest.fixture
def splits(tmp_path) -> Path:
    """A saved dataset of the splits `train`, `dev` and `extra`."""
    directory = tmp_path / "splits"
    parts = {
        name: datasets.load_from_disk(
            str(save(tmp_path / name, {"sentence1": [name], "sentence2": ["b"], "label": [1]}))
        )
        for name in ("train", "dev", "extra")
    }
    datasets.DatasetDict(parts).save_to_disk(directory)
    return directory


def test_split_picks_the_split_of_a_saved_dataset(splits):
    found = {
        split: load_examples("mrpc", data=splits, split=split) for split in ("train", "validation", "dev", "extra")
    }
    assert [examples.first[0] for examples in found.values()] == ["train", "dev", "dev", "extra"]
    assert [examples.split for examples in found.values()] == ["train", "validation", "validation", "extra"]
    assert found["train"].source == f"{splits}/train (1 rows)"
    for task in ("mrpc", "custom"):
        assert refusal(splits, task=task, split="test") == ": no split 'test'; there are train, dev, extra"


def test_mnlis_sections_are_separate_splits(tmp_path):
    features = datasets.Features(
        {name: datasets.Value("string") for name in ("premise", "hypothesis")}
        | {"label": datasets.ClassLabel(names=["entailment", "neutral", "contradiction"])}
    )
    parts = {
        f"validation_{name}": datasets.Dataset.from_dict(
            {"premise": [name], "hypothesis": ["b"], "label": [2]}, features=features
        )
        for name in ("matched", "mismatched")
    }
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "mnli")
    for task, section in (("mnli", "matched"), ("mnli-mm", "mismatched")):
        examples = load_examples(task, data=tmp_path / "mnli")
        assert (examples.first, examples.split, examples.labels.tolist()) == ((section,), f"validation_{section}", [2])


def test_a_null_in_a_saved_dataset_is_named_by_its_row(tmp_path):
    path = save(
        tmp_path / "saved", {"sentence1": ["a"] * 1500, "sentence2": ["b"] * 1499 + [None], "label": [1] * 1500}
    )
    assert refusal(path) == ", row 1499 (from 0): column 'sentence2' is null, which is not a string"
    path = save(tmp_path / "other", {"sentence1": ["a"] * 2, "sentence2": ["b"] * 2, "label": [1, None]})
    assert refusal(path).startswith(", row 1 (from 0): label null is not one of not_equivalent, equivalent")


def test_a_saved_split_may_say_which_it_is(tmp_path):
    path = save(tmp_path / "saved", {"sentence1": ["a"], "sentence2": ["b"], "label": [1]})
    assert load_examples("mrpc", data=path, split="train").split == "train"
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps(state | {"_split": "train"}))
    assert load_examples("mrpc", data=path).split == "train"
    assert load_examples("mrpc", data=path, split="train").split == "train"
    assert refusal(path, task="mrpc", split="test").startswith(": holds the split train, not test")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda saved: next(saved.glob("*.arrow")).unlink(),
            ": cannot be read as a saved dataset; save it again (",
        ),
        (
            lambda saved: next(saved.glob("*.arrow")).write_bytes(b"no"),
            ": cannot be read as a saved dataset; save it again (",
        ),
        (lambda saved: (saved / "state.json").write_text("{"), "/state.json: cannot be read (not valid JSON"),
        (
            lambda saved: (saved / "dataset_info.json").write_text("[]"),
            ": cannot be read as a saved dataset; save it again",
        ),
        (
            lambda saved: (saved / "state.json").unlink(),
            ": is a directory, and datasets did not save it; give a .tsv, .csv",
        ),
        (lambda saved: (saved / "dataset_dict.json").write_text("{}"), "/dataset_dict.json: names no splits"),
        (
            lambda saved: (saved / "dataset_dict.json").write_text('{"splits": ["validation"]}'),
            "/validation: is not a saved split; save the dataset again",
        ),
    ],
)
def test_a_damaged_directory_is_one_line(damage, message, tmp_path):
    path = save(tmp_path / "saved", {"sentence1": ["a"], "sentence2": ["b"], "label": [1]})
    damage(path)
    assert refusal(path).startswith(message)


def test_a_split_is_never_a_place_outside(splits):
    (splits / "dataset_dict.json").write_text('{"splits": ["../train"]}')
    assert (splits / ".." / "train" / "state.json").is_file()
    assert refusal(splits, split="../train") == ": no split '../train'; there are ../train"


def test_what_a_library_quotes_of_a_damaged_file_is_visible(tmp_path):
    path = save(tmp_path / "saved", {"sentence1": ["a"], "sentence2": ["b"], "label": [1]})
    info = path / "dataset_info.json"
    info.write_text(info.read_text().replace('"string"', '"stri\ufeffng"'))
    assert refusal(path).isprintable()


def test_without_datasets_a_line_says_what_to_install(tmp_path, monkeypatch):
    path = save(tmp_path / "saved", {"sentence1": ["a"], "sentence2": ["b"], "label": [1]})
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        MissingDependencyError,
        match=r"saved: reading a saved data set needs datasets .*: pip install 'bertjax\[datasets\]'",
    ):
        load_examples("mrpc", data=path)


# ---- columns that nobody named --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("columns", "texts", "label"),
    [
        ("sentence1,sentence2,label", ("sentence1", "sentence2"), "label"),
        ("id,hypothesis,premise,gold_label", ("premise", "hypothesis"), "gold_label"),
        ("question,sentence,label", ("question", "sentence"), "label"),
        ("question1,question2,target", ("question1", "question2"), "target"),
        ("text1,text2,score", ("text1", "text2"), "score"),
        ("first,second,class", ("first", "second"), "class"),
        ("query,passage,labels", ("query", "passage"), "labels"),
        ("Text,Class", ("Text",), "Class"),
        ("review,label,stars", ("review",), "label"),
        ("content,label,query", ("content",), "label"),
    ],
)
def test_unambiguous_columns_are_guessed_and_reported(columns, texts, label, tmp_path):
    path = tmp_path / "own.csv"
    path.write_text(f"{columns}\n{columns}\n")
    examples = load_examples("custom", data=path)
    assert (examples.first, examples.second) == ((texts[0],), (texts[1],) if len(texts) > 1 else None)
    assert (examples.task.text_columns, examples.task.label_column) == (texts, label)
    names = f"columns {texts[0]} and {texts[1]}" if len(texts) > 1 else f"column {texts[0]}"
    assert examples.source == f"{path} (1 rows), {names}, labels {label}, guessed"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("sentence1,sentence2,premise,hypothesis,label", "texts may be in sentence1 and sentence2, or in premise and"),
        (
            "sentence1,sentence2,text,label",
            "texts may be in sentence1 and sentence2, or in text: choose with --text-",
        ),
        ("text,review,label", "texts may be in text, or in review: choose with --text-columns"),
        ("text,Text,label", "texts may be in text, or in Text: choose with"),
        (
            "sentence1,label",
            "no text column found .*; the columns are 'sentence1', 'label'; name one or two with",
        ),
        ("text,label,score", "labels may be in label, or in score: choose with --label-column"),
        (
            "text,verdict",
            "no label column found .*; the columns are 'text', 'verdict'; name it with --label-column",
        ),
    ],
)
def test_ambiguous_or_missing_columns_are_refused(columns, message, tmp_path):
    path = tmp_path / "own.csv"
    path.write_text(f"{columns}\n{columns}\n")
    with pytest.raises(DataError, match=f"own.csv, line 1: {message}"):
        load_examples("custom", data=path)


def test_what_is_named_is_taken_and_is_no_guess(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("text,review,label,score,key\na,b,no,1,k\nc,d,yes,2,l\n")
    named = {"data": path, "text_columns": ["review"], "label_column": "score"}
    assert load_examples("custom", **named).source == f"{path} (2 rows)"
    # `label` is the label of a custom task, as it always was, whatever else might be one.
    assert load_examples("custom", data=path, text_columns=["text"]).task.label_names == ("no", "yes")
    partly = load_examples("custom", data=path, text_columns=["text"], label_column="key")
    assert partly.source == f"{path} (2 rows)"
    path.write_text("text,review,score,key\na,b,1,k\nc,d,2,l\n")
    assert load_examples("custom", data=path, text_columns=["text"]).source == f"{path} (2 rows), labels score, guessed"
    path.write_text("text,label\na,b\n")
    assert load_examples("custom", data=path, label_column="label").source == f"{path} (1 rows), column text, guessed"
    path.write_text("text,content,label\na,b,c\n")
    taken = load_examples("custom", data=path, label_column="content", id_column="label")
    assert (taken.first, taken.ids, taken.source) == (("a",), ("c",), f"{path} (1 rows), column text, guessed")


def test_a_test_split_without_labels_is_guessed_too(tmp_path):
    (tmp_path / "test.csv").write_text("premise,hypothesis\na,b\n")
    examples = load_examples("custom", data=tmp_path / "test.csv")
    assert np.isnan(examples.labels).all()
    assert examples.source.endswith("test.csv (1 rows), columns premise and hypothesis, guessed")


def test_tasks_of_glue_guess_nothing(tmp_path):
    (tmp_path / "own.csv").write_text("text1,text2,label\na,b,1\n")
    assert ", line 1: no column '#1 String'" in refusal(tmp_path / "own.csv", task="mrpc")
    (tmp_path / "own.csv").write_text("sentence1,sentence2,label,text,score\na,b,1,c,d\n")
    examples = load_examples("mrpc", data=tmp_path / "own.csv")
    assert (examples.first, examples.source) == (("a",), f"{tmp_path / 'own.csv'} (1 rows)")
