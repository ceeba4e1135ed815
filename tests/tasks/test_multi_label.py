"""The task `multi-label`: sets of labels, as PyTorch and scikit-learn score them, from files of every kind."""

import csv
import gzip
import re

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bertjax
from benchmarks.task_parity import compare
from bertjax.cli import main
from bertjax.errors import ConfigError, DataError, InputError
from bertjax.jobs.run import run_analysis
from bertjax.results import read_results
from bertjax.results.page import choose_examples
from bertjax.tasks import load_examples
from bertjax.tasks.multi_label import LABEL_SETS as FORM
from bertjax.tasks.multi_label import EncodedLabelSets
from tests.factories import SENTENCES, make_classifier, make_labeller, make_masked
from tests.job_factories import settings_of
from tests.task_files import LABEL_NAMES, LABEL_SET_ROWS, LABEL_SETS, write_label_sets

BITS = [[int(number in numbers) for number in range(len(LABEL_NAMES))] for numbers in LABEL_SETS]


@pytest.fixture(autouse=True)
def _no_bars():
    datasets.disable_progress_bars()


def write_csv(path, columns, rows, delimiter=","):
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([columns, *rows])
    return path


def load(path, names=LABEL_NAMES, **more):
    return load_examples("multi-label", data=path, label_names=names, **more)


