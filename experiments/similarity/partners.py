"""For each text, other texts with special tokens in the same positions: controls without common content."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bertjax.data import Encoding
from experiments.patterns.maps import sizes_of


@dataclass(frozen=True)
class Partners:
    """Partner texts, each as long as the text that it belongs to, with the first [SEP] in the same place.

    Args:
        texts: indices of the texts that have the requested number of partners.
        drawn: the partners of each of these texts.
        cut: the number of tokens cut from each partner of each of these texts.
    """

    texts: tuple[int, ...]
    drawn: tuple[tuple[Encoding, ...], ...]
    cut: tuple[tuple[int, ...], ...]


def draw_partners(
    texts: Sequence[tuple[int, Encoding]],
    pool: Sequence[Encoding],
    text_sets: Sequence[frozenset[str]],
    draws: int,
    seed: int,
) -> Partners:
    """Draw partners for texts from a pool.

    Each segment of a partner has at least as many tokens as that of the text. Candidates that lose the fewest tokens
    are preferred; ties are broken at random. Tokens are cut before the last word piece of a segment and its [SEP], so
    that the end of a sentence stays at its end. Candidates that share a text with the text itself are excluded.

    Args:
        texts: the texts, each with its index in the pool.
        pool: the candidates.
        text_sets: the texts of each pool entry as strings; entries that share one are not partners.
        draws: number of partners per text.
        seed: for breaking ties.
    """
    sizes = np.array([sizes_of(encoding) for encoding in pool])
    generator = np.random.default_rng(seed)
    complete: list[int] = []
    drawn: list[tuple[Encoding, ...]] = []
    cut: list[tuple[int, ...]] = []
    for number, (place, text) in enumerate(texts):
        lengths = np.array(sizes_of(text))
        order = generator.permutation(len(pool))
        spare = (sizes[order] - lengths).sum(1)
        fits = (sizes[order] >= lengths).all(1) & ((sizes[order] > 0) == (lengths > 0)).all(1)
        fits &= np.array([not text_sets[place] & text_sets[candidate] for candidate in order.tolist()])
        nearest = np.flatnonzero(fits)[np.argsort(spare[fits], kind="stable")][:draws]
        if len(nearest) == draws:
            complete.append(number)
            drawn.append(tuple(fit(pool[order[i]], sizes_of(text)) for i in nearest))
            cut.append(tuple(int(spare[i]) for i in nearest))
    return Partners(tuple(complete), tuple(drawn), tuple(cut))


def fit(text: Encoding, lengths: tuple[int, int]) -> Encoding:
    """The text with its segments cut to the given lengths before the last word piece of each; [CLS] always stays.

    >>> text = Encoding((1, 5, 6, 7, 2), (0,) * 5, ("",) * 5, ((0, 0),) * 5, False)
    >>> fit(text, (4, 0)).input_ids
    (1, 5, 7, 2)
    >>> fit(text, (2, 0)).input_ids
    (1, 2)
    >>> pair = Encoding((1, 5, 6, 7, 2, 2, 8, 2), (0,) * 8, ("",) * 8, ((0, 0),) * 8, False, boundary=5)
    >>> fit(pair, (4, 3)).segments
    (0, 0, 0, 0, 1, 1, 1)
    """
    positions, start = [], 0
    for size, length in zip(sizes_of(text), lengths, strict=True):
        end = min(2, length - (start == 0))
        positions += [*range(start, start + length - end), *range(start + size - end, start + size)]
        start += size
    ids, types = (tuple(part[place] for place in positions) for part in (text.input_ids, text.token_type_ids))
    tokens, offsets = (
        tuple(text.tokens[place] for place in positions),
        tuple(text.offsets[place] for place in positions),
    )
    boundary = None if text.boundary is None else lengths[0]
    return replace(text, input_ids=ids, token_type_ids=types, tokens=tokens, offsets=offsets, boundary=boundary)
