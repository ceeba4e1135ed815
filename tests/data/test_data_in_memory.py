"""Claims about data in memory: they are read as the same data in a file, and what is wrong is one line with the row.

All texts here are made up.
"""

import copy
import json
import os
import subprocess
import sys
from dataclasses import replace

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import bertjax
from bertjax.data import glue_by_name, read_contrasts, tfds_glue
from bertjax.errors import DataError, MissingDependencyError
from bertjax.tasks import load_examples
from tests.factories import make_labeller

ROWS = [
    {"sentence1": "a b", "sentence2": "Zoë 😀", "label": 1, "idx": 7},
    {"sentence1": 'He said "no', "sentence2": "", "label": 0, "idx": 9},
    {"sentence1": "e", "sentence2": "f", "label": 1, "idx": 8},
]
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def frame(**columns):
    return pd.DataFrame(COLUMNS | columns)


def plain(value):
    """A scalar of NumPy or Arrow as Python's."""
    return value.item() if hasattr(value, "item") else value.as_py() if hasattr(value, "as_py") else value


def refusal(task=None, **args):
    """The one line that says why data are refused."""
    with pytest.raises(DataError) as raised:
        load_examples(task, **args)
    assert "\n" not in str(raised.value)
    return str(raised.value)


# By name: what messages call it, and the object.
OBJECTS = {
    "pandas": ("DataFrame", lambda: frame()),
    "pandas, another index": ("DataFrame", lambda: frame().set_index(pd.Index([5, 5, 1]))),
    "pandas, categories": ("DataFrame", lambda: frame().astype({"label": "category", "sentence1": "category"})),
    "pandas, StringDtype": ("DataFrame", lambda: frame().astype({"sentence1": "string", "label": "Int64"})),
    "pandas, Arrow types": ("DataFrame", lambda: frame().convert_dtypes(dtype_backend="pyarrow")),
    "pandas, object": ("DataFrame", lambda: frame().astype(object)),
    "pandas, floats": ("DataFrame", lambda: frame().astype({"label": float})),
    "polars": ("DataFrame", lambda: pl.DataFrame(COLUMNS)),
    "polars, categories": ("DataFrame", lambda: pl.DataFrame(COLUMNS, schema_overrides={"sentence1": pl.Categorical})),
    "Arrow": ("Arrow table", lambda: pa.table(COLUMNS)),
    "record batch": ("RecordBatch", lambda: pa.record_batch(COLUMNS)),
    "Dataset": ("Dataset", lambda: datasets.Dataset.from_dict(COLUMNS)),
    "list of dicts": ("list of dicts", lambda: ROWS),
    "dict of columns": ("dict of columns", lambda: COLUMNS),
    "dict of arrays": ("dict of columns", lambda: {name: np.array(values) for name, values in COLUMNS.items()}),
    "dict of Series": ("dict of columns", lambda: dict(frame().items())),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_are_read_as_the_same_data_in_a_file(name, tmp_path):
    called, make = OBJECTS[name]
    path, data = write_rows(tmp_path / "a.jsonl", ROWS), make()
    for task in (None, "mrpc"):
        expected, found = load_examples(task, data=path), load_examples(task, data=data)
        assert found.sha256 == expected.sha256
        assert (found.ids, found.task, found.split) == ((7, 9, 8), expected.task, "validation")
        assert found.source == expected.source.replace(str(path), called)
    assert load_examples(None, data=data).source.endswith("columns sentence1 and sentence2, labels label, guessed")


def test_the_objects_of_a_user_are_not_changed():
    data, before = frame(), frame()
    load_examples(None, data=data, limit=2, seed=1)
    pd.testing.assert_frame_equal(data, before)
    rows, expected = copy.deepcopy(ROWS), copy.deepcopy(ROWS)
    load_examples(None, data=rows)
    assert rows == expected


def test_what_select_shuffle_and_filter_do_to_a_dataset_counts():
    whole = datasets.Dataset.from_dict({"text": [f"text {n}" for n in range(9)], "label": [0, 1, 2] * 3})
    for dataset in (
        whole.select([4, 1, 8]),
        whole.shuffle(seed=3),
        whole.filter(lambda row: row["label"] != 1),
        whole.select([4, 1, 8]).with_format("numpy"),
        whole.with_format("torch").shuffle(seed=1).select(range(4)),
    ):
        found = load_examples(None, data=dataset)
        assert found.first == tuple(dataset["text"])
        assert [int(found.task.label_names[label]) for label in found.labels] == [int(n) for n in dataset["label"]]


def test_class_labels_of_a_dataset_name_the_classes(tmp_path):
    features = datasets.Features(
        {"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=["pos", "neg"])}
    )
    dataset = datasets.Dataset.from_dict({"sentence": ["a", "b"], "label": [1, 0]}, features=features)
    dataset.save_to_disk(tmp_path / "saved")
    found = load_examples(None, data=dataset)
    assert (found.task.label_names, found.labels.tolist()) == (("pos", "neg"), [1, 0])
    assert found.sha256 == load_examples(None, data=tmp_path / "saved").sha256
    assert load_examples("sst2", data=dataset, label_names=["neg", "pos"]).labels.tolist() == [0, 1]
    assert "row 0 (from 0): label 1 is 'neg' in the Dataset, not one of negative" in refusal("sst2", data=dataset)


def test_a_split_is_chosen_as_of_saved_datasets(tmp_path):
    parts = {
        name: datasets.Dataset.from_dict({"text": [name], "label": [0]}) for name in ("train", "validation", "extra")
    }
    several = datasets.DatasetDict(parts)
    several.save_to_disk(tmp_path / "saved")
    for split in parts:
        found, saved = (load_examples(None, data=data, split=split) for data in (several, tmp_path / "saved"))
        assert (found.first, found.split, found.sha256) == ((split,), split, saved.sha256)
    assert refusal(data=several, split="test") == "DatasetDict: no split 'test'; there are train, validation, extra"
    assert load_examples(None, data=several).source.startswith("DatasetDict['validation'] (1 rows), column text")
    stated = datasets.Dataset.from_dict({"text": ["a"], "label": [0]}, split="train")
    assert load_examples(None, data=stated).split == "train"
    assert refusal(data=stated, split="test").startswith("Dataset: holds the split train, not test; give the Dataset")


def test_missing_labels_of_any_kind_name_their_rows():
    for missing in (None, float("nan"), pd.NA, np.nan):
        problem = "row 1 (from 0): label null is not one of not_equivalent, equivalent, but a missing value"
        assert refusal("mrpc", data=frame(label=[1, missing, 0])).startswith(f"DataFrame, {problem}")
    hidden = load_examples("mrpc", data=frame(label=[1, None, 0]), split="test")
    assert (hidden.labels.tolist(), hidden.split) == ([1, -1, 0], "test")
    listed = refusal("mrpc", data=COLUMNS | {"label": [1, np.nan, pd.NA]})
    assert listed.startswith("dict of columns, rows 1 and 2 (from 0): labels nan, null are not one of")
    assert load_examples("stsb", data=frame(label=[1.5, 0.25, 5])).labels.tolist() == [1.5, 0.25, 5]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (5, "data must be a path, a DataFrame of pandas or polars, an Arrow table, a Dataset of datasets, a list of "),
        (pd.DataFrame, "found the class DataFrame itself"),
        (object(), "data must be a path, a DataFrame of pandas or polars, "),
        (pl.DataFrame(COLUMNS).lazy(), "found a LazyFrame"),
        (iter(ROWS), "found a list_iterator"),
        (frame()["label"], "Series: cannot be read as a table ("),
        (["a", "b"], "found a list that begins with the string 'a'"),
        ([ROWS[0], 5], "list of dicts, row 1 (from 0): found 5, which is not a dict"),
        ([], "list of dicts: holds no examples"),
        ({}, "dict of columns: holds no examples"),
        (frame().head(0), "DataFrame: holds no examples"),
        (pl.DataFrame(), "DataFrame: holds no examples"),
        (datasets.Dataset.from_dict({}), "Dataset: holds no examples"),
        ({"text": "abc"}, "column 'text' must be a list with a value for each row, found the string 'abc'"),
        ({"text": ["a"], "label": [1, 0]}, "dict of columns: columns must have equal lengths; 'text' has 1, 'label' "),
        (
            frame(sentence1=["a", 5, "b"]),
            "DataFrame, row 1 (from 0): column 'sentence1' holds 5, which is not a string",
        ),
        (frame(sentence1=["a", "b", None]), "DataFrame, row 2 (from 0): column 'sentence1' is null, which is not a "),
        (frame(sentence1=["a", "b\0", "c"]), "DataFrame, row 1 (from 0): column 'sentence1' contains a NUL character"),
        (frame(label=["x", 0.5, "y"]), "DataFrame, row 0 (from 0): label 'x' is a name, but label 0.5 on row 1 (from"),
        (frame(label=[np.inf, 0.5, 1]), "DataFrame, row 0 (from 0): label inf is not a finite number"),
        (frame().drop(columns="sentence2"), "DataFrame: no text column found (usual names: text, sentence, review, "),
        (frame().set_axis(["text", "text", "label", "idx"], axis=1), "DataFrame: a column name appears twice in"),
        (frame().set_axis([0, 1, 2, 3], axis=1), "the columns are '0', '1', '2', '3'"),
        (pl.DataFrame({"text": [object()], "label": [1]}), "DataFrame, row 0 (from 0): column 'text' holds "),
    ],
)
def test_what_is_wrong_with_an_object_is_one_line(data, message):
    assert message in refusal(data=data)


