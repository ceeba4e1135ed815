"""The task `multiple-choice`: each choice behind its question, as transformers scores it."""

import json

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bertjax
from benchmarks.task_parity import compare
from bertjax.data import load_examples
from bertjax.errors import ConfigError, DataError
from bertjax.results import read_results
from bertjax.results.page import choose_examples
from tests.workshop import SENTENCES, make_chooser, make_classifier

ROWS = [
    {
        "context": sentence,
        "question": "an old man",
        "choices": [SENTENCES[(number + step) % 7] for step in (1, 2, 3)],
        "label": number % 3,
    }
    for number, sentence in enumerate(SENTENCES)
]


def write_rows(path, rows=ROWS):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_chooser(tmp_path_factory.mktemp("chooser"))


@pytest.fixture(scope="module")
def ablated(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("choices")
    data = write_rows(folder / "dev.jsonl")
    bertjax.ablate(model, "multiple-choice", data=data, output=folder / "out", progress=False)
    return read_results(folder / "out")


def test_outputs_and_scores_are_those_of_transformers(ablated):
    assert ablated.summary["metrics"] == ["accuracy"]
    assert ablated.outputs["outputs"].shape == (6, 7, 3)
    for run in compare(ablated, ablated.names):
        assert run.difference < 1e-5, run
        assert run.scores["accuracy"][0] == pytest.approx(run.scores["accuracy"][1], abs=1e-12)
    assert ablated.rows_of()[0].gains is not None  # predictions that flip are counted


def test_the_plain_form_gives_the_same(model, ablated, tmp_path):
    from bertjax.study.run import run_job
    from bertjax.study.settings import Settings

    data = write_rows(tmp_path / "dev.jsonl")
    plain = run_job(Settings(model=str(model), task="multiple-choice", data=str(data), engine="plain"), keep=False)
    for name in ("base", "outputs"):
        assert np.abs(plain.outputs[name] - ablated.outputs[name]).max() < 1e-5


def test_the_page_has_the_choices_with_the_right_one_marked(ablated):
    examples = choose_examples(ablated, list(range(6)))
    assert (examples["reads"], examples["value"]) == ("predictions", "probability")
    for name, label, lines in examples["texts"]:
        row = ROWS[int(name)]
        assert label == str(row["label"])
        assert lines[0] == [(row["context"], "")]
        assert [line[1] for line in lines[2:]] == [
            (text, "true" if number == row["label"] else "") for number, text in enumerate(row["choices"])
        ]


def test_other_forms_of_the_same_data(tmp_path):
    expected = load_examples("swag", data=write_rows(tmp_path / "a.jsonl"))
    assert expected.second == ("an old man",) * 7
    assert "7 questions with 3 choices each, behind context and question" in expected.source
    letters = [{**row, "label": None, "answer": "ABC"[row["label"]]} for row in ROWS]
    for row in letters:
        del row["label"]
    texts = [{**row, "label": row["choices"][row["label"]]} for row in ROWS]
    arc = [{**row, "choices": {"text": row["choices"], "label": ["A", "B", "C"]}} for row in ROWS]
    apart = [
        {"sent1": row["context"], "sent2": row["question"], "label": row["label"]}
        | {f"ending{number}": text for number, text in enumerate(row["choices"])}
        for row in ROWS
    ]
    for rows in (letters, texts, arc, apart):
        found = load_examples("multiple-choice", data=write_rows(tmp_path / "b.jsonl", rows))
        assert found.content == expected.content
        assert found.labels.tolist() == expected.labels.tolist()
        assert found.first == expected.first
    alone = [{"question": row["context"], "options": row["choices"], "label": 0} for row in ROWS]
    assert load_examples("swag", data=write_rows(tmp_path / "c.jsonl", alone)).second is None


def test_lists_in_parquet_and_in_saved_datasets(tmp_path):
    datasets.disable_progress_bars()
    expected = load_examples("swag", data=write_rows(tmp_path / "a.jsonl"))
    columns = {name: [row[name] for row in ROWS] for name in ("context", "question")}
    labels, choices = [row["label"] for row in ROWS], [row["choices"] for row in ROWS]
    pq.write_table(pa.table(columns | {"endings": choices, "label": labels}), tmp_path / "b.parquet", row_group_size=3)
    with_letters = [{"text": some, "label": ["A", "B", "C"]} for some in choices]
    arc = columns | {"choices": with_letters, "answerKey": ["ABC"[label] for label in labels]}
    pq.write_table(pa.table(arc), tmp_path / "c.parquet", row_group_size=3)
    text = datasets.Value("string")
    several = {"text": datasets.Sequence(text), "label": datasets.Sequence(text)}
    features = datasets.Features({"context": text, "question": text, "choices": several, "answerKey": text})
    made = datasets.Dataset.from_dict(arc, features=features)
    made.save_to_disk(tmp_path / "saved")
    datasets.DatasetDict({"train": made.select([0]), "test": made}).save_to_disk(tmp_path / "parts")
    for name, split in (("b.parquet", "validation"), ("c.parquet", "test"), ("saved", "validation"), ("parts", "test")):
        found = load_examples("multiple-choice", data=tmp_path / name, split=split)
        assert found.content == expected.content, name
        assert found.labels.tolist() == expected.labels.tolist()
        assert found.sha256 == expected.sha256
    pq.write_table(pa.table(columns | {"choices": [*choices[:6], None], "label": labels}), tmp_path / "d.parquet")
    with pytest.raises(DataError, match=r"row 6 \(from 0\): column 'choices' holds None, which is no list of two"):
        load_examples("swag", data=tmp_path / "d.parquet")
    with pytest.raises(DataError, match="is a directory; multiple-choice needs a file"):
        load_examples("swag", data=tmp_path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"choices": ["a", "b"], "label": 0}, "no column 'context'"),
        ({"context": "a", "choices": ["a", "b"]}, "no column 'label'"),
        ({"context": "a", "label": 0}, "no column 'choices'"),
        ({"context": "a", "choices": ["a"], "label": 0}, "which is no list of two texts or more"),
        ({"context": "a", "choices": ["a", 1], "label": 0}, "which is no list of two texts or more"),
        ({"context": "a", "choices": ["a", "b"], "label": 2}, "label 2 is none of the 2 choices"),
        ({"context": "a", "choices": ["a", "b"], "label": "c"}, "label 'c' is none of the 2 choices"),
        ({"context": "a", "choices": ["a", "b"], "label": True}, "label True is none of the 2 choices"),
    ],
)
def test_bad_lines_are_named(tmp_path, row, message):
    with pytest.raises(DataError, match=message):
        load_examples("swag", data=write_rows(tmp_path / "a.jsonl", [row]))


def test_what_does_not_fit_is_refused_in_a_line(tmp_path):
    uneven = [ROWS[0], {**ROWS[1], "choices": ["a", "b"]}]
    with pytest.raises(DataError, match="line 2: there are 2 choices, 3 in the rows before"):
        load_examples("swag", data=write_rows(tmp_path / "a.jsonl", uneven))
    with pytest.raises(ConfigError, match="has no multiple-choice head, which multiple-choice needs"):
        bertjax.ablate(make_classifier(tmp_path), "swag", data=write_rows(tmp_path / "b.jsonl"), progress=False)
    with pytest.raises(DataError, match="multiple-choice needs data"):
        load_examples("multiple-choice")
