"""What does it save to leave heads' weights out? A checkpoint without half of its heads, compared with the whole one.

BERT-base's shape with random weights and half of its heads removed at random: the whole model, the one of the same
shape whose removed heads have weights of 0, and the smaller one. Bytes of the weights; operations of a pass as the plan
counts them; memory that a process of its own holds more once it has loaded the checkpoint, and at most while it runs a
pass; seconds of one pass over padded batches (`model(batch)`) and of a sweep of all heads that each has, in one
process, medians of several rounds; and how far the outputs of the two that lack heads are apart.

    python -m benchmarks.smaller [--pairs 16] [--rounds 3]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import bertjax
from benchmarks.common import config_of, describe_machine, draw_lengths, random_examples, time_in_turns
from benchmarks.rivals import make_checkpoint
from bertjax.data import collate
from bertjax.engine import plan_sweep, sweep
from bertjax.interventions import every_head, readouts, remove_heads, single_heads
from bertjax.models import PretrainedModel

BATCH = 8
SITES = {"whole": "whole", "zeroed": "half of the heads at 0", "smaller": "half left out"}  # directories
# What a process of its own does: bytes that it holds before a checkpoint is loaded, after that, and at most in a pass.
ALONE = """
import json, sys
import bertjax
from bertjax.engine import memory_in_use, peak_memory
from benchmarks.common import random_examples
before = memory_in_use()
model = bertjax.load(sys.argv[1])
loaded = memory_in_use()
texts = random_examples(json.loads(sys.argv[2]), model.config.vocab_size)
model(bertjax.collate(texts)).logits.block_until_ready()
print(json.dumps([loaded - before, peak_memory()["resident"] - before]))
"""


def models(folder: Path) -> dict[str, PretrainedModel]:
    """The whole model, the one with heads of 0, and the smaller one."""
    config = config_of("base")
    make_checkpoint(folder / "whole", config)
    whole, zeroed = bertjax.load(folder / "whole"), bertjax.load(folder / "whole")
    heads = every_head(config)
    drawn = np.random.default_rng(0).permutation(len(heads))[: len(heads) // 2]
    gone = [heads[place] for place in drawn]
    remove_heads(zeroed, gone)
    whole.save_pretrained(folder / "smaller", without=gone)
    zeroed.save_pretrained(folder / "zeroed")
    smaller = bertjax.load(folder / "smaller")
    return {SITES["whole"]: whole, SITES["zeroed"]: zeroed, SITES["smaller"]: smaller}


def memory_of(directory: Path, lengths: list[int]) -> tuple[float, float]:
    """MB that a process holds more once a checkpoint is loaded, and at most in a pass; the least of three processes."""
    command = [sys.executable, "-c", ALONE, str(directory), json.dumps(lengths)]
    found = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(3)]
    loaded, most = np.min(found, axis=0) / 1e6
    return float(loaded), float(most)


def table_of(
    several: dict[str, PretrainedModel],
    medians: dict[tuple[str, str], float],
    memory: dict[str, tuple[float, float]],
    pairs: int,
    texts: Any,
) -> Table:
    """A row for each model."""
    headings = ("model", "weights, MB", "loaded, MB", "in a pass, MB", "TFLOP a pass")
    table = Table(*headings, "forward, s", "heads", "sweep, s", "ms a head and pair")
    for name, model in several.items():
        heads = single_heads(model.config, "zero")
        work = plan_sweep(model, texts, heads[-1:], readouts.logits).cost.necessary / 1e12
        size = sum(array.nbytes for array in model.weights().values()) / 1e6
        taken = medians[name, "sweep"]
        loaded, most = memory[name]
        cells = (
            f"{size:.0f}",
            f"{loaded:.0f}",
            f"{most:.0f}",
            f"{work:.3f}",
            f"{medians[name, 'forward']:.2f}",
            f"{len(heads)}",
            f"{taken:.1f}",
        )
        table.add_row(name, *cells, f"{1000 * taken / len(heads) / pairs:.2f}")
    return table


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    console = Console(width=120)
    console.print(describe_machine())
    with tempfile.TemporaryDirectory() as folder:
        several = models(Path(folder))
        lengths = sorted(draw_lengths("mrpc", options.pairs))
        memory = {name: memory_of(Path(folder) / place, lengths[:BATCH]) for place, name in SITES.items()}
    texts = random_examples(lengths, several["whole"].config.vocab_size)
    batches = [collate(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)]
    jobs: dict[tuple[str, str], Callable[[], Any]] = {}
    for name, model in several.items():
        heads = single_heads(model.config, "zero")

        def forward(model: PretrainedModel = model) -> np.ndarray:
            return np.concatenate([np.asarray(model(batch).logits) for batch in batches])

        def swept(model: PretrainedModel = model, heads: Any = heads) -> Any:
            return sweep(model, texts, heads, readouts.logits, progress=False)

        jobs |= {(name, "forward"): forward, (name, "sweep"): swept}
    medians = time_in_turns(jobs, options.rounds)
    console.print(table_of(several, medians, memory, options.pairs, texts))
    apart = np.abs(jobs["half of the heads at 0", "forward"]() - jobs["half left out", "forward"]()).max()
    console.print(f"largest difference of logits between the two without half of the heads: {apart:.1e}")


if __name__ == "__main__":
    main()
