"""Run all GPU measurements in one go: parity, sweep, forms of attention, kernel times (`make bench-gpu`).

Each program runs in its own process, prints as it goes and leaves its output in DIR: DIR/NAME.txt, and its own JSON and
pictures. A failure does not stop the others. At the end DIR/summary.md holds the device, the versions, each program's
output and its run time: review it, and copy it into RESULTS.md.

    python -m benchmarks.gpu --output bench-gpu        about half an hour on a large GPU
    python -m benchmarks.gpu --small                   everything at toy sizes, on any device: does it run?
"""

import argparse
import importlib.util
import itertools
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import jax

from benchmarks.common import describe_machine
from bertjax.atomic_files import atomic_write
from bertjax.checkpoints import DEFAULT_MODEL

# The most lines of each program's output that go into the summary.
KEPT_LINES = 200
RIVALS = (
    *("torch_sorted_sdpa", "torch_sorted_sdpa_bfloat16", "engine_bfloat16"),
    *("engine_fused", "engine_bfloat16_fused"),
)
SMALL_RIVALS = ("torch_sorted_sdpa", "engine_fused")


@dataclass(frozen=True)
class Run:
    """A program and its options."""

    name: str
    module: str
    options: tuple[str, ...]


def list_runs(directory: Path, small: bool) -> list[Run]:
    """The programs to run, in order."""

    def into(name: str) -> str:
        return str(directory / name)

    sizes = "--size minilm --examples 2 --rounds 1 --timed 1" if small else "--examples 408 --rounds 5"
    forms = "--lengths 16 --tokens 64 --heads 2 --head-dim 16 --rounds 1" if small else "--rounds 9"
    traced = "--size minilm --examples 2" if small else "--examples 408"
    rivals = SMALL_RIVALS if small else RIVALS
    runs = [
        Run("parity", "bertjax.cli", ("parity", "--model", DEFAULT_MODEL, "--examples", "2" if small else "8")),
        Run("attention", "benchmarks.attention", (*forms.split(), "--output", into("attention"))),
        Run("sweep", "benchmarks.sweep", (*sizes.split(), "--only", *rivals, "--json", into("sweep.json"))),
    ]
    forms_traced = ("explicit",) if small else ("explicit", "fused")
    for precision, form in itertools.product(("float32", "bfloat16"), forms_traced):
        name = f"kernel_times_{precision}_{form}"
        options = (*traced.split(), "--precision", precision, "--attention", form, "--output", into(name))
        runs.append(Run(name, "benchmarks.kernel_times", options))
    return runs


def run_one(run: Run, directory: Path) -> tuple[int, float, list[str]]:
    """Run a program, echoing its output as it comes. Returns its exit code, seconds and lines."""
    command = [sys.executable, "-m", run.module, *run.options]
    print(f"== {run.name}: {' '.join(command[1:])}", flush=True)
    started, lines = time.monotonic(), []
    environment = {**os.environ, "COLUMNS": "120", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    atomic_write(directory / f"{run.name}.txt", "".join(lines).encode())
    return child.returncode, time.monotonic() - started, lines


def describe(run: Run, code: int, seconds: float, lines: list[str]) -> str:
    """A program's part of the summary."""
    ending = f"{seconds:.0f} s" if code == 0 else f"failed with exit code {code} after {seconds:.0f} s"
    tail = "".join(lines[-KEPT_LINES:])
    return f"## {run.name} ({ending})\n\n`python -m {run.module} {' '.join(run.options)}`\n\n```\n{tail}```\n"


def _torch_has_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def main(arguments: list[str] | None = None) -> int:
    """Run everything; return exit code 1 if anything failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--output", default="bench-gpu", metavar="DIR")
    parser.add_argument("--small", action="store_true", help="toy sizes, on any device")
    options = parser.parse_args(arguments)
    backend = jax.default_backend()
    if backend != "gpu" and not options.small:
        parser.error(f"JAX sees no GPU here, only {backend}: --small tries everything at toy sizes on any device")
    if backend == "gpu" and not _torch_has_gpu():
        parser.error("PyTorch is missing or sees no GPU, so its times would be those of the CPU: install a CUDA build")
    directory = Path(options.output)
    directory.mkdir(parents=True, exist_ok=True)
    parts, failed = [f"# {describe_machine()}\n"], []
    for run in list_runs(directory, options.small):
        code, seconds, lines = run_one(run, directory)
        parts.append(describe(run, code, seconds, lines))
        atomic_write(directory / "summary.md", "\n".join(parts).encode())
        failed += [run.name] if code else []
    print(f"failed: {', '.join(failed)}" if failed else "all ran", f"({directory / 'summary.md'})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