def refusal(path, names=LABEL_NAMES, **more):
    """The message for an invalid file, without the name of the file, which must be its beginning."""
    with pytest.raises(DataError) as raised:
        load(path, names, **more)
    message = str(raised.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message.removeprefix(str(path))


def test_a_label_that_two_names_may_mean_is_refused(tmp_path):
    path = write_csv(tmp_path / "rows.csv", ["text", "labels"], [["a", "Yes|yes"], ["b", "YES"]])
    assert "label 'YES' is not one of" in refusal(path, ("Yes", "yes"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_labeller(tmp_path_factory.mktemp("labeller"), LABEL_NAMES, seed=5)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_label_sets(tmp_path_factory.mktemp("texts") / "dev.jsonl")


@pytest.fixture(scope="module")
def ablated(model, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    bertjax.ablate(model, "multi-label", data=data, output=folder, overwrite=True, progress=False)
    return read_results(folder)


# ---- outputs and scores ---------------------------------------------------------------------------------------------
def test_outputs_and_scores_equal_pytorch_and_scikit_learn(ablated):
    assert ablated.summary["metrics"] == ["micro_f1", "macro_f1", "subset_accuracy"]
    assert ablated.outputs["outputs"].shape == (6, 7, 2 + 3 * 4)
    for run in compare(ablated, ablated.names):
        assert run.difference < 1e-5, run
        assert len(run.scores) == 3
        for ours, theirs in run.scores.values():
            assert ours == pytest.approx(theirs, abs=1e-12), run
    assert len({row.score for row in ablated.rows_of()}) > 2


def test_pairs_and_other_orders_of_the_labels_too(model, tmp_path):
    rows = [{"question": "an old man", "passage": row["text"], "labels": row["labels"]} for row in LABEL_SET_ROWS]
    found = []
    for names in (LABEL_NAMES, LABEL_NAMES[::-1]):
        options = {"data": write_label_sets(tmp_path / "a.jsonl", rows), "label_names": names, "heads": ["0.1", "1.0"]}
        results = bertjax.ablate(model, "multi-label", **options, progress=False)
        assert results.summary["data"]["label_names"] == list(names)
        assert results.summary["numbers"][-1] == f"{names[-1]}: true"
        assert all(example["second"] in SENTENCES for example in results.examples)
        for run in compare(results, results.names):
            assert run.difference < 1e-5, run
            for ours, theirs in run.scores.values():
                assert ours == pytest.approx(theirs, abs=1e-12), run
        found.append(results.outputs["outputs"])
    turned = found[1][..., 2:].reshape(2, 7, 4, 3)[:, :, ::-1].reshape(2, 7, 12)
    assert (turned == found[0][..., 2:]).all()
    np.testing.assert_allclose(found[1][..., 0], found[0][..., 0], rtol=1e-6)


def test_the_plain_form_gives_the_same(model, data, ablated):
    plain = run_analysis(
        settings_of(model=str(model), task="multi-label", data=str(data), engine="reference"), keep=False
    )
    for name in ("base", "outputs"):
        assert np.abs(plain.outputs[name] - ablated.outputs[name]).max() < 1e-5


def test_the_likelihood_of_large_logits_is_finite():
    logits = np.array([[[900.0, -900.0], [900.0, 900.0]]], np.float32)
    true = np.array([[True, False], [False, True]])
    common = FORM, (), 0, 2, np.zeros(2)
    encoded = EncodedLabelSets(*common, names=("a", "b"), true=true, label_order=(0, 1))
    outputs = encoded.collect(logits).outputs
    assert outputs[0, :, :2].tolist() == [[0, 1], [-450, 0]]
    assert outputs[0, 1, 2:].tolist() == [0, 1, 0, 1, 1, 1]


def test_ablate_plan_show_plot_and_report_on_the_command_line(model, data, tmp_path, capsys):
    job = ["--model", str(model), "--task", "multilabel", "--data", str(data)]
    assert main(["plan", *job]) == 0
    assert re.search(r"examples +7, ", capsys.readouterr().out)
    output = str(tmp_path / "out")
    assert main(["ablate", *job, "--metric", "macro_f1", "--output", output]) == 0
    assert "multi-label: 7 examples" in (printed := capsys.readouterr().out)
    assert "7 texts, 4 labels: by name in labels, texts in text" in printed.replace("\n", " ")
    assert main(["show", output]) == 0
    assert "Macro F1" in capsys.readouterr().out
    assert main(["plot", output, "-o", str(tmp_path / "map.png")]) == 0
    assert main(["report", output]) == 0
    assert "mean log-likelihood" in (tmp_path / "out" / "report.html").read_text()


def test_the_page_has_true_base_and_ablated_labels(ablated):
    examples = choose_examples(ablated, list(range(6)))
    assert (examples["reads"], examples["value"]) == ("values", "mean log-likelihood")
    names = {int(name): lines for name, _, lines in examples["texts"]}
    assert len(names) > 2
    for number, (text, true, found) in names.items():
        assert text == [(SENTENCES[number], "")]
        assert true[1:] == ([(LABEL_NAMES[label], "true") for label in LABEL_SETS[number]] or [("none", "")])
        numbers = ablated.outputs["base"][number]
        labels = [label for label in range(4) if numbers[3 + 3 * label]]
        marked = [(LABEL_NAMES[label], "right" if label in LABEL_SETS[number] else "wrong") for label in labels]
        assert found == [("found", "name"), *(marked or [("none", "")])]
    changes = [lines for several in examples["details"] for lines in several]
    assert {line[0] for lines in changes for line in lines} == {("ablated", "name")}


def test_texts_whose_labels_are_not_known_count_nowhere(model, tmp_path):
    """Jigsaw's test part has -1 in all columns of rows that were not judged."""
    rows = [[text, *bits] for text, bits in zip(SENTENCES, BITS, strict=True)]
    rows[3][1:] = [-1] * 4
    path = write_csv(tmp_path / "a.csv", ["text", *LABEL_NAMES], rows)
    results = bertjax.ablate(model, "multi-label", data=path, output=tmp_path / "out", progress=False)
    kept = write_label_sets(tmp_path / "b.jsonl", LABEL_SET_ROWS[:3] + LABEL_SET_ROWS[4:])
    without = bertjax.ablate(model, "multi-label", data=kept, progress=False)
    assert results.summary["base"] == without.summary["base"]
    assert [row.score for row in results.rows] == [row.score for row in without.rows]
    saved = read_results(tmp_path / "out")
    assert "labels" not in saved.examples[3]
    lines = {name: lines for name, _, lines in choose_examples(saved, [0])["texts"]}
    assert lines.get("3", [[], [("true", "name"), ("not known", "")]])[1][1] == ("not known", "")


# ---- files ----------------------------------------------------------------------------------------------------------
def save(path, columns, labels):
    features = datasets.Features({"text": datasets.Value("string"), "labels": labels})
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(path)
    return path


def write_column(path, values, column="labels", mark=None):
    """A file with a set of labels for each sentence; joined by a mark in CSV and TSV."""
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": SENTENCES, column: values, "other": [b"a"] * 7}), path, row_group_size=3)
        return path
    if path.suffix == ".jsonl":
        return write_label_sets(
            path, [{"text": text, column: some} for text, some in zip(SENTENCES, values, strict=True)]
        )
    rows = [[text, mark.join(map(str, some))] for text, some in zip(SENTENCES, values, strict=True)]
    return write_csv(path, ["text", column], rows, "," if path.suffix == ".csv" else "\t")


def test_all_forms_of_the_same_data_are_read_equally(tmp_path):
    expected = load(write_label_sets(tmp_path / "a.jsonl"))
    assert [content.labels for content in expected.content] == [tuple(row["labels"]) for row in LABEL_SET_ROWS]
    assert expected.task.label_names == LABEL_NAMES
    numbers, turned = [list(some) for some in LABEL_SETS], [[3 - number for number in some] for some in LABEL_SETS]
    names, column = [row["labels"] for row in LABEL_SET_ROWS], {"text": [*SENTENCES]}
    others = [[name.upper().replace("-", "_") for name in some] for some in names]
    classes = datasets.Sequence(datasets.ClassLabel(names=list(LABEL_NAMES[::-1])))  # in another order
    whole, bits = datasets.Sequence(datasets.Value("int64")), datasets.Sequence(datasets.Value("float32"), length=4)
    paths = [
        write_column(tmp_path / "b.jsonl", numbers),
        write_column(tmp_path / "c.jsonl", BITS, "label"),
        write_column(tmp_path / "d.jsonl", [[*map(float, some)] for some in BITS]),
        write_column(tmp_path / "e.jsonl", [[*map(bool, some)] for some in BITS]),
        write_column(tmp_path / "f.jsonl", others, "gold_label"),
        write_column(tmp_path / "g.csv", names, mark=" | "),
        *(write_column(tmp_path / f"{name}.tsv", numbers, mark=mark) for name, mark in zip("hij", ",;|", strict=True)),
        write_column(tmp_path / "k.parquet", numbers),
        write_column(tmp_path / "l.parquet", names),
        write_column(tmp_path / "m.parquet", BITS),
        write_column(tmp_path / "n.parquet", pa.array(names, pa.large_list(pa.large_string()))),
        save(tmp_path / "o", column | {"labels": numbers}, whole),
        save(tmp_path / "p", column | {"labels": turned}, classes),
        save(tmp_path / "q", column | {"labels": BITS}, bits),
        write_csv(tmp_path / "r.csv", ["text", *LABEL_NAMES], [[SENTENCES[n], *some] for n, some in enumerate(BITS)]),
        write_csv(
            tmp_path / "s.csv",
            ["id", "Love", "comment_text", "deep_fear", "joy", "anger", "notes"],
            [["x", b[3], text, float(b[2]), bool(b[0]), b[1], "-"] for text, b in zip(SENTENCES, BITS, strict=True)],
        ),
        tmp_path / "t.parquet",
        tmp_path / "u.jsonl.gz",
    ]
    datasets.load_from_disk(str(tmp_path / "p")).to_parquet(str(paths[-2]))
    paths[-1].write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    for path in paths:
        examples = load(path)
        assert examples.content == expected.content, path
        assert examples.sha256 == expected.sha256, path
    assert "0 or 1 in label," in load(paths[1]).source
    assert "a column for each" in load(tmp_path / "s.csv").source


def test_names_default_to_those_of_the_data(tmp_path):
    named = load_examples("multi-label", data=write_label_sets(tmp_path / "a.jsonl"))
    assert named.task.label_names == tuple(sorted(LABEL_NAMES))
    assert [set(content.labels) for content in named.content] == [{*row["labels"]} for row in LABEL_SET_ROWS]
    numbers = [{"text": "a", "labels": [2]}, {"text": "b", "labels": []}]
    assert load(write_label_sets(tmp_path / "b.jsonl", numbers), None).task.label_names == ("0", "1", "2")
    bits = [{"text": "a", "labels": [0, 0, 1]}, {"text": "b", "labels": [1, 0, 1]}]
    examples = load(write_label_sets(tmp_path / "c.jsonl", bits), None)
    assert [content.labels for content in examples.content] == [("2",), ("0", "2")]
    apart = write_csv(tmp_path / "d.csv", ["id", "text", "rude", "kind"], [["q", "a", 1, 0], ["r", "b", 1, 1]])
    examples = load(apart, None)
    assert (examples.task.label_names, examples.content[1].labels) == (("rude", "kind"), ("rude", "kind"))
    classes = datasets.Sequence(datasets.ClassLabel(names=["b", "a"]))
    saved = save(tmp_path / "e", {"text": ["x"], "labels": [[1]]}, classes)
    assert (load(saved, None).task.label_names, load(saved, None).content[0].labels) == (("b", "a"), ("a",))
    assert load(saved, ("LABEL_0", "LABEL_1")).task.label_names == ("b", "a")


def test_label_ids_and_bits_are_distinguished_by_the_whole_file(tmp_path):
    """Of two labels [0, 1] may be both or the second alone."""
    names = ("no", "yes")
    alone = write_label_sets(tmp_path / "a.jsonl", [{"text": "a", "labels": [0, 1]}, {"text": "b", "labels": [1, 0]}])
    assert [content.labels for content in load(alone, names).content] == [("yes",), ("no",)]
    mixed = write_label_sets(tmp_path / "b.jsonl", [{"text": "a", "labels": [0, 1]}, {"text": "b", "labels": [1]}])
    assert [content.labels for content in load(mixed, names).content] == [("no", "yes"), ("yes",)]
    floats = write_label_sets(tmp_path / "c.jsonl", [{"text": "a", "labels": [0.0, 1.0]}])
    assert load(floats, names).content[0].labels == ("yes",)
    short = write_label_sets(
        tmp_path / "d.jsonl", [{"text": "a", "labels": [0, 0, 1]}, {"text": "b", "labels": [1, 0]}]
    )
    assert refusal(short, ("a", "b", "c")) == ", line 2: [1, 0] has 2 values: each of 3 labels needs a 0 or a 1"


def test_split_picks_a_part_of_a_saved_dataset(tmp_path):
    features = datasets.Features(
        {"text": datasets.Value("string"), "labels": datasets.Sequence(datasets.ClassLabel(names=list(LABEL_NAMES)))}
    )
    parts = {
        name: datasets.Dataset.from_dict({"text": [name], "labels": [[number]]}, features=features)
        for number, name in enumerate(("train", "dev", "extra"))
    }
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "all")
    for split, name in (("train", "train"), ("validation", "dev"), ("extra", "extra")):
        examples = load(tmp_path / "all", split=split)
        assert (examples.first, examples.split) == ((name,), "validation" if name == "dev" else name)
    assert refusal(tmp_path / "all", split="test") == ": no split 'test'; there are train, dev, extra"


def test_label_names_with_a_separator_use_another_separator(tmp_path):
    names = ("fear, or worse", "joy")
    path = tmp_path / "a.tsv"
    path.write_text("text\tlabels\na\tfear, or worse|joy\nb\tfear, or worse\nc\t \n")
    assert [content.labels for content in load(path, names).content] == [names, names[:1], ()]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a", "labels": ["joy", "hate"]}, ", line 2: label 'hate' is not one of joy, anger, Deep-fear, love,"),
        ({"text": "a", "labels": [4]}, ", line 2: label 4 is not one of joy, anger, Deep-fear, love, or its index"),
        ({"text": "a", "labels": [-1]}, ", line 2: label -1 is not one of"),
        ({"text": "a", "labels": ["joy", "Joy"]}, ", line 2: column 'labels' has a label twice: ['joy', 'Joy']"),
        ({"text": "a", "labels": [2, 2]}, ", line 2: column 'labels' has a label twice: [2, 2]"),
        ({"text": "a", "labels": None}, ", line 2: column 'labels' is null, which is not a list of labels"),
        ({"text": "a", "labels": [None]}, ", line 2: column 'labels' holds [None], which is not a list of labels"),
        ({"text": "a", "labels": {"joy": 1}}, ", line 2: column 'labels' holds {'joy': 1}, which is not a list"),
        ({"text": "a", "labels": True}, ", line 2: column 'labels' holds True, which is not a list"),
        ({"text": "a", "labels": 1.5}, ", line 2: column 'labels' holds 1.5, which is not a list"),
        ({"text": "a", "labels": [""]}, ", line 2: column 'labels' has an empty label"),
        ({"text": "a", "labels": "joy,,love"}, ", line 2: column 'labels' has an empty label"),
        ({"text": "a", "labels": "joy,anger|love"}, ", line 2: labels 'joy,anger|love' are separated by , and by |"),
        ({"text": "a", "labels": [0.5, 0.0, 1.0, 0.0]}, ", line 1: ['joy'] has 1 value: each of 4 labels needs a 0"),
        ({"text": "a"}, ", line 2: column 'labels' is null, which is not a list of labels"),
        ({"text": 5, "labels": []}, ", line 2: column 'text' holds 5, which is not a string"),
    ],
)
def test_bad_rows_are_named(tmp_path, row, message):
    path = write_label_sets(tmp_path / "a.jsonl", [{"text": "a", "labels": ["joy"]}, row])
    assert refusal(path).startswith(message)


@pytest.mark.parametrize(
    ("columns", "values", "names", "message"),
    [
        (["text", "joy", "hate"], ["a", "1", "0"], ("joy", "love"), ", line 1: no label column found"),
        (["text", "joy", "love"], ["a", "1", "2"], ("joy", "love"), ", line 2: column 'love' holds '2', which is nei"),
        (["text", "joy", "love"], ["a", "1", "-1"], ("joy", "love"), ", line 2: column 'love' holds '-1', which is"),
        (
            ["text", "joy", "rest"],
            ["a", "1", "b"],
            None,
            ", line 2: column 'rest' holds 'b', which is neither 0 nor 1",
        ),
        (
            ["text"],
            ["a"],
            None,
            ", line 1: no label column found (usual names: labels, label, ...), nor columns of single",
        ),
        (["text", "label", "target"], ["a", "1", "1"], None, ", line 1: labels may be in label, or in target"),
        (["words", "labels"], ["a", "1"], None, ", line 1: no text column found"),
        (["text", "labels"], ["a", ""], None, ": no row has a label; name the labels with --label-names"),
        (["text", "labels"], ["a", "999999999"], None, ", line 2: label 999999999 is too large for a label id"),
        (["text", "labels"], ["a", "x"], ("LABEL_0", "LABEL_1"), ", line 2: label 'x' is not one of LABEL_0, LABEL_1"),
    ],
)
def test_columns_that_cannot_be_meant_are_refused(tmp_path, columns, values, names, message):
    assert refusal(write_csv(tmp_path / "a.csv", columns, [values]), names).startswith(message)


def test_columns_can_be_named(tmp_path):
    path = write_csv(tmp_path / "a.csv", ["body", "mood", "joy"], [["x", "joy", "0"], ["y", "", "0"]])
    examples = load(path, ("joy", "love"), text_columns=["body"], label_column="mood")
    assert (examples.first, examples.content[0].labels, examples.content[1].labels) == (("x", "y"), ("joy",), ())
    assert refusal(path, text_columns=["bodi"]).startswith(", line 1: no column 'bodi' (did you mean 'body'?)")
    assert refusal(path, text_columns=["body"], label_column="x").startswith(", line 1: no column 'x'")


def test_what_does_not_fit_is_refused_in_a_line(model, data, tmp_path):
    other = make_labeller(tmp_path, ("LABEL_0", "LABEL_1", "LABEL_2"))
    path = write_csv(tmp_path / "a.csv", ["text", *LABEL_NAMES], [["a", *BITS[0]]])
    with pytest.raises(ConfigError, match="the model has 3 labels, but multi-label has 4: joy, anger, Deep-fear, love"):
        bertjax.ablate(other, "multi-label", data=path, progress=False)
    with pytest.raises(DataError, match=r"label 'joy' is not one of LABEL_0.*give their names with --label-names"):
        bertjax.ablate(other, "multi-label", data=data, progress=False)
    named = write_csv(tmp_path / "b.csv", ["text", *"abcd"], [["a", *BITS[0]]])
    with pytest.raises(ConfigError, match=r"the model's labels joy, .* are not multi-label's a, b, c, d"):
        bertjax.ablate(model, "multi-label", data=named, label_names=[*"abcd"], progress=False)
    (tmp_path / "masked").mkdir()
    with pytest.raises(ConfigError, match="has no classification head, which multi-label needs"):
        bertjax.ablate(make_masked(tmp_path / "masked"), "multi-label", data=data, progress=False)
    with pytest.raises(DataError, match="multi-label needs data"):
        load_examples("multi-label")
    with pytest.raises(DataError, match="is a directory; multi-label needs a file"):
        load(tmp_path)
    with pytest.raises(DataError, match="needs one or two text columns"):
        load(data, text_columns=["a", "b", "c"])
    with pytest.raises(InputError, match="accuracy cannot score sets of labels of multi-label: choose micro_f1 or"):
        bertjax.ablate(model, "multi-label", data=data, metric="accuracy", progress=False)
    with pytest.raises(InputError, match="--metric micro_f1 cannot score"):
        bertjax.ablate(make_classifier(tmp_path), metric="micro_f1", progress=False)
