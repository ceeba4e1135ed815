"""Are attention patterns repeated across heads? (Kovaleva et al. 2019, section 5)

"A limited set of attention patterns is repeated across different heads, which suggests that the model is
overparametrised". How similar are heads? Does the similarity go beyond patterns that do not depend on the text? How
many kinds of heads are there? Do similar heads replace each other?

- Distance of two heads on a text: the Jensen-Shannon divergence of their rows, mean over the tokens (Clark et al. 2019,
  section 6), then over texts; 0 to 1 bit.
- Another text: the same, with the other head's map taken from another text with the same number of tokens and [SEP] in
  the same places, so that heads which look at [SEP], at themselves or one place back stay equally near. Each head is
  also compared with itself there. Texts that are slightly too long lose the surplus tokens (before the last word of a
  sentence).
- From both (`similarity/parts.py`): the distance of the heads' mean patterns, and the correlation of what changes with
  the text (1 for a head and itself, 0 for two that have no more in common than on different texts).
- Groups: average linkage, cut at the distance of a head from itself on another text.
- --disable N: the N nearest pairs (no head twice) are disabled, each head alone and both, on all labelled examples of
  the task; the control is the same number of distant pairs of the same layers. If heads replaced each other, both
  together would lose more than the sum, and by a larger margin than the controls.

Intervals are 95 %, from resampling texts (for disabled pairs, examples) with replacement.

    python -m experiments.beyond.repeated_patterns --task stsb --data GLUE_DIR --disable 15

For results and run times see `RESULTS.md`.
"""

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.shared.data import Sample, add_task_options, read_sample
from experiments.shared.run import Found, Run, draw_sample, make_parser, run_script
from experiments.similarity.distances import measure_distances
from experiments.similarity.groups import report_groups
from experiments.similarity.pairs import choose_couples, disable_couples
from experiments.similarity.partners import Partners, draw_partners
from experiments.similarity.parts import means_of, report_parts
from experiments.similarity.report import figures, tables

__all__ = ["compute", "figures", "main", "tables"]


def compute(run: Run) -> Found:
    """Distances, their parts, groups, and the effect of ablating pairs."""
    options = run.options
    pool = read_sample(run, Namespace(**vars(options) | {"limit": None}))
    chosen = draw_sample(len(pool), options)
    texts, partners = _draw_partners(run, pool, chosen)
    distances = measure_distances(run, texts, partners)
    numbers = {"model": options.model, "task": options.task, "texts": len(partners.texts), "names": distances.names}
    numbers |= pool.to_dict() | {"control": _describe_control(partners, len(chosen), options.draws)}
    numbers |= report_parts(distances, options.seed) | {"groups": report_groups(distances)}
    ids = np.array(pool.examples.ids)[[chosen[number] for number in partners.texts]]
    values = {"ids": ids} | {name: getattr(distances, name) for name in ("same", "other", "own")}
    if options.disable:
        same = means_of(distances).same
        couples = choose_couples(same, len(distances.names), distances.heads, options.disable, options.seed)
        numbers["disabled"], arrays = disable_couples(run, couples, distances.names)
        values |= arrays
    return numbers, values


def _draw_partners(run: Run, pool: Sample, chosen: Sequence[int]) -> tuple[list[Any], Partners]:
    """The texts compared, and others of their size from all of the task's texts."""
    examples, options = pool.examples, run.options
    pairs = zip(examples.first, examples.second or examples.first, strict=True)
    text_sets, texts = [frozenset(pair) for pair in pairs], [pool.texts[place] for place in chosen]
    placed = list(zip(chosen, texts, strict=True))
    return texts, draw_partners(placed, pool.texts, text_sets, options.draws, options.seed)


def _describe_control(partners: Partners, texts: int, draws: int) -> dict[str, Any]:
    cut = np.array(partners.cut)
    shortened = float(cut[cut > 0].mean()) if (cut > 0).any() else 0.0
    return {
        "draws": draws,
        "as_they_are": round(float((cut == 0).mean()), 4),
        "cut": round(shortened, 4),
        "most_cut": int(cut.max()),
        "left_out": texts - len(partners.texts),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser(__doc__)
    add_task_options(parser, task="mrpc", limit=300)
    add = parser.add_argument
    add("--draws", type=int, default=3, metavar="N", help="other texts for each text (default %(default)s)")
    add("--disable", type=int, default=0, metavar="N", help="ablate N pairs of similar heads (default: none)")
    add("--mode", choices=("uniform", "zero"), default="uniform", help="of ablation")
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
