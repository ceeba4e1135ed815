"""Read a tokenizer's vocabulary from its files.

tokenizer.json              any
vocab.txt                   WordPiece
vocab.json, merges.txt      byte pairs
spiece.model and the like   SentencePiece's own form of a Unigram model, a message of protocol buffers
"""

import base64
import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from bertjax.data.tokenizer_classes import Names, TokenizerClass, Vocabulary
from bertjax.errors import DataError, library_errors
from bertjax.json_files import read_json, show
from bertjax.paths import is_there, read_file, read_text

LARGEST_ID = 2**31 - 1

# Of SentencePiece's messages: the numbers of fields, and of kinds of pieces and of algorithms.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE, _SCORE, _KIND = 1, 2, 3
_ALGORITHM, _UNKNOWN = 3, 40
_CHARACTER_MAP = 2
_CONTROL, _OF_USER = 3, 4
_UNIGRAM = 1


def json_object(path: Path) -> dict[str, Any]:
    """The object in one of a tokenizer's files; empty where there is no file. Raises `DataError` if it is damaged."""
    return read_json(path, DataError) if is_there(path) else {}


def model_of(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """The model in a tokenizer.json, with its vocabulary checked.

    Raises:
        DataError: there is none, or a token's number is none.
    """
    model = content.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict | list):
        raise DataError(f"{path}: holds no tokenizer model with a vocabulary; fetch the checkpoint again")
    if isinstance(model["vocab"], dict):
        _check_numbers(path, model["vocab"])
    return model


def vocabulary_of(path: Path, content: Mapping[str, Any], kind: TokenizerClass) -> Vocabulary:
    """The vocabulary in a tokenizer.json.

    Raises:
        DataError: its model is damaged, or is not of this class.
    """
    model = model_of(path, content)
    stated = model.get("type", kind.model)
    if stated != kind.model:
        raise DataError(
            f"{path}: no tokenizer can be made of it: its model is {show(stated)}, but a {kind.name} has {kind.model}; "
            "state its own tokenizer_class"
        )
    tokens, by_number = model["vocab"], kind.model != "Unigram"
    if isinstance(tokens, dict) != by_number:
        wanted = "numbers by token" if by_number else "tokens with scores"
        raise DataError(f"{path}: its vocabulary is {show(tokens)}, not {wanted}; is this a {kind.family}'s?")
    with library_errors(f"{path}: no tokenizer can be made of it", DataError):
        return Vocabulary(
            numbers=tokens if by_number else {},
            scores=[] if by_number else [_pair(token) for token in tokens],
            merges=[
                _pair(merge.split(" ") if isinstance(merge, str) else merge) for merge in model.get("merges") or []
            ],
            character_map=_character_map(content.get("normalizer")),
            ends=_ends(content.get("post_processor")) if kind.keeps_ends else None,
        )


def read_vocabulary(directory: Path, kind: TokenizerClass, names: Names) -> Vocabulary:
    """The vocabulary in the files that a class has beside tokenizer.json.

    Raises:
        DataError: a file is damaged, or a SentencePiece model has another algorithm.
    """
    paths = [directory / name for name in kind.files]
    if paths[0].suffix == ".txt":
        return Vocabulary(numbers=_lines(paths[0]))
    if paths[0].suffix == ".json":
        tokens = read_json(paths[0], DataError)
        _check_numbers(paths[0], tokens)
        return Vocabulary(numbers=tokens, merges=_read_merges(paths[1]))
    return _read_sentence_pieces(paths[0], kind, names)


def _check_numbers(path: Path, tokens: Mapping[str, Any]) -> None:
    for token, number in tokens.items():
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= LARGEST_ID:
            raise DataError(f"{path}: the number of {show(token)} must be from 0 to {LARGEST_ID}, found {show(number)}")


def _pair(values: Any) -> tuple[Any, Any]:
    first, second = values
    return first, second


def _character_map(normalizer: Any) -> bytes | None:
    """SentencePiece's map of characters, the first in a normaliser."""
    parts = normalizer.get("normalizers", [normalizer]) if isinstance(normalizer, dict) else normalizer or []
    maps = [part["precompiled_charsmap"] for part in parts if part.get("type") == "Precompiled"]
    return base64.b64decode(maps[0]) if maps else None


