"""Rules for values in config.json: what a key may hold, and how an error describes it."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bertjax import arguments
from bertjax.errors import ConfigError

LARGEST = 2**31 - 1  # of an axis: JAX indexes with 32 bits


@dataclass(frozen=True)
class Rule:
    """Allowed values of a key.

    Args:
        expected: description for error messages, such as "true or false".
        allows: whether a value is allowed.
    """

    expected: str
    allows: Callable[[Any], bool]

    def check(self, value: Any, key: str) -> None:
        """Raise `ConfigError` if a value is not allowed."""
        if not self.allows(value):
            raise ConfigError(f"{key} must be {self.expected}, found {arguments.brief(value)}")


def is_integer(value: Any) -> bool:
    """Whether a value is an int and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a finite int or float and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def integer(least: int = 1, most: int = LARGEST) -> Rule:
    """An integer in a range."""
    return Rule(f"an integer from {least} to {most}", lambda value: is_integer(value) and least <= value <= most)


def one_of(*choices: Any) -> Rule:
    """One of some values, where 1 is not True."""
    names = ", ".join(map(repr, choices))

    def is_choice(value: Any) -> bool:
        return any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in choices)

    return Rule(f"one of {names}", is_choice)


def optional(rule: Rule) -> Rule:
    """A value that a rule allows, or null."""
    return Rule(f"{rule.expected} or null", lambda value: value is None or rule.allows(value))


INTEGER = integer()
FLAG = Rule("true or false", lambda value: isinstance(value, bool))
FRACTION = Rule("a number from 0 to 1", lambda value: is_number(value) and 0 <= value <= 1)
NOT_NEGATIVE = Rule("a number of at least 0", lambda value: is_number(value) and value >= 0)
POSITIVE = Rule("a positive number", lambda value: is_number(value) and math.ulp(0.0) <= value < math.inf)