def test_errors_name_rows_of_objects_by_their_number():
    data = frame(label=[1, 0, 2])
    assert refusal("mrpc", data=data) == (
        "DataFrame, row 2 (from 0): label 2 is not one of not_equivalent, equivalent, or its index from 0"
    )
    assert refusal("mrpc", data=frame(key=[1, 2, 1]), id_column="key") == (
        "DataFrame, row 2 (from 0): id 1 of column 'key' is also in row 0 (from 0)"
    )
    assert "no column 'sentense1' (did you mean 'sentence1'?)" in refusal(data=data, text_columns=["sentense1"])


# ---- texts and labels ------------------------------------------------------------------------------------------------
def test_texts_and_labels_are_read_as_the_same_file(tmp_path):
    for texts, labels in (
        (["a", "b", "c"], ["no", "yes", "no"]),
        (("a", "b", "c"), (0, 1, 0)),
        (np.array(["a", "b", "c"]), np.array([0.5, 1.5, 2.0])),
        (pd.Series(["a", "b", "c"]), pd.Series(["x", "y", "x"], dtype="category")),
        (pl.Series(["a", "b", "c"]), pl.Series([1, 0, 1])),
        (pa.array(["a", "b", "c"]), pa.chunked_array([[1, 0], [1]])),
        ([("a", "b"), ("c", "d")], [1, 0]),
        (np.array([["a", "b"], ["c", "d"]]), [True, False]),
    ):
        names = ("first", "second") if len(texts) == 2 else ("text",)
        rows = [
            dict(zip(names, map(str, text) if len(names) == 2 else [str(text)], strict=True)) | {"label": plain(label)}
            for text, label in zip(texts, labels, strict=True)
        ]
        expected = load_examples(None, data=write_rows(tmp_path / "a.jsonl", rows))
        found = load_examples(None, texts=texts, labels=labels)
        assert (found.sha256, found.task) == (expected.sha256, expected.task)
        assert found.source == f"texts ({len(rows)} rows)"


