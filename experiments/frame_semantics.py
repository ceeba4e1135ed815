"""Do heads link a predicate with its core frame elements? (Kovaleva et al. 2019, section 4.2, figure 3)

Sentences with a predicate and its core elements marked: the authors' own, FrameNet's, or PropBank's. For each head: the
weight between a predicate's and its elements' word pieces, the largest of all pairs, averaged over the sentences; from
the elements to the predicate and back.

A head is held against two nulls (`frames/null.py`): the links are moved to random places of their sentence, as far
apart as the sentences were chosen to have them; and they are taken where the links of other sentences are. Both move
the predicate too, so that a head passes that looks at predicates from everywhere. Therefore three controls keep one end
of each link (`frames/controls.py`): the same key from other words of the sentence; from words of all sentences that are
as far before or behind it; and other keys of its word class from the same query. The class of a word is its part of
speech where the source has them; the authors' sentences have none, and there a list of function words and pronouns
tells these from all other words.

p-values are (1 + hits) / (1 + draws), corrected over all heads and both directions (Benjamini and Hochberg 1995). A
head is left if it is above both nulls and all controls (q < 0.05 for the largest of its p-values) and has at least a
quarter more weight than each control, by at least a quarter of what uniform attention gives a token. In the picture a
dot marks it; heads that are no more than chance by a null are pale and struck through. The results also have each
null's mean and the point below which 95 % of its draws are, each control's means with interval, and the numbers of the
sentences: from 0, of those of the source that pass the filters. A second picture shows two heads on one sentence: those
that are left, or the highest.

--as-published takes what the authors' code takes: element to predicate only; the pieces of all elements one after
another, paired in order with those of the predicate, each piece where it first occurs in the sentence; the largest
weight of the pairs; and of FrameNet the sentences that pass filters which compare words, not their places. There
"above the 99th percentile" marked the two highest heads, which is true of any 144 values; so nothing is marked.

    python -m experiments.frame_semantics                                   the authors' 473 sentences (they come along)
    python -m experiments.frame_semantics --source framenet                 FrameNet 1.7 or 1.5, through nltk
    python -m experiments.frame_semantics --source propbank --conllu F.conllu with PropBank's columns, through conllu

`across_tasks.py --frames` joins the results with those of disabling heads; `anchors.py` holds bert-base-uncased against
the published map. What came out: `RESULTS.md`.
"""

from argparse import SUPPRESS, ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from bertjax.cli import positive
from bertjax.errors import DataError
from bertjax.formatting import finite
from bertjax.paths import user_path
from experiments.frames.controls import Contrast, heads_left, mean_distances, measure_controls, plan_controls, score_all
from experiments.frames.example import SENTENCE, attend, tell_example
from experiments.frames.links import DIRECTIONS, Links, measure_links, measure_published
from experiments.frames.null import Chance, draw_nulls
from experiments.frames.propbank import read_propbank
from experiments.frames.report import (
    LEVEL,
    SOURCES,
    count_kept,
    figures,
    head_names,
    highest_heads,
    overview,
    say_lines,
    tables,
)
from experiments.frames.sources import (
    MOST_WORDS,
    PUBLISHED,
    Annotation,
    Sentence,
    filter_annotations,
    published_reason_against,
    read_framenet,
    read_published,
)
from experiments.shared.agreement import compare_maps
from experiments.shared.program import Outcome, Run, draw_sample, make_parser, run_program, tell_settings

__all__ = ["compute", "figures", "main", "overview", "tables"]

PARTS = ("observed", "mean", "high", "p_values")  # of a null
CONTRASTED = ("examples", "links", "others", "interval", "p_values", "smallest")  # of a control
NO_FRAMES = f"GLUE's tasks have no frames annotated; say --source {' or '.join(SOURCES)}"


@dataclass(frozen=True)
class Sentences:
    """Sentences of a source, as one mode takes them.

    Args:
        found: the sentences.
        ids: their numbers, of those that pass the filters.
        counts: how many annotations were kept or dropped by which filter; none where nothing was filtered.
    """

    found: list[Sentence]
    ids: list[int]
    counts: Mapping[str, int]


