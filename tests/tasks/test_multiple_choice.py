"""The task `multiple-choice`: each choice behind its question, as transformers scores it."""

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bertjax
from benchmarks.task_parity import compare
from bertjax.errors import ConfigError, DataError
from bertjax.results import read_results
from bertjax.results.page import choose_examples
from bertjax.tasks import load_examples
from tests.factories import make_chooser, make_classifier
from tests.job_factories import settings_of
from tests.task_files import CHOICE_ROWS, write_choices


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_chooser(tmp_path_factory.mktemp("chooser"))


@pytest.fixture(scope="module")
def ablated(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("choices")
    data = write_choices(folder / "dev.jsonl")
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
    from bertjax.jobs.run import run_analysis

    data = write_choices(tmp_path / "dev.jsonl")
    plain = run_analysis(
        settings_of(model=str(model), task="multiple-choice", data=str(data), engine="reference"), keep=False
    )
    for name in ("base", "outputs"):
        assert np.abs(plain.outputs[name] - ablated.outputs[name]).max() < 1e-5


def test_the_page_has_the_choices_with_the_right_one_marked(ablated):
    examples = choose_examples(ablated, list(range(6)))
    assert (examples["reads"], examples["value"]) == ("predictions", "probability")
    for name, label, lines in examples["texts"]:
        row = CHOICE_ROWS[int(name)]
        assert label == str(row["label"])
        assert lines[0] == [(row["context"], "")]
        assert [line[1] for line in lines[2:]] == [
            (text, "true" if number == row["label"] else "") for number, text in enumerate(row["choices"])
        ]


def test_other_forms_of_the_same_data(tmp_path):
    expected = load_examples("swag", data=write_choices(tmp_path / "a.jsonl"))
    assert expected.second == ("an old man",) * 7
    assert "7 questions with 3 choices each, after context and question" in expected.source
    letters = [{**row, "label": None, "answer": "ABC"[row["label"]]} for row in CHOICE_ROWS]
    for row in letters:
        del row["label"]
    texts = [{**row, "label": row["choices"][row["label"]]} for row in CHOICE_ROWS]
    arc = [{**row, "choices": {"text": row["choices"], "label": ["A", "B", "C"]}} for row in CHOICE_ROWS]
    apart = [
        {"sent1": row["context"], "sent2": row["question"], "label": row["label"]}
        | {f"ending{number}": text for number, text in enumerate(row["choices"])}
        for row in CHOICE_ROWS
    ]
    for rows in (letters, texts, arc, apart):
        found = load_examples("multiple-choice", data=write_choices(tmp_path / "b.jsonl", rows))
        assert found.content == expected.content
        assert found.labels.tolist() == expected.labels.tolist()
        assert found.first == expected.first
    alone = [{"question": row["context"], "options": row["choices"], "label": 0} for row in CHOICE_ROWS]
    assert load_examples("swag", data=write_choices(tmp_path / "c.jsonl", alone)).second is None


def test_lists_in_parquet_and_in_saved_datasets(tmp_path):
    datasets.disable_progress_bars()
    expected = load_examples("swag", data=write_choices(tmp_path / "a.jsonl"))
    columns = {name: [row[name] for row in CHOICE_ROWS] for name in ("context", "question")}
    labels, choices = [row["label"] for row in CHOICE_ROWS], [row["choices"] for row in CHOICE_ROWS]
    pq.write_table(pa.table(columns | {"endings": choices, "label": labels}), tmp_path / "b.parquet", row_group_size=3)
    with_letters = [{"text": some, "label": ["A", "B", "C"]} for some in choices]
    arc = columns | {"choices": with_letters, "answerKey": ["ABC"[label] for label in labels]}
    pq.write_table(pa.table(arc), tmp_path / "c.parquet", row_group_size=3)
    text = datasets.Value("string")
    several = {"text": datasets.Sequence(text), "label": datasets.Sequence(text)}
    features = datasets.Features({"context": text, "question": text, "choices": several, "answerKey": text})
    dataset = datasets.Dataset.from_dict(arc, features=features)
    dataset.save_to_disk(tmp_path / "saved")
    datasets.DatasetDict({"train": dataset.select([0]), "test": dataset}).save_to_disk(tmp_path / "parts")
    for name, split in (("b.parquet", "validation"), ("c.parquet", "test"), ("saved", "validation"), ("parts", "test")):
        found = load_examples("multiple-choice", data=tmp_path / name, split=split)
        assert found.content == expected.content, name
        assert found.labels.tolist() == expected.labels.tolist()
        assert found.sha256 == expected.sha256
    pq.write_table(pa.table(columns | {"choices": [*choices[:6], None], "label": labels}), tmp_path / "d.parquet")
    with pytest.raises(DataError, match=r"row 6 \(from 0\): column 'choices' holds None, which is not a list of 2"):
        load_examples("swag", data=tmp_path / "d.parquet")
    with pytest.raises(DataError, match="is a directory; multiple-choice needs a file"):
        load_examples("swag", data=tmp_path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"choices": ["a", "b"], "label": 0}, "no column 'context'"),
        ({"context": "a", "choices": ["a", "b"]}, "no column 'label'"),
        ({"context": "a", "label": 0}, "no column 'choices'"),
        ({"context": "a", "choices": ["a"], "label": 0}, "which is not a list of 2 or more strings"),
        ({"context": "a", "choices": ["a", 1], "label": 0}, "which is not a list of 2 or more strings"),
        ({"context": "a", "choices": ["a", "b"], "label": 2}, "label 2 is not one of the 2 choices"),
        ({"context": "a", "choices": ["a", "b"], "label": "c"}, "label 'c' is not one of the 2 choices"),
        ({"context": "a", "choices": ["a", "b"], "label": True}, "label True is not one of the 2 choices"),
    ],
)
def test_bad_lines_are_named(tmp_path, row, message):
    with pytest.raises(DataError, match=message):
        load_examples("swag", data=write_choices(tmp_path / "a.jsonl", [row]))


