"""Figure 8: what does each head do for a task? (Kovaleva et al. 2019, section 4.6)

Ablates each head in three modes: uniform attention over the real tokens (the paper's), zero, and its mean output.
Statistics are those of `bertjax ablate`: intervals over examples, paired tests, and q-values over all heads. They are
of one model; `beyond/across_tasks.py` joins seeds and tasks.

The model has a classifier fine-tuned on the task, or embeds sentences. The authors' program ablates in the same way and
reads all rows of GLUE's files; it cuts texts after 128 tokens (`--max-length 128`).

    python -m experiments.fig8_heads --task stsb --data GLUE_DIR

DIR/uniform, DIR/zero and DIR/mean are results of `bertjax ablate`, for `bertjax report` and `compare`.
"""

import argparse
from collections.abc import Sequence
from functools import partial

from experiments.shared.data import make_study, split_task
from experiments.shared.effects import describe_runs, main_effects, modes_table, outputs_of, texts_of
from experiments.shared.figures import draw_effect_maps
from experiments.shared.run import Figures, Found, Numbers, Run, Runs, make_parser, run_script

MODES = ("uniform", "zero", "mean")


def compute(run: Run) -> Found:
    """Ablate each head in every mode."""
    return ablate(run, "head")


def ablate(run: Run, kind: str) -> Found:
    """Ablate each head or each layer in every mode.

    Args:
        kind: 'head' or 'layer'.
    """
    options = split_task(run.options)
    study = make_study(run, options)
    results = {mode: study.ablate(mode=mode, ablate=f"{kind}s", output=options.output / mode) for mode in options.modes}
    first = next(iter(results.values()))
    values = {mode: outputs_of(one) for mode, one in results.items()}
    return describe_runs(results, kind, options.seed), values | {
        name: first.outputs[name] for name in ("ids", "labels")
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the task, its examples and the modes."""
    parser.add_argument("--task", default="qnli-sample", help="task of GLUE (default %(default)s)")
    parser.add_argument("--data", metavar="PATH", help="GLUE directory or file")
    parser.add_argument("--split", default="validation", metavar="NAME", help="part of the data (default %(default)s)")
    parser.add_argument("--max-length", type=int, metavar="N", help="cut texts after N tokens")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES, metavar="MODE", help="default: all three")


def figures(numbers: Numbers) -> Figures:
    """A map for each mode, from `numbers.json`."""
    results = numbers["results"]
    shape = results["layers"], results["heads"]
    maps = {
        mode: (effects.change.reshape(shape), effects.significant.reshape(shape))
        for mode, effects in main_effects(results).items()
    }
    return {"figure": partial(draw_effect_maps, maps=maps, texts=texts_of(results))}


def tables(runs: Runs) -> str:
    """A row for each run and mode."""
    return modes_table([numbers["results"] for numbers in runs.values()])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser(__doc__)
    add_options(parser)
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