def read_source(run: Run) -> tuple[Sentences, Sentences]:
    """The sentences that the options ask for, and those that the authors' filters let pass.

    The two differ for FrameNet alone: the authors' sentences come filtered, and PropBank's they never took.

    Raises:
        DataError: they cannot be found or read, or none passes the filters.
        MissingDependencyError: what reads the source is not installed.
    """
    options = run.options
    if options.conllu and options.source != "propbank":
        raise DataError("--conllu names PropBank's file: say --source propbank with it")
    if options.source == "published":
        if options.data or options.max_words:
            raise DataError(
                "the authors' sentences come as they are: say --source, or leave --data and --max-words out"
            )
        corrected = _choose(run, read_published(PUBLISHED), {})
        return corrected, corrected
    marked = list(read_framenet(options.data, run.report) if options.source == "framenet" else _propbank(options))
    most = options.max_words or MOST_WORDS
    corrected = _choose(run, *filter_annotations(marked, most))
    if options.source == "propbank":
        return corrected, corrected
    return corrected, _choose(run, *filter_annotations(marked, most, published_reason_against))


def _choose(run: Run, found: list[Sentence], counts: Mapping[str, int]) -> Sentences:
    """As many as the options ask for."""
    if not found:
        where = run.options.conllu or run.options.data or "FrameNet"
        raise DataError(f"{where}: no sentence passes the filters ({count_kept(counts)})")
    ids = draw_sample(len(found), run.options)
    return Sentences([found[number] for number in ids], ids, dict(counts))


def _propbank(options: Namespace) -> Iterable[Annotation]:
    if options.conllu and options.data:
        raise DataError("--conllu and --data both name PropBank's file: leave one out")
    if not (path := options.conllu or options.data):
        raise DataError("PropBank's sentences do not come along: name a CoNLL-U file with its columns with --conllu")
    return read_propbank(user_path(path))


def compute(run: Run) -> Outcome:
    """The maps of both modes, and how far they are apart; what the nulls and controls leave."""
    corrected, theirs = read_source(run)
    links = measure_links(run, corrected.found)
    published = measure_published(run, theirs.found)
    nulls = draw_nulls(run, links, corrected.found)
    plans = plan_controls(links, corrected.found)
    controls = measure_controls(run, links, plans)
    more: dict[str, Any] = {"annotations_by_filter": corrected.counts} if corrected.counts else {}
    more |= {"as_published": {"examples": len(theirs.found)}, "distances": mean_distances(plans)}
    if theirs.counts:
        more["as_published"]["annotations_by_filter"] = theirs.counts
    if run.options.source == "framenet":
        more["against_the_authors_sentences"] = compare_with_authors(run, corrected, theirs, links, published)
    values = {"ids": np.array(corrected.ids), "both": links.both, "published": published}
    values["published_ids"] = np.array(theirs.ids)
    return _outcome(run, links, published, nulls, controls, values=values, more=more)


def compare_with_authors(
    run: Run,
    corrected: Sentences,
    theirs: Sentences,
    links: Links,
    published: Float[np.ndarray, "examples layers heads"],
) -> dict[str, Any]:
    """How many sentences the authors have too, and how close the maps are: of all sentences, and of the shared ones.

    On the shared ones only places can differ: the authors' are those of the first occurrence.
    """
    authors = read_published(PUBLISHED)
    place = {_key(sentence): number for number, sentence in enumerate(authors)}
    own = measure_links(run, authors)
    literal = {"as_published": published}, {"as_published": measure_published(run, authors)}
    both = [dict(zip(DIRECTIONS, np.moveaxis(one.both, 1, 0), strict=True)) for one in (links, own)]
    found: dict[str, Any] = {}
    for name, sentences, (ours, others) in (("corrected", corrected, both), ("as_published", theirs, literal)):
        shared = [number for number, sentence in enumerate(sentences.found) if _key(sentence) in place]
        same = [place[_key(sentences.found[number])] for number in shared]
        found[name] = {"shared": len(shared), "sentences": len(sentences.found), "authors": len(authors)}
        found[name]["maps_of_all"] = _apart(ours, others, slice(None), slice(None))
        if shared:
            found[name]["maps_of_the_shared"] = _apart(ours, others, shared, same)
    return found


def _key(sentence: Sentence) -> tuple[str, str]:
    return " ".join(sentence.text.split()), sentence.text[slice(*sentence.predicate)]


