"""Attention between a predicate and its elements by chance: two nulls that a head must exceed.

moved       The predicate and its elements are moved to random positions of their sentence, each in one piece, without
            overlap, and not within two words of the predicate, as the sentences were chosen. Otherwise many random
            positions would be neighbours, to which many heads attend.
swapped     The positions of the links of another sentence with equally many tokens. In the authors' 473 sentences
            92 % of the elements are before the predicate, and 58 % are the first word.

Both also move the predicate, so a head that attends to predicates from everywhere passes them: see `controls.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import false_discovery_control

from bertjax.data import Encoding
from experiments.frames.links import Groups, Links, link_pairs
from experiments.frames.sources import NEAR, Sentence
from experiments.shared.attention import largest_of_pairs, stack_pairs, stream_attention
from experiments.shared.run import Run

HIGH = 0.95  # the share of random means below a null's high point


@dataclass(frozen=True)
class Chance:
    """Real links against random ones.

    Args:
        examples: the number of sentences that count.
        observed: mean weight of their real links.
        mean: mean weight of their random links over all draws.
        high: the value below which 95 % of the draws' mean weights lie.
        p_values: how often random links have at least the weight of the real ones, (1 + hits) / (1 + draws).
    """

    examples: int
    observed: Float[np.ndarray, "directions layers heads"]
    mean: Float[np.ndarray, "directions layers heads"]
    high: Float[np.ndarray, "directions layers heads"]
    p_values: Float[np.ndarray, "directions layers heads"]


def word_numbers(encoding: Encoding, sentence: Sentence) -> Int[np.ndarray, "token"]:
    """The index of the word that each piece begins in, for all pieces between [CLS] and [SEP].

    A piece that includes the space before a word, or is that space, begins in the word.
    """
    text, starts = sentence.text, np.array([start for start, _ in sentence.words])
    first = [start + len(text[start:]) - len(text[start:].lstrip()) for start, _ in encoding.offsets[1:-1]]
    return np.searchsorted(starts, first, side="right") - 1


def nearest_element(
    starts: Int[np.ndarray, "draws groups"], sizes: Sequence[int], words: Int[np.ndarray, "token"]
) -> Int[np.ndarray, "draws"]:
    """The distance in words from the predicate to the nearest element, 1 for neighbours.

    Args:
        starts: the first token of each group, the predicate's first.
        sizes: the number of tokens in each group.
        words: the word of each piece; piece 0 is token 1.

    >>> nearest_element(np.array([[3, 1], [5, 1]]), [1, 2], np.array([0, 1, 2, 3, 4]))
    array([1, 3])
    """
    first, last = words[starts - 1], words[starts + np.array(sizes) - 2]
    before, behind = first[:, :1] - last[:, 1:], first[:, 1:] - last[:, :1]
    return np.maximum(before, behind).min(1)


def place_groups(
    sizes: Sequence[int], words: Int[np.ndarray, "token"], least_distance: int, draws: int, rng: np.random.Generator
) -> Int[np.ndarray, "draws groups"]:
    """Random places of the predicate and its elements in a sentence, each equally likely.

    Args:
        sizes: the number of tokens in each group, the predicate's first.
        words: the word of each piece; piece 0 is token 1.
        least_distance: in words, from the predicate to each element, 1 for neighbours. Such places must exist.
        draws: the number of draws.
        rng: the random generator.

    Returns: the first token of each group.
    """
    blocks = np.array([*sizes, *[1] * (len(words) - sum(sizes))])
    accepted = np.empty((0, len(sizes)), int)
    while len(accepted) < draws:
        order = rng.permuted(np.tile(np.arange(len(blocks)), (2 * draws, 1)), axis=1)
        ends = np.empty_like(order)
        np.put_along_axis(ends, order, np.cumsum(blocks[order], axis=1), axis=1)
        starts = (ends - blocks + 1)[:, : len(sizes)]  # [CLS] is token 0
        accepted = np.concatenate([accepted, starts[nearest_element(starts, sizes, words) >= least_distance]])
    return accepted[:draws]


def draw_pairs(
    groups: Groups, words: Int[np.ndarray, "token"], draws: int, rng: np.random.Generator
) -> Int[np.ndarray, "sets pairs 2"]:
    """Pairs at random places, for each draw from elements to the predicate, then back."""
    sizes = [len(group) for group in groups]
    real = np.array([[group[0] for group in groups]])
    least_distance = min(NEAR + 1, int(nearest_element(real, sizes, words)[0]))
    starts = place_groups(sizes, words, least_distance, draws, rng)
    # Pairing the groups laid side by side shows which pieces of which groups are paired.
    begins = np.cumsum([0, *sizes])
    owner, piece = np.repeat(np.arange(len(sizes)), sizes), np.arange(begins[-1])
    forward, _ = link_pairs(
        [list(range(begin, begin + size)) for begin, size in zip(begins.tolist(), sizes, strict=False)]
    )
    places = starts[:, owner] + piece - begins[owner]
    pairs = places[:, np.array(forward)]
    return np.stack([pairs, pairs[..., ::-1]], axis=1).reshape(2 * draws, -1, 2)


def fill_up(pairs: Int[np.ndarray, "sets pairs 2"], most: int) -> Int[np.ndarray, "sets most 2"]:
    """Pairs padded with -1 up to `most`."""
    padded = np.full((len(pairs), most, 2), -1, np.int32)
    padded[:, : pairs.shape[1]] = pairs
    return padded


def draw_nulls(run: Run, links: Links, sentences: Sequence[Sentence]) -> dict[str, Chance]:
    """Both nulls.

    Returns: `moved`, with random places in the sentence; `swapped`, with the places of links in other sentences of
    equally many tokens, over the sentences that have such a partner (left out where none has).
    """
    texts, groups, draws = links.texts, links.groups, run.options.draws
    words = [word_numbers(text, sentence) for text, sentence in zip(texts, sentences, strict=True)]
    stacked = stack_pairs([link_pairs(sentence_groups) for sentence_groups in groups])
    lengths = np.array([len(text) for text in texts])
    partners = [
        np.flatnonzero((lengths == length) & (np.arange(len(texts)) != index)) for index, length in enumerate(lengths)
    ]

    def moved(index: int, rng: np.random.Generator) -> np.ndarray:
        return fill_up(draw_pairs(groups[index], words[index], draws, rng), stacked.shape[2])

    def swapped(index: int, rng: np.random.Generator) -> np.ndarray:
        return stacked[rng.choice(partners[index], draws)].reshape(2 * draws, *stacked.shape[2:])

    indices = np.arange(len(texts))
    nulls = {"moved": chance(run, links, indices, moved)}
    if chosen := [index for index in indices.tolist() if len(partners[index])]:
        nulls["swapped"] = chance(run, links, np.array(chosen), swapped)
    return nulls


def score_nulls(nulls: Mapping[str, Chance]) -> dict[str, Float[np.ndarray, "directions layers heads"]]:
    """q-values by each null, and by `both`: of the larger p-value. Corrected over all heads and both directions.

    >>> few, many = (np.array(numbers).reshape(2, 1, 2) for numbers in ([0.01, 0.5, 0.04, 1.0], [0.02, 0.03, 0.9, 1.0]))
    >>> nulls = {"moved": Chance(3, few, few, few, few), "swapped": Chance(3, few, few, few, many)}
    >>> {name: found.ravel().round(3).tolist() for name, found in score_nulls(nulls).items()}
    {'moved': [0.04, 0.667, 0.08, 1.0], 'swapped': [0.06, 0.06, 1.0, 1.0], 'both': [0.08, 1.0, 1.0, 1.0]}
    """
    p_values = {name: null.p_values for name, null in nulls.items()}
    p_values["both"] = np.max(list(p_values.values()), axis=0)
    return {name: correct(values) for name, values in p_values.items()}


def correct(p_values: Float[np.ndarray, "directions layers heads"]) -> Float[np.ndarray, "directions layers heads"]:
    """q-values over all heads and both directions (Benjamini and Hochberg 1995)."""
    return false_discovery_control(p_values, axis=None).reshape(p_values.shape)


def chance(
    run: Run, links: Links, chosen: Int[np.ndarray, "examples"], draw: Callable[[int, np.random.Generator], np.ndarray]
) -> Chance:
    """Random links against the real ones.

    Args:
        run: its options give the number of draws and the seed.
        links: the real links.
        chosen: the sentences that count.
        draw: returns random pairs of a sentence, for each draw from elements to the predicate, then back.
    """
    draws, observed = run.options.draws, links.both[chosen].mean(0, dtype=np.float64)

    def extras(places: np.ndarray) -> list[np.ndarray]:
        return [
            np.stack(
                [draw(index, np.random.default_rng((run.options.seed, index))) for index in chosen[places].tolist()]
            )
        ]

    most = max(len(link_pairs(group)[0]) for group in links.groups)
    size = 2 * draws * most * observed[0].size * 8
    total = np.zeros((draws, *observed.shape))
    texts = [links.texts[index] for index in chosen.tolist()]
    for _, values in stream_attention(run.model, texts, largest_of_pairs, extras, example_bytes=size, norms=run.norms):
        total += values.reshape(len(values), *total.shape).sum(0, dtype=np.float64)
    total /= len(chosen)
    p_values = (1 + (total >= observed).sum(0)) / (1 + draws)
    return Chance(len(chosen), observed, total.mean(0), np.quantile(total, HIGH, axis=0), p_values)
