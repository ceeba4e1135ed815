"""Layering: which file may import which, and how long files and functions may be."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bertjax
from tests.layering import File, read_sources, violations
from tests.result_factories import make_results

PACKAGE = Path(__file__).parents[2] / "bertjax"

ROOT = PACKAGE.parent
ALL_FILES = sorted(
    path for folder in ("bertjax", "experiments", "benchmarks", "tests") for path in ROOT.glob(f"{folder}/**/*.py")
)


def test_imports_keep_the_layering_rules():
    assert violations(read_sources()) == []


def small_package(**changed):
    """A small package that keeps the rules. `changed` has sources of files: `package__module` for `package/module`."""
    sources = {
        "__init__": "from bertjax.engine import sweep",
        "cli": "from bertjax.results import Results",
        "errors": "",
        "paths": "from bertjax.errors import BertjaxError",
        "models/__init__": "from bertjax.models.ops import attend\n__all__ = ['attend']",
        "models/ops": "import jax",
        "models/encoder": "from flax import nnx\nfrom bertjax.models.ops import attend\nnnx.split",
        "engine/__init__": "from bertjax.engine.run import sweep\n__all__ = ['sweep']",
        "engine/run": "from bertjax.models import attend\nfrom bertjax.paths import user_path",
        "results/__init__": "from bertjax.results.table import Results\n__all__ = ['Results']",
        "results/table": "from bertjax.errors import BertjaxError",
    }
    sources |= {
        name.replace("__", "/", 1) if not name.startswith("__") else name: text for name, text in changed.items()
    }
    files = {f"bertjax/{name}.py": text for name, text in sources.items() if not name.startswith("experiments")}
    files |= {f"{name}.py": text for name, text in sources.items() if name.startswith("experiments")}
    return {path: File(path, text) for path, text in files.items()}


def test_a_small_package_keeps_the_rules():
    assert violations(small_package()) == []


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"models__ops": "from bertjax.engine import sweep"}, "bertjax/models/ops.py: may not use engine"),
        ({"errors": "from bertjax.models import attend"}, "bertjax/errors.py: may not use model"),
        (
            {"engine__run": "from bertjax.models.ops import attend"},
            "run.py: does not import from the `__init__` of model",
        ),
        ({"engine__run": "from bertjax.models import ops"}, "run.py: does not import from the `__init__` of model"),
        (
            {"experiments__x": "from bertjax.engine.run import sweep"},
            "x.py: does not import from the `__init__` of engine",
        ),
        (
            {"experiments__x": "from bertjax.paths import user_path"},
            "x.py: uses bertjax.paths, which is not",
        ),
        ({"experiments__x": "from bertjax.engine import pack"}, "x.py: uses bertjax.engine, which is not"),
        ({"engine__run": "from bertjax.cli import main"}, "run.py: may not use cli"),
        ({"engine__run": "from bertjax import sweep"}, "run.py: imports sweep from `bertjax` itself"),
        ({"models__ops": "from bertjax.models.encoder import x"}, "models: a circle of imports"),
        ({"errors": "from bertjax.paths import user_path"}, "utilities: a circle of imports"),
        ({"results__table": "def f():\n    import jax.numpy"}, "table.py: imports jax"),
        ({"results__table": "from flax import nnx"}, "table.py: imports flax"),
        ({"models__ops": "from flax import nnx"}, "ops.py: imports flax, but holds no parameters"),
        ({"models__encoder": "from flax import nnx\nnnx.jit"}, "encoder.py: uses nnx.jit"),
        ({"models__ops": "from jax._src import core"}, "ops.py: uses jax._src"),
        ({"models__ops": "import jax\njax._src.core"}, "ops.py: uses jax._src"),
        ({"experiments__x": "import jax._src.core"}, "x.py: uses jax._src"),
        ({"models__encoder": "from flax import linen"}, "encoder.py: takes linen from flax"),
        ({"models__encoder": "from flax.nnx import jit"}, "encoder.py: takes jit from flax"),
        ({"results__table": "from importlib import import_module\nimport_module('jax')"}, "table.py: imports jax"),
        ({"results__table": "import jaxlib"}, "table.py: imports jaxlib"),
        ({"models__ops": "from ..engine.run import sweep"}, "ops.py: imports by a relative path"),
        ({"models__ops": "from .encoder import Layer"}, "ops.py: imports by a relative path"),
        (
            {"models__encoder": "from bertjax.models import attend"},
            "encoder.py: imports attend from the `__init__` of its package",
        ),
        ({"engine__run": "from bertjax.models import attend\nattend._inner"}, "run.py: uses attend._inner"),
        ({"experiments__x": "def f(a, b, c, d, e, g, h): pass"}, "x.py: f takes 7 arguments by place"),
        ({"models__ops": "def f(a, b, c, d, e, g, h): pass"}, "ops.py: f takes 7 arguments by place"),
        ({"engine__sweep": ""}, "exports sweep, and a module beside it has that name"),
        ({"helpers": ""}, "bertjax/helpers.py: is in no package"),
        ({"kitchen__x": ""}, "bertjax/kitchen/x.py: kitchen is not a known package"),
        ({f"models__m{number}": "" for number in range(12)}, "models holds 14 modules"),
    ],
)
def test_each_kind_of_wrong_import_is_found(changed, line):
    found = violations(small_package(**changed))
    assert any(line in one for one in found), found


def test_files_and_functions_are_short():
    for path in ALL_FILES:
        text = path.read_text()
        assert text.count("\n") <= 600, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
                assert lines <= 40, f"{path}: {node.name} is {lines} lines"


def matches_in_tests(pattern):
    """Matches in the files under tests/, with the path of each."""
    paths = sorted((ROOT / "tests").glob("**/*.py"))
    return [(path.name, match) for path in paths for match in re.findall(pattern, path.read_text(), re.MULTILINE)]


def test_no_test_module_is_imported_by_another_module():
    """Code in strings counts too: tests run it in other processes."""
    dotted = matches_in_tests(r"\btests\.(?:\w+\.)*test_\w+")
    assert dotted + matches_in_tests(r"\bfrom tests[\w.]* import (?:[^(\n]*|\([^)]*)\btest_\w+") == []


def test_test_names_have_at_most_60_characters():
    names = matches_in_tests(r"^ *def (test_\w+)")
    assert len(names) > 1000
    assert [(file, name) for file, name in names if len(name) > 60] == []


def test_annotations_are_not_postponed():
    line = "from __future__ import annotations"
    assert [path for path in PACKAGE.glob("**/*.py") if line in path.read_text()] == []


@pytest.mark.integration
def test_commands_that_read_results_do_not_import_jax(tmp_path):
    results = str(make_results(tmp_path / "results", examples=30))
    commands = [["show", results], ["compare", results, results], ["report", results]]
    commands.append(["plot", results, "--output", "picture.png"])
    code = f"""