def test_tasks_take_texts_as_they_take_columns():
    pairs = [("a", "b"), ("c", "d")]
    found = load_examples("mrpc", texts=pairs, labels=["equivalent", 0])
    assert (found.first, found.second, found.labels.tolist()) == (("a", "c"), ("b", "d"), [1, 0])
    assert load_examples("sst2", texts=["a"], labels=["positive"]).labels.tolist() == [1]
    assert load_examples("sst2", texts=["a"], split="test").labels.tolist() == [-1]
    assert load_examples("mlm", texts=["a b", "c d"]).first == ("a b", "c d")
    assert load_examples("minimal-pairs", texts=pairs).second == ("b", "d")
    several = load_examples("multi-label", texts=["a", "b"], labels=[["x", "y"], []])
    assert [one.labels for one in several.content] == [("x", "y"), ()]
    named = load_examples(None, texts=["a", "b"], labels=[0, 1], label_names=["no", "yes"])
    assert (named.task.label_names, named.labels.tolist()) == (("no", "yes"), [0, 1])
    assert load_examples(None, texts=["a", "b"], labels=[1, 3], label_names=()).labels.dtype == np.float32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"texts": ["a", "b"], "labels": [1]}, "texts and labels must have equal lengths; found 2 texts and 1 label"),
        ({"texts": ["a"]}, "custom needs labels=[...], one for each text; only a test split may lack them"),
        ({"labels": [1]}, "labels go with texts: give texts=[...] too, or leave labels out"),
        ({"texts": [], "labels": []}, "texts: holds no examples"),
        ({"texts": "abc", "labels": [1]}, "texts must be a list with a value for each row, found the string 'abc'"),
        ({"texts": {"a", "b"}, "labels": [1, 0]}, "texts must be a list with a value for each row, found a set"),
        ({"texts": ["a"], "labels": "x"}, "labels must be a list with a value for each row, found the string 'x'"),
        ({"texts": ["a", 5], "labels": [1, 0]}, "texts, row 1 (from 0): column 'text' holds 5, which is not a string"),
        ({"texts": ["a", None], "labels": [1, 0]}, "texts, row 1 (from 0): column 'text' is null"),
        (
            {"texts": [("a", "b"), "c"], "labels": [1, 0]},
            "texts, row 1 (from 0): found 'c'; give only texts, or only pairs",
        ),
        (
            {"texts": [("a", "b", "c")], "labels": [1]},
            "texts, row 0 (from 0): found ['a', 'b', 'c']; give only texts, or",
        ),
        ({"texts": ["a"], "labels": [None]}, "texts, row 0 (from 0): label null is neither a number nor a name"),
        ({"texts": ["a"], "labels": [1], "data": ROWS}, "texts and labels are the data: leave data out"),
        ({"texts": ["a"], "data_dir": "d"}, "texts and labels are the data: leave data_dir out"),
        ({"texts": ["a"], "text_columns": ["a"]}, "texts and labels have no columns: leave text_columns"),
        ({"texts": ["a"], "labels": [1], "id_column": "a"}, "texts and labels have no columns: leave text_columns"),
        ({"task": "mlm", "texts": ["a"], "labels": [1]}, "mlm has no labels: leave them out"),
        ({"task": "mlm", "texts": [("a", "b")]}, "mlm needs single texts: texts=[text, ...]"),
        ({"task": "minimal-pairs", "texts": ["a"]}, "needs pairs of texts, the good one first: texts=[(good, bad), "),
        ({"task": "squad", "texts": ["a"]}, "question-answering needs more than texts: give data with the columns of"),
        ({"task": "qnli-sample", "texts": [("a", "b")], "labels": [1]}, "qnli-sample is part of bertjax and needs no "),
    ],
)
def test_texts_that_are_wrong_are_refused_in_one_line(arguments, message):
    assert message in refusal(**arguments)


