"""Saved results are read again, shown and compared; what is damaged or foreign is refused in a line."""

import csv
import hashlib
import io
import json
import re
import shutil
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pandas
import polars
import pytest
from rich.console import Console
from scipy.stats import spearmanr

from bertjax.cli import main
from bertjax.errors import InputError, MissingDependencyError
from bertjax.formatting import format_p
from bertjax.results.comparison import agreeing, align, compare, label_results
from bertjax.results.contents import positive_name
from bertjax.results.directory import read_results
from bertjax.results.schema import Summary
from bertjax.results.summary import Entry, make_summary
from bertjax.results.table import COLUMNS, SCHEMA
from bertjax.results.terminal import show_table, show_text
from bertjax.statistics.intervals import rank_correlation
from tests.result_factories import make_results
from tests.schema_checks import check_by_jsonschema, check_example

# What only some summaries have.
OPTIONAL = {
    "analysis",
    "float32",
    "own_metrics",
    "numbers",
    "tags",
    "gradients",
    "probe",
    "structure",
    "geometry",
    "likeness",
    "languages",
    "senses",
    "restoring",
    "derived",
    "shapley",
    "screen",
    "pruning",
    "roles",
    "patching",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def mrpc(folder):
    return make_results(folder / "mrpc")


@pytest.fixture(scope="module")
def stsb(folder):
    return make_results(folder / "stsb", "stsb", seed=1)


def test_pandas_and_polars_read_the_table(mrpc):
    frame, other = pandas.read_parquet(mrpc / "results.parquet"), polars.read_parquet(mrpc / "results.parquet")
    assert list(frame.columns) == other.columns == list(COLUMNS)
    assert len(frame) == len(other) == 12 * 2
    main_rows = frame[frame.main]
    summary = json.loads((mrpc / "summary.json").read_text())
    assert main_rows.difference.tolist() == [entry["delta"] for entry in summary["ablations"]]
    assert main_rows.score.tolist() == [entry["scores"]["f1"] for entry in summary["ablations"]]
    written = [f"L{entry['layer']}H{entry['head']}" for entry in summary["ablations"]]
    assert main_rows.heads.map(list).tolist() == [[name] for name in written]
    assert main_rows.name.tolist() == written
    assert set(frame.metric) == {"f1", "accuracy"}
    assert other.schema["gains"] == polars.Int64


def test_results_are_what_was_written(mrpc):
    saved = read_results(str(mrpc))
    assert (saved.kind, saved.metric, len(saved.names)) == ("head", "f1", 12)
    assert [row.name for row in saved.rows_of("accuracy")] == saved.names
    np.testing.assert_allclose(saved.printed(), [100 * row.difference for row in saved.rows_of("f1")])
    assert saved.outputs["outputs"].shape == (12, 120, 2)
    assert saved.examples[3]["id"] == 3
    assert saved.attention["runs"][0] == "base"
    with pytest.raises(InputError, match="has no metric 'bleu': f1, accuracy"):
        saved.rows_of("bleu")


def test_what_was_made_to_matter_is_found(mrpc):
    saved = read_results(mrpc)
    found = {row.name: row.difference for row in saved.rows_of("accuracy") if row.q < 0.05}
    assert set(found) == {"0.1", "2.3"}
    assert found["0.1"] < 0 < found["2.3"]
    assert "raises the score for 1 of 12 heads and lowers it for 1," in saved.summary["sentence"]


def test_notebooks_show_results(mrpc):
    html = read_results(mrpc)._repr_html_()
    assert "raises the score for 1 of 12 heads" in html
    assert "<td>2.3</td>" in html
    assert html.count("<tr") == 11


def test_the_table_has_all_or_the_largest(mrpc, stsb):
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(show_table(read_results(mrpc)), highlight=False)
    text = console.export_text()
    assert text.index("0.1 ") < text.index("2.3 ")
    assert "12 of 12 heads" in text
    assert "gains" in text
    console.print(show_table(read_results(stsb), "spearman", top=3), highlight=False)
    text = console.export_text()
    assert "3 of 12 heads" in text
    assert "gains" not in text


def test_csv_json_and_markdown(mrpc, capsys):
    rows = list(csv.DictReader(io.StringIO(show_text(read_results(mrpc), "csv"))))
    assert len(rows) == 24
    assert list(rows[0]) == list(COLUMNS)
    assert main(["show", str(mrpc), "--format", "json", "--metric", "accuracy", "--top", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in found} == {"L0H1", "L2H3"}
    assert found[0]["p"] == next(
        float(row["p"]) for row in rows if row["name"] == "L0H1" and row["metric"] == "accuracy"
    )
    assert main(["show", str(mrpc), "--format", "md"]) == 0
    lines = capsys.readouterr().out.splitlines()
    saved = read_results(mrpc)
    assert (lines[0], lines[2]) == (saved.title.replace("_", "\\_"), saved.sentence_of())
    table = [line for line in lines if "|" in line]
    assert len(table) == 14
    assert table[2].startswith("| 0.1 |")
    assert {line.count("|") for line in table} == {9}
    stars = [line for line in table if "\\*" in line]
    assert len(stars) == sum(row.q < 0.05 for row in saved.rows_of()) > 0


def test_markdown_of_values_has_no_empty_columns(stsb, capsys):
    assert main(["show", str(stsb), "--format", "md", "--top", "2"]) == 0
    table = [line for line in capsys.readouterr().out.splitlines() if "|" in line]
    assert {line.count("|") for line in table} == {7}


def test_labels_are_called_by_their_names(mrpc, stsb):
    classes, values = read_results(mrpc), read_results(stsb)
    assert [classes.label_of({"label": label}) for label in (0, 1, -1, None)] == [
        "not_equivalent",
        "equivalent",
        "none",
        "none",
    ]
    assert [values.label_of({"label": label}) for label in (3.25, -1.0, None)] == ["3.25", "-1", "none"]


def test_results_that_lie_deeper_are_named(mrpc, tmp_path, capsys):
    shutil.copytree(mrpc, tmp_path / "both" / "zero")
    (tmp_path / "both" / "other").mkdir()
    assert main(["show", str(tmp_path / "both")]) == 2
    assert capsys.readouterr().err.strip().endswith(f"; there are results in {tmp_path / 'both' / 'zero'}")


def test_the_sentence_names_layers_as_such(tmp_path):
    saved = read_results(make_results(tmp_path / "layers", ablate="layers", helpful="0", harmful="2"))
    assert " for layer 2;" in saved.sentence_of()
    assert " for layer 0" in saved.sentence_of()


def test_two_tasks_are_compared(mrpc, stsb, capsys):
    several = [read_results(mrpc), read_results(stsb)]
    (pair,) = compare(several)
    assert (pair.first, pair.second, pair.common) == ("mrpc, F1, seed 0", "stsb, PEARSON, seed 1", 12)
    assert (pair.found, pair.both, pair.opposite) == ((2, 2), 2, 0)
    assert pair.jaccard == 1
    assert abs(pair.chance - 1 / 66) < 1e-12  # both of two among twelve
    assert pair.low <= pair.correlation <= pair.high
    assert {name for name, _, _ in agreeing(several)} == {"0.1", "2.3"}
    assert main(["compare", str(mrpc), str(stsb)]) == 0
    shown = capsys.readouterr().out
    assert "2 heads found in several, with the same sign" in shown
    assert main(["compare", str(mrpc), str(stsb), str(mrpc), "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert len(data["pairs"]) == 3
    assert [one["label"] for one in data["results"]] == ["mrpc", "stsb", "mrpc"]
    assert [one["directory"] for one in data["results"]] == [str(mrpc), str(stsb), str(mrpc)]
    assert main(["compare", str(mrpc), str(stsb), "--metric", "accuracy"]) == 2
    assert "has no metric 'accuracy'" in capsys.readouterr().err


def test_a_comparison_fits_a_narrow_terminal(mrpc, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    third = make_results(tmp_path / "a directory of a rather long name", "stsb", seed=3)
    assert main(["compare", str(mrpc), str(third), str(mrpc)]) == 0
    shown = capsys.readouterr().out
    several = [read_results(one) for one in (mrpc, third, mrpc)]
    for pair in compare(several):
        assert any(line.rstrip().endswith(f" {format_p(pair.chance)}") for line in shown.splitlines())
    assert "1 and 3 are the same results" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_results_are_compared_by_any_metric_that_they_share(mrpc, tmp_path):
    other = make_results(tmp_path / "other", seed=3)
    several = [read_results(mrpc), read_results(other)]
    (pair,) = compare(several, "accuracy")
    effects = [one.printed(metric="accuracy") for one in several]
    assert abs(pair.correlation - spearmanr(*effects).statistic) < 1e-12
    assert pair.correlation != compare(several)[0].correlation
    changes = {name: found for name, found, _ in agreeing(several, "accuracy")}
    place = several[0].names.index("2.3")
    assert changes["2.3"] == [effects[0][place], effects[1][place]]


def test_outputs_of_other_results_are_refused(mrpc, tmp_path):
    other = make_results(tmp_path / "other", mode="zero", harmful="1.1")
    (other / "outputs.npz").write_bytes((mrpc / "outputs.npz").read_bytes())
    with pytest.raises(InputError, match=r"outputs\.npz is not the file that summary\.json describes"):
        read_results(other).outputs  # noqa: B018


def test_shared_examples_of_results_are_in_the_message(mrpc, stsb, tmp_path, capsys):
    zero = make_results(tmp_path / "zero", mode="zero")
    assert main(["compare", str(mrpc), str(zero)]) == 0
    assert "share examples" in capsys.readouterr().out
    assert main(["compare", str(mrpc), str(stsb)]) == 0
    assert "share examples" not in capsys.readouterr().out


def test_opposite_findings_do_not_agree(mrpc, tmp_path):
    turned = make_results(tmp_path / "turned", helpful="2.3", harmful="0.1", mode="zero")
    several = [read_results(mrpc), read_results(turned)]
    (pair,) = compare(several)
    assert (pair.first, pair.second) == ("uniform", "zero")
    assert (pair.both, pair.opposite, pair.jaccard) == (0, 2, 0)
    assert agreeing(several) == []


def test_what_cannot_be_compared_is_refused(mrpc, tmp_path, capsys):
    assert main(["compare", str(mrpc)]) == 2
    assert "give at least two directories" in capsys.readouterr().err
    layers = make_results(tmp_path / "layers", ablate="layers", helpful="1", harmful="2")
    assert main(["compare", str(mrpc), str(layers)]) == 2
    assert "fewer than two ablations" in capsys.readouterr().err
    names, _ = align([read_results(layers)] * 2)
    assert names == ["0", "1", "2"]
    assert label_results([read_results(layers)]) == [""]


def test_rank_correlation_is_spearmans(rng):
    first, second = rng.normal(size=(2, 40))
    found, low, high = rank_correlation(first, first + second)
    assert abs(found - spearmanr(first, first + second).statistic) < 1e-12
    assert low < found < high
    holes = np.where(np.arange(40) < 38, first, np.nan)
    assert np.isnan(rank_correlation(holes, np.where(np.arange(40) >= 37, first, np.nan))).all()
    assert np.isnan(rank_correlation(first, np.ones(40))).all()
    few, low, high = rank_correlation(first[:9], first[:9] + second[:9])
    assert np.isfinite(few)
    assert np.isnan([low, high]).all()


DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("task", ["mrpc", "stsb"])
def test_files_are_as_their_schemas_say(folder, task):
    path = folder / task if (folder / task).exists() else make_results(folder / task, task)
    summary = json.loads((path / "summary.json").read_text())
    check_by_jsonschema(summary)
    assert summary["schema"] == SCHEMA
    assert set(summary) == {*Summary.__struct_fields__} - OPTIONAL
    assert list(summary["ablations"][0]) == ["name", "heads", "layer", "head", "score", "delta", "scores"]
    for broken in (summary | {"seconds": None}, summary | {"files": {"outputs.npz": {}}}):
        with pytest.raises(jsonschema.ValidationError):
            check_by_jsonschema(broken)
    for line in (path / "examples.jsonl").read_text().splitlines():
        check_example(json.loads(line))


def test_a_key_that_is_not_declared_cannot_be_written(mrpc):
    saved = read_results(mrpc)
    provenance = {**saved.summary, "base": {"f1": 0.5, "accuracy": 0.5}}
    provenance["model"] = {**provenance["model"], "colour": "red"}
    with pytest.raises(AssertionError, match="does not declare all keys"):
        make_summary(provenance, [Entry("0.0", ("0.0",), 0, 0, {"f1": 0.5, "accuracy": 0.5}, 0.5)], {})


def test_the_summary_lists_the_files_of_its_directory(mrpc):
    summary = json.loads((mrpc / "summary.json").read_text())
    names = {path.name for path in mrpc.iterdir()} - {"summary.json", "report.html"}
    assert set(summary["files"]) == names
    for name, record in summary["files"].items():
        content = (mrpc / name).read_bytes()
        assert record == {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    assert read_results(mrpc).summary == summary


def test_the_label_that_a_metric_is_about_is_named(mrpc, stsb, capsys):
    saved = read_results(mrpc)
    assert saved.summary["positive_label"] == "equivalent" == saved.positive_of("f1")
    assert saved.positive_of("accuracy") is None
    assert read_results(stsb).summary["positive_label"] is None
    assert main(["show", str(mrpc)]) == 0
    assert "F1 of the label “equivalent” without ablation: " in capsys.readouterr().out
    assert main(["show", str(mrpc), "--metric", "accuracy"]) == 0
    assert "Accuracy without ablation: " in capsys.readouterr().out
    assert main(["show", str(mrpc), "--format", "md"]) == 0
    assert "F1 of the label “equivalent”. \\* q < 0.05" in capsys.readouterr().out
    names = {"label_names": ["entailment", "not_entailment"]}
    assert positive_name({"data": names, "positive": 0}, ["roc_auc"]) == "entailment"  # QNLI by similarity
    assert positive_name({"data": names, "positive": 0}, ["accuracy", "matthews"]) is None


def test_results_are_a_data_frame(mrpc):
    frame = read_results(mrpc).to_pandas()
    pandas.testing.assert_frame_equal(frame, pandas.read_parquet(mrpc / "results.parquet"))
    assert list(frame.columns) == list(COLUMNS)


def test_without_pandas_there_is_a_line(mrpc, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match="to_pandas needs pandas, which is not installed"):
        read_results(mrpc).to_pandas()


def test_every_column_is_documented():
    text = (DOCS / "guides" / "results.md").read_text()
    table = text[text.index("| column |") : text.index("\n\n", text.index("| column |"))]
    named = [name for row in table.splitlines()[2:] if row for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert named == list(COLUMNS)


def test_one_label_gives_scores_without_statistics(tmp_path, capsys):
    path = make_results(tmp_path / "one", labelled=1)
    saved = read_results(path)
    assert saved.summary["sentence"] == "Fewer than two examples can be compared: nothing can be tested."
    right = saved.outputs["outputs"][:, 0].argmax(-1) == saved.outputs["labels"][0]
    assert [row.score for row in saved.rows_of("accuracy")] == right.tolist()
    assert all(getattr(row, name) is None for row in saved.rows for name in ("low", "high", "p", "q", "holm", "best_p"))
    check_by_jsonschema(json.loads((path / "summary.json").read_text()))
    assert main(["show", str(path), "--metric", "accuracy"]) == 0
    assert "2.3" in capsys.readouterr().out
    assert main(["show", str(path), "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(saved.rows)
    assert main(["report", str(path)]) == 0
    for figure in ("map", "ranking", "layers"):
        drawn = tmp_path / f"{figure}.png"
        assert main(["plot", str(path), "--figure", figure, "--metric", "accuracy", "--output", str(drawn)]) == 0
        assert drawn.stat().st_size > 1000
    capsys.readouterr()
    assert main(["compare", str(path), str(path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["pairs"][0]["both"] == 0
