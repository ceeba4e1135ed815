"""Links between a predicate and its elements, as pairs of word pieces, and the attention weights at them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from bertjax.data import Encoding
from experiments.frames.sources import MOST_WORDS, Sentence
from experiments.shared.attention import largest_of_pairs, reduce_attention, stack_pairs
from experiments.shared.run import Run
from experiments.words.spans import pieces_of

Pairs = list[tuple[int, int]]
Groups = Sequence[Sequence[int]]
DIRECTIONS = ("element_to_predicate", "predicate_to_element")
CUT = 20  # tokens, as published


@dataclass(frozen=True)
class Links:
    """What the model reads of sentences, where the links are, and the weights at them.

    Args:
        texts: the sentences as tokens.
        groups: word pieces of the predicate, then of each element.
        both: the largest weight of all pairs, from elements to the predicate and back.
    """

    texts: Sequence[Encoding]
    groups: Sequence[list[list[int]]]
    both: Float[np.ndarray, "examples directions layers heads"]

    def maps(self, chosen: Sequence[int] | slice = slice(None)) -> dict[str, Float[np.ndarray, "layers heads"]]:
        """Means over the sentences, or over the chosen ones."""
        return dict(zip(DIRECTIONS, self.both[chosen].mean(0, dtype=np.float64), strict=True))


def group_pieces(encoding: Encoding, sentence: Sentence) -> list[list[int]]:
    """Word pieces of the predicate, then of each element."""
    return [pieces_of(encoding, span) for span in (sentence.predicate, *sentence.elements)]


def link_pairs(groups: Groups) -> tuple[Pairs, Pairs]:
    """All pairs (query, key) from elements to the predicate, and back.

    >>> link_pairs([[3], [1, 2]])
    ([(1, 3), (2, 3)], [(3, 1), (3, 2)])
    """
    forward = [(element, predicate) for group in groups[1:] for element in group for predicate in groups[0]]
    return forward, [(predicate, element) for element, predicate in forward]


def published_pairs(encoding: Encoding, groups: Groups) -> Pairs:
    """Pairs (query, key) as the authors' code forms them.

    The pieces of all elements, one after another, are paired in order with those of the predicate; the rest of the
    longer list is dropped; each piece is taken at its first occurrence.
    """
    first = {piece: index for index, piece in reversed(list(enumerate(encoding.tokens)))}
    elements = [piece for group in groups[1:] for piece in group]
    pairs = zip(elements, groups[0], strict=False)
    return [(first[encoding.tokens[element]], first[encoding.tokens[predicate]]) for element, predicate in pairs]


def measure_links(run: Run, sentences: Sequence[Sentence]) -> Links:
    """The weights at the links of sentences, in both directions."""
    texts = run.tokenizer.encode([sentence.text for sentence in sentences])
    groups = [group_pieces(text, sentence) for text, sentence in zip(texts, sentences, strict=True)]
    linked = [stack_pairs([link_pairs(sentence_groups) for sentence_groups in groups])]
    weights = reduce_attention(run.model, texts, largest_of_pairs, linked, norms=run.norms)
    return Links(texts, groups, weights)


def measure_published(run: Run, sentences: Sequence[Sentence]) -> Float[np.ndarray, "examples layers heads"]:
    """The authors' value of each sentence: the largest weight of its pairs.

    Their code cuts after 20 tokens, which suits sentences of 12 words. Longer ones are not cut, since that would cut
    links.
    """
    short = all(len(sentence.words) <= MOST_WORDS for sentence in sentences)
    texts = run.tokenizer.encode([sentence.text for sentence in sentences], max_length=CUT if short else None)
    groups = [group_pieces(text, sentence) for text, sentence in zip(texts, sentences, strict=True)]
    pairs = [
        stack_pairs(
            [[published_pairs(text, sentence_groups)] for text, sentence_groups in zip(texts, groups, strict=True)]
        )
    ]
    return reduce_attention(run.model, texts, largest_of_pairs, pairs)[:, 0]
