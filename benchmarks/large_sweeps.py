"""What a large sweep costs besides its steps: the plan, memory, the journal, resuming; and is the estimate true?

A random model of 12 layers x 12 heads, narrow, so that a sweep of very many runs takes minutes. Each sweep runs in a
process of its own. `plan`: seconds until the runs of all sets are known. `estimated`: seconds by `bertjax.plan_sweep`.
`journal`: how much longer the same sweep takes with one. `resume`: seconds, in a new process, from the start of `sweep`
on a journal of which half is finished to the first new step.

    python -m benchmarks.large_sweeps
    python -m benchmarks.large_sweeps --shapes "all pairs" --rounds 1
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import bertjax
from benchmarks.common import describe_machine, random_examples
from bertjax.engine import make_plan
from bertjax.interventions import Ablation, head_pairs, random_subsets, readouts, single_heads
from bertjax.machine import peak_resident

CONFIG = bertjax.BertConfig(vocab_size=2000, hidden_size=48, intermediate_size=96, max_position_embeddings=64)


@dataclass(frozen=True)
class Shape:
    """A sweep: its sets of heads, and of how many examples of how many tokens."""

    sets: Callable[[], list[Ablation]]
    examples: int
    tokens: tuple[int, int] = (6, 16)


SHAPES = {
    "20,000 examples": Shape(lambda: single_heads(CONFIG)[::6], 20_000),
    "all pairs": Shape(lambda: head_pairs(CONFIG), 100),
    "100,000 sets of 5": Shape(lambda: random_subsets(CONFIG, size=5, count=100_000), 10),
}


class Stop(Exception):
    """Ends a sweep in its middle."""


def work(name: str, scale: float, job: str, journal: str | None, pipe: Connection) -> None:
    """One sweep, or its estimate, in this process; sends the measurements."""
    shape, rng = SHAPES[name], np.random.default_rng(0)
    model = bertjax.BertForSequenceClassification(CONFIG, jax.random.key(0))
    lengths = rng.integers(*shape.tokens, max(2, int(scale * shape.examples)), endpoint=True)
    texts, sets = random_examples(lengths.tolist(), CONFIG.vocab_size), shape.sets()
    found: dict[str, Any] = {"sets": len(sets), "examples": len(texts)}
    started, begun = time.perf_counter(), -1.0

    def report(done: float, total: float) -> None:
        nonlocal begun
        begun = done if begun < 0 else begun  # what a journal holds
        if done > begun and "first" not in found:
            found["first"] = time.perf_counter() - started
        if job == "half" and done > total / 2:
            raise Stop

    if job == "plan":
        make_plan(CONFIG, sets)
        found["plan"] = time.perf_counter() - started
        estimate = bertjax.plan_sweep(model, texts, sets, readouts.logits)
        found |= {
            "estimate": time.perf_counter() - started,
            "estimated": estimate.seconds,
            "peak_estimated": estimate.peak_bytes,
        }
    else:
        try:
            swept = bertjax.sweep(model, texts, sets, readouts.logits, journal=journal, progress=report)
            found["seconds"] = swept.seconds
        except Stop:
            pass
        found["peak"] = peak_resident()
    pipe.send(found)


def measure(name: str, scale: float, job: str, journal: Path | None = None) -> dict[str, Any]:
    """What one process measured."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(name, scale, job, None if journal is None else str(journal), theirs))
    process.start()
    theirs.close()
    found: dict[str, Any] = ours.recv()
    process.join()
    return found


def measure_shape(name: str, scale: float, rounds: int) -> dict[str, Any]:
    """All that is measured of one sweep."""
    found = measure(name, scale, "plan")
    plain: list[float] = []
    kept: list[float] = []
    peaks: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            alone, with_journal = (measure(name, scale, "whole", place) for place in (None, Path(folder) / str(number)))
            plain.append(alone["seconds"])
            kept.append(with_journal["seconds"])
            peaks += [alone["peak"], with_journal["peak"]]
        measure(name, scale, "half", Path(folder) / "half")
        resumed = measure(name, scale, "whole", Path(folder) / "half")
    return found | {"plain": plain, "kept": kept, "peak": max(peaks), "resume": resumed["first"]}


def table_of(found: dict[str, dict[str, Any]]) -> Table:
    """A row for each sweep."""
    table = Table(title=describe_machine())
    names = (
        "sweep",
        "runs x examples",
        "plan",
        "estimate",
        "estimated",
        "took",
        "estimated/took",
        "peak estimated",
        "peak",
    )
    for name in (*names, "journal", "resume"):
        table.add_column(name, justify="right")
    for name, one in found.items():
        took, kept = min(one["plain"]), min(one["kept"])
        table.add_row(
            *(name, f"{one['sets']:,} x {one['examples']:,}", f"{one['plan']:.1f} s", f"{one['estimate']:.1f} s"),
            *(f"{one['estimated']:.0f} s", f"{took:.0f} s", f"{one['estimated'] / took:.2f}"),
            *(f"{one['peak_estimated'] / 1e6:,.0f} MB", f"{one['peak'] / 1e6:,.0f} MB"),
            *(f"{100 * (kept / took - 1):+.1f} %", f"{one['resume']:.1f} s"),
        )
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--scale", type=float, default=1.0, help="share of the examples (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--output", type=Path, help="a file for the numbers, as JSON")
    options = parser.parse_args(arguments)
    found = {name: measure_shape(name, options.scale, options.rounds) for name in options.shapes}
    Console(width=180).print(table_of(found))
    if options.output is not None:
        options.output.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
