"""Texts and numbers, written so that they are safe where they end up and read well there.

A terminal obeys control characters, XML may not hold them, JSON and UTF-8 have no half of a character, and a
spreadsheet computes what begins with an equals sign: what is done about each is done here, once. Numbers are written
in one way everywhere: changes in points, p-values, amounts of memory, durations, counts.
"""

import json
import math
import re
from collections.abc import Sequence
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
    return HIDDEN.sub(lambda matched: matched[0] if matched[0] in allowed else _escape(matched[0]), text)


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

    >>> count_of(1, "head"), count_of(1500, "example"), count_of(2, "query")
    ('1 head', '1,500 examples', '2 queries')
    """
    several = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeou" else f"{noun}s"
    return f"{number:,} {noun if number == 1 else several}"


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
    return HIDDEN.sub(lambda matched: matched[0] if matched[0] == "\n" else f"\\u{ord(matched[0]):04x}", written)


_HEAD = r"\d+\.\d+(=[\w-]+)?"
# Names that are made of those of heads, and are no number.
_OF_HEADS = re.compile(
    rf"{_HEAD}(\+{_HEAD})+|\d+\.\d+=[\w-]+|all but {_HEAD}|layer \d+ but {_HEAD}|((queries|keys|values) )?{_HEAD} at .*"
)
_SPELT = re.compile(r"L\d+(H\d+)?(=[\w-]+)?(\+L\d+H\d+(=[\w-]+)?)*")
_WORDS = ("na", "n/a", "null", "none", "true", "false", "")  # which programs read as missing or as a truth value


def table_name(name: str, heads: Sequence[str], layer: int | None = None) -> str:
    """The name of an ablation in tables for programs, in which 3.1 and 3.10 would be one number.

    Args:
        name: as people read it.
        heads: of the ablation.
        layer: of the ablation; None for a set.

    >>> table_name("3.10", ["3.10"], 3), table_name("3", ["3.0", "3.1"], 3), table_name("3.1+3.10", ["3.1", "3.10"])
    ('L3H10', 'L3', 'L3H1+L3H10')
    >>> table_name("syntax", ["3.10"], 3), table_name("1.5", ["3.10", "4.2"])
    ('syntax', 'set 1.5')
    """
    if name == str(layer):
        return f"L{layer}"
    if [*heads] == [name] or _OF_HEADS.fullmatch(name):
        before, at, span = name.partition(" at ")
        return re.sub(r"\b(\d+)\.(\d+)\b", r"L\1H\2", before) + at + span
    try:
        float(name)
    except ValueError:
        misread = name.strip().lower() in _WORDS or _SPELT.fullmatch(name) is not None
    else:
        misread = True
    return f"set {name}" if misread else name


def table_heads(heads: Sequence[str]) -> list[str]:
    """The heads of an ablation in tables for programs.

    >>> table_heads(["3.10", "4.1=zero"])
    ['L3H10', 'L4H1=zero']
    """
    return [re.sub(r"^(\d+)\.(\d+)", r"L\1H\2", head) for head in heads]


def plain_name(name: str) -> str:
    """The name of an ablation as people read it, of its name in tables for programs.

    >>> plain_name("L3H10"), plain_name("L3"), plain_name("all but L3H1"), plain_name("set 1.10"), plain_name("syntax")
    ('3.10', '3', 'all but 3.1', '1.10', 'syntax')
    """
    if name.startswith("set "):
        return name.removeprefix("set ")
    without = re.sub(r"\bL(\d+)H(\d+)\b", r"\1.\2", name)
    return re.sub(r"^L(\d+)$", r"\1", without)


def to_cell(value: Any) -> Any:
    """A value for a cell of a CSV file: a spreadsheet reads a text not as a formula, and it has no control characters.

    >>> to_cell("=1+1"), to_cell("3.0"), to_cell(-1.5)
    ("'=1+1", '3.0', -1.5)
    """
    if not isinstance(value, str):
        return value
    return visible(f"'{value}" if re.match(FORMULA, value) else value)


def finite(value: Any) -> Any:
    """JSON has no NaN: null stands for it, also inside lists and mappings."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def format_change(change: float, digits: int = 2) -> str:
    """A change with its sign; one of 10 or more has a decimal less, so that points take at most 5 characters below 100.

    >>> [format_change(change) for change in (-0.904, 0.001, 0.3, -31.25)]
    ['−0.90', '0.00', '+0.30', '−31.2']
    """
    text = f"{change:+.{digits}f}"
    if abs(float(text)) >= 10:
        text = f"{change:+.{digits - 1}f}"
    return f"{0:.{digits}f}" if float(text) == 0 else text.replace("-", "−")


def format_p(value: float, least: float | None = None) -> str:
    """A p-value in two digits; the least that random swaps can give is an upper bound.

    Args:
        least: what the test gives where none of its swaps is as large as what was seen; None where it gives any p.

    >>> format_p(0.0314), format_p(0.00001), format_p(1.0), format_p(0.0001, least=0.0001)
    ('0.031', '0.00001', '1', '≤0.0001')
    """
    text = f"{value:.2g}" if value >= 0.001 else f"{value:.5f}".rstrip("0") if value >= 0.00001 else "<0.00001"
    bounded = is_bound(value, least) and not text.startswith("<")
    return f"≤{text}" if bounded else text


def is_bound(p: float, least: float | None) -> bool:
    """Whether a p-value is the least that random swaps can give, so that the true one is at most that."""
    return least is not None and bool(p <= least * (1 + 1e-9))


def equals_p(name: str, value: float, least: float | None = None) -> str:
    """What a p-value is, as a part of a sentence.

    >>> equals_p("p", 0.0314), equals_p("p", 0.0001, least=0.0001)
    ('p = 0.031', 'p ≤ 0.0001')
    """
    text = format_p(value, least)
    return f"{name} {text[0]} {text[1:]}" if text[0] in "<≤" else f"{name} = {text}"


def format_bytes(count: int | float) -> str:
    """Bytes for people, in decimal units.

    >>> format_bytes(1_540_000_000)
    '1.54 GB'
    """
    for unit, digits in (("TB", 12), ("GB", 9), ("MB", 6), ("kB", 3)):
        if count >= 10**digits:
            return f"{float(f'{count / 10**digits:.3g}'):,g} {unit}"
    return f"{count:.0f} bytes"


def format_duration(seconds: int | float) -> str:
    """Time in the two largest units that it needs.

    >>> [format_duration(seconds) for seconds in (0.5, 48.3, 140, 7500)]
    ['0.5 s', '48 s', '2 min 20 s', '2 h 5 min']
    """
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds) // 60
    return f"{minutes} min {round(seconds) % 60} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
