"""Relations between words of a text: subject and verb, pronoun and noun; and the tokens that they link.

subject and verb   a word that is nsubj, csubj or one of their kinds (passive, outer; spaCy's names too) and the verb
                   that it depends on; a copula's subject depends on no verb in Universal Dependencies
pronoun and noun   heads of two mentions of one entity in one sentence, one a pronoun, the other a noun
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int

from bertjax import Tokenizer
from bertjax.tokenizer import Encoding
from experiments.annotated import Annotated, AnnotatedSample, word_pieces
from experiments.features import pieces_of_forms

RELATIONS = ("subject to verb", "verb to subject", "pronoun to noun", "noun to pronoun")
SUBJECTS = frozenset(
    ("nsubj", "nsubjpass", "nsubj:pass", "nsubj:outer", "csubj", "csubjpass", "csubj:pass", "csubj:outer")
)
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


def join_words(sample: AnnotatedSample) -> tuple[list[list[list[int]]], list[list[Links]]]:
    """The words of each example, of both texts of a pair together: the tokens of each, and the links between them.

    Links of words that were cut off are left out.
    """
    tokens, links = [], []
    for encoding, texts in zip(sample.texts, sample.annotations, strict=True):
        own: list[list[int]] = []
        several: list[Links] = [[] for _ in RELATIONS]
        for text, pieces in zip(texts, word_pieces(encoding, texts), strict=True):
            for found, new in zip(several, find_links(text), strict=True):
                kept = [(source, target) for source, target in new if pieces[source] and pieces[target]]
                found += [(len(own) + source, len(own) + target) for source, target in kept]
            own += pieces
        tokens.append(own)
        links.append(several)
    return tokens, links


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
    paired one to one; only nsubj of a verb, not of an auxiliary. Their code has subject and verb only; pronouns and
    nouns are taken in the same way.
    """
    found: list[Links] = []
    forth: list[list[tuple[str, str]]] = [[], []]
    for text in texts:
        words = text.words
        subjects = [word for word in words if word.relation == "nsubj" and word.head >= 0]
        forth[0] += [(word.form, words[word.head].form) for word in subjects if words[word.head].part == "VERB"]
        forth[1] += [(words[pronoun].form, words[noun].form) for pronoun, noun in find_references(text)]
    for forms in forth:
        places = []
        for own in zip(*forms, strict=True) if forms else ((), ()):
            pieces = pieces_of_forms(tokenizer, set(own))
            places.append([place for place, piece in enumerate(encoding.tokens) if piece in pieces])
        pairs = list(zip(*places, strict=False))
        found += [pairs, _turned(pairs)]
    return found


def member_masks(tokens: Sequence[Sequence[Sequence[int]]]) -> Bool[np.ndarray, "examples words token"]:
    """Which tokens belong to which word."""
    words = max(1, *(len(own) for own in tokens))
    width = 1 + max((token for own in tokens for pieces in own for token in pieces), default=0)
    found = np.zeros((len(tokens), words, width), bool)
    for example, own in enumerate(tokens):
        for word, pieces in enumerate(own):
            found[example, word, pieces] = True
    return found


def count_sources(links: Sequence[Sequence[Links]]) -> Int[np.ndarray, "examples relations"]:
    """How many words are the source of a link."""
    return np.array([[len({source for source, _ in own}) for own in several] for several in links])
