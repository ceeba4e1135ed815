"""Do heads link a predicate with its core frame elements? (Kovaleva et al. 2019, section 4.2, figure 3)

Sentences with a predicate and core elements marked by FrameNet. For each head: the weight between a predicate's and its
elements' word pieces, the largest of all pairs, averaged over the sentences; from the elements to the predicate and
back. A head is marked where that is more than chance: the marked spans are moved to random places of their sentence
many times, and the p-values (1 + hits) / (1 + draws) corrected over all heads and both directions (Benjamini and
Hochberg 1995).

--as-published takes what the authors' code takes: element to predicate only, pieces paired one to one in order, each
piece where it first occurs in the sentence, and the mean of the pairs. There "above the 99th percentile" marked the
two highest heads, which is true of any 144 values; so nothing is marked.

    python -m experiments.frame_semantics        the authors' 473 sentences, all-MiniLM-L6-v2: 32 s on two CPU cores

There 16 of 72 heads attend from elements to the predicate more than chance, 14 back; 5.4 most (`RESULTS.md`). It has
not been run on bert-base-uncased, of which the paper's numbers are.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import false_discovery_control, spearmanr

from bertjax.tokenizer import Encoding
from experiments.attention import largest_of_pairs, mean_of_pairs, reduce_attention, stack_pairs, stream_attention
from experiments.maps import Panel, draw_maps
from experiments.program import Outcome, Run, draw_sample, make_parser, run_program
from experiments.words import Span, find_words, pieces_of

SENTENCES = Path(__file__).parent / "data" / "framenet_473.tsv"
LEVEL = 0.05
Pairs = list[tuple[int, int]]


@dataclass(frozen=True)
class Sentence:
    """A text, where its predicate stands in it, and where its core elements."""

    text: str
    predicate: Span
    elements: tuple[Span, ...]


def read_sentences(path: Path) -> list[Sentence]:
    """The authors' sentences: a TSV file of sentence, target and core elements, these with " | " between them."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    found = []
    for row in rows:
        text = row["sentence"].replace('\\"', '"')  # as FrameNet has it
        predicate = find_words(text, row["target"])
        elements: list[Span] = []
        for element in row["core_elements"].split(" | "):
            elements.append(find_words(text, element, [predicate, *elements]))
        found.append(Sentence(text, predicate, tuple(elements)))
    return found


def group_pieces(encoding: Encoding, sentence: Sentence) -> list[list[int]]:
    """Word pieces of the predicate, then of each element."""
    return [pieces_of(encoding, span) for span in (sentence.predicate, *sentence.elements)]


def link_pairs(groups: Sequence[Sequence[int]]) -> tuple[Pairs, Pairs]:
    """All pairs (query, key) from elements to the predicate, and back.

    >>> link_pairs([[3], [1, 2]])
    ([(1, 3), (2, 3)], [(3, 1), (3, 2)])
    """
    forth = [(element, predicate) for group in groups[1:] for element in group for predicate in groups[0]]
    return forth, [(predicate, element) for element, predicate in forth]


def published_pairs(encoding: Encoding, groups: Sequence[Sequence[int]]) -> Pairs:
    """Pairs (query, key) as the authors' code forms them: in order, each piece where it first occurs."""
    first = {piece: place for place, piece in reversed(list(enumerate(encoding.tokens)))}
    return [
        (first[encoding.tokens[element]], first[encoding.tokens[predicate]])
        for group in groups[1:]
        for element, predicate in zip(group, groups[0], strict=False)
    ]


def move_groups(groups: Sequence[Sequence[int]], tokens: int, rng: np.random.Generator) -> list[list[int]]:
    """The groups at random places among the words of a sentence of so many tokens, each kept whole."""
    sizes = [len(group) for group in groups]
    blocks = np.array(sizes + [1] * (tokens - 2 - sum(sizes)))
    order = rng.permutation(len(blocks))
    ends = np.empty(len(blocks), int)
    ends[order] = 1 + np.cumsum(blocks[order])  # [CLS] is token 0
    return [list(range(end - size, end)) for end, size in zip(ends.tolist(), sizes, strict=False)]