def _ends(post_processor: Any) -> Any:
    """The special tokens around texts, as a part of the library."""
    smallest = {"model": {"type": "WordLevel", "vocab": {}, "unk_token": ""}, "post_processor": post_processor}
    return tokenizers.Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], **smallest})).post_processor


def _lines(path: Path) -> dict[str, int]:
    """One token per line, numbered from 0; trailing white space, such as a carriage return, is not part of it."""
    lines = read_text(path, DataError).split("\n")
    return {token.rstrip(): number for number, token in enumerate(lines[:-1] if lines[-1] == "" else lines)}


def _read_merges(path: Path) -> list[tuple[str, str]]:
    """Two tokens in each line, after a line with a version."""
    lines = [line.rstrip("\r") for line in read_text(path, DataError).split("\n")]
    merges = [
        (number, line.split(" ")) for number, line in enumerate(lines, 1) if line and not line.startswith("#version")
    ]
    wrong = next((number for number, tokens in merges if len(tokens) != 2), None)
    if wrong is not None:
        raise DataError(
            f"{path}, line {wrong}: must be two tokens with a space between, found {show(lines[wrong - 1])}"
        )
    return [(first, second) for _, (first, second) in merges]


def _read_sentence_pieces(path: Path, kind: TokenizerClass, names: Names) -> Vocabulary:
    message = read_file(path, DataError)
    try:
        fields = list(_fields(message))
        trainer, normalizer = (dict(_fields(_last(fields, place, b""))) for place in (_TRAINER, _NORMALIZER))
        pieces = [_read_piece(value) for place, value in fields if place == _PIECES]
    except (ValueError, IndexError, TypeError, AttributeError, struct.error):
        raise DataError(f"{path}: not a SentencePiece model; fetch the checkpoint again") from None
    if not pieces or trainer.get(_ALGORITHM, _UNIGRAM) != _UNIGRAM:
        raise DataError(f"{path}: is no Unigram model of SentencePiece, and bertjax reads no other")
    apart = {_CONTROL: True, _OF_USER: False}
    return Vocabulary(
        scores=kind.pieces([(piece, score) for piece, score, _ in pieces], names),
        character_map=normalizer.get(_CHARACTER_MAP) or None,
        unknown=trainer.get(_UNKNOWN, 0),
        special=tuple(
            AddedToken(name, normalized=False, special=apart[sort]) for name, _, sort in pieces if sort in apart
        ),
    )


def _read_piece(message: bytes) -> tuple[str, float, int]:
    """A piece, its score and its kind."""
    fields = dict(_fields(message))
    return fields[_PIECE].decode(), fields.get(_SCORE, 0.0), fields.get(_KIND, 1)


def _last(fields: list[tuple[int, Any]], place: int, default: Any) -> Any:
    return next((value for number, value in reversed(fields) if number == place), default)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The numbers and values of a message's fields: whole numbers, floats of 32 bits, texts as bytes."""
    place = 0
    while place < len(message):
        key, place = _whole_number(message, place)
        number, form = key >> 3, key & 7
        if form == 0:
            value, place = _whole_number(message, place)
            yield number, value
            continue
        size, place = (8 if form == 1 else 4, place) if form in (1, 5) else _size(message, place, form)
        value_bytes, place = message[place : place + size], place + size
        if place > len(message):
            raise ValueError("a field goes beyond the message")
        yield number, struct.unpack("<f", value_bytes)[0] if form == 5 else value_bytes


def _size(message: bytes, place: int, form: int) -> tuple[int, int]:
    if form != 2:
        raise ValueError(f"there is no form {form} of fields")
    return _whole_number(message, place)


def _whole_number(message: bytes, place: int) -> tuple[int, int]:
    """A whole number in groups of seven bits, and the place after it."""
    value = shift = 0
    while shift < 70:
        byte = message[place]
        value, shift, place = value | (byte & 127) << shift, shift + 7, place + 1
        if byte < 128:
            return value, place
    raise ValueError("a number does not end")
