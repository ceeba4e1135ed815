"""Results of every task and analysis, written by two versions of bertjax and compared.

    python -m tests.golden inputs DIR                   # tiny models and data, once
    python -m tests.golden run DIR/inputs OLD --python OLD_PYTHON
    python -m tests.golden run DIR/inputs NEW --python NEW_PYTHON
    python -m tests.golden compare OLD NEW

The jobs are command lines, so that versions with another Python API can be compared. `compare` names what differs,
and by how much.
"""

import argparse
import signal
import subprocess
import sys
import time
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pandas as pd

SAMPLE = ("--limit", "24")
TEMPLATE = ("--template", "The {} of the house .")
ANALYSES = {
    "shapley": ("shapley", "--permutations", "4"),
    "interactions": ("interactions",),
    "importance": ("importance",),
    "prune": ("prune", "--orders", "gradient", "random", "greedy", "--points", "3"),
    "roles": ("roles",),
    "layers": ("ablate", "--ablate", "layers"),
    "pairs": ("ablate", "--ablate", "pairs"),
    "mean": ("ablate", "--mode", "mean"),
    "reference": ("ablate", "--engine", "reference"),
}
OF_TEXTS = {"roles", "reference"}  # refused where examples are not texts or pairs
REAL_MODEL = {
    **{f"minilm-{mode}": ("ablate", "--mode", mode, *SAMPLE) for mode in ("uniform", "zero", "mean")},
    "minilm-layers": ("ablate", "--ablate", "layers", *SAMPLE),
    "minilm-pairs": ("ablate", "--ablate", "pairs", "--heads", "0.1", "2.3", "4.5", "5.5", *SAMPLE),
    "minilm-patch": ("patch", *TEMPLATE, "--words", "door/window", "roof/floor", "--second", "A house has a door ."),
}
INTERRUPTED = ("ablate", "--ablate", "pairs", *SAMPLE)  # 2,556 runs, some seconds
INTERRUPT_AFTER = 12.0  # seconds


def write_inputs(directory: Path) -> None:
    """A tiny model and a data file for each task."""
    from tests.task_factories import LABEL_TASK_FACTORIES, TASK_FACTORIES

    for name, (make, write, file) in (TASK_FACTORIES | LABEL_TASK_FACTORIES).items():
        folder = directory / name
        folder.mkdir(parents=True)
        make(folder / "model")
        write(folder / ("pairs.tsv" if name in LABEL_TASK_FACTORIES else file))


def jobs(inputs: Path) -> dict[str, tuple[str, ...]]:
    """Name and command line of each job."""
    found = dict(REAL_MODEL)
    for folder in sorted(inputs.iterdir()):
        (data,) = (path for path in folder.iterdir() if path.name != "model")
        task = folder.name if data.name != "pairs.tsv" or folder.name == "minimal-pairs" else "mrpc"
        options = ("--model", str(folder / "model"), "--task", task, "--data", str(data))
        found[f"task-{folder.name}"] = ("ablate", "--mode", "zero", *options)
        analyses = {"classifier": ANALYSES.keys(), "question-answering": ANALYSES.keys() - OF_TEXTS}.get(
            folder.name, ()
        )
        found |= {f"{name}-{folder.name}": (*ANALYSES[name], *options) for name in sorted(analyses)}
    return found


def run(inputs: Path, output: Path, python: str) -> int:
    """Run all jobs with one version. Returns how many failed."""
    output.mkdir(parents=True)
    failed = 0
    for name, line in jobs(inputs).items():
        command = [python, "-P", "-m", "bertjax", *line, "--output", str(output / name)]
        ended = subprocess.run(command, capture_output=True, text=True)
        (output / f"{name}.log").write_text(ended.stdout + ended.stderr)
        failed += ended.returncode != 0
        print(name, ended.returncode, flush=True)
    command = [python, "-P", "-m", "bertjax", *INTERRUPTED, "--output", str(output / "interrupted")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        time.sleep(INTERRUPT_AFTER)
        process.send_signal(signal.SIGINT)
    print("interrupted", process.returncode, subprocess.run(command, capture_output=True).returncode)
    return failed


def arrays_in(path: Path) -> dict[str, np.ndarray]:
    """The arrays or columns of a file of results."""
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return dict(arrays)
    frame = pd.read_parquet(path)
    return {str(column): frame[column].to_numpy() for column in frame.columns}


def difference(old: np.ndarray, new: np.ndarray) -> str:
    """How two arrays differ; empty if they do not."""
    if old.shape != new.shape or old.dtype != new.dtype:
        return f"{old.dtype}{old.shape} -> {new.dtype}{new.shape}"
    if old.dtype.kind in "fiu":
        if np.array_equal(old, new, equal_nan=old.dtype.kind == "f"):
            return ""
        return f"largest difference {np.nanmax(np.abs(old.astype(float) - new.astype(float))):.3g}"
    return "" if list(map(str, old)) == list(map(str, new)) else "other values"


def differences(old: Path, new: Path) -> list[str]:
    """What differs between the results of one job."""
    found = []
    for path in sorted(p for p in old.rglob("*") if p.suffix in (".npz", ".parquet", ".jsonl")):
        other = new / path.relative_to(old)
        if not other.is_file():
            found.append(f"{path.name}: missing")
        elif path.read_bytes() != other.read_bytes():
            if path.suffix == ".jsonl":
                found.append(f"{path.name}: other bytes")
                continue
            try:
                before, after = arrays_in(path), arrays_in(other)
            except (BadZipFile, ValueError) as error:
                found.append(f"{path.name}: {error}")
                continue
            names = [f"{path.name}: {name} only in one" for name in sorted(before.keys() ^ after.keys())]
            changed = [(name, difference(before[name], after[name])) for name in before if name in after]
            lines = names + [f"{path.name}: {name}: {line}" for name, line in changed if line]
            found += lines or [f"{path.name}: other bytes, the same values"]
    return found


def compare(old: Path, new: Path) -> int:
    """Print what differs. Returns how many jobs differ in values."""
    changed = 0
    for folder in sorted(path for path in old.iterdir() if path.is_dir()):
        found = differences(folder, new / folder.name)
        changed += any("the same values" not in line for line in found)
        print(folder.name, *(found or ["the same bytes"]), sep="\n    " if found else ": ")
    return changed


def main() -> int:
    """One of the three commands."""
    parser = argparse.ArgumentParser(description="Golden results.", allow_abbrev=False)
    parser.add_argument("command", choices=("inputs", "run", "compare"))
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--python", default=sys.executable, help="the Python that has the version")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what runs in the background ignore it
    paths = [path.absolute() for path in options.paths]
    if options.command == "inputs":
        write_inputs(paths[0])
        return 0
    return run(paths[0], paths[1], options.python) if options.command == "run" else compare(paths[0], paths[1])


if __name__ == "__main__":
    raise SystemExit(main())