# ---- tasks with their formats ---------------------------------------------------------------------------------------
OWN = {
    "minimal-pairs": [{"sentence_good": "a b", "sentence_bad": "a c", "UID": "x", "pairID": "0"}] * 1
    + [{"sentence_good": "d", "sentence_bad": "e", "UID": "y", "pairID": "0"}],
    "agreement": [{"template": "The boys [MASK].", "good": "run", "bad": "runs"}],
    "token-classification": [
        {"tokens": ["Zoë", "ran"], "tags": ["B-per", "O"]},
        {"tokens": ["it"], "tags": ["O"]},
    ],
    "multiple-choice": [
        {"context": "a", "question": "b", "choices": ["c", "d"], "label": 1},
        {"context": "e", "question": "f", "choices": ["g", "h"], "label": 0},
    ],
    "multi-label": [{"text": "a", "labels": ["x", "y"]}, {"text": "b", "labels": []}],
    "ranking": [
        {"query": "a", "positive": ["b"], "negative": ["c", "d"]},
        {"query": "e", "positive": ["f"], "negative": ["g"]},
    ],
    "question-answering": [
        {"id": "1", "question": "a", "context": "b c", "answers": {"text": ["b"], "answer_start": [0]}},
        {"id": "2", "question": "d", "context": "e", "answers": {"text": ["e"], "answer_start": [0]}},
    ],
}


@pytest.mark.parametrize("task", OWN)
def test_formats_of_tasks_are_read_from_objects_as_from_files(task, tmp_path):
    path = write_rows(tmp_path / "a.jsonl", OWN[task])
    expected = load_examples(task, data=path)
    columns = {name: [row[name] for row in OWN[task]] for name in OWN[task][0]}
    for data in (
        OWN[task],
        columns,
        pd.DataFrame(OWN[task]),
        pl.DataFrame(OWN[task]),
        pa.Table.from_pylist(OWN[task]),
        datasets.Dataset.from_list(OWN[task]),
    ):
        found = load_examples(task, data=data)
        assert (found.sha256, found.ids, found.task) == (expected.sha256, expected.ids, expected.task)
        assert (found.content, found.groups) == (expected.content, expected.groups) or task == "ranking"
        assert "a.jsonl" not in found.source


