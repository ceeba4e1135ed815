"""Do heads link a predicate with its core frame elements? (Kovaleva et al. 2019, section 4.2, figure 3)

Sentences with a predicate and its core elements marked: the authors' own, FrameNet's, or PropBank's. For each head: the
weight between a predicate's and its elements' word pieces, the largest of all pairs, averaged over the sentences; from
the elements to the predicate and back. A head is marked where that is more than chance, by each of two nulls
(`frames/null.py`): the links are moved to random places of their sentence, as far apart as the sentences were chosen to
have them; and they are taken where the links of other sentences are. p-values are (1 + hits) / (1 + draws), corrected
over all heads and both directions (Benjamini and Hochberg 1995). The results also have each null's mean and the point
below which 95 % of its draws are, for each head and direction, and the numbers of the sentences: from 0, of those of
the source that pass the filters.

--as-published takes what the authors' code takes: element to predicate only, pieces paired one to one in order, each
piece where it first occurs in the sentence, and the mean of the pairs. There "above the 99th percentile" marked the
two highest heads, which is true of any 144 values; so nothing is marked.

    python -m experiments.frame_semantics                                   the authors' 473 sentences (they come along)
    python -m experiments.frame_semantics --source framenet                 FrameNet 1.7 or 1.5, through nltk
    python -m experiments.frame_semantics --source propbank --conllu F.conllu with PropBank's columns, through conllu

With all-MiniLM-L6-v2 the first takes a minute on two cores (AMD EPYC): 21 of 72 heads attend from elements to the
predicate more than chance, 11 back; 5.4 most (`RESULTS.md`). It has not been run on bert-base-uncased, of which the
paper's numbers are; `anchors.py` holds it against them.
"""

from argparse import SUPPRESS, ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.cli import positive
from bertjax.errors import DataError
from experiments.frames.links import Links, measure_links
from experiments.frames.null import Chance, draw_nulls, score_nulls
from experiments.frames.propbank import read_propbank
from experiments.frames.sources import (
    MOST_WORDS,
    PUBLISHED,
    Annotation,
    Sentence,
    filter_annotations,
    read_framenet,
    read_published,
)
from experiments.shared.agreement import compare_maps
from experiments.shared.maps import Panel, draw_maps
from experiments.shared.program import Outcome, Run, draw_sample, make_parser, run_program

LEVEL = 0.05
PARTS = ("observed", "mean", "high", "p_values")  # of a null
NULLS = {"moved": "links moved within the sentence", "swapped": "links of other sentences", "both": "by both"}
SOURCES = {"published": "the authors' own, of FrameNet 1.7", "framenet": "FrameNet", "propbank": "PropBank"}
NO_FRAMES = f"GLUE's tasks have no frames annotated; say --source {' or '.join(SOURCES)}"


def read_source(run: Run) -> tuple[list[Sentence], list[int], dict[str, int]]:
    """The sentences that the options ask for, their numbers, and how many a source has kept or dropped by which filter.

    Raises:
        DataError: they cannot be found or read, or none passes the filters.
        MissingDependencyError: what reads the source is not installed.
    """
    options = run.options
    counts: Mapping[str, int] = {}
    if options.conllu and options.source != "propbank":
        raise DataError("--conllu names PropBank's file: say --source propbank with it")
    if options.source == "published":
        if options.data or options.max_words:
            raise DataError(
                "the authors' sentences come as they are: say --source, or leave --data and --max-words out"
            )
        found = read_published(PUBLISHED)
    else:
        marked = read_framenet(options.data, run.report) if options.source == "framenet" else _propbank(options)
        found, counts = filter_annotations(marked, options.max_words or MOST_WORDS)
    if not found:
        where = options.conllu or options.data or "FrameNet"
        raise DataError(f"{where}: no sentence passes the filters ({_count(counts)})")
    ids = draw_sample(len(found), options)
    return [found[number] for number in ids], ids, dict(counts)


def _propbank(options: Namespace) -> Iterator[Annotation]:
    if options.conllu and options.data:
        raise DataError("--conllu and --data both name PropBank's file: leave one out")
    if not (path := options.conllu or options.data):
        raise DataError("PropBank's sentences do not come along: name a CoNLL-U file with its columns with --conllu")
    return read_propbank(Path(path).expanduser())


def compute(run: Run) -> Outcome:
    """The maps of both modes, and how far they are apart."""
    sentences, ids, counts = read_source(run)
    links = measure_links(run, sentences)
    nulls = draw_nulls(run, links, sentences)
    more: dict[str, Any] = {"annotations_by_filter": counts} if counts else {}
    if run.options.source == "framenet":
        more["against_the_authors_sentences"] = compare_with_authors(run, sentences, links)
    return _outcome(run, links, nulls, ids, more)


def compare_with_authors(run: Run, sentences: Sequence[Sentence], links: Links) -> dict[str, Any]:
    """How many sentences the authors have too, and how close the maps are: of all sentences, and of the shared ones.

    On the shared ones only places can differ: the authors' are those of the first occurrence.
    """
    authors = read_published(PUBLISHED)
    place = {_key(sentence): number for number, sentence in enumerate(authors)}
    shared = [number for number, sentence in enumerate(sentences) if _key(sentence) in place]
    same = [place[_key(sentences[number])] for number in shared]
    theirs = measure_links(run, authors)
    found: dict[str, Any] = {"shared": len(shared), "sentences": len(sentences), "authors": len(authors)}
    found["maps_of_all"] = _apart(links.maps(), theirs.maps())
    if shared:
        found["maps_of_the_shared"] = _apart(links.maps(shared), theirs.maps(same))
    return found


