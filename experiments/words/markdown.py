"""Tables in Markdown."""

import re
from collections.abc import Sequence


def make_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table.

    >>> print(make_table(["head", "q"], [["1.2", "-0.01"]]))
    | head | q |
    |---|---|
    | 1.2 | −0.01 |
    """
    lines = [head, ["---"] * len(head), *rows]
    text = [
        "| " + " | ".join(_minus(cell) if number > 1 else cell for cell in line) + " |"
        for number, line in enumerate(lines)
    ]
    text[1] = "|" + "---|" * len(head)
    return "\n".join(text)


def _minus(cell: str) -> str:
    """With a minus before numbers; hyphens of names stay."""
    return re.sub(r"(?<![\w.])-(?=\d)", "−", cell)
