"""What does each head do for a task? (Kovaleva et al. 2019, section 4.6, figure 8)

Every head alone is disabled, the model scores the task's validation set, and maps show the changes against the score
with nothing disabled. How many heads raise, leave or lower the score, the largest gain and loss, and what a random head
does. Three ways of disabling: uniform attention over the real tokens (the paper's), a head's output set to zero, and to
its mean over the data; and how alike they rank the heads. --modes takes fewer.

The evidence is that of `bertjax ablate`: 10,000 draws of examples for intervals, paired tests (McNemar's for accuracy,
swaps for other metrics), and q-values over all heads. What is called found has q < 0.05; all else is pale in the maps.
That is for one fine-tuned model: `python -m experiments.across_tasks DIR DIR ...` joins several seeds, and tasks.

Takes a checkpoint with a classifier fine-tuned on the task, or a sentence embedder (cosine similarity of pairs; where
labels are classes, as MRPC's, that is scored by ROC AUC and average precision in place of accuracy and F1).

DIR/uniform, DIR/zero and DIR/mean hold the results of each mode as `bertjax ablate` writes them: `bertjax report
DIR/uniform` shows them, `bertjax compare` says whether they are the same heads.

--as-published is the same but for the length after which texts are cut (128 tokens): the authors' program disables
heads as this one does, and reads all rows of GLUE's files. It prints that, and one block.

    python -m experiments.head_ablation --task stsb --data GLUE_DIR

A sweep that was killed goes on with the same command. What came out, and how long it took: `RESULTS.md`, 4.6.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bertjax.interventions import single_heads
from experiments.disabling.panels import EffectPanel, draw_effect_maps
from experiments.disabling.program import Kind, add_disabling_options, compute_disabling
from experiments.disabling.said import main_effects, overview_of_runs, tables_of_run
from experiments.disabling.strips import draw_strips, texts_of
from experiments.shared.program import make_parser, run_program


def figures(numbers: Mapping[str, Any]) -> dict[str, Callable[[Path], None]]:
    """The pictures of a run by name, from its `numbers.json` alone: a map for each mode, and all modes as strips."""
    results, found = numbers["results"], main_effects(numbers["results"])
    shape = results["layers"], results["heads"]
    panels = [EffectPanel(mode, one.change.reshape(shape), one.found.reshape(shape)) for mode, one in found.items()]
    title, subtitle, label, _ = texts = texts_of(results)
    maps = partial(draw_effect_maps, panels=panels, title=title, subtitle=subtitle, label=label)
    drawn: dict[str, Callable[[Path], None]] = {"figure": maps}
    if len(found) > 1:
        drawn["modes"] = partial(draw_strips, effects=found, names=results["names"], texts=texts)
    return drawn


def tables(numbers: Mapping[str, Any]) -> str:
    """The table of a run in Markdown, from its `numbers.json` alone."""
    return tables_of_run(numbers["results"])


def overview(several: Mapping[str, Mapping[str, Any]]) -> str:
    """Several runs in one table, from their `numbers.json` alone."""
    return overview_of_runs(several)


HEADS = Kind("head", single_heads, figures)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser("head_ablation", __doc__)
    add_disabling_options(parser)
    return run_program(parser, lambda run: compute_disabling(run, HEADS), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
