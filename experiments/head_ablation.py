"""What does each head do for a task? (Kovaleva et al. 2019, section 4.6, figure 8)

Every head alone is disabled, the model scores the task's validation set, and the map shows the scores against the one
with nothing disabled. How many heads raise, leave or lower the score, the largest gain and loss, what a random head
does, with intervals over the examples. Three ways of disabling: uniform attention over the real tokens (the paper's),
a head's output set to zero, and to its mean over the data; and how alike they rank the heads.

Takes a checkpoint with a classifier fine-tuned on the task, or a sentence embedder (cosine similarity of pairs; where
labels are classes, as MRPC's, that is scored by ROC AUC and average precision in place of accuracy and F1).

DIR/uniform, DIR/zero and DIR/mean hold the corrected results of each mode as `bertjax ablate` writes them: `bertjax
report DIR/uniform` says which heads matter for sure, `bertjax compare` whether they are the same.

--as-published reads GLUE's files as the authors' code does, with quote handling, which loses rows, and calls the score
of STS-B what the paper calls it; disabling itself is the same. What that changes is said.

    python -m experiments.head_ablation --task stsb --data GLUE_DIR

On STS-B's 1,500 validation pairs, all-MiniLM-L6-v2 with cosine similarity (Spearman .8672), disabling head 2.4 raises
Spearman's correlation by 0.26 points, head 2.7 lowers it by 0.84; with outputs set to zero neither does anything (-0.04
and +0.10), and the two modes rank the heads almost independently (0.13; `RESULTS.md`). Half an hour on two CPU cores
for three modes and both readings. Fine-tuned on MRPC (17 minutes of processor time), 38 of 72 heads raise the accuracy,
0.2 most (1.5 points, 6 examples), two beyond noise; a random head -0.20 (-0.82 to +0.42). A sweep that was killed goes
on with the same command.
"""

from collections.abc import Sequence

from bertjax.ablations import single_heads
from bertjax.heads_map import draw_heads
from experiments.disabling.program import Kind, add_disabling_options, compute_disabling
from experiments.shared.program import make_parser, run_program

HEADS = Kind("head", single_heads, draw_heads)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser("head_ablation", __doc__)
    add_disabling_options(parser)
    return run_program(parser, lambda run: compute_disabling(run, HEADS), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
