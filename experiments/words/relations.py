"""Relations between words of a text (subject and verb, pronoun and noun), and the tokens that they link.

subject and verb   a word that is nsubj, csubj or a variant of these (passive, outer; also spaCy's names) and the verb
                   that it depends on; in Universal Dependencies a copula's subject depends on no verb
pronoun and noun   heads of two mentions of one entity in one sentence, one a pronoun, the other a noun
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from bertjax.data import Encoding
from experiments.words.annotated import Annotated, word_pieces

RELATIONS = ("subject to verb", "verb to subject", "pronoun to noun", "noun to pronoun")
SUBJECTS = frozenset(
    ("nsubj", "nsubjpass", "nsubj:pass", "nsubj:outer", "csubj", "csubjpass", "csubj:pass", "csubj:outer")
)
# The kinds of a relation's targets: the nearest word of that kind is another control for position.
TARGETS = (("verb",), ("noun", "pronoun"), ("noun",), ("pronoun",))
# Which words look for the same target as a control: all other words of the text, or those near the source.
SAME_KEY, NEAR = ("others", "neighbours"), 2
Links = list[tuple[int, int]]


def find_links(text: Annotated) -> list[Links]:
    """Pairs of words (source, target) of each relation, in the order of `RELATIONS`."""
    forward = [
        (index, word.head)
        for index, word in enumerate(text.words)
        if word.relation in SUBJECTS and word.head >= 0 and text.words[word.head].kind == "verb"
    ]
    return [link for links in (forward, find_references(text)) for link in (links, turned(links))]


def find_references(text: Annotated) -> Links:
    """Pairs of a pronoun and a noun that are mentions of one entity."""
    entities = defaultdict(set)
    for entity, word in text.mentions or ():
        entities[entity].add(word)
    kinds = [word.kind for word in text.words]
    return sorted(
        {
            (pronoun, noun)
            for words in entities.values()
            for pronoun in words
            for noun in words
            if kinds[pronoun] == "pronoun" and kinds[noun] == "noun"
        }
    )


def turned(links: Links) -> Links:
    """The links from target to source."""
    return [(target, source) for source, target in links]


@dataclass(frozen=True)
class Linked:
    """The words of an example; for a pair, those of both texts together.

    Args:
        tokens: of each word; none where it was cut off.
        kinds: of each word.
        starts: the words that begin a text.
        links: between words that were not cut off, by relation.
    """

    tokens: list[list[int]]
    kinds: list[str]
    starts: list[int]
    links: list[Links]


def join_words(encoding: Encoding, texts: Sequence[Annotated]) -> Linked:
    """The words of an example and their links."""
    linked = Linked([], [], [], [[] for _ in RELATIONS])
    for text, pieces in zip(texts, word_pieces(encoding, texts), strict=True):
        start = len(linked.tokens)
        for links, text_links in zip(linked.links, find_links(text), strict=True):
            kept = [(source, target) for source, target in text_links if pieces[source] and pieces[target]]
            links += [(start + source, start + target) for source, target in kept]
        linked.starts.append(start)
        linked.tokens.extend(pieces)
        linked.kinds.extend(word.kind for word in text.words)
    return linked


def token_pairs(tokens: Sequence[Sequence[int]], links: Sequence[Links]) -> list[Links]:
    """All pairs of tokens (query, key) that an example's links connect, by relation; each pair once.

    >>> token_pairs([[1], [2, 3]], [[(0, 1)], [(1, 0)]])
    [[(1, 2), (1, 3)], [(2, 1), (3, 1)]]
    """
    return [
        sorted(
            {(query, key) for source, target in relation_links for query in tokens[source] for key in tokens[target]}
        )
        for relation_links in links
    ]


def member_masks(examples: Sequence[Linked], width: int) -> Bool[np.ndarray, "examples word token"]:
    """Which of the `width` tokens belong to which word."""
    words = max(1, *(len(linked.tokens) for linked in examples))
    masks = np.zeros((len(examples), words, width), bool)
    for example, linked in enumerate(examples):
        for word, pieces in enumerate(linked.tokens):
            masks[example, word, pieces] = True
    return masks


def other_words(
    examples: Sequence[Linked], links: Int[np.ndarray, "examples relations links 2"], words: int
) -> Float[np.ndarray, "examples controls relations links word"]:
    """Which words look for a link's target as a control, each with an equal share, by `SAME_KEY`.

    They are the other words of the source's text, without the target and all its sources; then those of them near the
    source. Where there is none, it is the source itself, so that the control equals the link.
    """
    shares = np.zeros((len(examples), len(SAME_KEY), *links.shape[1:3], words), np.float32)
    for example, linked in enumerate(examples):
        for relation, pairs in enumerate(linked.links):
            for index, (source, target) in enumerate(pairs):
                first, last = _text_of(linked, source)
                taken = {target, *(start for start, end in pairs if end == target)}
                candidates = [word for word in range(first, last) if word not in taken and linked.tokens[word]]
                near = [word for word in candidates if abs(word - source) <= NEAR]
                for control, group in enumerate((candidates, near)):
                    chosen = group or [source]
                    shares[example, control, relation, index, chosen] = 1 / len(chosen)
    return shares


def _text_of(linked: Linked, word: int) -> tuple[int, int]:
    """The first word of a word's text, and one past the last."""
    first = max(start for start in linked.starts if start <= word)
    return first, min([start for start in linked.starts if start > word], default=len(linked.kinds))


