"""RESULTS.md is made of recorded numbers: its tables are theirs, and only numbers without places are recorded."""

import json
import re

import pytest

from bertjax.errors import DataError
from experiments import results
from experiments.results import figures_of, fill_in, keep, main, read_recorded, tables_of

pytestmark = pytest.mark.integration

RUN = {
    "program": "finetune",
    "settings": {"model": "a-model", "epochs": 2},
    "results": {
        "data": {},
        "runs": [
            {"task": "rte", "init": init, "seed": 0, "examples": [8, 4], "epochs": [{"loss": 0.7, "scores": scores}]}
            for init, scores in (("none", {"accuracy": 0.5}), ("pretrained", {"accuracy": 0.75}))
        ],
    },
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory of experiments with a text and no recorded run, and a run to be recorded."""
    monkeypatch.setattr(results, "PLACE", tmp_path / "experiments")
    (tmp_path / "experiments" / "figures").mkdir(parents=True)
    (tmp_path / "experiments" / "finetune.py").touch()
    text = "# Results\n\n<!-- numbers: small -->\nan older table\n<!-- end -->\n\n![Scores](figures/small.png)\n"
    (tmp_path / "experiments" / "RESULTS.md").write_text(text)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "numbers.json").write_text(json.dumps(RUN))
    return tmp_path


def test_the_tables_of_this_repository_match_recorded_numbers():
    text = (results.PLACE / "RESULTS.md").read_text(encoding="utf-8")
    recorded = read_recorded()
    assert fill_in(text, recorded) == text
    named = {name for block in results.BLOCK.finditer(text) for name in block[2].partition(":")[0].split()}
    assert named == set(recorded), "a run is recorded that RESULTS.md does not show, or the other way round"
    shown = set(re.findall(r"\(figures/([^)]+)\)", text))
    assert shown == {path.name for path in (results.PLACE / "figures").iterdir()}
    drawn = {file for name, numbers in recorded.items() for file in figures_of(name, numbers)}
    assert shown <= drawn, "a figure that no recorded run draws"
    for numbers in recorded.values():
        assert not results.ABSOLUTE.search(json.dumps(numbers))


def test_a_kept_run_fills_its_block_and_draws_its_figure(place, capsys):
    (place / "run" / "numbers.json").write_text(json.dumps(RUN, indent=2))
    kept = keep(place / "run", "small").read_text()
    assert json.loads(kept) == RUN
    assert "  " not in kept
    assert main(["--check"]) == 1
    assert main([]) == 0
    text = (results.PLACE / "RESULTS.md").read_text()
    assert "an older table" not in text
    assert "**75.0** (1 seed; paper 64.6)" in text
    assert text.endswith("<!-- end -->\n\n![Scores](figures/small.png)\n")
    assert (results.PLACE / "figures" / "small.png").read_bytes().startswith(b"\x89PNG")
    assert main(["--check"]) == 0
    assert tables_of({"small": RUN}) in text
    assert list(figures_of("small", RUN)) == ["small.png"]
    capsys.readouterr()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda run: run["settings"].update(model="/home/somebody/models/bert"), "a place of this machine"),
        (lambda run: run.update(padding="x" * results.LARGEST), "not what is kept"),
        (lambda run: run.pop("program"), "not what an experiment writes"),
    ],
)
def test_what_is_not_to_be_kept_is_refused_in_one_line(place, capsys, spoil, words):
    run = json.loads(json.dumps(RUN))
    spoil(run)
    (place / "run" / "numbers.json").write_text(json.dumps(run))
    assert main(["--keep", str(place / "run"), "small"]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (results.PLACE / "recorded").exists()


def test_a_block_may_hold_one_table_of_a_run(place):
    text = "<!-- numbers: small:{} -->\n<!-- end -->"
    whole = tables_of({"small": RUN})
    table, gain = whole.split("\n\n")
    assert fill_in(text.format(2), {"small": RUN}) == f"<!-- numbers: small:2 -->\n{gain}\n<!-- end -->"
    assert table in fill_in(text.format(1), {"small": RUN})
    for number in ("3", "0", "x"):
        with pytest.raises(DataError, match="there are 2 tables"):
            fill_in(text.format(number), {"small": RUN})


def test_a_block_of_a_run_that_is_not_there_is_named(place, capsys):
    assert main([]) == 2
    assert "names small, which is not in recorded/" in capsys.readouterr().err
    keep(place / "run", "small")
    path = results.PLACE / "recorded" / "small" / "numbers.json"
    path.write_text(json.dumps(RUN | {"program": "os.path"}))
    assert main([]) == 2
    assert "no program 'os.path'" in capsys.readouterr().err