def test_lists_in_a_frame_that_pandas_read_are_lists(tmp_path):
    path = tmp_path / "a.parquet"
    pd.DataFrame(OWN["token-classification"]).to_parquet(path)
    data = pd.read_parquet(path)
    assert isinstance(data["tokens"][0], np.ndarray)
    assert load_examples("ner", data=data).sha256 == load_examples("ner", data=path).sha256


def test_saved_datasets_of_minimal_pairs_are_read(tmp_path):
    dataset = datasets.Dataset.from_list(OWN["minimal-pairs"])
    dataset.save_to_disk(tmp_path / "saved")
    saved, found = (load_examples("minimal-pairs", data=data) for data in (tmp_path / "saved", dataset))
    assert saved.sha256 == found.sha256


def test_class_labels_in_lists_name_the_tags():
    tags = datasets.Sequence(datasets.ClassLabel(names=["O", "B-per"]))
    features = datasets.Features({"tokens": datasets.Sequence(datasets.Value("string")), "ner_tags": tags})
    rows = {"tokens": [["Zoë", "ran"], ["it"]], "ner_tags": [[1, 0], [0]]}
    dataset = datasets.Dataset.from_dict(rows, features=features)
    expected = load_examples("ner", data=OWN["token-classification"])
    for data in (dataset, dataset.with_format("arrow")[:]):  # a table of Arrow keeps the names in its metadata
        assert load_examples("ner", data=data).sha256 == expected.sha256
    assert "row 0 (from 0): column 'ner_tags' holds [1, 0], which is not a list of strings" in refusal("ner", data=rows)


def test_contrasts_are_read_from_objects_as_from_files(tmp_path):
    rows = [{"clean": "a b", "corrupted": "a c", "id": 4}, {"clean": "d", "corrupted": "e", "id": 2}]
    expected = read_contrasts(write_rows(tmp_path / "a.jsonl", rows)).examples
    for data in (rows, pd.DataFrame(rows), pl.DataFrame(rows)):
        found = read_contrasts(data).examples
        assert (found.sha256, found.ids) == (expected.sha256, (4, 2))
    with pytest.raises(DataError, match=r"^DataFrame, row 1 \(from 0\): column 'clean' is null"):
        read_contrasts(pd.DataFrame(rows).assign(clean=["a", None]))


def test_a_wrong_row_of_a_tasks_format_is_named():
    words = [*OWN["token-classification"], {"tokens": ["a"], "tags": ["O", "O"]}]
    assert refusal("ner", data=words).startswith("list of dicts, row 2 (from 0): there are 1 words and 2 tags")
    collection = {"queries": ["a"], "corpus": ["b"], "qrels": ["c"]}
    assert "a collection with qrels is read from its directory" in refusal("ranking", data=collection)


# ---- class numbers and the model's labels ----------------------------------------------------------------------------
@pytest.mark.parametrize("labels", [[0, 1, 0], ["0", "1", "0"], [0.0, 1.0, 0.0], [False, True, False]])
def test_class_numbers_follow_the_models_order(labels):
    found = load_examples(None, texts=["a", "b", "c"], labels=labels, model_labels=("pos", "neg"))
    assert (found.task.label_names, found.labels.tolist()) == (("pos", "neg"), [0, 1, 0])
    assert found.source == "texts (3 rows), labels 0, 1 read as pos, neg, the model's order"


