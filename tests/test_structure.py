"""The house: which file may import which, and how long files and functions may be."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "bertjax"

# Which room may use which; the ground are the files beside the rooms that all of them may use.
GROUND = {
    *("arguments", "atomic_files", "console", "errors", "formatting", "json_files", "machine", "paths", "progress"),
}
FRONT = {"cli", "commands", "__main__", "__init__"}
ROOMS = {
    "checkpoints": set(),
    "data": {"checkpoints"},
    "model": {"checkpoints"},
    "interventions": {"checkpoints", "model"},
    "engine": {"checkpoints", "model", "data", "interventions"},
    "evidence": set(),
    "plots": {"evidence"},
    "results": {"data", "evidence", "plots"},
    "study": {"checkpoints", "model", "data", "interventions", "engine", "evidence", "plots", "results"},
}
NNX = {"Module", "Param", "List", "split", "merge", "eval_shape"}
FILES = sorted(PACKAGE.glob("*.py"))
ROOT = PACKAGE.parent
ALL_FILES = sorted(
    path for room in ("bertjax", "experiments", "benchmarks", "tests") for path in ROOT.glob(f"{room}/**/*.py")
)


def imported(tree):
    """Names of bertjax's files that a file imports anywhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "bertjax":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bertjax."):
            yield node.module.split(".")[1]


def test_every_file_has_its_place():
    assert {path.stem for path in FILES} - {"__init__"} == set(ORDER)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_imports_only_from_its_left(path):
    if path.stem == "__init__":
        return
    tree = ast.parse(path.read_text())
    allowed = {*ORDER[: ORDER.index(path.stem)], "__version__"}
    assert set(imported(tree)) <= allowed


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_flax_stays_in_its_rooms_and_within_what_lasts(path):
    tree = ast.parse(path.read_text())
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    if path.stem not in FLAX:
        assert not any(module.split(".")[0] == "flax" for module in modules)
    used = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "nnx"
    }
    assert used <= NNX


@pytest.mark.parametrize("path", ALL_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_are_short(path):
    text = path.read_text()
    assert text.count("\n") <= 600
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            assert lines <= 40, f"{node.name} is {lines} lines"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_annotations_are_not_postponed(path):
    assert "from __future__ import annotations" not in path.read_text()
