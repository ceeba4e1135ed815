"""How many tokens should one step of the sweep hold?

Times one vmapped layer (the `_continue` step of `bertjax.plain`) on the default model for several numbers of
ablations x texts x tokens. Rates count the matrix products only (2 FLOPs for each multiply-add).

    python -m benchmarks.step_size        about 3 minutes on two CPU cores
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
from flax import nnx
from rich.console import Console
from rich.table import Table

import bertjax
from benchmarks.common import describe_machine
from bertjax import overrides, plain
from bertjax.locate import DEFAULT_MODEL

SHAPES = ((12, 2, 16), (12, 4, 16), (12, 4, 32), (12, 8, 16), (6, 16, 16), (12, 8, 32), (12, 32, 16), (12, 32, 32))


def flops(ablations: int, texts: int, tokens: int, embed: int, mlp: int) -> int:
    """Multiply-adds of one layer, times 2: projections, attention, feed-forward."""
    per_token = 4 * embed * embed + 2 * embed * mlp + 2 * tokens * embed
    return 2 * ablations * texts * tokens * per_token


def seconds(layer: nnx.Module, config: bertjax.BertConfig, shape: tuple[int, int, int], repeats: int) -> list[float]:
    """Times of single steps, after one that compiles."""
    ablations, texts, tokens = shape
    heads = overrides.every_head(config)[:ablations]
    stacked = overrides.stack([overrides.uniform(config, [head]) for head in heads])
    keep = jnp.ones((texts, 1, tokens))
    hidden = jax.random.normal(jax.random.key(0), (ablations, texts, tokens, config.hidden_size))
    graphdef, state = nnx.split(layer)
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        hidden = jax.block_until_ready(plain._continue(graphdef, state, hidden, keep, stacked, 0))
        times.append(time.perf_counter() - start)
    return times[1:]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    model = bertjax.load(options.model)
    table = Table(title=f"One layer of {options.model}; {describe_machine()}")
    for name in ("ablations", "texts", "tokens", "all tokens", "median ms", "quartiles ms", "GFLOP/s"):
        table.add_column(name, justify="right")
    for shape in SHAPES:
        times = [1e3 * t for t in seconds(model.body.encoder.layers[0], model.config, shape, options.repeats)]
        low, middle, high = statistics.quantiles(times, n=4)
        rate = flops(*shape, model.config.hidden_size, model.config.intermediate_size) / middle / 1e6
        count = shape[0] * shape[1] * shape[2]
        table.add_row(*map(str, shape), f"{count:,}", f"{middle:.1f}", f"{low:.1f}-{high:.1f}", f"{rate:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
