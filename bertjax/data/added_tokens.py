"""The tokens that a tokenizer has beside its vocabulary: special ones, by what they are for, and added ones.

They stand in tokenizer_config.json, and in older checkpoints in special_tokens_map.json and added_tokens.json.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from bertjax.data.tokenizer_classes import TokenizerClass
from bertjax.data.vocabularies import LARGEST_ID, json_object
from bertjax.errors import DataError
from bertjax.json_files import show

# The names of special tokens, in the order in which those that the vocabulary lacks are added to it.
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


@dataclass(frozen=True)
class TokensBeside:
    """The tokens beside a vocabulary.

    Args:
        declared: added tokens by number.
        named: special tokens by what they are for.
        extra: further special tokens.
    """

    declared: Mapping[int, AddedToken]
    named: Mapping[str, AddedToken]
    extra: tuple[AddedToken, ...]

    @property
    def names(self) -> dict[str, str]:
        """The texts of the named tokens."""
        return {key: token.content for key, token in self.named.items()}


def names_in_map(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The names of special tokens that an older checkpoint has in special_tokens_map.json.

    Raises:
        DataError: the file is damaged, or holds something else.
    """
    names = json_object(path)
    if unknown := [key for key in names if not key.endswith(("_token", "_tokens"))]:
        raise DataError(f"{path}: holds {show(unknown[0])}, which is not the name of a token")
    names = {key: _as_special(value) for key, value in names.items()}
    extra = names.get("extra_special_tokens")
    if isinstance(extra, list):
        stated = settings.get("extra_special_tokens") or []
        names["extra_special_tokens"] = [*stated, *[token for token in extra if token not in stated]]
    return names


def _as_special(named: Any) -> Any:
    if isinstance(named, list):
        return [_as_special(token) for token in named]
    return named | {"special": True} if isinstance(named, dict) else named


def declared_in_file(path: Path, content: Mapping[str, Any]) -> dict[int, AddedToken]:
    """The added tokens of a tokenizer.json, by number.

    Raises:
        DataError: they are damaged.
    """
    tokens = content.get("added_tokens") or []
    if not isinstance(tokens, list) or not all(isinstance(token, dict) for token in tokens):
        raise DataError(f"{path}: added_tokens must be a list of tokens, found {show(tokens)}")
    return {token_number(path, token.get("id")): read_token(path, "an added token", token) for token in tokens}


def declared_beside(directory: Path, settings: Mapping[str, Any]) -> dict[int, AddedToken]:
    """The added tokens of added_tokens.json, by number.

    Raises:
        DataError: the file is damaged.
    """
    path = directory / "added_tokens.json"
    extra = settings.get("extra_special_tokens")
    named = [settings.get(key) for key in _SPECIAL] + (extra if isinstance(extra, list) else [])
    special = [token.get("content") if isinstance(token, dict) else token for token in named]
    return {
        token_number(path, number): AddedToken(token, normalized=token not in special, special=token in special)
        for token, number in json_object(path).items()
    }


def named_tokens(
    path: Path, settings: Mapping[str, Any], kind: TokenizerClass | None, content: Mapping[str, Any] | None
) -> dict[str, AddedToken]:
    """The special tokens by what they are for, in the order in which they are added.

    Args:
        path: of the settings.
        settings: they name the tokens.
        kind: the class, which has names for those that the settings leave out; None for no class.
        content: of tokenizer.json, which without a class may say what pads texts.

    Raises:
        DataError: a name is no text, or there is none.
    """
    defaults: dict[str, Any] = dict(kind.names) if kind else {}
    padding = (content or {}).get("padding")
    if kind is None and isinstance(padding, dict):
        defaults["pad_token"] = padding.get("pad_token")
    stated = defaults | {key: value for key, value in settings.items() if _names_a_token(key, value)}
    extra = settings.get("extra_special_tokens")
    if isinstance(extra, dict):
        stated |= extra
    nothing = [key for key in kind.names if stated[key] is None and key != "mask_token"] if kind else []
    if nothing:
        raise DataError(f"{path}: {nothing[0]} is null, but a {kind and kind.name} needs one")
    tokens = {
        key: read_token(path, key, stated[key], {"special": True, **(kind.flags.get(key, {}) if kind else {})})
        for key in [*_SPECIAL, *[key for key in stated if key not in _SPECIAL]]
        if stated.get(key) is not None
    }
    for token in tokens.values():
        token.special = True
    return tokens


def _names_a_token(key: str, value: Any) -> bool:
    """Whether a setting names a special token; of those that only a model knows the values decide."""
    return key in _SPECIAL or (key.endswith("_token") and isinstance(value, str | dict))


def extra_tokens(
    path: Path, settings: Mapping[str, Any], default: Iterable[str], of_model: tuple[AddedToken, ...] | None
) -> tuple[AddedToken, ...]:
    """Special tokens besides the named ones: the settings', else a SentencePiece model's, else the class's.

    Raises:
        DataError: they are no list of tokens.
    """
    older = settings.get("additional_special_tokens")
    if "extra_special_tokens" not in settings and of_model is not None:
        return of_model
    extra = settings.get("extra_special_tokens", list(default) if older is None else older)
    if isinstance(extra, dict):
        return ()  # they have names
    if not isinstance(extra, list | None):
        raise DataError(f"{path}: additional_special_tokens must be a list of tokens, found {show(extra)}")
    return tuple(read_token(path, "a special token", token, {"special": True}) for token in extra or ())


def read_token(path: Path, what: str, token: Any, flags: Mapping[str, bool] | None = None) -> AddedToken:
    """A token for the library, from an object with its text as `content`, or from its text and `flags`.

    Raises:
        DataError: it is neither.
    """
    if isinstance(token, dict):
        content = token.get("content")
        flags = {key: token[key] for key in _FLAGS if key in token}
    else:
        content, flags = token, flags or {}
    if not isinstance(content, str) or not content or not all(isinstance(flag, bool) for flag in flags.values()):
        raise DataError(f"{path}: {what} must be a text, or an object with a text as content, found {show(token)}")
    return AddedToken(content, **flags)


def add_tokens(path: Path, backend: tokenizers.Tokenizer, tokens: TokensBeside) -> None:
    """Add declared tokens in the order of their numbers, then other special ones.

    Raises:
        DataError: a token does not get its declared number.
    """
    existing = backend.get_added_tokens_decoder().values()
    written = {repr(token) for token in existing}
    waiting = [token for _, token in sorted(tokens.declared.items()) if repr(token) not in written]
    known = {token.content for token in [*existing, *waiting]}
    for token in [*tokens.named.values(), *tokens.extra]:
        if token.content not in known and token not in waiting:
            waiting.append(token)
    names = tokens.names.values()
    for token in waiting:
        token.special = token.special or token.content in names
    backend.add_tokens(waiting)
    for number, token in tokens.declared.items():
        if (token_id := backend.token_to_id(token.content)) != number:
            raise DataError(
                f"{path}: the added token {show(token.content)} is said to be number {number}, but is {token_id}"
            )


def token_number(path: Path, number: Any) -> int:
    """The number of a token, from a number or its digits.

    Raises:
        DataError: it is none.
    """
    digits = isinstance(number, str) and number.isascii() and number.isdigit() and len(number) < 11
    value = int(number) if digits else number
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST_ID:
        raise DataError(f"{path}: a token's number must be from 0 to {LARGEST_ID}, found {show(number)}")
    return value
