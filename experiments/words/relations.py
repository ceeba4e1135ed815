"""Relations between words of a text: subject and verb, pronoun and noun; and the tokens that they link.

subject and verb   a word that is nsubj, csubj or one of their kinds (passive, outer; spaCy's names too) and the verb
                   that it depends on; a copula's subject depends on no verb in Universal Dependencies
pronoun and noun   heads of two mentions of one entity in one sentence, one a pronoun, the other a noun
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from bertjax import Tokenizer
from bertjax.data import Encoding
from experiments.words.annotated import Annotated, word_pieces
from experiments.words.features import pieces_of_forms

RELATIONS = ("subject to verb", "verb to subject", "pronoun to noun", "noun to pronoun")
SUBJECTS = frozenset(
    ("nsubj", "nsubjpass", "nsubj:pass", "nsubj:outer", "csubj", "csubjpass", "csubj:pass", "csubj:outer")
)
# Of which kind a target is: what the nearest word of that kind finds is another measure of position.
TARGETS = (("verb",), ("noun", "pronoun"), ("noun",), ("pronoun",))
VERBS = ("VERB", "AUX")  # of Universal Dependencies
# Who looks for the same target as a control: all other words of the text, or those near the source.
SAME_KEY, NEAR = ("others", "neighbours"), 2
Links = list[tuple[int, int]]


def find_links(text: Annotated) -> list[Links]:
    """Pairs of words (source, target) of each relation in the order of `RELATIONS`."""
    forth = [
        (number, word.head)
        for number, word in enumerate(text.words)
        if word.relation in SUBJECTS and word.head >= 0 and text.words[word.head].kind == "verb"
    ]
    return [link for links in (forth, find_references(text)) for link in (links, _turned(links))]


def find_references(text: Annotated) -> Links:
    """Pronouns and nouns that are mentions of one entity."""
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


def _turned(links: Links) -> Links:
    return [(target, source) for source, target in links]


@dataclass(frozen=True)
class Linked:
    """The words of an example, those of both texts of a pair together.

    Args:
        tokens: of each word; none where it was cut off.
        kinds: of each word.
        starts: which words begin a text.
        links: between words that were not cut off, by relation.
    """

    tokens: list[list[int]]
    kinds: list[str]
    starts: list[int]
    links: list[Links]


def join_words(encoding: Encoding, texts: Sequence[Annotated]) -> Linked:
    """The words of an example and their links."""
    found = Linked([], [], [], [[] for _ in RELATIONS])
    for text, pieces in zip(texts, word_pieces(encoding, texts), strict=True):
        start = len(found.tokens)
        for links, new in zip(found.links, find_links(text), strict=True):
            kept = [(source, target) for source, target in new if pieces[source] and pieces[target]]
            links += [(start + source, start + target) for source, target in kept]
        found.starts.append(start)
        found.tokens.extend(pieces)
        found.kinds.extend(word.kind for word in text.words)
    return found


def token_pairs(tokens: Sequence[Sequence[int]], links: Sequence[Links]) -> list[Links]:
    """All pairs of tokens (query, key) that the links of an example link, by relation; each pair once.

    >>> token_pairs([[1], [2, 3]], [[(0, 1)], [(1, 0)]])
    [[(1, 2), (1, 3)], [(2, 1), (3, 1)]]
    """
    return [
        sorted({(query, key) for source, target in own for query in tokens[source] for key in tokens[target]})
        for own in links
    ]


def published_pairs(encoding: Encoding, texts: Sequence[Annotated], tokenizer: Tokenizer) -> list[Links]:
    """Pairs (query, key) as the authors' code forms them.

    The pieces of all sources wherever they stand in the input, those of all targets likewise, and these two lists
    paired one to one; only nsubj of a verb. The tags that their spaCy gave counted "is" and other auxiliaries among the
    verbs, as did all its versions before 2.2; now they are apart, and are taken too. Their code has subject and verb
    only; pronouns and nouns are taken in the same way.
    """
    found: list[Links] = []
    forth: list[list[tuple[str, str]]] = [[], []]
    for text in texts:
        words = text.words
        subjects = [word for word in words if word.relation == "nsubj" and word.head >= 0]
        forth[0] += [(word.form, words[word.head].form) for word in subjects if words[word.head].part in VERBS]
        forth[1] += [(words[pronoun].form, words[noun].form) for pronoun, noun in find_references(text)]
    for forms in forth:
        places = []
        for own in zip(*forms, strict=True) if forms else ((), ()):
            pieces = pieces_of_forms(tokenizer, set(own))
            places.append([place for place, piece in enumerate(encoding.tokens) if piece in pieces])
        pairs = list(zip(*places, strict=False))
        found += [pairs, _turned(pairs)]
    return found


def member_masks(examples: Sequence[Linked], width: int) -> Bool[np.ndarray, "examples word token"]:
    """Which of so many tokens belong to which word."""
    words = max(1, *(len(one.tokens) for one in examples))
    found = np.zeros((len(examples), words, width), bool)
    for example, one in enumerate(examples):
        for word, pieces in enumerate(one.tokens):
            found[example, word, pieces] = True
    return found


def other_words(
    examples: Sequence[Linked], links: Int[np.ndarray, "examples relations links 2"], words: int
) -> Float[np.ndarray, "examples controls relations links word"]:
    """With which words the target of a link is asked for as a control: an equal share of each, by `SAME_KEY`.

    They are the other words of the source's text, without the target and all sources that it has; then those of them
    that stand near the source. Where there is none, it is the source itself, so that the control says what the link
    says.
    """
    found = np.zeros((len(examples), len(SAME_KEY), *links.shape[1:3], words), np.float32)
    for example, one in enumerate(examples):
        for relation, own in enumerate(one.links):
            for number, (source, target) in enumerate(own):
                first, last = _text_of(one, source)
                taken = {target, *(other for other, linked in own if linked == target)}
                others = [word for word in range(first, last) if word not in taken and one.tokens[word]]
                near = [word for word in others if abs(word - source) <= NEAR]
                for control, several in enumerate((others, near)):
                    chosen = several or [source]
                    found[example, control, relation, number, chosen] = 1 / len(chosen)
    return found


def _text_of(one: Linked, word: int) -> tuple[int, int]:
    """The first word of its text, and one past the last."""
    first = max(start for start in one.starts if start <= word)
    return first, min([start for start in one.starts if start > word], default=len(one.kinds))


def count_sources(examples: Sequence[Linked]) -> Int[np.ndarray, "examples relations"]:
    """How many words are the source of a link."""
    return np.array([[len({source for source, _ in own}) for own in one.links] for one in examples])


def best_distance(examples: Sequence[Linked], relation: int) -> tuple[int, Int[np.ndarray, " examples"]]:
    """The fixed distance in words at which targets are found most often, and how many in each example.

    >>> one, other = Linked([], [], [0], [[(0, 1), (4, 2)]]), Linked([], [], [0], [[(3, 4)]])
    >>> distance, hits = best_distance([one, other], 0)
    >>> distance, hits.tolist()
    (1, [1, 1])
    """
    counts = Counter(target - source for one in examples for source, target in one.links[relation])
    best = min(counts, key=lambda apart: (-counts[apart], abs(apart), apart), default=0)
    return best, np.array([sum(target - source == best for source, target in one.links[relation]) for one in examples])


def best_nearest(examples: Sequence[Linked], relation: int) -> tuple[str, Int[np.ndarray, " examples"]]:
    """Whether the nearest word of the target's kind before a source or after it is a target more often.

    Returns:
        `before` or `after`, and how many targets are found in each example.
    """
    several = {}
    for side, step in (("before", -1), ("after", 1)):
        several[side] = np.array([_count_nearest(one, relation, step) for one in examples])
    best = max(several, key=lambda side: int(several[side].sum()))
    return best, several[best]


def _count_nearest(one: Linked, relation: int, step: int) -> int:
    links = set(one.links[relation])
    return sum(
        (source, find_nearest(one, source, TARGETS[relation], step)) in links for source in {own for own, _ in links}
    )


def find_nearest(one: Linked, source: int, kinds: Sequence[str], step: int) -> int:
    """The nearest word of some kinds before (step -1) or after (1) another in its text; -1 for none.

    >>> one = Linked([], ["noun", "verb", "noun", "noun"], [0, 3], [])
    >>> find_nearest(one, 1, ["noun"], 1), find_nearest(one, 2, ["noun"], 1), find_nearest(one, 3, ["verb"], -1)
    (2, -1, -1)
    """
    first, last = _text_of(one, source)
    places = range(source + step, first - 1 if step < 0 else last, step)
    return next((place for place in places if one.kinds[place] in kinds), -1)