def test_what_does_not_fit_is_refused_in_a_line(tmp_path):
    uneven = [CHOICE_ROWS[0], {**CHOICE_ROWS[1], "choices": ["a", "b"]}]
    with pytest.raises(DataError, match="line 2: there are 2 choices, but 3 in earlier rows"):
        load_examples("swag", data=write_choices(tmp_path / "a.jsonl", uneven))
    with pytest.raises(ConfigError, match="has no multiple-choice head, which multiple-choice needs"):
        bertjax.ablate(
            make_classifier(tmp_path / "model"), "swag", data=write_choices(tmp_path / "b.jsonl"), progress=False
        )
    with pytest.raises(DataError, match="multiple-choice needs data"):
        load_examples("multiple-choice")


def numbered(labels, key):
    """A row in the form of ARC, whose choices have labels."""
    texts = [f"choice {label}" for label in labels]
    return {"question": "which?", "choices": {"text": texts, "label": labels}, "answerKey": key}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([numbered(["1", "2", "3", "4"], key) for key in ("1", "3", "2")], [0, 2, 1]),  # some rows of ARC
        ([numbered(["A", "B", "C", "D", "E"], key) for key in "EAC"], [4, 0, 2]),  # CommonsenseQA
        ([numbered(["1", "2", "3"], "3"), numbered(["A", "B", "C"], "A")], [2, 0]),  # ARC, other labels per row
        ([numbered(["D", "B", "C", "A"], key) for key in "AD"], [3, 0]),
        ([numbered([3, 1, 2], 1), numbered([1, 2, 3], 1.0)], [1, 0]),
        ([numbered(["A", "B", "C"], number) for number in (2, 0)], [2, 0]),  # no key is a label: numbers from 0
    ],
)
def test_the_label_is_looked_up_among_the_choices_labels(tmp_path, rows, expected):
    assert load_examples("swag", data=write_choices(tmp_path / "a.jsonl", rows)).labels.tolist() == expected
    listed = [
        {
            **row,
            "choices": [{"text": text, "label": label} for text, label in zip(*row["choices"].values(), strict=True)],
        }
        for row in rows
    ]
    found = load_examples("swag", data=write_choices(tmp_path / "b.jsonl", listed))
    assert found.labels.tolist() == expected
    assert found.content[0].texts == tuple(rows[0]["choices"]["text"])


