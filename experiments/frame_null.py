"""What attention between a predicate and its elements would be by chance.

Places for the predicate and its elements are drawn at random in their own sentence, each kept in one piece and no two
at one place. Sentences were chosen so that no element is within two words of the predicate; the draws keep to that.
Without it, many random places would be neighbours, to which many heads attend: such heads would never be marked.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import false_discovery_control

from bertjax.tokenizer import Encoding
from experiments.attention import largest_of_pairs, stream_attention
from experiments.frame_links import Groups, link_pairs
from experiments.frames import NEAR, Sentence
from experiments.program import Run


def word_numbers(encoding: Encoding, sentence: Sentence) -> Int[np.ndarray, "token"]:
    """The number of the word that each piece begins in, of all between [CLS] and [SEP]."""
    starts = np.array([start for start, _ in sentence.words])
    return np.searchsorted(starts, [start for start, _ in encoding.offsets[1:-1]], side="right") - 1


def nearest_element(
    starts: Int[np.ndarray, "draws groups"], sizes: Sequence[int], words: Int[np.ndarray, "token"]
) -> Int[np.ndarray, "draws"]:
    """How many words lie from the predicate to the nearest element, 1 for neighbours.

    Args:
        starts: the first token of each group, the predicate's first.
        sizes: tokens of each group.
        words: the word of each piece; piece 0 is token 1.

    >>> nearest_element(np.array([[3, 1], [5, 1]]), [1, 2], np.array([0, 1, 2, 3, 4]))
    array([1, 3])
    """
    first, last = words[starts - 1], words[starts + np.array(sizes) - 2]
    before, behind = first[:, :1] - last[:, 1:], first[:, 1:] - last[:, :1]
    return np.maximum(before, behind).min(1)


def place_groups(
    sizes: Sequence[int], words: Int[np.ndarray, "token"], apart: int, draws: int, rng: np.random.Generator
) -> Int[np.ndarray, "draws groups"]:
    """Random places of the predicate and its elements in a sentence, each equally likely.

    Args:
        sizes: tokens of each group, the predicate's first.
        words: the word of each piece; piece 0 is token 1.
        apart: from the predicate to each element at least so many words, 1 for neighbours. There must be such places.
        draws: how often.
        rng: of what is random.

    Returns: the first token of each group.
    """
    blocks = np.array([*sizes, *[1] * (len(words) - sum(sizes))])
    several = np.empty((0, len(sizes)), int)
    while len(several) < draws:
        order = rng.permuted(np.tile(np.arange(len(blocks)), (2 * draws, 1)), axis=1)
        ends = np.empty_like(order)
        np.put_along_axis(ends, order, np.cumsum(blocks[order], axis=1), axis=1)
        starts = (ends - blocks + 1)[:, : len(sizes)]  # [CLS] is token 0
        several = np.concatenate([several, starts[nearest_element(starts, sizes, words) >= apart]])
    return several[:draws]


def draw_pairs(
    groups: Groups, words: Int[np.ndarray, "token"], draws: int, most: int, rng: np.random.Generator
) -> Int[np.ndarray, "sets pairs 2"]:
    """Pairs of random places, for each draw from elements to the predicate, then back; filled up to `most` with -1."""
    sizes = [len(group) for group in groups]
    real = np.array([[group[0] for group in groups]])
    apart = min(NEAR + 1, int(nearest_element(real, sizes, words)[0]))
    starts = place_groups(sizes, words, apart, draws, rng)
    # The pairs of the groups side by side say which pieces of which groups are paired.
    begins = np.cumsum([0, *sizes])
    owner, piece = np.repeat(np.arange(len(sizes)), sizes), np.arange(begins[-1])
    forth, _ = link_pairs(
        [list(range(begin, begin + size)) for begin, size in zip(begins.tolist(), sizes, strict=False)]
    )
    where = starts[:, owner] + piece - begins[owner]
    pairs = where[:, np.array(forth)]
    found = np.full((draws, 2, most, 2), -1, np.int32)
    found[:, 0, : len(forth)], found[:, 1, : len(forth)] = pairs, pairs[..., ::-1]
    return found.reshape(2 * draws, most, 2)


def score_links(
    run: Run,
    texts: Sequence[Encoding],
    groups: Sequence[Groups],
    words: Sequence[Int[np.ndarray, "token"]],
    observed: Float[np.ndarray, "directions layers heads"],
) -> Float[np.ndarray, "directions layers heads"]:
    """q-values of the means, by random places of the links."""
    draws, config = run.options.draws, run.model.config
    total = np.zeros((draws, *observed.shape))
    most = max(len(link_pairs(group)[0]) for group in groups)

    def moved(places: np.ndarray) -> list[np.ndarray]:
        rngs = [np.random.default_rng((run.options.seed, place)) for place in places.tolist()]
        several = zip(places.tolist(), rngs, strict=True)
        return [np.stack([draw_pairs(groups[place], words[place], draws, most, rng) for place, rng in several])]

    size = 2 * draws * most * config.num_hidden_layers * config.num_attention_heads * 8
    for _, values in stream_attention(run.model, texts, largest_of_pairs, moved, example_bytes=size, report=run.report):
        total += values.reshape(len(values), draws, *observed.shape).sum(0)
    hits = (total / len(texts) >= observed).sum(0)
    return false_discovery_control((1 + hits) / (1 + draws), axis=None).reshape(hits.shape)
