"""JSON that a user's files hold: whatever is wrong with it ends in one of the project's errors, in one line.

Strict JSON, and only what Python can hold and write again: no NaN and no infinity, no number beyond a float's range,
no text with half of a surrogate pair, nothing nested deeper than `DEEPEST`. An object must not have a key twice:
parsers differ in which value they take.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.errors import BertjaxError, DataError
from bertjax.paths import MOST_TEXT, read_text

DEEPEST = 100  # lists and objects inside each other; the deepest of a real checkpoint or of results is below ten
_LONGEST_NUMBER = 309  # digits of the largest float before its point: 1.8e308
_SURELY_A_FLOAT = 1 << 1023

_KINDS: Mapping[type, str] = {dict: "object", list: "list"}


class JsonError(ValueError):
    """Text that is not JSON, or JSON that is unsafe to read; the message is half a line."""


class DuplicateKey(JsonError):
    """A JSON object that has a key twice."""


def parse_json(text: str, halves: bool = False) -> Any:
    """The value that a JSON text stands for.

    Args:
        halves: whether texts may hold half of a surrogate pair, as the name of a file does that is not UTF-8.

    Raises:
        JsonError: no JSON, or too deep, or with a number or text that cannot be used, or a key twice in an object.

    >>> parse_json('{"heads": [0.5, 12]}')
    {'heads': [0.5, 12]}
    """
    try:
        value = json.loads(
            text,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_refuse_constant,
            object_pairs_hook=_distinct,
        )
    except RecursionError:
        raise JsonError(f"nested deeper than {DEEPEST} lists and objects") from None
    except json.JSONDecodeError as problem:
        raise JsonError(f"not valid JSON: {problem}") from None
    _check(value, halves)
    return value


def read_json(
    path: Path, error: type[BertjaxError] = DataError, kind: type | None = dict, *, most: int = MOST_TEXT
) -> Any:
    """The value in a JSON file.

    Args:
        path: of the file, a regular one.
        error: the class to raise.
        kind: `dict` or `list`, which the value must be; None for any.
        most: bytes that the file may have.

    Raises:
        BertjaxError: of the class `error`: the file cannot be read, is too large, or holds no JSON, JSON that
            `parse_json` refuses, or a value of another kind.
    """
    try:
        value = parse_json(read_text(path, error, most))
    except JsonError as problem:
        raise error(f"{path}: {problem}") from problem
    if kind is not None and not isinstance(value, kind):
        raise error(f"{path}: must hold a JSON {_KINDS[kind]}, found {json_kind(value)}")
    return value


def json_kind(value: Any) -> str:
    """What JSON calls a value, for messages.

    >>> json_kind([]), json_kind(True), json_kind(None)
    ('a list', 'true', 'null')
    """
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    names = ((dict, "an object"), (list, "a list"), (str, "a text"), (int | float, "a number"))
    return next((name for kind, name in names if isinstance(value, kind)), type(value).__name__)


def show(value: Any, most: int = 80) -> str:
    """A JSON value in messages: as JSON writes it, its end left out where it is long.

    >>> show({"heads": ["0.1", "2.3"]}, most=15)
    '{"heads": ["0.1...'
    """
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):  # not JSON: it was not read from a file
        text = json_kind(value)
    return text if len(text) <= most else f"{text[:most]}..."


def _integer(digits: str) -> int:
    if len(digits) > _LONGEST_NUMBER + 1:  # Python itself refuses more than 4300 digits
        raise JsonError(f"a number of {len(digits.lstrip('-'))} digits is too large")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise JsonError(f"the number {digits[:40]} is too large")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of its keys and values, no key twice."""
    value = dict(pairs)
    if len(value) < len(pairs):
        repeated, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise DuplicateKey(f"an object has the key {json.dumps(repeated)[:80]} twice; keep one of the two")
    return value


def _refuse_constant(name: str) -> Any:
    raise JsonError(f"not valid JSON: {name} is not JSON")


def _check(value: Any, halves: bool) -> None:
    """Refuse what is too deep, and texts that are no Unicode; layer by layer, as no depth may exhaust the stack."""
    layer, depth = [value], 0
    while layer:
        inner: list[Any] = []
        for item in layer:
            if isinstance(item, dict | list):
                inner += item if isinstance(item, list) else [*item, *item.values()]
            elif isinstance(item, str) and not (halves or item.isascii()):
                _check_text(item)
            elif isinstance(item, int) and abs(item) > _SURELY_A_FLOAT:
                _check_integer(item)
        depth += any(isinstance(item, dict | list) for item in layer)
        if depth > DEEPEST:
            raise JsonError(f"nested deeper than {DEEPEST} lists and objects")
        layer = inner


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        raise JsonError(
            f"a text holds half of a surrogate pair ({text[problem.start]!r}), which is not a character"
        ) from None


def _check_integer(value: int) -> None:
    try:
        float(value)
    except OverflowError:
        raise JsonError(f"a number of {len(str(abs(value)))} digits is too large") from None
