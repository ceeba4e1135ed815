"""Do the engine's predictions equal those of the simple form, a full forward pass for each ablation?

BERT-base sizes with random weights, real lengths from MRPC, float32: all 144 heads and the base run on each example.
Counts the predictions that differ, and counts separately those whose margin between the two labels is so small that
rounding may decide.

    python -m benchmarks.exactness                  100 examples; about 40 minutes on two CPU cores
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

import bertjax
from benchmarks.common import describe_machine, draw_lengths, random_examples
from benchmarks.rivals import make_checkpoint
from bertjax.data import batches_by_length, collate
from bertjax.engine import reference
from bertjax.interventions import readouts, single_heads, to_overrides

MARGIN = 4e-5  # twice the largest difference allowed in float32


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--examples", type=int, default=100)
    options = parser.parse_args()
    lengths = draw_lengths("mrpc", options.examples)
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(Path(folder), bertjax.BertConfig())
        model = bertjax.load(folder)
    examples, ablations = random_examples(lengths, model.config.vocab_size), single_heads(model.config)
    swept = bertjax.sweep(model, examples, ablations, readouts.logits)
    batches = [
        (indices, collate([examples[index] for index in indices], length))
        for indices, length in batches_by_length(lengths, 4)
    ]
    overrides = [to_overrides(model.config, ablation) for ablation in ablations]
    expected = reference.sweep(model, batches, overrides, readouts.logits)
    ours, theirs = (np.concatenate([result.base[None], result.outputs]) for result in (swept, expected))
    margins = np.abs(theirs[..., 1] - theirs[..., 0])
    differing = ours.argmax(-1) != theirs.argmax(-1)
    print(describe_machine())
    print(f"{ours.shape[0]} runs x {ours.shape[1]} examples: {differing.size:,} predictions")
    print(f"largest difference of a logit: {np.abs(ours - theirs).max():.1e}")
    print(f"margins under {MARGIN:.0e}: {(margins < MARGIN).sum():,}, of them decided otherwise: ", end="")
    print(f"{(differing & (margins < MARGIN)).sum():,}")
    print(f"predictions that differ at larger margins: {(differing & (margins >= MARGIN)).sum():,}")


if __name__ == "__main__":
    main()
