"""The house: which file may import which, and how long files and functions may be."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "bertjax"

# Left to right: a file imports only from its left.
ORDER = [
    *(
        "formatting",
        "errors",
        "arguments",
        "paths",
        "machine",
        "json_files",
        "console",
        "progress",
        "types",
        "config",
        "atomic",
        "sentence_files",
        "weight_names",
        "files",
        "checkpoint",
        "ops",
        "kernel_parts",
        "kernels",
        "kernel_statistics",
        "fused",
        "locate",
        "tokenizer_files",
        "long_texts",
        "tokenizer",
        "checks",
    ),
    *("pretrained", "readouts", "model", "task_heads", "joining", "overrides", "plain"),
    *("tasks", "tables", "local_files", "tfds_glue", "data", "parity"),
    *("ablations", "packing", "plan", "steps", "sharding", "examples", "job", "compiled", "blocks", "cost"),
    *(
        "parts",
        "schedule",
        "memory",
        "fingerprint",
        "journal",
        "engine",
        "watch",
        "processes",
        "shared_rows",
        "distributed",
        "estimation",
    ),
    *("metrics", "resampling", "intervals", "significance", "evidence"),
    *(
        "picture",
        "page",
        "cells",
        "findings",
        "rows",
        "heads_map",
        "bars",
        "ranking",
        "attention_figure",
        "figures",
        "view",
        "report",
        "schema",
        "summary",
    ),
    *("encoded", "task_outputs", "provenance", "results", "naming", "settings", "scoring", "conclusion", "ablate"),
    *("arrays", "saved", "show", "compare", "html_attention", "html_examples", "html_page"),
    *("commands", "cli", "__main__"),
]
FLAX = {"model", "task_heads", "pretrained", "plain", "files", "blocks", "compiled"}
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
