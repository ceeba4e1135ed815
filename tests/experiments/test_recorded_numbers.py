"""RESULTS.md shows the recorded numbers: its tables and figures come from them, and they contain no absolute paths."""

import json
import re

import pytest

from experiments import results
from experiments.results import figures_of, fill_in, keep, main, read_recorded, tables_of

pytestmark = pytest.mark.integration

RUN = {
    "program": "finetune",
    "settings": {"model": "a-model", "epochs": 2},
    "results": {
        "runs": [
            {"task": "rte", "init": init, "seed": 0, "examples": [8, 4], "epochs": [{"loss": 0.7, "scores": scores}]}
            for init, scores in (("none", {"accuracy": 0.5}), ("pretrained", {"accuracy": 0.75}))
        ],
    },
}


def test_the_tables_of_this_repository_match_recorded_numbers():
    text = (results.HERE / "RESULTS.md").read_text(encoding="utf-8")
    recorded = read_recorded()
    assert fill_in(text, recorded) == text
    named = {name for block in results.BLOCK.finditer(text) for name in block[2].partition(":")[0].split()}
    assert named == set(recorded), "a run is recorded that RESULTS.md does not show, or the other way round"
    shown = set(re.findall(r"\(figures/([^)]+)\)", text))
    assert shown == {path.name for path in (results.HERE / "figures").iterdir()}
    drawn = {file for name, numbers in recorded.items() for file in figures_of(name, numbers)}
    assert shown <= drawn, "a figure that no recorded run draws"
    for numbers in recorded.values():
        assert not results.ABSOLUTE.search(json.dumps(numbers))


def test_commands_name_scripts_that_exist(capsys):
    assert main(["--commands"]) == 0
    commands = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert commands.keys() == read_recorded().keys()
    for command in commands.values():
        module = command.split()[2]
        assert (results.HERE.parent / f"{module.replace('.', '/')}.py").exists()
        assert "--overwrite" not in command


def test_a_kept_run_fills_its_block_and_draws_its_figure(tmp_path, monkeypatch):
    (tmp_path / "figures").mkdir()
    (tmp_path / "table1_finetuning.py").touch()
    text = "<!-- numbers: small -->\nan older table\n<!-- end -->\n\n![Scores](figures/small.png)\n"
    (tmp_path / "RESULTS.md").write_text(text)
    (tmp_path / "numbers.json").write_text(json.dumps(RUN, indent=2))
    monkeypatch.setattr(results, "HERE", tmp_path)
    assert json.loads(keep(tmp_path, "small").read_text()) == RUN
    assert main(["--check"]) == 1
    assert main([]) == 0
    assert main(["--check"]) == 0
    text = (tmp_path / "RESULTS.md").read_text()
    assert "**75.0** (1 seed; paper 64.6)" in text
    assert tables_of({"small": RUN}) in text
    assert text.endswith("<!-- end -->\n\n![Scores](figures/small.png)\n")
    assert (tmp_path / "figures" / "small.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "numbers.json").write_text(json.dumps(RUN | {"command": "--model /home/somebody/bert"}))
    with pytest.raises(SystemExit, match="contain the path /home/somebody/bert"):
        keep(tmp_path, "other")


def test_a_block_may_hold_one_table_of_a_run():
    table, gain = tables_of({"small": RUN}).split("\n\n")
    for number, part in (1, table), (2, gain):
        text = f"<!-- numbers: small:{number} -->\n<!-- end -->"
        assert fill_in(text, {"small": RUN}) == f"<!-- numbers: small:{number} -->\n{part}\n<!-- end -->"