def test_names_and_other_numbers_keep_their_meaning():
    options = {"texts": ["a", "b"], "labels": [0, 1]}
    for names in (("LABEL_0", "LABEL_1"), ("1 star", "2 stars"), None):
        assert load_examples(None, **options, model_labels=names).task.label_names == ("0", "1")
    named = load_examples(None, texts=["a", "b"], labels=["no", "yes"], model_labels=("yes", "no"))
    assert (named.task.label_names, named.source) == (("no", "yes"), "texts (2 rows)")
    assert load_examples("sst2", **options, model_labels=("pos", "neg")).task.label_names == ("negative", "positive")
    chosen = load_examples(None, **options, label_names=["x", "y"], model_labels=("pos", "neg"))
    assert chosen.task.label_names == ("x", "y")
    some = load_examples(None, texts=["a"], labels=[2], model_labels=("pos", "neg", "none"))
    assert (some.task.label_names, some.labels.tolist()) == (("pos", "neg", "none"), [2])
    hidden = load_examples(None, texts=["a", "b"], labels=[1, -1], model_labels=("pos", "neg"), split="test")
    assert hidden.labels.tolist() == [1, -1]
    assert load_examples(None, texts=["a", "b"], labels=[0.5, 1], model_labels=("a", "b")).task.label_names is None
    for label in (2, -1):
        assert refusal(texts=["a", "b"], labels=[0, label], model_labels=("pos", "neg")).startswith(
            f"texts, row 1 (from 0): label {label} is not an id of the model's 2 labels (from 0: pos, neg)"
        )


@pytest.mark.integration
@pytest.mark.parametrize("names", [("neg", "pos"), ("pos", "neg")])
def test_numbers_give_the_scores_of_the_models_names(names, tmp_path):
    model = make_labeller(tmp_path / "model", names)
    texts = ["the cat sat", "a dog ran home", "the mat", "cats sat", "a dog", "the dog sat", "home"]
    numbers = [0, 1, 1, 0, 1, 0, 0]
    runs = []
    for labels in (numbers, [names[number] for number in numbers]):
        rows = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
        path = write_rows(tmp_path / "a.jsonl", rows)
        runs.append(bertjax.ablate(model=model, task="custom", data=path, heads=["0.1", "1.0"]))
    by_number, by_name = runs
    assert "labels 0, 1 read as" in by_number.summary["data"]["source"]
    order = [sorted(names).index(name) for name in names]  # classes with names are in alphabetical order
    np.testing.assert_array_equal(by_number.outputs["base"], by_name.outputs["base"][:, order])
    pd.testing.assert_frame_equal(by_number.frame, by_name.frame)


# ---- GLUE by name ----------------------------------------------------------------------------------------------------
S12 = ("sentence1", "sentence2")
# Features and rows of the hub, by configuration and split; and GLUE's file of the same rows.
HUB = {
    "mrpc": (S12, ["not_equivalent", "equivalent"], [("a", "b", 1, 9), ("c", 'd "', 0, 18)], "validation"),
    "stsb": (S12, None, [("a", "b", 3.8, 0), ("c", "d", 0.25, 1)], "validation"),
    "mnli": (
        ("premise", "hypothesis"),
        ["entailment", "neutral", "contradiction"],
        [("a", "b", 2, 0), ("c", "d", 0, 1)],
        "validation_matched",
    ),
    "cola": (("sentence",), ["unacceptable", "acceptable"], [("a", 1, 0), ("b", 0, 1)], "validation"),
    "qqp": (("question1", "question2"), ["not_duplicate", "duplicate"], [("a", "b", 0, 0), ("c", "d", 1, 3)], "train"),
    "rte": (S12, ["entailment", "not_entailment"], [("a", "b", -1, 0), ("c", "d", -1, 1)], "test"),
}


def hub_dataset(config):
    texts, names, rows, split = HUB[config]
    label = datasets.Value("float32") if names is None else datasets.ClassLabel(names=names)
    features = {name: datasets.Value("string") for name in texts} | {"label": label, "idx": datasets.Value("int32")}
    columns = dict(zip(features, map(list, zip(*rows, strict=True)), strict=True))
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features), split=split)