def _apart(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray], here: Any, there: Any) -> dict[str, Any]:
    """How far the means over some examples are apart, by map."""
    return {
        name: compare_maps(found[here].mean(0, dtype=np.float64), theirs[name][there].mean(0, dtype=np.float64))
        for name, found in ours.items()
    }


def _outcome(
    run: Run,
    links: Links,
    published: Float[np.ndarray, "examples layers heads"],
    nulls: Mapping[str, Chance],
    controls: Mapping[str, Contrast],
    *,
    values: Mapping[str, np.ndarray],
    more: Mapping[str, Any],
) -> Outcome:
    maps = links.maps() | {"as_published": published.mean(0, dtype=np.float64)}
    scores, lengths = score_all(nulls, controls), Counter(map(len, links.texts))
    left = heads_left(scores, controls, LEVEL)
    results = {
        "examples": len(links.texts),
        "examples_of_a_shared_length": sum(count for count in lengths.values() if count > 1),
        **more,
        "maps": {name: found.round(6).tolist() for name, found in maps.items()},
        "nulls": {name: {"examples": null.examples, **_rounded(null, PARTS)} for name, null in nulls.items()},
        "controls": {name: _rounded(control, CONTRASTED) for name, control in controls.items()},
        "q_values": {name: found.round(6).tolist() for name, found in scores.items()},
        "significant_heads": {name: (found < LEVEL).sum((1, 2)).tolist() for name, found in scores.items()},
        "heads_left": _named(left),
        "heads_left_by_two_controls": _named(heads_left(scores, controls, LEVEL, "two_controls")),
        "published_against_corrected": compare_maps(maps["element_to_predicate"], maps["as_published"]),
        "example": _example(run, maps, left),
    }
    numbers = {"settings": tell_settings(run.options), "results": finite(results)}
    every = {**values, **maps, "heads_left": left} | {f"q_values_{name}": found for name, found in scores.items()}
    for name, null in nulls.items():
        every |= {f"{name}_{part}": getattr(null, part) for part in PARTS}
    for name, control in controls.items():
        every |= {f"{name}_{part}": getattr(control, part) for part in CONTRASTED}
    pictures = figures(numbers)
    draw = pictures.pop("figure")
    return Outcome(numbers["results"], every, draw, list(say_lines(numbers)), pictures)


def _named(left: np.ndarray) -> dict[str, list[str]]:
    """The names of heads by direction."""
    return {name: head_names(one) for name, one in zip(DIRECTIONS, left, strict=True)}


def _rounded(found: Chance | Contrast, parts: Sequence[str]) -> dict[str, Any]:
    """Some of a dataclass's arrays as lists."""
    return {part: getattr(found, part).round(6).tolist() for part in parts}


def _example(run: Run, maps: Mapping[str, np.ndarray], left: np.ndarray, count: int = 2) -> dict[str, Any]:
    """Two heads on the paper's sentence: those of the highest weight that are left, then the highest others."""
    tokens, attention = attend(run, SENTENCE)
    if run.options.as_published:
        return tell_example(SENTENCE, tokens, attention, highest_heads(maps["as_published"], count))
    chosen = [
        name
        for direction, marked in zip(DIRECTIONS, left, strict=True)
        for name in highest_heads(np.where(marked, maps[direction], -1), int(marked.sum()))
    ]
    chosen += highest_heads(maps[DIRECTIONS[0]], count)
    return tell_example(SENTENCE, tokens, attention, list(dict.fromkeys(chosen))[:count])


def _refuse_task(task: str) -> None:
    raise ArgumentTypeError(f"{task!r}: {NO_FRAMES}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser("frame_semantics", __doc__)
    add = parser.add_argument
    add("--source", choices=SOURCES, default="published", help="whose sentences (default published, the authors')")
    add("--data", metavar="PATH", help="FrameNet's directory, where nltk does not find it; or the same as --conllu")
    add("--conllu", metavar="PATH", help="PropBank's CoNLL-U file (.conllu, .conllu.gz)")
    add("--task", type=_refuse_task, default=SUPPRESS, metavar="T", help=f"none: {NO_FRAMES}")
    add(
        "--max-words",
        type=positive,
        metavar="N",
        help=f"longest sentence of FrameNet or PropBank (default {MOST_WORDS})",
    )
    add("--draws", type=positive, default=10000, metavar="N", help="draws of each null (default %(default)s)")
    return run_program(parser, compute, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
