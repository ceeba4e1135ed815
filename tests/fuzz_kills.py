"""Jobs that are killed at a random moment, by seed, and run again: the results are those of an undisturbed one.

`cases(seed, count)` gives the same cases for the same seed, `outcome(case)` what came of one; each takes seconds.
"""

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bertjax.engine.journal import count_parts
from bertjax.errors import BertjaxError
from bertjax.results.directory import read_results
from tests.factories import make_classifier, make_embedder, write_pairs
from tests.interruptions import COMMAND_OF_SMALL_PARTS

OUTCOMES = ("the same after a kill", "the same after several kills", "ended before the kill")
BROKEN = ("another exit code", "half-written", "other bytes", "something is left", "hang")
EXACT = ("outputs.npz", "examples.jsonl", "attention.npz", "results.parquet")
# What a summary says of the run, not of its results; and hashes of files, which are compared themselves.
OF_THE_RUN = ("seconds", "command", "files")
SIGNALS = {"SIGKILL": -signal.SIGKILL, "SIGTERM": -signal.SIGTERM, "SIGINT": 130}
JOBS: dict[str, tuple[str, ...]] = {
    "heads": (),
    "zero": ("--mode", "zero"),
    "mean": ("--mode", "mean"),
    "pairs": ("--ablate", "pairs"),
    "plain": ("--engine", "reference", "--batch-size", "8"),
    "embedder": (),
}
WAITING = 120  # seconds of a process


@dataclass(frozen=True)
class Case:
    """One case.

    Args:
        job: a key of `JOBS`.
        signals: with which it is ended, one after the other.
        number: the seed of the moments.
        overwrites: whether the command has `--overwrite` and finds older results.
    """

    job: str
    signals: tuple[str, ...]
    number: int
    overwrites: bool


def cases(seed: int, count: int) -> Iterator[Case]:
    """So many cases of all jobs in turn."""
    for place in range(count):
        rng = random.Random(seed * 1_000_003 + place)
        signals = tuple(rng.choice(("SIGKILL", *SIGNALS)) for _ in range(rng.choice((1, 1, 2, 3))))
        yield Case(list(JOBS)[place % len(JOBS)], signals, rng.randrange(2**32), rng.random() < 0.3)


def outcome(case: Case) -> str:
    """The outcome of a case: one of `OUTCOMES`, or one of `BROKEN` with the error after a colon."""
    rng, (whole, lasted) = random.Random(case.number), undisturbed(case.job)
    with tempfile.TemporaryDirectory() as folder:
        output, killed = Path(folder) / "out", 0
        command = command_of(case.job, output) + ["--overwrite"] * case.overwrites
        if case.overwrites:
            subprocess.run(command_of("layers", output), check=True, capture_output=True, timeout=WAITING)
        for name in case.signals:
            code = run_until(command, output, name, rng, lasted)
            if code not in (0, SIGNALS[name]):
                return f"another exit code: {code} after {name}"
            killed += code != 0
            if code == 0:
                break
            if wrong := half_written(output, case.overwrites):
                return wrong
        again = subprocess.run(command, capture_output=True, text=True, timeout=WAITING)
        complete = "already has results" in again.stderr and not case.overwrites
        if again.returncode != 0 and not complete:  # the kill came after the last file
            return f"another exit code: {again.returncode} the second time: {again.stderr[-500:]}"
        return differing(output, whole) or OUTCOMES[(2, 0, 1, 1)[killed]]


def command_of(job: str, output: Path) -> list[str]:
    """The command of a job, in parts so small that there are some to lose."""
    model = "embedder" if job == "embedder" else "classifier"
    options = JOBS.get(job, ("--ablate", "layers"))
    inputs = ("--model", str(inputs_of() / model), "--task", "mrpc", "--data", str(inputs_of() / "pairs.tsv"))
    return [sys.executable, "-c", COMMAND_OF_SMALL_PARTS, "ablate", *inputs, *options, "--output", str(output)]


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="bertjax-kills-")


def scratch() -> Path:
    """A directory of this process, which is removed when the process ends."""
    return Path(_scratch().name)


@cache
def inputs_of() -> Path:
    """Models and examples."""
    directory = scratch() / "killed"
    directory.mkdir()
    make_classifier(directory / "classifier")
    make_embedder(directory / "embedder")
    write_pairs(directory / "pairs.tsv", 40)
    return directory


@cache
def undisturbed(job: str) -> tuple[Path, float]:
    """The results of a job that nothing disturbs, and how many seconds it took (the second time, all compiled)."""
    output = scratch() / f"undisturbed {job}"
    for _ in range(2):
        started = time.monotonic()
        command = [*command_of(job, output), "--overwrite"]
        subprocess.run(command, check=True, capture_output=True, timeout=WAITING)
    return output, time.monotonic() - started


def run_until(command: Sequence[str], output: Path, name: str, rng: random.Random, lasted: float) -> int:
    """Run a command until a random moment, in time or in parts that it saved; its exit code."""
    before, parts = count_parts(output / "journal"), rng.choice((0, 0, 1, 2, 5))
    end = time.monotonic() + (rng.uniform(0.3, 1.05) * lasted if not parts else WAITING)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and time.monotonic() < end:
            if parts and count_parts(output / "journal") >= before + parts:
                time.sleep(rng.uniform(0, 0.3))
                break
            time.sleep(0.002)
        process.send_signal(signal.Signals[name])
        return process.wait(WAITING)


def half_written(output: Path, overwrites: bool) -> str:
    """The error in the files that a kill left: if there is a summary, the other files must be complete."""
    if not (output / "summary.json").exists():
        return ""
    try:
        saved = read_results(output)
        return "" if len(saved.outputs["outputs"]) == len(saved.names) else "half-written: fewer outputs than names"
    except BertjaxError as error:
        return f"half-written: {error}"


def differing(output: Path, whole: Path) -> str:
    """How results differ from others; nothing where they do not."""
    names = {path.name for path in output.iterdir()} ^ {path.name for path in whole.iterdir()}
    if names:
        return f"something is left: {sorted(names)}"
    for name in (*EXACT, *(path.name for path in whole.glob("*.png"))):
        if (output / name).read_bytes() != (whole / name).read_bytes():
            return f"other bytes: {name}"
    ours, theirs = (_lasting(json.loads((path / "summary.json").read_text())) for path in (output, whole))
    apart = [name for name in theirs if ours.get(name) != theirs[name]]
    return f"other bytes: {', '.join(apart)} of summary.json" if apart else ""


def _lasting(summary: dict[str, Any]) -> dict[str, Any]:
    settings = {**summary["settings"], "output": None, "overwrite": None}
    return {name: value for name, value in summary.items() if name not in OF_THE_RUN} | {"settings": settings}