def test_names_of_classes_are_looked_up_among_the_labels(tmp_path):
    """A column of the hub's `ClassLabel` holds class ids."""
    text = datasets.Value("string")
    features = datasets.Features(
        {
            "question": text,
            "choices": {"text": datasets.Sequence(text), "label": datasets.Sequence(text)},
            "answerKey": datasets.ClassLabel(names=["1", "2", "3"]),
        }
    )
    rows = [numbered(["1", "2", "3"], key) for key in (0, 2)]
    datasets.Dataset.from_list(rows, features=features).save_to_disk(tmp_path / "saved")
    assert load_examples("swag", data=tmp_path / "saved").labels.tolist() == [0, 2]


def test_winogrande_counts_from_1_and_copa_and_piqa_from_0(tmp_path):
    names = ("a", "b")
    winogrande = [{"sentence": "the _ ran", "option1": "a", "option2": "b", "answer": key} for key in ("1", "2", "1")]
    examples = load_examples("swag", data=write_choices(tmp_path / "a.jsonl", winogrande))
    assert examples.labels.tolist() == [0, 1, 0]
    assert (examples.first, examples.content[0].texts) == (("the _ ran",) * 3, names)
    copa = [{"premise": "x", "choice1": "a", "choice2": "b", "question": "cause", "label": key} for key in (1, 0, 1)]
    piqa = [{"goal": "x", "sol1": "a", "sol2": "b", "label": key} for key in (1, 0, 1)]
    for rows in (copa, piqa):
        assert load_examples("swag", data=write_choices(tmp_path / "b.jsonl", rows)).labels.tolist() == [1, 0, 1]


def two(label):
    return {"context": "a", "choices": ["yes", "no"], "label": label}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [numbered(["1", "2"], "1"), numbered(["1", "2"], "0")],
            "line 2: label '0' is not one of the labels 1, 2 of its",
        ),
        ([numbered(["A", "B"], "A"), numbered(["A", "B"], 1)], "line 2: label 1 is not one of the labels A, B of its"),
        ([numbered(["1", "1"], "1")], "line 1: column 'choices' has a label twice"),
        ([numbered(["1", None], "1")], "line 1: column 'choices' has the labels ..1', None., not one for each of 2"),
        (
            [numbered(["A", "B"], "A"), {**numbered([], "A"), "choices": ["a", "b"]}],
            "line 2: the choices have no labels",
        ),
        ([{**numbered([], "A"), "choices": ["a", "b"]}, numbered(["A", "B"], "A")], "line 2: the choices have labels"),
        ([two(0), two("B")], "line 2: label 'B' is not one of the 2 choices by its index from 0"),
        ([two("A"), two("A"), two(1)], "line 3: label 1 is not one of the 2 choices by its letter"),
        ([two("yes"), two("1")], "line 2: label '1' is not one of the 2 choices by its text"),
        ([two(1), two(2)], "line 2: label 2 is not one of the 2 choices by its index from 0"),
        (
            [{"sentence": "a", "option1": "b", "option2": "c", "answer": key} for key in ("1", "0")],
            "line 2: label '0' is not one of the labels 1, 2 of its choices",
        ),
        (
            [{"context": "a", "choices": ["2", "1", "0"], "label": "0"}],
            r"line 1: label '0' is choice 0 .from 0. by its index from 0 but choice 2 .from 0. by its text",
        ),
        (
            [two(0), two(None), two(""), two("nan")],
            "lines 2, 3 and 4: labels null, '', 'nan' are none of the 2 choices",
        ),
        ([two(0), two(-1)], "line 2: label -1 is none of the 2 choices, but a missing value; .* --split test"),
    ],
)
def test_labels_that_do_not_agree_are_named_by_row(tmp_path, rows, message):
    with pytest.raises(DataError, match=message):
        load_examples("swag", data=write_choices(tmp_path / "a.jsonl", rows))


def test_a_test_split_may_lack_the_right_choice(tmp_path):
    rows = [two(0), two(None), two(""), two(-1)]
    for path, split in ((tmp_path / "test.jsonl", "validation"), (tmp_path / "a.jsonl", "test")):
        assert load_examples("swag", data=write_choices(path, rows), split=split).labels.tolist() == [0, -1, -1, -1]
    none = [{"context": "a", "choices": ["None", "NA"], "label": label} for label in ("None", "NA")]
    assert load_examples("swag", data=write_choices(tmp_path / "b.jsonl", none)).labels.tolist() == [0, 1]
