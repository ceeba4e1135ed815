"""Does the cost of a sweep grow as its plan says: linearly in examples, and in layers and heads as the FLOPs do?

Single-head ablations with the engine in float32 on random weights and MRPC's lengths; all sizes take turns in several
rounds, and medians are shown. FLOPs are those that the engine computes, padding slots included. If a size's GFLOP/s
fell far below the others', its cost would grow faster than its plan.

    python -m benchmarks.scaling                    about 10 minutes on two CPU cores
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import jax
from rich.console import Console
from rich.table import Table

import bertjax
from benchmarks.common import SIZES, describe_machine, draw_lengths, random_examples
from bertjax.interventions import Ablation, readouts, single_heads

# Layers, heads and examples, changed one at a time.
GRID = ((6, 12, 16), (6, 12, 32), (6, 12, 64), (6, 12, 128), (3, 12, 32), (12, 12, 32), (6, 4, 32), (6, 24, 32))


@dataclass(frozen=True)
class Sized:
    """A sweep of one size: its predicted cost, and a function that runs it and returns its seconds."""

    flops: float
    tokens: int
    run: Callable[[], float]


def make_sized(layers: int, heads: int, examples: int) -> Sized:
    """A sweep of this size, compiled."""
    config = bertjax.BertConfig(**{**SIZES["minilm"], "num_hidden_layers": layers, "num_attention_heads": heads})
    model = bertjax.BertForSequenceClassification(config, jax.random.key(0))
    lengths, ablations = draw_lengths("mrpc", examples), single_heads(config)
    texts = random_examples(lengths, config.vocab_size)

    def run(subset: list[Ablation]) -> float:
        return bertjax.sweep(model, texts, subset, readouts.logits, progress=False).seconds

    run(ablations[-2 * heads :])  # the heads of two layers need all kinds of steps
    cost = bertjax.plan_sweep(model, texts, ablations, readouts.logits).cost
    return Sized(cost.flops, sum(lengths), lambda: run(ablations))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    sweeps = {size: make_sized(*size) for size in GRID}
    seconds: dict[tuple[int, ...], list[float]] = {size: [] for size in GRID}
    for _ in range(options.rounds):
        for size, sized in sweeps.items():
            seconds[size].append(sized.run())
    table = Table(title=describe_machine())
    for column in ("layers", "heads", "examples", "tokens", "TFLOP", "seconds", "spread", "GFLOP/s"):
        table.add_column(column, justify="right")
    for size, sized in sweeps.items():
        median = statistics.median(seconds[size])
        spread = f"{min(seconds[size]):.1f}-{max(seconds[size]):.1f}"
        work = (f"{sized.flops / 1e12:.2f}", f"{median:.1f}", spread, f"{sized.flops / median / 1e9:.0f}")
        table.add_row(*map(str, size), f"{sized.tokens:,}", *work)
    Console().print(table)


if __name__ == "__main__":
    main()
