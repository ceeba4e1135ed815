"""Validation against a JSON Schema, limited to the keywords that the schemas in `schemas/` use.

Each schema is the single description of a file, for people, other programs and bertjax itself. A library for all of
JSON Schema would bring a compiled extension, and would accept 1.0 as an integer, which cannot be used as an index.
"""

import importlib.resources
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, TypeAlias

from bertjax.arguments import LARGEST_INTEGER
from bertjax.json_files import show

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
    """A phrase saying what is wrong with a value; None where it matches the schema.

    Args:
        value: as parsed from JSON.
        schema: with keywords in `_RULES`; an integer must be written without a decimal point and fit in 64 bits.
        where: the value's location, such as 'base.score', for the message.

    >>> mismatch({"layer": "3"}, {"properties": {"layer": {"type": ["integer", "null"]}}})
    "layer must be an integer or null, found a text ('3')"
    """
    return next(_mismatches(value, schema, where), None)


def _mismatches(value: Any, schema: Schema, where: str) -> Iterator[str]:
    if isinstance(schema, bool):
        if not schema:
            yield f"{where} must not be there"
        return
    for keyword, argument in schema.items():
        if keyword in _RULES:
            yield from _RULES[keyword](value, argument, where, schema)
        elif keyword not in _NOTES:
            raise NotImplementedError(f"bertjax.results.schema does not implement the keyword {keyword}")


def _type(value: Any, allowed: str | list[str], where: str, schema: Mapping[str, Any]) -> Iterator[str]:
    kinds = [allowed] if isinstance(allowed, str) else allowed
    if not any(_TYPES[kind](value) for kind in kinds):
        yield f"{_the(where)} must be {' or '.join(_WORDS.get(kind, kind) for kind in kinds)}, found {_shown(value)}"


def _required(value: Any, required: list[str], where: str, schema: Mapping[str, Any]) -> Iterator[str]:
    missing = [name for name in required if name not in value] if isinstance(value, dict) else []
    if missing:
        yield f"{_the(where)} lacks {', '.join(missing)}"


def _properties(value: Any, properties: Mapping[str, Schema], where: str, schema: Mapping[str, Any]) -> Iterator[str]:
    for name in properties if isinstance(value, dict) else ():
        if name in value:
            yield from _mismatches(value[name], properties[name], f"{where}.{name}" if where else name)


def _additional(value: Any, extra_schema: Schema, where: str, schema: Mapping[str, Any]) -> Iterator[str]:
    properties = schema.get("properties", {})
    for name in value if isinstance(value, dict) else ():
        if name not in properties:
            yield from _mismatches(value[name], extra_schema, f"{where}.{_cut(name)}" if where else _cut(name))


def _items(value: Any, item_schema: Schema, where: str, schema: Mapping[str, Any]) -> Iterator[str]:
    for number, item in enumerate(value if isinstance(value, list) else ()):
        yield from _mismatches(item, item_schema, f"{where}[{number}]")


def _least_items(value: Any, least: int, where: str, schema: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(value, list) and len(value) < least:
        yield f"{_the(where)} must have at least {least} items, found {len(value)}"


def _most_items(value: Any, most: int, where: str, schema: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(value, list) and len(value) > most:
        yield f"{_the(where)} must have at most {most} items, found {len(value)}"


def _minimum(value: Any, minimum: int | float, where: str, schema: Mapping[str, Any]) -> Iterator[str]:
    if _TYPES["number"](value) and value < minimum:
        yield f"{_the(where)} must be at least {minimum}, found {_cut(repr(value))}"


def _maximum(value: Any, maximum: int | float, where: str, schema: Mapping[str, Any]) -> Iterator[str]:
    if _TYPES["number"](value) and value > maximum:
        yield f"{_the(where)} must be at most {maximum}, found {_cut(repr(value))}"


def _enum(value: Any, choices: list[Any], where: str, schema: Mapping[str, Any]) -> Iterator[str]:
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        yield f"{_the(where)} must be one of {', '.join(map(str, choices))}, found {_shown(value)}"


def _if(value: Any, condition: Schema, where: str, schema: Mapping[str, Any]) -> Iterator[str]:
    fits = mismatch(value, condition) is None
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
    return f"a text ({_cut(repr(value))})" if isinstance(value, str) else show(value, 40)


def _cut(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
