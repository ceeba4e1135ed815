"""How many tokens should one step of the sweep hold on this device?

Times the engine's steps on BERT-base sizes, random weights and MRPC's lengths, for blocks of several sizes. Rates count
only the matrix products (2 FLOPs for each multiply-add), padding slots included.

    python -m benchmarks.step_size        about a minute on two CPU cores
"""

import argparse
import statistics

import jax
from rich.console import Console
from rich.table import Table

import bertjax
from benchmarks.common import SIZES, describe_machine, draw_lengths, random_examples
from bertjax.engine import choose_sizes, default_tokens, estimate_with_sizes, make_sweep_input
from bertjax.interventions import readouts, single_heads

TOKENS = (192, 384, 768, 1536, 3072, 6144, 12288)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--size", choices=list(SIZES), default="base")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    config = bertjax.BertConfig(**{**SIZES[options.size], "num_hidden_layers": 2})
    model = bertjax.BertForSequenceClassification(config, jax.random.key(0))
    texts = random_examples(draw_lengths("mrpc", 128), config.vocab_size)
    sweep_input = make_sweep_input(model, texts, single_heads(config), readouts.logits)
    several = [choose_sizes(sweep_input, tokens_at_once=tokens) for tokens in TOKENS]
    rates = [[estimate_with_sizes(sweep_input, sizes).rate / 1e9 for sizes in several] for _ in range(options.rounds)]
    table = Table(title=f"{describe_machine()}; default {default_tokens(config):,} tokens")
    for name in ("runs", "rows", "slots of a row", "tokens", "GFLOP/s", "spread"):
        table.add_column(name, justify="right")
    for sizes, own_rates in zip(several, zip(*rates, strict=True), strict=True):
        pieces = (sizes.runs, sizes.rows, sizes.row_length)
        tokens = sizes.runs * sizes.rows * sizes.row_length
        spread = f"{min(own_rates):.0f}-{max(own_rates):.0f}"
        table.add_row(*map(str, pieces), f"{tokens:,}", f"{statistics.median(own_rates):.0f}", spread)
    Console().print(table)


if __name__ == "__main__":
    main()
