"""What is printed for people: names, labels and paths as they stand, never as markup, emoji or codes of a terminal.

All that bertjax and `experiments/` print with rich goes through the console of this file.
"""

import os
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from bertjax.formatting import visible

PIPE_WIDTH = 100_000  # columns of a file or pipe


class PlainConsole(Console):
    """A console that takes every text as it stands; styles come from `rich.text.Text` and from tables alone.

    In a file or pipe no line is wrapped and no cell cut off, unless the environment variable COLUMNS is set.
    """

    def __init__(self, **options: Any):
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})
        if not (self.is_terminal or self.is_jupyter or "width" in options or os.environ.get("COLUMNS")):
            self.width = PIPE_WIDTH

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Segments without characters that a terminal would obey; rich's own codes are segments of another kind."""
        for segment in super().render(renderable, options):
            text = visible(segment.text, allowed="\n")
            yield segment if segment.control or text == segment.text else Segment(text, segment.style)


class PlainTable(Table):
    """A table whose headings and cells are texts as they stand, on whatever console it is printed."""

    def __init__(self, *headers: Any, **options: Any):
        super().__init__(*headers, **{**options, "title": plain(options.get("title"))})

    def add_column(self, header: RenderableType = "", footer: RenderableType = "", **options: Any) -> None:
        """As in rich."""
        super().add_column(plain(header), plain(footer), **options)

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """As in rich."""
        super().add_row(*map(plain, cells), **options)


def plain(cell: Any) -> Any:
    """A string as a text of visible characters; anything else as it is."""
    return Text(visible(cell, allowed="\n")) if isinstance(cell, str) else cell


def say(content: Any, *, wrap: bool = False) -> None:
    """Print a line or a table as it is: nothing in it is taken for markup or for a picture's name (`qqp:train:`).

    Args:
        wrap: fit it into the terminal's width.
    """
    PlainConsole().print(content, soft_wrap=not wrap)
