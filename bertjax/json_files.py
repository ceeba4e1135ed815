"""JSON that a user's files hold: whatever is wrong with it ends in one of the project's errors, in one line.

An object must not have a key twice, because parsers differ in which value they take, and NaN and infinity are not JSON:
either could give wrong numbers in silence.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from bertjax.errors import BertjaxError, DataError, reading
from bertjax.paths import read_text


class JsonError(ValueError):
    """Text that is not JSON; the message is half a line."""


class DuplicateKey(JsonError):
    """A JSON object that has a key twice."""


def parse_json(text: str) -> Any:
    """The value that a JSON text stands for.

    Raises:
        JsonError: the text is not JSON, or an object has a key twice.

    >>> parse_json('{"heads": [0.5, 12]}')
    {'heads': [0.5, 12]}
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_distinct)
    except JsonError:
        raise
    except json.JSONDecodeError as problem:
        where = f"line {problem.lineno}, column" if "\n" in text else "column"
        raise JsonError(f"not valid JSON: {problem.msg} at {where} {problem.colno}") from None
    except (ValueError, RecursionError) as problem:
        raise JsonError(f"not valid JSON: {problem}") from None


def read_json(path: Path, error: type[BertjaxError] = DataError, kind: type | None = dict) -> Any:
    """The value in a JSON file.

    Args:
        path: of the file.
        error: the class to raise.
        kind: `dict` or `list`, which the value must be; None for any.

    Raises:
        BertjaxError: of the class `error`: the file cannot be read, or holds no JSON or a value of another kind.
    """
    with reading(path, error):
        value = parse_json(read_text(path, error))
    if kind is not None and not isinstance(value, kind):
        raise error(f"{path}: must hold a JSON {'object' if kind is dict else 'list'}, found {show(value)}")
    return value


def show(value: Any, most: int = 80) -> str:
    """A JSON value in messages: as JSON writes it, its end left out where it is long.

    >>> show({"heads": ["0.1", "2.3"]}, most=15)
    '{"heads": ["0.1...'
    """
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= most else f"{text[:most]}..."


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of its keys and values, no key twice."""
    value = dict(pairs)
    if len(value) < len(pairs):
        repeated, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise DuplicateKey(f"an object has the key {json.dumps(repeated)[:80]} twice; keep one of the two")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise JsonError(f"not valid JSON: {name} is not JSON")
