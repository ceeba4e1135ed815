"""What a caller gives as examples - tokenised texts, a batch, plain texts - as tokenised texts."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Int

from bertjax import arguments
from bertjax.data import Encoding, Tokenizer
from bertjax.engine.packing import total_lengths
from bertjax.errors import InputError
from bertjax.model import read_batch

# Tokenised texts (`Tokenizer.encode`), plain ones, or for each example several of them, that are run apart; or a batch
# as `collate` and the tokenizers of `transformers` make it.
Examples: TypeAlias = Sequence[Encoding] | Sequence[Sequence[Encoding]] | Sequence[Any] | Mapping[str, Any] | str
Texts: TypeAlias = list[tuple[Encoding, ...]]

EXPECTED = "a list of tokenised texts (Tokenizer.encode), a batch, or with tokenizer= a list of texts"


def read_texts(examples: Examples, tokenizer: Tokenizer | None = None, name: str = "examples") -> Texts:
    """The tokenised texts of each example.

    Args:
        tokenizer: for texts that are not tokenised.
        name: of the argument, for messages.

    Raises:
        InputError: something that is no text, a batch padded on the left, or examples of unequally many texts.
    """
    if isinstance(examples, Mapping):
        texts: Texts = [(text,) for text in _rows_of(examples)]
    else:
        given = arguments.several([examples] if isinstance(examples, str) else examples, name, EXPECTED)
        texts = _tokenised([(one,) if isinstance(one, str | Encoding) else one for one in given], tokenizer, name)
    total_lengths(texts)
    counts = sorted({len(several) for several in texts})
    if len(counts) > 1:
        raise InputError(f"{name} have {counts[0]} to {counts[-1]} texts: all need equally many")
    return texts


def _tokenised(examples: Sequence[Any], tokenizer: Tokenizer | None, name: str) -> Texts:
    """Examples with their plain texts tokenised, all at once."""
    texts = []
    for number, one in enumerate(examples):
        if not isinstance(one, list | tuple) or not all(isinstance(text, str | Encoding) for text in one):
            raise InputError(f"{name} must be {EXPECTED}, but number {number} (from 0) is {arguments.describe(one)}")
        texts.append(tuple(one))
    plain = [text for several in texts for text in several if isinstance(text, str)]
    if not plain:
        return texts
    if tokenizer is None:
        raise InputError(f"{name} are plain texts: give tokenizer=bertjax.Tokenizer.from_pretrained(...) as well")
    expected = "a bertjax.Tokenizer (Tokenizer.from_pretrained)"
    encodings = iter(arguments.instance(tokenizer, "tokenizer", Tokenizer, expected).encode(plain))
    return [tuple(next(encodings) if isinstance(text, str) else text for text in several) for several in texts]


def _rows_of(batch: Mapping[str, Any]) -> list[Encoding]:
    """The texts of a batch, without padding."""
    given = read_batch({"input_ids": batch})
    if given.get("position_ids") is not None:
        raise InputError("a sweep numbers the positions of each text itself: leave out position_ids")
    ids = _rows(given, "input_ids")
    masks = _rows(given, "attention_mask", [row * 0 + 1 for row in ids])
    types = _rows(given, "token_type_ids", [row * 0 for row in ids])
    encodings = []
    for number, row in enumerate(ids):
        if not (number < min(len(masks), len(types)) and row.shape == masks[number].shape == types[number].shape):
            raise InputError(f"row {number} of the batch has arrays of unequal lengths, or lacks one")
        length = int((masks[number] != 0).sum())
        if not masks[number][:length].all():
            raise InputError(f"row {number} of the batch is padded on the left or within: pad it on the right")
        some = slice(0, length)
        encodings.append(Encoding(tuple(row[some].tolist()), tuple(types[number][some].tolist()), (), (), False))
    return encodings


def _rows(
    given: Mapping[str, Any], name: str, default: list[Int[np.ndarray, " _token"]] | None = None
) -> list[Int[np.ndarray, " _token"]]:
    """The rows of one array of a batch; without padding they may be of different lengths."""
    if default is not None and given.get(name) is None:
        return default
    rows = [np.asarray(arguments.array(row, name)) for row in arguments.several(given[name], name, "[batch, token]")]
    for row in rows:
        if row.ndim != 1 or not (np.issubdtype(row.dtype, np.integer) or row.dtype == np.bool_):
            arguments.refuse(name, "integers [batch, token]", given[name])
    return rows