def count_sources(examples: Sequence[Linked]) -> Int[np.ndarray, "examples relations"]:
    """How many words of each example are the source of a link, by relation."""
    return np.array([[len({source for source, _ in pairs}) for pairs in linked.links] for linked in examples])


def best_distance(examples: Sequence[Linked], relation: int) -> tuple[int, Int[np.ndarray, " examples"]]:
    """The fixed distance in words at which targets are found most often, and how many are found in each example.

    >>> one, other = Linked([], [], [0], [[(0, 1), (4, 2)]]), Linked([], [], [0], [[(3, 4)]])
    >>> distance, hits = best_distance([one, other], 0)
    >>> distance, hits.tolist()
    (1, [1, 1])
    """
    counts = Counter(target - source for linked in examples for source, target in linked.links[relation])
    best = min(counts, key=lambda distance: (-counts[distance], abs(distance), distance), default=0)
    return best, np.array(
        [sum(target - source == best for source, target in linked.links[relation]) for linked in examples]
    )


def best_nearest(examples: Sequence[Linked], relation: int) -> tuple[str, Int[np.ndarray, " examples"]]:
    """On which side of a source the nearest word of the target's kind is more often a target.

    Returns:
        `before` or `after`, and how many targets are found in each example.
    """
    hits = {}
    for side, step in (("before", -1), ("after", 1)):
        hits[side] = np.array([_count_nearest(linked, relation, step) for linked in examples])
    best = max(hits, key=lambda side: int(hits[side].sum()))
    return best, hits[best]


def _count_nearest(linked: Linked, relation: int, step: int) -> int:
    links = set(linked.links[relation])
    return sum(
        (source, find_nearest(linked, source, TARGETS[relation], step)) in links
        for source in {source for source, _ in links}
    )


def find_nearest(linked: Linked, source: int, kinds: Sequence[str], step: int) -> int:
    """The nearest word of the given kinds before (step -1) or after (1) another in its text; -1 for none.

    >>> one = Linked([], ["noun", "verb", "noun", "noun"], [0, 3], [])
    >>> find_nearest(one, 1, ["noun"], 1), find_nearest(one, 2, ["noun"], 1), find_nearest(one, 3, ["verb"], -1)
    (2, -1, -1)
    """
    first, last = _text_of(linked, source)
    candidates = range(source + step, first - 1 if step < 0 else last, step)
    return next((index for index in candidates if linked.kinds[index] in kinds), -1)
