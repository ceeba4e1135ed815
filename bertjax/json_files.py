"""JSON files of the user. Any failure raises one of bertjax's errors in one line.

Duplicate keys are refused because parsers differ in the value that they keep. NaN and infinity are refused because they
are not JSON. Both could lead to wrong numbers without a warning.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from bertjax.errors import BertjaxError, DataError, reading
from bertjax.paths import read_text


class JsonError(ValueError):
    """Text that is not JSON. The message has no path."""


class DuplicateKey(JsonError):
    """A JSON object with a duplicate key."""


def parse_json(text: str) -> Any:
    """Parse JSON.

    Raises:
        JsonError: the text is not JSON, or an object has a duplicate key.

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
    """Read a JSON file.

    Args:
        path: the file.
        error: the class of errors to raise.
        kind: the required type of the value, `dict` or `list`; None for any.

    Raises:
        BertjaxError: the file cannot be read, is not JSON, or has a value of another type.
    """
    with reading(path, error):
        value = parse_json(read_text(path, error))
    if kind is not None and not isinstance(value, kind):
        raise error(f"{path}: must hold a JSON {'object' if kind is dict else 'list'}, found {show(value)}")
    return value


def show(value: Any, most: int = 80) -> str:
    """A JSON value for messages: JSON text, truncated if it is long.

    >>> show({"heads": ["0.1", "2.3"]}, most=15)
    '{"heads": ["0.1...'
    """
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= most else f"{text[:most]}..."


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A dict of the pairs, whose keys must be distinct."""
    value = dict(pairs)
    if len(value) < len(pairs):
        repeated, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise DuplicateKey(f"an object has the key {json.dumps(repeated)[:80]} twice; keep one of the two")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise JsonError(f"not valid JSON: {name} is not JSON")
