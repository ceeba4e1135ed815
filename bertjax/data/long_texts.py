"""Shorten very long texts before they are truncated.

When tokenizers truncates a pair of long texts, it keeps every part that it cuts off one text together with every part
of the other, which can fill the memory.
"""

from collections.abc import Callable

import tokenizers

Texts = tuple[str, ...]  # one text, or a pair

LONG = 20_000  # characters; longer texts are shortened


def shorten(texts: Texts, most: int, encode: Callable[[str], tokenizers.Encoding]) -> Texts:
    """Beginnings of very long texts that, truncated to `most` tokens, give the same tokens as the whole texts.

    A beginning is used only if its tokens are the first tokens of the whole text.

    Args:
        texts: one text, or a pair. Truncation cuts the longer text of a pair, so the longer text stays the longer.
        most: the number of tokens.
        encode: tokenises a text, without special tokens.
    """
    if max(map(len, texts)) <= LONG:
        return texts
    whole = [encode(text) for text in texts]
    shortened, count = list(texts), most
    longer_first = len(texts) == 2 and len(whole[0]) > len(whole[1])
    for index in reversed(range(len(texts))) if longer_first else range(len(texts)):
        shortened[index], tokens = _beginning(texts[index], whole[index], most, count, encode)
        count = max(count, tokens)
    return tuple(shortened)


def _beginning(
    text: str, whole: tokenizers.Encoding, most: int, count: int, encode: Callable[[str], tokenizers.Encoding]
) -> tuple[str, int]:
    """A beginning with more than `count` tokens, the first `most` as in the whole text; and its number of tokens."""
    for margin in (16, 256):
        if count + margin < len(whole):
            beginning = text[: whole.offsets[count + margin][1]]
            encoded = encode(beginning)
            equal = encoded.ids[:most] == whole.ids[:most] and encoded.offsets[:most] == whole.offsets[:most]
            if equal and len(encoded) > count:
                return beginning, len(encoded)
    return text, len(whole)
