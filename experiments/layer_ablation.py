"""What does each layer's attention do for a task? (Kovaleva et al. 2019, section 4.6, figure 9)

As `head_ablation.py`, but all heads of a layer are disabled together, one layer after another: uniform attention over
the real tokens (the paper's), outputs set to zero, and to their means. A layer's feed-forward part stays. Bars have
95 % intervals; those indistinguishable from 0 (q >= 0.05 over the layers) are hollow. `layer_sets.py` disables several
layers at once.

DIR/uniform, DIR/zero and DIR/mean hold what `bertjax report`, `show` and `compare` read. --as-published: see
`head_ablation.py`.

    python -m experiments.layer_ablation --task stsb --data GLUE_DIR

For results and run times see `RESULTS.md`, 4.6.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.interventions import whole_layers
from experiments.disabling.panels import EffectPanel, draw_effect_bars
from experiments.disabling.program import Kind, add_disabling_options, compute_disabling
from experiments.disabling.strips import draw_strips, texts_of
from experiments.disabling.summary_lines import main_effects, overview_of_runs, tables_of_run
from experiments.shared.program import make_parser, run_program


def figures(numbers: Mapping[str, Any]) -> dict[str, Callable[[Path], None]]:
    """The pictures of a run by name, from its `numbers.json` alone: bars for each mode, and strips of all modes."""
    results, effects = numbers["results"], main_effects(numbers["results"])
    panels = [
        EffectPanel(mode, effect.change, effect.significant, np.stack([effect.low, effect.high]))
        for mode, effect in effects.items()
    ]
    title, subtitle, label, what = texts = texts_of(results)
    names = results["names"]
    bars = partial(draw_effect_bars, panels=panels, names=names, title=title, subtitle=subtitle, label=label, what=what)
    pictures: dict[str, Callable[[Path], None]] = {"figure": bars}
    if len(effects) > 1:
        pictures["modes"] = partial(draw_strips, effects=effects, names=names, texts=texts)
    return pictures


def tables(numbers: Mapping[str, Any]) -> str:
    """The table of a run in Markdown, from its `numbers.json` alone."""
    return tables_of_run(numbers["results"])


def overview(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of several runs, from their `numbers.json` alone."""
    return overview_of_runs(runs)


LAYERS = Kind("layer", whole_layers, figures)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser("layer_ablation", __doc__)
    add_disabling_options(parser)
    return run_program(parser, lambda run: compute_disabling(run, LAYERS), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
