"""What does each head do for a task? (Kovaleva et al. 2019, section 4.6, figure 8)

Disables each head alone, scores the model on the task's validation set, and maps the changes against the score with
nothing disabled. Reports how many heads raise, keep or lower the score, the largest gain and loss, and the effect of a
random head. There are three ways of disabling: uniform attention over the real tokens (the paper's), the head's output
set to zero, and to its mean over the data; their rankings of the heads are compared. --modes selects fewer.

The evidence is that of `bertjax ablate`: 10,000 draws of examples for intervals, paired tests (McNemar's for accuracy,
swaps for other metrics), and q-values over all heads. "Found" means q < 0.05; all else is pale in the maps. That is for
one fine-tuned model: `python -m experiments.across_tasks DIR DIR ...` joins several seeds and tasks.

Takes a checkpoint with a classifier fine-tuned on the task, or a sentence embedder (cosine similarity of pairs; where
labels are classes, as in MRPC, scored by ROC AUC and average precision in place of accuracy and F1).

DIR/uniform, DIR/zero and DIR/mean hold the results of each mode as `bertjax ablate` writes them: `bertjax report
DIR/uniform` shows them, `bertjax compare` says whether they are the same heads.

--as-published differs only in the length at which texts are cut (128 tokens): the authors' program disables heads as
this one does, and reads all rows of GLUE's files. It prints that, and one block.

    python -m experiments.head_ablation --task stsb --data GLUE_DIR

A killed sweep resumes with the same command. For results and run times see `RESULTS.md`, 4.6.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bertjax.interventions import single_heads
from experiments.disabling.panels import EffectPanel, draw_effect_maps
from experiments.disabling.program import Kind, add_disabling_options, compute_disabling
from experiments.disabling.strips import draw_strips, texts_of
from experiments.disabling.summary_lines import main_effects, overview_of_runs, tables_of_run
from experiments.shared.program import make_parser, run_program


def figures(numbers: Mapping[str, Any]) -> dict[str, Callable[[Path], None]]:
    """The pictures of a run by name, from its `numbers.json` alone: a map for each mode, and strips of all modes."""
    results, effects = numbers["results"], main_effects(numbers["results"])
    shape = results["layers"], results["heads"]
    panels = [
        EffectPanel(mode, effect.change.reshape(shape), effect.significant.reshape(shape))
        for mode, effect in effects.items()
    ]
    title, subtitle, label, _ = texts = texts_of(results)
    maps = partial(draw_effect_maps, panels=panels, title=title, subtitle=subtitle, label=label)
    pictures: dict[str, Callable[[Path], None]] = {"figure": maps}
    if len(effects) > 1:
        pictures["modes"] = partial(draw_strips, effects=effects, names=results["names"], texts=texts)
    return pictures


def tables(numbers: Mapping[str, Any]) -> str:
    """The table of a run in Markdown, from its `numbers.json` alone."""
    return tables_of_run(numbers["results"])


def overview(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of several runs, from their `numbers.json` alone."""
    return overview_of_runs(runs)


HEADS = Kind("head", single_heads, figures)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser("head_ablation", __doc__)
    add_disabling_options(parser)
    return run_program(parser, lambda run: compute_disabling(run, HEADS), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
