"""Files of results checked against their JSON schemas by another library than bertjax uses."""

import jsonschema

from bertjax.results.schema import load_schema


def check_by_jsonschema(value, name="summary"):
    """By another reader of JSON Schema than ours."""
    jsonschema.Draft202012Validator(load_schema(name)).validate(value)
