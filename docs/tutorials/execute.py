"""Run the tutorials from their first cell to their last, and keep what they show.

    python docs/tutorials/execute.py                  all, some minutes
    python docs/tutorials/execute.py demo patching    these

Each runs in a process and an empty directory of its own. Where a cell fails, its notebook stays as it was.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import nbclient
import nbformat

FOLDER = Path(__file__).parent
# Of a package that draws progress bars where ipywidgets is missing; its text names a directory of the machine.
QUIET = {"PYTHONWARNINGS": "ignore:IProgress not found"}


def run(notebook: nbformat.NotebookNode, directory: Path) -> float:
    """Run a notebook's cells, which keep what they show; returns how many seconds that took.

    Args:
        notebook: is changed.
        directory: where it runs.

    Raises:
        CellExecutionError: a cell failed.
    """
    resources = {"metadata": {"path": str(directory)}}
    client = nbclient.NotebookClient(
        notebook, timeout=1200, kernel_name="python3", resources=resources, record_timing=False
    )
    start = time.perf_counter()
    client.execute(env=os.environ | QUIET)
    return time.perf_counter() - start


def execute(path: Path) -> float:
    """Run a notebook and write it with its outputs; returns how many seconds that took."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as directory:
        seconds = run(notebook, Path(directory))
    nbformat.validate(notebook)
    nbformat.write(notebook, path)
    return seconds


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=sorted(path.stem for path in FOLDER.glob("*.ipynb")))
    for name in parser.parse_args().names:
        print(f"{name}: {execute(FOLDER / f'{name}.ipynb'):.0f} s", flush=True)


if __name__ == "__main__":
    main()
