"""Heads of one model on several tasks: the numbers are those of the results, the tables and the picture theirs."""

import json

import numpy as np
import pytest

import bertjax
from experiments import several_tasks
from tests.test_minimal_pairs import PAIRS
from tests.workshop import make_masked, write_lines


@pytest.fixture(scope="module")
def ablated(tmp_path_factory):
    """Masked words and minimal pairs of a tiny model, in two modes."""
    folder = tmp_path_factory.mktemp("several")
    model, lines = make_masked(folder / "model"), write_lines(folder / "lines.txt")
    pairs = folder / "pairs.jsonl"
    rows = [{"sentence_good": good, "sentence_bad": bad, "UID": group} for good, bad, group in PAIRS]
    pairs.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = {}
    for task, data in (("mlm", lines), ("minimal-pairs", pairs)):
        for mode in ("uniform", "zero"):
            output = folder / f"{task}-{mode}"
            found[task, mode] = bertjax.ablate(model, task, data=data, mode=mode, output=output, progress=False)
    return found


def run(ablated, output, *more):
    return several_tasks.main([*(str(one.directory) for one in ablated.values()), "--output", str(output), *more])


def test_numbers_tables_and_picture_are_those_of_the_results(ablated, tmp_path, capsys):
    assert run(ablated, tmp_path / "out") == 0
    printed = capsys.readouterr().out
    numbers = json.loads((tmp_path / "out" / "numbers.json").read_text())
    assert several_tasks.tables(numbers) in printed
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
    words = np.load(tmp_path / "out" / "values.npz")["mlm_zero"]
    assert words == pytest.approx([-row.difference for row in main], rel=1e-4)
    groups = [line for line in printed.splitlines() if line.startswith("| one |")]
    assert len(groups) == 1
    assert {"figure.png", "figure.pdf"} <= {path.name for path in (tmp_path / "out").iterdir()}
    assert run(ablated, tmp_path / "out") == 2  # results are there


def test_heads_that_matter_alike_are_told(ablated, tmp_path, capsys):
    """A run with itself: all heads in the same order, and all that are found in both."""
    assert run({1: ablated["mlm", "zero"], 2: ablated["mlm", "zero"]}, tmp_path / "out") == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| mlm, zero | mlm, zero |"))
    found = sum(row.significant and row.difference > 0 for row in ablated["mlm", "zero"].rows_of())
    assert line == f"| mlm, zero | mlm, zero | 1.00 | {found} |"


def test_results_that_do_not_belong_together_are_refused(ablated, tmp_path, capsys):
    other = make_masked(tmp_path / "model", seed=1)
    lines = write_lines(tmp_path / "lines.txt")
    bertjax.ablate(other, "mlm", data=lines, output=tmp_path / "other", progress=False)
    assert several_tasks.main([str(ablated["mlm", "zero"].directory), str(tmp_path / "other")]) == 2
    assert "not of one model and the same ablations" in capsys.readouterr().err
    bertjax.ablate(other, "mlm", data=lines, ablate="layers", output=tmp_path / "layers", progress=False)
    assert several_tasks.main([str(tmp_path / "layers")]) == 2
    assert "not of single heads" in capsys.readouterr().err
