"""Texts that bertjax did not write (names, labels, paths, tokens), and numbers in words, fit for what they go into.

A terminal obeys control characters, XML may not hold them, JSON and UTF-8 have no half of a character, and a
spreadsheet computes what begins with an equals sign. Here is what is done about each, once.
"""

import json
import re
from typing import Any

# Control characters, separators of lines, marks that turn the direction of writing, half characters (lone surrogates),
# and the two that are none.
HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
HALF_CHARACTER = re.compile("[\ud800-\udfff]")
# What a spreadsheet takes for a formula; the page's program reads it too, so it is written as both languages do.
FORMULA = r"^[=+\-@\t\r]"


def visible(text: str, allowed: str = "") -> str:
    r"""A text with each character that would not be seen, but obeyed, written as its escape.

    Args:
        allowed: such characters that stay.

    >>> print(visible("red\x1b[31m\n"))
    red\x1b[31m\n
    """
    return HIDDEN.sub(lambda found: found[0] if found[0] in allowed else _escape(found[0]), text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def one_line(text: object) -> str:
    """A message as one line of visible characters.

    >>> one_line("two\\n  lines")
    'two lines'
    """
    return visible(" ".join(str(text).split()))


def count_of(number: int, noun: str) -> str:
    """A number with its noun, as many as there are.

    >>> count_of(1, "head"), count_of(1500, "example")
    ('1 head', '1,500 examples')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def to_json(value: Any, **layout: Any) -> str:
    r"""Strict JSON that is UTF-8 whatever its texts hold, and that a terminal may print.

    Args:
        layout: of `json.dumps`.

    Raises:
        ValueError: NaN or infinity, which JSON does not have.

    >>> print(to_json({"name": "\x9b1m \ud800 é"}))
    {"name": "\u009b1m \ud800 é"}
    """
    written = json.dumps(value, ensure_ascii=False, allow_nan=False, **layout)
    # Inside strings `json` has escaped line feeds: those that are there are its own.
    return HIDDEN.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", written)


def to_cell(value: Any) -> Any:
    """A value for a cell of a CSV file: a text is no formula to a spreadsheet, and has no control characters.

    >>> to_cell("=1+1"), to_cell("3.0"), to_cell(-1.5)
    ("'=1+1", '3.0', -1.5)
    """
    if not isinstance(value, str):
        return value
    return visible(f"'{value}" if re.match(FORMULA, value) else value)
