"""Tables in Markdown."""

import re
from collections.abc import Sequence


def make_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table.

    >>> print(make_table(["head", "q"], [["1.2", "-0.01"]]))
    | head | q |
    |---|---|
    | 1.2 | −0.01 |
    """
    lines = [head, ["---"] * len(head), *rows]
    text = [
        "| " + " | ".join(_minus(cell) if index > 1 else cell for cell in line) + " |"
        for index, line in enumerate(lines)
    ]
    text[1] = "|" + "---|" * len(head)
    return "\n".join(text)


def _minus(cell: str) -> str:
    """The cell with a minus sign before numbers; hyphens in names stay."""
    return re.sub(r"(?<![\w.])-(?=\d)", "−", cell)
