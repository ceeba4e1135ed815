"""What does the device do during a sweep? Time by kernel, and the device's idle time.

A sweep of all single heads of a BERT with random weights on examples of real lengths, run once to compile and once
under JAX's profiler. On a GPU or TPU, kernels have names of their own; on a CPU they are what XLA's threads ran. The
trace stays in DIR, for https://ui.perfetto.dev.

    python -m benchmarks.kernel_times --output kernel-times        a minute on two CPU cores
"""

import argparse
import gzip
import json
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

import bertjax
from benchmarks.common import SIZES, TASKS, config_of, describe_machine, draw_lengths, random_examples
from benchmarks.rivals import make_checkpoint
from bertjax.atomic_files import write_json
from bertjax.cli import positive
from bertjax.engine import sweep
from bertjax.interventions import readouts, single_heads
from bertjax.models import PretrainedModel

SHOWN = 20
# Events of a CPU's threads that enclose the work itself.
FRAMES = ("ThunkExecutor", "ThreadpoolListener", "CommonPjRt", "TfrtCpu", "SlinkyThreadPool", "end: ", "Handle inputs")


@dataclass(frozen=True)
class KernelTimes:
    """The times in a trace.

    Args:
        seconds: by kernel, over all its runs on all lanes.
        runs: number of runs by kernel.
        busy: seconds that the busiest lane (a GPU's stream, a CPU's thread) was busy.
    """

    seconds: dict[str, float]
    runs: dict[str, int]
    busy: float


def read_trace(events: list[dict[str, Any]]) -> KernelTimes:
    """The kernels of the devices in a trace; for a CPU, which has no device, those of XLA's threads."""
    names = {
        (event["name"], event["pid"], event.get("tid")): event["args"]["name"]
        for event in events
        if event.get("ph") == "M" and event["name"] in ("process_name", "thread_name")
    }
    devices = {pid for (kind, pid, _), name in names.items() if kind == "process_name" and "/device:" in name}
    lane_names = ("Stream", "XLA Ops") if devices else ("tf_XLA",)
    lanes = {
        (pid, tid)
        for (kind, pid, tid), name in names.items()
        if kind == "thread_name" and name.startswith(lane_names) and (pid in devices or not devices)
    }
    seconds, runs, busy = Counter[str](), Counter[str](), Counter[Any]()
    for event in events:
        lane = event.get("pid"), event.get("tid")
        if event.get("ph") == "X" and lane in lanes and not event["name"].startswith(FRAMES):
            seconds[event["name"]] += event["dur"] / 1e6
            runs[event["name"]] += 1
            busy[lane] += event["dur"] / 1e6
    return KernelTimes(dict(seconds.most_common()), dict(runs), max(busy.values(), default=0.0))


def trace_sweep(model: PretrainedModel, texts: list[Any], directory: Path, attention: str) -> tuple[KernelTimes, float]:
    """Run a sweep under the profiler. Returns the times in the trace and the sweep's seconds."""

    def run() -> float:
        started = time.perf_counter()
        sweep(model, texts, single_heads(model.config), readouts.logits, attention=attention, progress=False)
        return time.perf_counter() - started

    run()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(directory, create_perfetto_trace=True, profiler_options=options):
        seconds = run()
    newest = max(directory.rglob("perfetto_trace.json.gz"), key=lambda path: path.stat().st_mtime)
    with gzip.open(newest, "rt", encoding="utf-8") as file:
        return read_trace(json.load(file)["traceEvents"]), seconds


def show(console: Console, times: KernelTimes, seconds: float) -> None:
    """Print the kernels that took longest."""
    total = sum(times.seconds.values())
    if not total:
        raise SystemExit("the trace names no kernel: the profiler could not see this device")
    console.print(describe_machine())
    table = Table()
    for column in ("kernel", "runs", "seconds", "share"):
        table.add_column(column, justify="left" if column == "kernel" else "right", overflow="fold")
    for name, kernel_seconds in list(times.seconds.items())[:SHOWN]:
        table.add_row(name, f"{times.runs[name]:,}", f"{kernel_seconds:.3f}", f"{kernel_seconds / total:.3f}")
    console.print(table)
    console.print(
        f"sweep {seconds:.2f} s; all kernels {total:.2f} s; the busiest lane (stream or thread) is idle for "
        f"{max(0.0, 1 - times.busy / seconds):.0%} of the sweep"
    )


def main(arguments: list[str] | None = None) -> None:
    """Print the table; write trace and JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--size", choices=list(SIZES), default="base")
    parser.add_argument("--lengths", choices=TASKS, default="mrpc")
    parser.add_argument("--examples", type=positive, default=16)
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--attention", default="auto", choices=["auto", "explicit", "fused", "pallas"])
    parser.add_argument("--output", default="kernel-times", metavar="DIR")
    options = parser.parse_args(arguments)
    console = Console() if Console().is_terminal else Console(width=120)
    directory = Path(options.output)
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(Path(folder), config_of(options.size))
        model = bertjax.load(folder, dtype=options.precision)
    texts = random_examples(draw_lengths(options.lengths, options.examples), model.config.vocab_size)
    times, seconds = trace_sweep(model, texts, directory, options.attention)
    show(console, times, seconds)
    facts = {"machine": describe_machine(), "options": vars(options), "sweep_seconds": seconds}
    write_json(directory / "kernel_times.json", {**facts, **vars(times)})


if __name__ == "__main__":
    main()
