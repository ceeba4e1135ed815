"""How much time and memory do the statistics of attention take, compared with PyTorch?

The statistics of section 4.3 (similarity of two models' maps) and 4.4 (largest column mean of each feature) of
`experiments/`, for BERT-base-sized models with random weights on random texts of real lengths. Each side runs in its
own process on the same number of threads; all sides take turns in each round, and medians are shown. PyTorch:
transformers, eager attention, sorted by length; and as the paper's authors do it, one example at a time, padded to 200
(some examples, scaled to all, since all cost the same). The numbers must agree to 1e-4 (4.3) and 1e-5 (4.4).

    python -m benchmarks.attention_statistics --examples 1000        half an hour on two CPU cores
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common import SIZES, TASKS, describe_machine, draw_lengths
from bertjax.machine import peak_resident

ALLOWED = {"4.3": 1e-4, "4.4": 1e-5}
FEATURES, PADDED = 8, 200


@dataclass
class Side:
    """A process that computes statistics on request."""

    name: str
    key: str
    command: list[str]
    share: float = 1.0
    seconds: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in ALLOWED})
    process: Any = None

    def start(self) -> None:
        """Start the process; it loads the models before the clock runs."""
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([sys.executable, "-m", *self.command], **pipes)

    def run(self, statistic: str) -> float:
        """Seconds for all examples."""
        print(statistic, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.name} died")
        self.seconds[statistic].append(float(answer) / self.share)
        return self.seconds[statistic][-1]

    def peak(self) -> int:
        """Peak resident bytes; 0 where the system does not report them."""
        return peak_resident(self.process.pid) or 0

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()


def make_inputs(folder: Path, size: str, lengths: list[int]) -> None:
    """Two random models, random texts of these lengths, and random tokens for each feature."""
    import torch
    from transformers import BertConfig, BertModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    # Wide weights: with the usual 0.02, random heads attend almost evenly, and any numbers would agree.
    config = BertConfig(**SIZES[size], initializer_range=0.06)
    for seed, name in enumerate(("base", "tuned")):
        torch.manual_seed(seed)
        BertModel(config).eval().save_pretrained(folder / name)
    rng, shape = np.random.default_rng(0), (len(lengths), PADDED)
    real = np.arange(PADDED)[None] < np.array(lengths)[:, None]
    ids = np.where(real, rng.integers(0, config.vocab_size, shape), 0)
    masks = (rng.random((len(lengths), FEATURES, PADDED)) < 0.1) & real[:, None]
    np.savez(folder / "inputs.npz", ids=ids.astype(np.int32), lengths=np.array(lengths), masks=masks)


def check_agreement(folder: Path, sides: list[Side], padded: int) -> dict[str, float]:
    """The largest difference of each statistic between bertjax and PyTorch; exits if one is too large."""
    largest: dict[str, float] = {}
    for name, allowed in ALLOWED.items():
        ours = np.load(folder / f"bertjax-{name}.npy")
        for side in sides[1:]:
            count = padded if side.share < 1 else len(ours)
            theirs = np.load(folder / f"{side.key}-{name}.npy")
            gap = float(np.abs(ours[:count] - theirs[:count]).max())
            largest[name] = max(largest.get(name, 0.0), gap)
            if not gap <= allowed:
                raise SystemExit(f"{name}: {side.name} differs from bertjax by {gap:.1e}, more than {allowed:.0e}")
    return largest


def show(sides: list[Side], options: argparse.Namespace, differences: dict[str, float], threads: int) -> None:
    """Print the table."""
    console = Console(width=max(110, Console().width))
    torch_version = f"torch {version('torch')}, transformers {version('transformers')}"
    title = f"{options.examples} examples of {options.lengths}'s lengths, BERT {options.size}, {threads} threads"
    table = Table(title=f"{title}\n{describe_machine()}, {torch_version}")
    for column in ("statistic", "", "first", "median", "spread", "ratio", "peak GB"):
        table.add_column(column, justify="right" if column not in ("statistic", "") else "left")
    for name in ALLOWED:
        ours = statistics.median(sides[0].seconds[name][1:])
        for side in sides:
            first, *rest = side.seconds[name]
            middle, spread = statistics.median(rest), f"{min(rest):.1f}-{max(rest):.1f}"
            memory = f"{side.peak() / 1e9:.2f}"
            table.add_row(name, side.name, f"{first:.1f}", f"{middle:.1f}", spread, f"{middle / ours:.2f}", memory)
    console.print(table)
    console.print(
        "first: seconds of the first round, with compilation; median of the others; ratio to bertjax's median;"
    )
    console.print("peak: resident memory of the process, both statistics and both models")
    console.print("largest differences: " + ", ".join(f"{name} {value:.1e}" for name, value in differences.items()))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--size", choices=list(SIZES), default="base")
    parser.add_argument("--lengths", choices=TASKS, default="mrpc")
    parser.add_argument("--rounds", type=int, default=3, help="after a first one, which compiles")
    parser.add_argument("--batch", type=int, nargs="+", default=[8, 16, 32], help="of PyTorch, sorted by length")
    parser.add_argument("--padded", type=int, default=32, help="examples that are timed one at a time, padded to 200")
    options = parser.parse_args()
    threads, padded = len(os.sched_getaffinity(0)), min(options.padded, options.examples)
    lengths = [min(length, PADDED) for length in draw_lengths(options.lengths, options.examples)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_inputs(folder, options.size, lengths)
        torch_side = ["benchmarks.attention_torch", name, str(threads)]
        alone = "PyTorch eager, one at a time, padded to 200"
        sides = [
            Side("bertjax", "bertjax", ["benchmarks.attention_ours", name]),
            *(
                Side(f"PyTorch eager, sorted, batch {size}", f"sorted-{size}", [*torch_side, str(size), "0"])
                for size in options.batch
            ),
            Side(alone, "padded", [*torch_side, "1", str(padded)], padded / options.examples),
        ]
        try:
            for side in sides:
                side.start()
            for number in range(options.rounds + 1):
                for statistic in ALLOWED:
                    for side in sides:
                        print(f"round {number}, {statistic}, {side.name}: {side.run(statistic):.1f} s", file=sys.stderr)
            show(sides, options, check_agreement(folder, sides, padded), threads)
        finally:
            for side in sides:
                side.stop()


if __name__ == "__main__":
    main()
