"""The tutorials run from their first cell to their last, on the real model, and show what they say they show.

Here they run on fewer examples; what was saved with them is of all.
"""

import re
import runpy
from functools import cache
from pathlib import Path

import nbformat
import pytest

from tests.factories import write_glue

pytestmark = pytest.mark.integration

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
# Reduced sizes in each notebook, to save minutes.
SMALLER = {
    "dataframe": {"limit=300": "limit=12"},
    "demo": {"limit=200": "limit=4"},
    "one_head": {"limit=100": "limit=12", "limit=600": "limit=40"},
    "paper_figure": {"limit = 100": "limit = 6"},
    "patching": {
        '"lady/sheep kid/mouse doctor/tiger teacher/lion driver/rabbit guy/fish"': '""',
        '{"values": [carrier]}': '{"values": [carrier]}, heads=["0.6", "2.3", "3.1"]',
    },
    "pruning": {"limit=300": "limit=16", "draws=4, points=6": "draws=1, points=4"},
}


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A function from a name to the smaller notebook with its outputs, and the directory in which it ran."""
    run = runpy.run_path(str(FOLDER / "execute.py"))["run"]

    @cache
    def execute(name):
        notebook, folder = saved(name), tmp_path_factory.mktemp(name)
        for before, after in SMALLER[name].items():
            assert any(before in cell.source for cell in notebook.cells), before
            for cell in notebook.cells:
                cell.source = cell.source.replace(before, after)
        run(notebook, folder)  # compiled as users compile it: a real model takes longer to run than to compile
        return notebook, folder

    return execute


def saved(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def cell_of(notebook, source):
    """The code cell that contains this."""
    (cell,) = [cell for cell in notebook.cells if cell.cell_type == "code" and source in cell.source]
    return cell


def outputs(notebook, source):
    """What the cell that contains this shows, by kind."""
    return {kind: text for one in cell_of(notebook, source).outputs for kind, text in one.get("data", {}).items()}


def printed(notebook, source):
    """What the cell that contains this prints, and the text of its value."""
    cell = cell_of(notebook, source)
    lines = [one.text for one in cell.outputs if one.output_type == "stream"]
    return "".join([*lines, outputs(notebook, source).get("text/plain", "")])


def number(pattern, text):
    """The first number that follows a pattern."""
    found = re.search(pattern + r"\D*?(-?[\d.]+(?:e-?\d+)?)", text)
    assert found, (pattern, text)
    return float(found[1])


def shows_pictures(notebook, *sources):
    for source in sources:
        assert "image/png" in outputs(notebook, source), source


def test_every_tutorial_is_tested():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(SMALLER)


def test_a_dataframe_becomes_effects_of_all_heads(executed):
    notebook, folder = executed("dataframe")
    shows_pictures(notebook, "results.plot()")
    assert "of 72 heads are significant" in printed(notebook, "significant =")
    assert "Interaction (ROC AUC)" in outputs(notebook, "study.interactions")["text/html"]
    assert (folder / "report.html").is_file()


def test_the_demo_runs_and_shows_results(executed):
    notebook, folder = executed("demo")
    assert "ablations of 3 examples" in outputs(notebook, "bertjax.sweep")["text/html"]
    assert "Ablating one head raises the score for" in outputs(notebook, 'output="worked_example"')["text/html"]
    shows_pictures(notebook, "results.plot()", 'plot("ranking")', 'plot("change"')
    compared = outputs(notebook, "saved.compare(")["text/plain"]
    assert "correlation" in compared
    assert "\x1b" not in compared
    assert 200_000 < (folder / "worked_example" / "report.html").stat().st_size < 2_000_000


def test_the_papers_figure_is_that_of_head_roles(executed):
    notebook, _ = executed("paper_figure")
    shows_pictures(notebook, "def draw(", "norm_cls")
    assert number("largest difference of 72 heads", printed(notebook, "largest difference")) < 1e-5
    check_resting(notebook)


def check_resting(notebook):
    """[CLS] has far more of the weights than uniform attention gives it, [SEP] less; little of it is added up."""
    for token, more in (("CLS", True), ("SEP", False)):
        found = re.search(rf"\[{token}\]: ([\d.]+) % of attention, uniform ([\d.]+) %", printed(notebook, "einsum"))
        assert (float(found[1]) > float(found[2])) == more
    weights, norms = re.search(r"from words: ([\d.]+) %.*, ([\d.]+) %", printed(notebook, "norm_cls")).groups()
    assert float(norms) < 0.3 * float(weights)


def test_the_story_of_a_head_is_of_the_one_with_the_role(executed):
    notebook, _ = executed("one_head")
    shows_pictures(notebook, 'metric="punctuation")', 'plot("change"')
    check_role(notebook)
    for mode in ("uniform", "zero", "mean"):
        assert re.search(rf"{mode}: [\d.]+ -> [\d.]+, change [+-]", printed(notebook, "bertjax.ablate"))
    assert re.search(r"\d+ % of 40 pairs move in the right direction", printed(notebook, "helped"))
    assert number("cosines of the sweep:", printed(notebook, "overrides.fixed")) < 1e-5
    assert "punctuation only: " in printed(notebook, "overrides.fixed")


def check_role(notebook):
    lines = printed(notebook, 'roles.rows_of("punctuation")').splitlines()
    assert lines[0].startswith("3.11: ")
    first, second = (number(": ", line) for line in lines[:2])
    assert first > 2 * second


def test_patching_finds_the_changed_word_and_its_head(executed):
    notebook, _ = executed("patching")
    shows_pictures(notebook, "grid.plot()", "Panel(", "paths.plot()")
    check_places(notebook)


def check_places(notebook):
    clean, corrupted = (number(word, printed(notebook, "def cosine")) for word in ("clean", "corrupted"))
    patched, control = (number(f"token {token}:", printed(notebook, "for token in (2, 3)")) for token in (2, 3))
    assert abs(clean - patched) < 0.2 * (clean - corrupted)
    assert abs(control - corrupted) < 0.1 * (clean - corrupted)
    assert "the largest is +10" in printed(notebook, "grid.sentence")
    heads = printed(notebook, "carrier =").splitlines()
    assert heads[0].startswith("5.11 at all tokens: ")
    first, second = (number("tokens: ", line) for line in heads[:2])
    assert first > 2 * second
    assert all(abs(float(change)) < 2 for change in re.findall(r"\d\.\d+ ([+-][\d.]+)", printed(notebook, "by_path =")))


def test_pruning_compares_its_orders_and_saves_the_rest(executed):
    notebook, folder = executed("pruning")
    shows_pictures(notebook, "pruned.plot()")
    assert printed(notebook, "bertjax.prune").startswith("8 examples determine the orders, 8 others the score; ROC AUC")
    table = printed(notebook, "heads left         ")
    assert [line[:18].strip() for line in table.splitlines()[1:-1]] == [
        *("gradient", "magnitude", "gradient reversed", "random 0"),
    ]
    assert "[" not in table
    assert 0 < number("outputs of both models ", printed(notebook, "without=gone")) < 1e-4
    whole, smaller = ((folder / name / "model.safetensors").stat().st_size for name in ("whole", "smaller"))
    assert smaller < whole
    assert f"{smaller / 1e6:.1f} MB without" in printed(notebook, "st_size")


def test_pruning_takes_a_readers_glue(tmp_path, monkeypatch, capsys):
    write_glue(tmp_path / "glue")
    monkeypatch.chdir(tmp_path)
    names = {}
    for source in ("glue = None", "bertjax.prune"):
        code = cell_of(saved("pruning"), source).source.replace("glue = None", 'glue = "glue"')
        code = code.replace("draws=4, points=6", "draws=1, points=1").replace('"gradient", ', "")
        exec(code, names)
    assert names["pruned"].summary["data"]["task"] == "mrpc"
    assert "determine the orders" in capsys.readouterr().out


@pytest.mark.parametrize("name", SMALLER)
def test_tutorials_have_saved_outputs_and_no_local_paths(name):
    notebook = saved(name)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    assert "find_spec" in code[0].source  # installs bertjax in a fresh Colab session
    assert not code[0].outputs
    assert sum(not cell.outputs for cell in code[1:]) <= 1  # what only names settings
    shown = [one for cell in code for one in cell.outputs]
    assert not [one for one in shown if one.output_type == "error" or one.get("name") == "stderr"]
    assert not any(cell.metadata for cell in notebook.cells)
    kinds = [cell.cell_type for cell in notebook.cells]
    assert kinds[0] == "markdown"
    assert all(part in notebook.cells[0].source for part in ("**Summary.**", "**Time:**"))
    text = (FOLDER / f"{name}.ipynb").read_text()
    assert not any(path in text for path in ("/home/", "/root/", "/tmp/", "/work/", "site-packages"))


def test_what_the_texts_say_stands_in_the_saved_outputs():
    check_resting(saved("paper_figure"))
    check_role(saved("one_head"))
    check_places(saved("patching"))
    story, pruning = saved("one_head"), saved("pruning")
    effects = printed(story, "bertjax.ablate")
    for mode, hurts in (("uniform", True), ("zero", True), ("mean", False)):
        assert (number(rf"{mode}: .* to ", effects) < 0) == hurts
    assert number("without punctuation: .* to ", printed(story, "overrides.fixed")) < 0
    assert number("punctuation only: .*interval", printed(story, "overrides.fixed")) > 0
    rows = {
        line[:18].strip(): [float(cell.strip("*")) for cell in line[18:].split()]
        for line in printed(pruning, "heads left         ").splitlines()[1:-1]
    }
    random = [sum(draws) / len(draws) for draws in zip(*(rows[f"random {draw}"] for draw in range(4)), strict=True)]
    assert all(value <= mean for value, mean in zip(rows["gradient"], random, strict=True))
    assert all(value >= mean for value, mean in zip(rows["gradient reversed"], random, strict=True))
    assert rows["gradient"][-1] > 75  # no head at all
