"""Heads of one model on several tasks: the numbers are those of the results, the tables and the picture theirs."""

import json

import pytest

import bertjax
from experiments.beyond import tasks_and_modes
from tests.factories import make_embedder, make_masked, write_lines, write_pairs
from tests.task_files import MINIMAL_PAIRS
from tests.tiny_models import arrays_of

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def ablated(tmp_path_factory):
    """Masked words and minimal pairs of a tiny model, in two modes."""
    folder = tmp_path_factory.mktemp("several")
    model, lines = make_masked(folder / "model"), write_lines(folder / "lines.txt")
    pairs = folder / "pairs.jsonl"
    rows = [{"sentence_good": good, "sentence_bad": bad, "UID": group} for good, bad, group in MINIMAL_PAIRS]
    pairs.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = {}
    for task, data in (("mlm", lines), ("minimal-pairs", pairs)):
        for mode in ("uniform", "zero"):
            output = folder / f"{task}-{mode}"
            found[task, mode] = bertjax.ablate(model, task, data=data, mode=mode, output=output, progress=False)
    return found


def run(ablated, output, *more):
    return tasks_and_modes.main([*(str(one.directory) for one in ablated.values()), "--output", str(output), *more])


def test_numbers_tables_and_picture_are_those_of_the_results(ablated, tmp_path, capsys):
    assert run(ablated, tmp_path / "out") == 0
    printed = capsys.readouterr().out
    numbers = json.loads((tmp_path / "out" / "numbers.json").read_text())
    assert tasks_and_modes.tables({"": numbers}) in printed
    for one, (key, results) in zip(numbers["results"]["runs"], ablated.items(), strict=True):
        assert (one["task"], one["mode"]) == key
        assert list(one["metrics"]) == results.summary["metrics"]
        for name, metric in one["metrics"].items():
            for column in ("difference", "low", "high", "q"):
                expected = [getattr(row, column) for row in results.rows_of(name)]
                assert metric[column] == pytest.approx(expected, rel=1e-4, nan_ok=True)
    main = ablated["mlm", "zero"].rows_of()
    worst = max(main, key=lambda row: row.difference)  # a cross-entropy
    row = next(line for line in printed.splitlines() if line.startswith("| mlm (") and "| zero |" in line)
    assert f"{worst.name}: +{worst.difference:.3f} (" in row
    assert f"Cross-entropy {main[0].base:.3f} nats" in row
    words = arrays_of(tmp_path / "out" / "values.npz")["mlm_zero"]
    assert words == pytest.approx([-row.difference for row in main], rel=1e-4)
    assert {"figure.png", "figure.pdf"} <= {path.name for path in (tmp_path / "out").iterdir()}


def test_heads_with_equal_effects_are_listed(ablated, tmp_path, capsys):
    """A run with itself: all heads in the same order, and all that are found in both."""
    assert run({1: ablated["mlm", "zero"], 2: ablated["mlm", "zero"]}, tmp_path / "out") == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| mlm, zero | mlm, zero |"))
    found = sum(row.significant and row.difference > 0 for row in ablated["mlm", "zero"].rows_of())
    assert line == f"| mlm, zero | mlm, zero | 1.00 | {found} |"


def test_a_task_without_accuracy_is_drawn_by_its_first_score(tmp_path, monkeypatch):
    model, data = make_embedder(tmp_path / "model"), write_pairs(tmp_path / "pairs.tsv", 20)
    found = {
        mode: bertjax.ablate(model, "mrpc", data=data, mode=mode, output=tmp_path / mode, progress=False)
        for mode in ("uniform", "zero")
    }
    drawn = []
    monkeypatch.setattr(tasks_and_modes, "draw_effect_maps", lambda path, **what: (path.touch(), drawn.append(what)))
    assert run(found, tmp_path / "out") == 0
    assert found["zero"].summary["metrics"][0] == "roc_auc"
    assert list(drawn[0]["maps"]) == ["mrpc, uniform: ROC AUC", "mrpc, zero: ROC AUC"]
    for results, (change, _) in zip(found.values(), drawn[0]["maps"].values(), strict=True):
        changes = [100 * row.difference for row in results.rows_of("roc_auc")]
        assert change.ravel() == pytest.approx(changes, rel=1e-4)


def test_differing_scores_are_named():
    def of(task, **metrics):
        values = {"difference": [0.1], "low": [0.0], "high": [0.2], "q": [0.5], "greater_is_better": True, "base": 0.5}
        return {"task": task, "mode": "zero", "metrics": {name: values | one for name, one in metrics.items()}}

    auc, accuracy, entropy = (
        {"label": label, "unit": unit}
        for label, unit in (("ROC AUC", "points"), ("Word accuracy", "points"), ("Cross-entropy", "nats"))
    )
    numbers = {"layers": 1, "heads": 1, "model": "tiny"}
    runs = [of("mrpc", roc_auc=auc), of("mlm", cross_entropy=entropy, word_accuracy=accuracy)]
    drawn = tasks_and_modes.figures({"results": numbers | {"runs": runs}})["figure"].keywords
    assert list(drawn["maps"]) == ["mrpc, zero: ROC AUC", "mlm, zero: Word accuracy"]
