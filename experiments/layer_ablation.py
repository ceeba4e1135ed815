"""What does each layer's attention do for a task? (Kovaleva et al. 2019, section 4.6, figure 9)

As `head_ablation.py`, but all heads of a layer are disabled together, one layer after another: uniform attention over
the real tokens (the paper's), outputs set to zero, and to their means. A layer's feed-forward part stays.

DIR/uniform, DIR/zero and DIR/mean hold what `bertjax report`, `show` and `compare` read.

--as-published reads GLUE's files as the authors' code does: see `head_ablation.py`.

    python -m experiments.layer_ablation --task stsb --data GLUE_DIR

On STS-B's 1,500 validation pairs, all-MiniLM-L6-v2 with cosine similarity (Spearman .8672), disabling no layer by
uniform attention helps; layer 5 costs most, 4.2 points, a random layer 1.4 (`RESULTS.md`). 5 minutes of processor time
for three modes and both readings.
"""

from collections.abc import Sequence

from bertjax.ablations import whole_layers
from bertjax.bars import draw_layers
from experiments.disabling.program import Kind, add_disabling_options, compute_disabling
from experiments.shared.program import make_parser, run_program

LAYERS = Kind("layer", whole_layers, draw_layers)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser("layer_ablation", __doc__)
    add_disabling_options(parser)
    return run_program(parser, lambda run: compute_disabling(run, LAYERS), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
