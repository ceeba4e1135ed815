"""Is the time true that `bertjax plan` tells?

Sweeps of several shapes on random models of BERT-base's and MiniLM's sizes and MRPC's lengths: `bertjax.plan_sweep` and
the sweep itself, in turns.

    python -m benchmarks.estimates        ten minutes on two CPU cores
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
from rich.console import Console
from rich.table import Table

import bertjax
from benchmarks.common import SIZES, describe_machine, draw_lengths, random_examples
from bertjax.interventions import Ablation, head_pairs, random_subsets, readouts, single_heads, whole_layers


@dataclass(frozen=True)
class Shape:
    """A model's size, how many pairs, and the sets of heads."""

    size: str
    pairs: int
    sets: Callable[[bertjax.BertConfig], list[Ablation]]


SHAPES = {
    "MiniLM, single heads": Shape("minilm", 300, single_heads),
    "MiniLM, pairs of heads": Shape("minilm", 24, head_pairs),
    "MiniLM, 200 sets of 8": Shape("minilm", 40, lambda config: random_subsets(config, size=8, count=200)),
    "BERT-base, single heads": Shape("base", 16, single_heads),
    "BERT-base, layers": Shape("base", 60, whole_layers),
}


def measure(shape: Shape, rounds: int) -> tuple[list[float], list[float]]:
    """Estimated and measured seconds of each round."""
    config = bertjax.BertConfig(**SIZES[shape.size])
    model = bertjax.BertForSequenceClassification(config, jax.random.key(0))
    texts, sets = random_examples(draw_lengths("mrpc", shape.pairs), config.vocab_size), shape.sets(config)
    estimated, took = [], []
    for _ in range(rounds):
        estimated.append(bertjax.plan_sweep(model, texts, sets, readouts.logits).seconds)
        took.append(bertjax.sweep(model, texts, sets, readouts.logits, progress=False).seconds)
    return estimated, took


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args(arguments)
    table = Table(title=describe_machine())
    for name in ("sweep", "pairs", "estimated (s)", "took (s)", "estimated / took"):
        table.add_column(name, justify="left" if name == "sweep" else "right")
    for name in options.shapes:
        estimated, took = measure(SHAPES[name], options.rounds)
        typical = statistics.median(took)
        table.add_row(
            *(name, str(SHAPES[name].pairs), ", ".join(f"{each:.1f}" for each in estimated)),
            *(", ".join(f"{each:.1f}" for each in took), ", ".join(f"{each / typical:.2f}" for each in estimated)),
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
