"""Figure 3: do heads link a predicate with its core frame elements? (Kovaleva et al. 2019, section 4.2)

Sentences with a predicate and its core elements marked come from the authors, FrameNet or PropBank. For each head: the
largest weight over all pairs of a predicate's and its elements' word pieces, averaged over the sentences; from the
elements to the predicate and back.

A head is compared with two nulls (`frames/null.py`): the links are moved to random places of their sentence, no closer
together than the choice of sentences allows; or they are put where the links of other sentences are. Both move the
predicate too, so a head that looks at predicates from everywhere passes. Three controls therefore keep one end of each
link (`frames/controls.py`): the same key from other words of the sentence; the same key from words of all sentences at
the same distance before or after it; and other keys of its word class from the same query. The class of a word is its
part of speech where the source has one; the authors' sentences have none, and a list of function words and pronouns
separates these from all others.

p-values are (1 + hits) / (1 + draws), corrected over all heads and both directions (Benjamini and Hochberg 1995). A
head is left if it is above both nulls and all controls (q < 0.05 for the largest of its p-values) and has at least a
quarter more weight than each control, by at least a quarter of what uniform attention gives a token. In the picture a
dot marks it; heads not above chance by a null are struck through. The results also hold each null's mean and
the 95th percentile of its draws, each control's means with interval, and the numbers of the sentences, counted from 0
among those of the source that pass the filters. A second picture shows two heads on one sentence: those that remain, or
the highest.

The results also hold what the authors' code computes: element to predicate only; the pieces of all elements one after
another, paired in order with those of the predicate, each piece where it first occurs in the sentence; the largest
weight of the pairs; and, of FrameNet, the sentences that pass filters which compare words, not their places. There
"above the 99th percentile" marked the two highest heads, which holds for any 144 values; so nothing is marked.

    python -m experiments.fig3_frames                                   the authors' 473 sentences (included)
    python -m experiments.fig3_frames --source framenet                 FrameNet 1.7 or 1.5, through nltk
    python -m experiments.fig3_frames --source propbank --conllu F.conllu with PropBank's columns, through conllu
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.frames.controls import Contrast, heads_left, measure_controls, plan_controls, score_all
from experiments.frames.links import DIRECTIONS, measure_links, measure_published
from experiments.frames.null import Chance, draw_nulls
from experiments.frames.report import LEVEL, SOURCES, figures, head_names, highest_heads, tables
from experiments.frames.selection import read_source
from experiments.frames.sources import MOST_WORDS
from experiments.shared.agreement import compare_maps
from experiments.shared.example import SENTENCE, attend, describe_example
from experiments.shared.run import Found, Run, make_parser, run_script

__all__ = ["compute", "figures", "main", "tables"]

PARTS = ("observed", "mean", "high", "p_values")  # of a null
CONTRASTED = ("examples", "links", "others", "interval", "p_values", "smallest")  # of a control


def compute(run: Run) -> Found:
    """The maps of both modes and their difference, and the heads that nulls and controls leave."""
    corrected, as_published = read_source(run)
    links = measure_links(run, corrected.found)
    published = measure_published(run, as_published.found)
    nulls = draw_nulls(run, links, corrected.found)
    plans = plan_controls(links, corrected.found)
    controls = measure_controls(run, links, plans)
    maps = links.maps() | {"as_published": published.mean(0, dtype=np.float64)}
    scores = score_all(nulls, controls)
    left = heads_left(scores, controls, LEVEL)
    results: dict[str, Any] = {
        "examples": len(links.texts),
        "as_published": {"examples": len(as_published.found)},
        "maps": {name: array.round(6).tolist() for name, array in maps.items()},
        "nulls": {name: {"examples": null.examples, **_rounded(null, PARTS)} for name, null in nulls.items()},
        "controls": {name: _rounded(control, CONTRASTED) for name, control in controls.items()},
        "q_values": {name: array.round(6).tolist() for name, array in scores.items()},
        "heads_left": _named(left),
        "heads_left_by_two_controls": _named(heads_left(scores, controls, LEVEL, "two_controls")),
        "published_against_corrected": compare_maps(maps["element_to_predicate"], maps["as_published"]),
        "example": _example(run, maps, left),
    }
    if corrected.counts:
        results |= {"annotations_by_filter": corrected.counts, "published_by_filter": as_published.counts}
    values = {"ids": np.array(corrected.ids), "published_ids": np.array(as_published.ids), **maps}
    values |= {"both": links.both, "published": published}
    for name, null in nulls.items():
        values |= {f"{name}_{part}": getattr(null, part) for part in PARTS}
    return results, values


def _named(left: np.ndarray) -> dict[str, list[str]]:
    """The names of heads by direction."""
    return {name: head_names(marked) for name, marked in zip(DIRECTIONS, left, strict=True)}


def _rounded(record: Chance | Contrast, parts: Sequence[str]) -> dict[str, Any]:
    """The named arrays of a dataclass, rounded, as lists."""
    return {part: getattr(record, part).round(6).tolist() for part in parts}


def _example(run: Run, maps: Mapping[str, np.ndarray], left: np.ndarray, count: int = 2) -> dict[str, Any]:
    """Two heads on the paper's sentence: first those left, by weight, then the highest others."""
    tokens, attention = attend(run, SENTENCE)
    chosen = [
        name
        for direction, marked in zip(DIRECTIONS, left, strict=True)
        for name in highest_heads(np.where(marked, maps[direction], -1), int(marked.sum()))
    ]
    chosen += highest_heads(maps[DIRECTIONS[0]], count)
    return describe_example(SENTENCE, tokens, attention, list(dict.fromkeys(chosen))[:count])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser(__doc__, norms=True)
    add = parser.add_argument
    add("--source", choices=SOURCES, default="published", help="whose sentences (default published, the authors')")
    add("--data", metavar="DIR", help="FrameNet's directory, where nltk does not find it")
    add("--conllu", type=Path, metavar="FILE", help="PropBank's CoNLL-U file (.conllu, .conllu.gz)")
    text = f"longest sentence of FrameNet or PropBank (default {MOST_WORDS})"
    add("--max-words", type=int, metavar="N", help=text)
    add("--draws", type=int, default=10000, metavar="N", help="draws of each null (default %(default)s)")
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
