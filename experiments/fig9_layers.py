"""Figure 9: what does each layer's attention do for a task? (Kovaleva et al. 2019, section 4.6)

Like `fig8_heads.py`, but all heads of a layer are ablated together. A layer's feed-forward part stays.
`beyond/layer_sets.py` ablates several layers at once.

    python -m experiments.fig9_layers --task stsb --data GLUE_DIR
"""

from collections.abc import Sequence
from functools import partial

from experiments.fig8_heads import ablate, add_options, tables
from experiments.shared.effects import main_effects, texts_of
from experiments.shared.figures import draw_effect_bars
from experiments.shared.run import Figures, Found, Numbers, Run, make_parser, run_script


def compute(run: Run) -> Found:
    """Ablate each layer in every mode."""
    return ablate(run, "layer")


def figures(numbers: Numbers) -> Figures:
    """Bars for each mode, from `numbers.json`."""
    results = numbers["results"]
    bars = {
        mode: (effects.change, effects.low, effects.high, effects.significant)
        for mode, effects in main_effects(results).items()
    }
    return {"figure": partial(draw_effect_bars, names=results["names"], bars=bars, texts=texts_of(results))}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser(__doc__)
    add_options(parser)
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
