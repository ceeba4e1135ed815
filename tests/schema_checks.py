"""Files of results checked against their JSON Schema by another library than bertjax uses."""

import jsonschema
import msgspec

from bertjax.results.schema import Example, Summary


def check_by_jsonschema(value, kind=Summary):
    """Check a value read from JSON against the schema of its declaration, `Summary` or `Example`."""
    jsonschema.Draft202012Validator(msgspec.json.schema(kind)).validate(value)


def check_example(value):
    """The same for a line of `examples.jsonl`."""
    check_by_jsonschema(value, Example)
