"""Format text and numbers for terminals, JSON, XML and spreadsheets.

Terminals execute control characters, XML forbids them, UTF-8 cannot encode lone surrogates, and spreadsheets evaluate
cells that begin with an equals sign: this module escapes all of them. It also formats changes, p-values, amounts of
memory, durations and counts.
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

# Control characters, line separators, marks of writing direction, lone surrogates, and the two noncharacters.
HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
HALF_CHARACTER = re.compile("[\ud800-\udfff]")
# The start of a formula in a spreadsheet. The page's JavaScript uses the same expression.
FORMULA = r"^[=+\-@\t\r]"


def visible(text: str, allowed: str = "") -> str:
    r"""Replace invisible and control characters by their escapes.

    Args:
        allowed: characters that are not replaced.

    >>> print(visible("red\x1b[31m\n"))
    red\x1b[31m\n
    """
    return HIDDEN.sub(lambda matched: matched[0] if matched[0] in allowed else _escape(matched[0]), text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def one_line(text: object) -> str:
    """Any value as one line of visible characters.

    >>> one_line("two\\n  lines")
    'two lines'
    """
    return visible(" ".join(str(text).split()))


def count_of(number: int, noun: str) -> str:
    """A count with its noun in singular or plural.

    >>> count_of(1, "head"), count_of(1500, "example"), count_of(2, "query")
    ('1 head', '1,500 examples', '2 queries')
    """
    return f"{number:,} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """The plural of a noun.

    >>> plural("head"), plural("query"), plural("pair of layers")
    ('heads', 'queries', 'pairs of layers')
    """
    first, of, rest = noun.partition(" of ")
    several = f"{first[:-1]}ies" if first.endswith("y") and first[-2] not in "aeou" else f"{first}s"
    return f"{several}{of}{rest}"


def to_json(value: Any, **layout: Any) -> str:
    r"""Strict JSON without control characters or lone surrogates.

    Args:
        layout: options of `json.dumps`.

    Raises:
        ValueError: NaN or infinity, which are not JSON.

    >>> print(to_json({"name": "\x9b1m \ud800 é"}))
    {"name": "\u009b1m \ud800 é"}
    """
    written = json.dumps(value, ensure_ascii=False, allow_nan=False, **layout)
    # `json` escapes line feeds inside strings; the others are its layout.
    return HIDDEN.sub(lambda matched: matched[0] if matched[0] == "\n" else f"\\u{ord(matched[0]):04x}", written)


_HEAD = r"\d+\.\d+(=[\w-]+)?"
# Names of sets, pairs and cells that consist of names of heads.
_OF_HEADS = re.compile(
    rf"{_HEAD}(\+{_HEAD})+|\d+\.\d+=[\w-]+|all but {_HEAD}|layer \d+ but {_HEAD}|((queries|keys|values) )?{_HEAD} at .*"
)
_SPELT = re.compile(r"L\d+(H\d+)?(=[\w-]+)?(\+L\d+H\d+(=[\w-]+)?)*")
_WORDS = ("na", "n/a", "null", "none", "true", "false", "")  # programs read these as missing values or booleans


def table_name(name: str, heads: Sequence[str], layer: int | None = None) -> str:
    """The name of an ablation in tables for programs, which would read 3.1 and 3.10 as the same number.

    Args:
        name: the name that is shown to people.
        heads: the heads of the ablation.
        layer: the layer of the ablation; None for a set.

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
    """Names of heads in tables for programs.

    >>> table_heads(["3.10", "4.1=zero"])
    ['L3H10', 'L4H1=zero']
    """
    return [re.sub(r"^(\d+)\.(\d+)", r"L\1H\2", head) for head in heads]


def plain_name(name: str) -> str:
    """The inverse of `table_name`: the name that is shown to people.

    >>> plain_name("L3H10"), plain_name("L3"), plain_name("all but L3H1"), plain_name("set 1.10"), plain_name("syntax")
    ('3.10', '3', 'all but 3.1', '1.10', 'syntax')
    """
    if name.startswith("set "):
        return name.removeprefix("set ")
    without = re.sub(r"\bL(\d+)H(\d+)\b", r"\1.\2", name)
    return re.sub(r"^L(\d+)$", r"\1", without)


def to_cell(value: Any) -> Any:
    """A value for a cell of a CSV file, in which text is not a formula and has no control characters.

    >>> to_cell("=1+1"), to_cell("3.0"), to_cell(-1.5)
    ("'=1+1", '3.0', -1.5)
    """
    if not isinstance(value, str):
        return value
    return visible(f"'{value}" if re.match(FORMULA, value) else value)


def finite(value: Any) -> Any:
    """Replace NaN and infinity by None, also inside lists and dicts, since JSON lacks them."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def format_change(change: float, digits: int = 2) -> str:
    """A change with its sign. From 10 on it has one decimal less, so that points below 100 take at most 5 characters.

    >>> [format_change(change) for change in (-0.904, 0.001, 0.3, -31.25)]
    ['−0.90', '0.00', '+0.30', '−31.2']
    """
    text = f"{change:+.{digits}f}"
    if abs(float(text)) >= 10:
        text = f"{change:+.{digits - 1}f}"
    return f"{0:.{digits}f}" if float(text) == 0 else text.replace("-", "−")


def format_p(value: float, least: float | None = None) -> str:
    """A p-value in two digits. The smallest p of a test by random swaps is printed as an upper bound.

    Args:
        least: the smallest p that the test can give; None if there is no bound.

    >>> format_p(0.0314), format_p(0.00001), format_p(1.0), format_p(0.0001, least=0.0001)
    ('0.031', '0.00001', '1', '≤0.0001')
    """
    text = f"{value:.2g}" if value >= 0.001 else f"{value:.5f}".rstrip("0") if value >= 0.00001 else "<0.00001"
    bounded = is_bound(value, least) and not text.startswith("<")
    return f"≤{text}" if bounded else text


def is_bound(p: float, least: float | None) -> bool:
    """Whether a p-value is the smallest that random swaps can give, and thus an upper bound."""
    return least is not None and bool(p <= least * (1 + 1e-9))


def equals_p(name: str, value: float, least: float | None = None) -> str:
    """A p-value as part of a sentence.

    >>> equals_p("p", 0.0314), equals_p("p", 0.0001, least=0.0001)
    ('p = 0.031', 'p ≤ 0.0001')
    """
    text = format_p(value, least)
    return f"{name} {text[0]} {text[1:]}" if text[0] in "<≤" else f"{name} = {text}"


def format_bytes(count: int | float) -> str:
    """Bytes in decimal units.

    >>> format_bytes(1_540_000_000)
    '1.54 GB'
    """
    for unit, digits in (("TB", 12), ("GB", 9), ("MB", 6), ("kB", 3)):
        if count >= 10**digits:
            return f"{float(f'{count / 10**digits:.3g}'):,g} {unit}"
    return f"{count:.0f} bytes"


def format_duration(seconds: int | float) -> str:
    """A duration in its two largest units.

    >>> [format_duration(seconds) for seconds in (0.5, 48.3, 140, 7500)]
    ['0.5 s', '48 s', '2 min 20 s', '2 h 5 min']
    """
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds) // 60
    return f"{minutes} min {round(seconds) % 60} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