def score_links(
    run: Run, texts: Sequence[Encoding], groups: Sequence[Sequence[Sequence[int]]], observed: np.ndarray
) -> Float[np.ndarray, "directions layers heads"]:
    """q-values of the means `[directions, layers, heads]`, by moving the groups at random."""
    draws, config = run.options.draws, run.model.config
    total = np.zeros((draws, *observed.shape))

    def moved(places: np.ndarray) -> list[np.ndarray]:
        pairs = []
        for place in places.tolist():
            rng = np.random.default_rng((run.options.seed, place))
            several = [link_pairs(move_groups(groups[place], len(texts[place]), rng)) for _ in range(draws)]
            pairs.append([pairs for both in several for pairs in both])
        return [stack_pairs(pairs, most)]

    most = max(len(link_pairs(group)[0]) for group in groups)
    size = 2 * draws * most * config.num_hidden_layers * config.num_attention_heads * 8
    for _, values in stream_attention(run.model, texts, largest_of_pairs, moved, example_bytes=size, report=run.report):
        total += values.reshape(len(values), draws, *observed.shape).sum(0)
    hits = (total / len(texts) >= observed).sum(0)
    return false_discovery_control((1 + hits) / (1 + draws), axis=None).reshape(hits.shape)


def compute(run: Run) -> Outcome:
    """The maps of both modes, and how far they are apart."""
    sentences = read_sentences(SENTENCES)
    sentences = [sentences[number] for number in draw_sample(len(sentences), run.options)]
    texts = run.tokenizer.encode([sentence.text for sentence in sentences])
    groups = [group_pieces(text, sentence) for text, sentence in zip(texts, sentences, strict=True)]
    both = reduce_attention(run.model, texts, largest_of_pairs, [stack_pairs([link_pairs(one) for one in groups])])
    pairs = [[published_pairs(text, one)] for text, one in zip(texts, groups, strict=True)]
    published = reduce_attention(run.model, texts, mean_of_pairs, [stack_pairs(pairs)])[:, 0]
    means = both.astype(np.float64).mean(0)
    q_values = score_links(run, texts, groups, means)
    maps = {"element_to_predicate": means[0], "predicate_to_element": means[1]}
    maps["as_published"] = published.astype(np.float64).mean(0)
    return _outcome(run, maps, q_values, {"both": both, "published": published})


def _outcome(run: Run, maps: dict[str, np.ndarray], q_values: np.ndarray, values: dict[str, np.ndarray]) -> Outcome:
    significant: Bool[np.ndarray, "directions layers heads"] = q_values < LEVEL
    forth, published = maps["element_to_predicate"], maps["as_published"]
    apart = {
        "largest_difference": float(np.abs(forth - published).max()),
        "rank_correlation": float(spearmanr(forth.ravel(), published.ravel()).statistic),
    }
    examples = len(values["both"])
    counts = significant.sum((1, 2)).tolist()
    numbers = {
        "examples": examples,
        "maps": {name: found.round(6).tolist() for name, found in maps.items()},
        "q_values": q_values.tolist(),
        "significant_heads": {"element_to_predicate": counts[0], "predicate_to_element": counts[1]},
        "published_against_corrected": apart,
    }
    lines = [f"{examples} sentences; {run.options.draws} draws of the null"]
    lines += [f"{name.replace('_', ' ')}: {_best(found)}" for name, found in maps.items()]
    lines.append(f"more than chance (q < {LEVEL}): {counts[0]} and {counts[1]} of {forth.size} heads")
    lines.append(
        f"as published against corrected: rank correlation {apart['rank_correlation']:.2f}, "
        f"largest difference {apart['largest_difference']:.3f}"
    )
    panels = [
        Panel("elements to predicate", forth, significant[0]),
        Panel("predicate to elements", maps["predicate_to_element"], significant[1]),
    ]
    if run.options.as_published:
        panels = [Panel("elements to predicate, as published", published)]
    subtitle = f"{run.options.model}, {examples} sentences of FrameNet"
    note = "" if run.options.as_published else f"dot: more than chance (permutation null, q < {LEVEL})"

    def draw(path: Path) -> None:
        draw_maps(path, panels, "Attention between predicates and their core elements", subtitle, "mean weight", note)

    return Outcome(numbers, {**values, **maps, "q_values": q_values}, draw, lines)


def _best(found: np.ndarray, count: int = 4) -> str:
    """The heads with the largest values."""
    places = [divmod(place, found.shape[1]) for place in np.argsort(-found, axis=None)[:count].tolist()]
    return ", ".join(f"{layer}.{head} {found[layer, head]:.3f}" for layer, head in places)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser("frame_semantics", __doc__)
    parser.add_argument("--draws", type=int, default=1000, metavar="N", help="random placements of the null")
    return run_program(parser, compute, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