import sys
from bertjax.cli import main
for command in {commands!r}:
    assert main(command) == 0, command
    assert not {{"jax", "flax"}} & {{*sys.modules}}, command
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert found.returncode == 0, found.stderr


def test_the_package_names_its_public_api_and_imports_nothing():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.name: node.module for node in block.body for alias in node.names}
    assert set(typed) == set(bertjax.__all__) <= set(dir(bertjax))
    for name, module in typed.items():
        assert getattr(bertjax, name) is getattr(importlib.import_module(module), name)
    with pytest.raises(AttributeError, match="'bertjax' has no attribute 'nothing'"):
        bertjax.nothing  # noqa: B018
    code = "import bertjax, sys; print([name for name in sys.modules if name.startswith('bertjax')])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "['bertjax']"


SCRIPTS = ["anchors", "table1_finetuning", "fig2_patterns", "fig3_frames", "fig5_change", "fig6_features", "fig7_cls"]
SCRIPTS += [
    "fig8_heads",
    "fig9_layers",
    *(f"beyond.{path.stem}" for path in (ROOT / "experiments/beyond").glob("[!_]*")),
]


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_every_experiment_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"experiments.{name}").main(["--help"])
    assert ended.value.code == 0
    assert f"python -m experiments.{name} " in capsys.readouterr().out