@pytest.fixture
def without_copy(monkeypatch, tmp_path):
    """No copy of TensorFlow Datasets, nothing in the cache of `datasets`, and a hub that nobody asks."""
    monkeypatch.setattr(tfds_glue, "is_prepared", lambda task: False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(glue_by_name, "is_offline_mode", lambda: False)
    monkeypatch.setattr(glue_by_name, "_is_reachable", lambda: True)


@pytest.mark.parametrize("config", HUB)
def test_glue_of_the_hub_is_that_of_local_files(config, without_copy, monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *args, **more: (calls.append((args, more)), hub_dataset(config))[1]
    )
    _, _, rows, split = HUB[config]
    task = bertjax.tasks.TASKS[config]
    found = load_examples(config, split=split)
    assert calls == [(("nyu-mll/glue", config), {"split": split})]
    # GLUE's file: its columns, its names of labels, and QQP's malformed rows, which count in the ids.
    header = [*task.text_columns, *([task.label_column] if split != "test" else [])]
    lines = [row[:-1] if split != "test" else row[:-2] for row in rows]
    if config == "qqp":
        lines = [lines[0], ("cut off",), ("cut off",), lines[1]]
    if config == "mnli":
        lines = [(*line[:-1], task.label_names[line[-1]]) for line in lines]
    path = tmp_path / f"{split}.tsv"
    path.write_text("".join("\t".join(map(str, line)) + "\n" for line in (header, *lines)), encoding="utf-8")
    local = load_examples(config, data=path)
    assert (found.sha256, found.ids, found.split) == (local.sha256, local.ids, local.split)
    np.testing.assert_array_equal(found.labels, local.labels)
    assert found.labels.dtype == local.labels.dtype
    assert found.source == f"nyu-mll/glue {config} {split} of datasets (2 rows)"


def test_a_prepared_copy_goes_before_the_hub(monkeypatch):
    expected = replace(load_examples("qnli-sample", limit=2), source="a copy")
    monkeypatch.setattr(datasets, "load_dataset", None)
    monkeypatch.setattr(tfds_glue, "is_prepared", lambda task: task.name == "qnli")
    monkeypatch.setattr(tfds_glue, "read", lambda task, split, data_dir: replace(expected, source=str(data_dir)))
    assert load_examples("qnli").source == "None"
    assert load_examples("mrpc", data_dir="there").source == "there"


def test_without_any_copy_one_line_names_three_ways(without_copy, monkeypatch):
    monkeypatch.setattr(glue_by_name, "_is_reachable", lambda: False)
    ways = ("data='GLUE_DIR', --data GLUE_DIR", "bertjax data prepare --from GLUE_DIR --data-dir DIR", "hub", "network")
    line = refusal("mrpc")
    assert line.startswith("mrpc: no copy found; three ways: ")
    assert all(way in line for way in ways)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingDependencyError, match=r"three ways: .*pip install 'bertjax\[datasets\]'"):
        load_examples("mrpc")


CACHE = """
import shutil, sys
from pathlib import Path
import datasets
from datasets.packaged_modules.parquet.parquet import Parquet
from bertjax.tasks import load_examples
from bertjax.errors import DataError
try:
    load_examples("mrpc")
except DataError as error:
    print("three ways" in str(error))
builder = Parquet(dataset_name="glue", config_name="mrpc", data_files={"validation": [sys.argv[1]]}, hash="0")
builder.download_and_prepare()
home = Path(datasets.config.HF_DATASETS_CACHE)
shutil.copytree(builder.cache_dir, home / "nyu-mll___glue" / "mrpc" / "0.0.0" / "0")
print(load_examples("mrpc").sha256)
"""


@pytest.mark.integration
def test_the_cache_of_datasets_is_read_without_a_network(tmp_path):
    dataset = hub_dataset("mrpc")
    dataset.to_parquet(tmp_path / "a.parquet")
    home = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "TFDS_DATA_DIR": str(tmp_path / "none")}
    ended = subprocess.run(
        [sys.executable, "-c", CACHE, str(tmp_path / "a.parquet")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **home},
    )
    expected = replace(load_examples("mrpc", data=dataset), ids=(0, 1)).sha256
    assert ended.stdout.split() == ["True", expected]


@pytest.mark.integration
def test_a_hub_out_of_reach_is_not_tried_again_and_again(tmp_path):
    code = "from bertjax import load_examples\nload_examples('mrpc')"
    nowhere = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0", "TFDS_DATA_DIR": str(tmp_path / "none")}
    nowhere["HF_ENDPOINT"] = "http://127.0.0.1:9"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, **nowhere}
    )
    assert "three ways" in ended.stderr
    assert "it cannot be reached: connect to a network" in ended.stderr
    assert "Retrying" not in ended.stderr  # as load_dataset does


@pytest.mark.integration
def test_reading_a_file_imports_no_library_of_frames(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", ROWS)
    code = f"import sys\nfrom bertjax import load_examples\nload_examples(None, data={str(path)!r})\n"
    code += "load_examples(None, data=[{'text': 'a', 'label': 1}])\n"
    code += "print(sorted({'pandas', 'polars', 'datasets', 'pyarrow', 'tensorflow_datasets'} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
