"""What do the paths of all heads to one receiver cost, for the first time and again?

Pairs of random texts that differ at one token, random weights, a receiver in the last layer, whose values read. The
first call compiles; the number of programs of whole models and the time are printed. Nothing is compared with it
here; that the paths are those of hooks in PyTorch is tested (`tests/interventions/test_patching.py`).

    python -m benchmarks.paths [--size base] [--contrasts 4] [--tokens 24] [--senders 0.1 3.2] [--freeze-feed-forward]
"""

import argparse
import time

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common import config_of, describe_machine
from bertjax import BertForSequenceClassification
from bertjax.analyses import patch_paths
from bertjax.interventions import readouts

compiled: list[float] = []  # seconds of each program of a whole model


def note(event: str, duration_secs: float, **facts: str | int) -> None:
    """Keep what JAX says of a program that it has compiled."""
    if event.endswith("backend_compile_duration") and facts.get("fun_name") == "jit(_run)":
        compiled.append(duration_secs)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--size", choices=["minilm", "base"], default="base")
    parser.add_argument("--contrasts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--senders", nargs="+", metavar="HEAD", help="in place of all heads below the receiver's layer")
    parser.add_argument("--freeze-feed-forward", action="store_true")
    parser.add_argument("--rounds", type=int, default=2, help="calls after the first")
    options = parser.parse_args()
    jax.monitoring.register_event_duration_secs_listener(note)
    config, rng = config_of(options.size, initializer_range=0.05), np.random.default_rng(0)
    model = BertForSequenceClassification(config, jax.random.key(0))
    clean = rng.integers(0, config.vocab_size, (options.contrasts, options.tokens))
    corrupted = np.where(np.arange(options.tokens) == options.tokens // 2, (clean + 1) % config.vocab_size, clean)
    table = Table("call", "seconds", "programs", "compiled in (s)")
    for number in range(1 + options.rounds):
        started, before = time.perf_counter(), len(compiled)
        senders, _ = patch_paths(
            model,
            {"input_ids": clean},
            {"input_ids": corrupted},
            receivers={"values": [(config.num_hidden_layers - 1, 3)]},
            readout=readouts.logits,
            senders=options.senders,
            freeze_feed_forward=options.freeze_feed_forward,
        )
        seconds, new = time.perf_counter() - started, compiled[before:]
        table.add_row("first" if number == 0 else "again", f"{seconds:.1f}", f"{len(new)}", f"{sum(new):.1f}")
    console = Console(width=110)
    console.print(describe_machine())
    console.print(f"{options.size}, {len(senders)} senders, {options.contrasts} pairs of {options.tokens} tokens")
    console.print(table)


if __name__ == "__main__":
    main()
