"""Values held against a JSON Schema: those keywords that the schemas in `schemas/` use, and no others.

The schemas are the one description of a file, for people, for other programs and for bertjax itself. A library for all
of JSON Schema would come with a compiled extension, and would take 1.0 for an integer, which then is no index.
"""

import importlib.resources
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, TypeAlias

from bertjax.arguments import LARGEST_INTEGER
from bertjax.json_files import json_kind

Schema: TypeAlias = Mapping[str, Any] | bool
_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST_INTEGER,
}
_WORDS = {"object": "an object", "array": "a list", "string": "a text", "number": "a number", "integer": "an integer"}


@cache
def load_schema(name: str) -> dict[str, Any]:
    """A schema that bertjax ships, such as 'summary'."""
    text = (importlib.resources.files("bertjax.results") / "schemas" / f"{name}.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def mismatch(value: Any, schema: Schema, where: str = "") -> str | None:
    """What is wrong with a value, in half a line; None where it is as the schema says.

    Args:
        value: as JSON gives it.
        schema: of the keywords in `_RULES`; an integer must be a whole number without a point that fits 64 bits.
        where: the value's place, such as 'base.score', for the answer.

    >>> mismatch({"layer": "3"}, {"properties": {"layer": {"type": ["integer", "null"]}}})
    "layer must be an integer or null, found a text ('3')"
    """
    return next(_mismatches(value, schema, where), None)


def _mismatches(value: Any, schema: Schema, where: str) -> Iterator[str]:
    if isinstance(schema, bool):
        if not schema:
            yield f"{where} must not be there"
        return
    for keyword, given in schema.items():
        if keyword in _RULES:
            yield from _RULES[keyword](value, given, where, schema)
        elif keyword not in _NOTES:
            raise NotImplementedError(f"bertjax.schema does not know the keyword {keyword}")


def _type(value: Any, given: str | list[str], where: str, schema: Mapping[str, Any]) -> Iterator[str]:
    kinds = [given] if isinstance(given, str) else given
    if not any(_TYPES[kind](value) for kind in kinds):
        yield f"{_the(where)} must be {' or '.join(_WORDS.get(kind, kind) for kind in kinds)}, found {_shown(value)}"


def _required(value: Any, given: list[str], where: str, schema: Mapping[str, Any]) -> Iterator[str]:
    missing = [name for name in given if name not in value] if isinstance(value, dict) else []
    if missing:
        yield f"{_the(where)} lacks {', '.join(missing)}"


def _properties(value: Any, given: Mapping[str, Schema], where: str, schema: Mapping[str, Any]) -> Iterator[str]:
    for name in given if isinstance(value, dict) else ():
        if name in value:
            yield from _mismatches(value[name], given[name], f"{where}.{name}" if where else name)


def _additional(value: Any, given: Schema, where: str, schema: Mapping[str, Any]) -> Iterator[str]:
    known = schema.get("properties", {})
    for name in value if isinstance(value, dict) else ():
        if name not in known:
            yield from _mismatches(value[name], given, f"{where}.{_cut(name)}" if where else _cut(name))


def _items(value: Any, given: Schema, where: str, schema: Mapping[str, Any]) -> Iterator[str]:
    for number, item in enumerate(value if isinstance(value, list) else ()):
        yield from _mismatches(item, given, f"{where}[{number}]")


def _least_items(value: Any, given: int, where: str, schema: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(value, list) and len(value) < given:
        yield f"{_the(where)} must have at least {given} items, found {len(value)}"


def _most_items(value: Any, given: int, where: str, schema: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(value, list) and len(value) > given:
        yield f"{_the(where)} must have at most {given} items, found {len(value)}"


def _minimum(value: Any, given: int | float, where: str, schema: Mapping[str, Any]) -> Iterator[str]:
    if _TYPES["number"](value) and value < given:
        yield f"{_the(where)} must be at least {given}, found {_cut(repr(value))}"


def _maximum(value: Any, given: int | float, where: str, schema: Mapping[str, Any]) -> Iterator[str]:
    if _TYPES["number"](value) and value > given:
        yield f"{_the(where)} must be at most {given}, found {_cut(repr(value))}"


def _enum(value: Any, given: list[Any], where: str, schema: Mapping[str, Any]) -> Iterator[str]:
    if not any(type(value) is type(one) and value == one for one in given):
        yield f"{_the(where)} must be one of {', '.join(map(str, given))}, found {_shown(value)}"


def _if(value: Any, given: Schema, where: str, schema: Mapping[str, Any]) -> Iterator[str]:
    fits = mismatch(value, given) is None
    yield from _mismatches(value, schema.get("then" if fits else "else", True), where)


_RULES: dict[str, Callable[[Any, Any, str, Mapping[str, Any]], Iterator[str]]] = {
    "type": _type,
    "required": _required,
    "properties": _properties,
    "additionalProperties": _additional,
    "items": _items,
    "minItems": _least_items,
    "maxItems": _most_items,
    "minimum": _minimum,
    "maximum": _maximum,
    "enum": _enum,
    "if": _if,
}
_NOTES = ("$schema", "title", "description", "then", "else")


def _the(where: str) -> str:
    return where or "it"


def _shown(value: Any) -> str:
    return f"a text ({_cut(repr(value))})" if isinstance(value, str) else json_kind(value)


def _cut(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
