"""For each text other texts whose special tokens stand in the same places: what is alike there is not the content."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bertjax.data import Encoding


@dataclass(frozen=True)
class Partners:
    """Other texts, each as long as the text that it stands beside, with the first [SEP] in the same place.

    Args:
        texts: which texts have as many of them as were asked for.
        drawn: for each of these texts its partners.
        cut: for each of these texts how many tokens each partner lost to fit.
    """

    texts: tuple[int, ...]
    drawn: tuple[tuple[Encoding, ...], ...]
    cut: tuple[tuple[int, ...], ...]


def draw_partners(
    texts: Sequence[tuple[int, Encoding]],
    pool: Sequence[Encoding],
    alike: Sequence[frozenset[str]],
    draws: int,
    seed: int,
) -> Partners:
    """Draw partners for texts from a pool.

    Of each segment a partner has at least as many tokens as the text; those that need the fewest tokens cut are taken,
    and among equals the seed decides. What is cut stands before a segment's last word piece and its [SEP], so that
    whatever ends a sentence stays at its end. Texts in common with the text itself are no partners' texts.

    Args:
        texts: the texts, each with its place in the pool.
        pool: what may be drawn.
        alike: the texts of each of the pool as strings: those that share one are no partners.
        draws: partners of each text.
        seed: of the choice among equals.
    """
    sizes = np.array([segments(one) for one in pool])
    generator = np.random.default_rng(seed)
    found: list[int] = []
    drawn: list[tuple[Encoding, ...]] = []
    cut: list[tuple[int, ...]] = []
    for number, (place, text) in enumerate(texts):
        wanted = np.array(segments(text))
        order = generator.permutation(len(pool))
        spare = (sizes[order] - wanted).sum(1)
        fits = (sizes[order] >= wanted).all(1) & ((sizes[order] > 0) == (wanted > 0)).all(1)
        fits &= np.array([not alike[place] & alike[other] for other in order.tolist()])
        nearest = np.flatnonzero(fits)[np.argsort(spare[fits], kind="stable")][:draws]
        if len(nearest) == draws:
            found.append(number)
            drawn.append(tuple(fit(pool[order[one]], segments(text)) for one in nearest))
            cut.append(tuple(int(spare[one]) for one in nearest))
    return Partners(tuple(found), tuple(drawn), tuple(cut))


def segments(text: Encoding) -> tuple[int, int]:
    """How many tokens the first text has with [CLS] and [SEP], and the second with its [SEP].

    >>> segments(Encoding((1, 5, 2, 6, 2), (0, 0, 0, 1, 1), ("",) * 5, ((0, 0),) * 5, False))
    (3, 2)
    """
    second = sum(text.token_type_ids)
    return len(text) - second, second


def fit(text: Encoding, wanted: tuple[int, int]) -> Encoding:
    """The text with its segments cut to these lengths, before the last word piece of each; [CLS] always stays.

    >>> text = Encoding((1, 5, 6, 7, 2), (0,) * 5, ("",) * 5, ((0, 0),) * 5, False)
    >>> fit(text, (4, 0)).input_ids
    (1, 5, 7, 2)
    >>> fit(text, (2, 0)).input_ids
    (1, 2)
    """
    kept, start = [], 0
    for size, room in zip(segments(text), wanted, strict=True):
        end = min(2, room - (start == 0))
        kept += [*range(start, start + room - end), *range(start + size - end, start + size)]
        start += size
    ids, types = (tuple(part[place] for place in kept) for part in (text.input_ids, text.token_type_ids))
    tokens, offsets = tuple(text.tokens[place] for place in kept), tuple(text.offsets[place] for place in kept)
    return replace(text, input_ids=ids, token_type_ids=types, tokens=tokens, offsets=offsets)