def _key(sentence: Sentence) -> tuple[str, str]:
    return " ".join(sentence.text.split()), sentence.text[slice(*sentence.predicate)]


def _apart(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {name: compare_maps(found, theirs[name]) for name, found in ours.items()}


def _outcome(run: Run, links: Links, nulls: Mapping[str, Chance], ids: Sequence[int], more: Any) -> Outcome:
    maps, scores = links.maps(), score_nulls(nulls)
    significant, lengths = scores["both"] < LEVEL, Counter(map(len, links.texts))
    numbers = {
        "examples": len(links.texts),
        "examples_of_a_shared_length": sum(count for count in lengths.values() if count > 1),
        **more,
        "maps": {name: found.round(6).tolist() for name, found in maps.items()},
        "nulls": {name: _report_null(null) for name, null in nulls.items()},
        "q_values": {name: found.tolist() for name, found in scores.items()},
        "significant_heads": {name: (found < LEVEL).sum((1, 2)).tolist() for name, found in scores.items()},
        "published_against_corrected": compare_maps(maps["element_to_predicate"], maps["as_published"]),
    }
    longest = "" if run.options.source == "published" else f", at most {run.options.max_words or MOST_WORDS} words"
    subtitle = f"{run.options.model}, {len(links.texts)} sentences: {SOURCES[run.options.source]}{longest}"
    panels = [
        Panel("elements to predicate", maps["element_to_predicate"], significant[0]),
        Panel("predicate to elements", maps["predicate_to_element"], significant[1]),
    ]
    note = f"dot: more than chance (both nulls, q < {LEVEL})"
    if run.options.as_published:
        panels, note = [Panel("elements to predicate, as published", maps["as_published"])], ""

    def draw(path: Path) -> None:
        draw_maps(path, panels, "Attention between predicates and their core elements", subtitle, "mean weight", note)

    values = {"ids": np.array(ids), "both": links.both, "published": links.published, **maps}
    values |= {f"q_values_{name}": found for name, found in scores.items()}
    for name, null in nulls.items():
        values |= {f"{name}_{part}": getattr(null, part) for part in PARTS}
    return Outcome(numbers, values, draw, list(_lines(run, numbers, maps)))


def _report_null(null: Chance) -> dict[str, Any]:
    return {"examples": null.examples, **{part: getattr(null, part).round(6).tolist() for part in PARTS}}


def _lines(run: Run, numbers: Mapping[str, Any], maps: Mapping[str, np.ndarray]) -> Iterator[str]:
    yield f"{numbers['examples']} sentences: {SOURCES[run.options.source]}; {run.options.draws} draws of the null"
    if counts := numbers.get("annotations_by_filter"):
        yield f"of {sum(counts.values())} annotations, {_count(counts)}"
    for name, found in maps.items():
        if name == "as_published" and not run.options.as_published:
            continue
        yield f"{name.replace('_', ' ')}: {_best(found)}"
    if "swapped" not in numbers["nulls"]:
        yield f"no two sentences are of one length, so that {NULLS['swapped']} were not drawn"
    smallest = 2 * maps["as_published"].size / (1 + run.options.draws)
    if smallest >= LEVEL:
        yield f"with {run.options.draws} draws a head alone has q of at least {min(1, smallest):.2f}: give more --draws"
    for name, (forth, back) in numbers["significant_heads"].items():
        yield f"more than chance (q < {LEVEL}), {NULLS[name]}: {forth} and {back} of {maps['as_published'].size} heads"
    yield f"as published against corrected: {_say(numbers['published_against_corrected'])}"
    if authors := numbers.get("against_the_authors_sentences"):
        yield f"{authors['shared']} of them are among the authors' {authors['authors']}; the maps as published:"
        yield f"  of all sentences: {_say(authors['maps_of_all']['as_published'])}"
        if "maps_of_the_shared" in authors:
            yield f"  of the shared ones: {_say(authors['maps_of_the_shared']['as_published'])}"


def _say(apart: Mapping[str, Any]) -> str:
    ranks = apart["rank_correlation"]
    said = "undefined" if ranks is None else f"{ranks:.2f}"
    return f"rank correlation {said}, largest difference {apart['largest_difference']:.3f}"


def _count(counts: Mapping[str, int]) -> str:
    dropped = sorted((item for item in counts.items() if item[0] != "kept"), key=lambda item: -item[1])
    return "; ".join([f"{counts.get('kept', 0)} kept", ", ".join(f"{number} {why}" for why, number in dropped)])


def _best(found: np.ndarray, count: int = 4) -> str:
    """The heads with the largest values."""
    places = [divmod(place, found.shape[1]) for place in np.argsort(-found, axis=None)[:count].tolist()]
    return ", ".join(f"{layer}.{head} {found[layer, head]:.3f}" for layer, head in places)


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
