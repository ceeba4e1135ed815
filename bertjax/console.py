"""Output for people. Names, labels and paths are printed literally, not as markup, emoji or terminal codes.

bertjax and `experiments/` print with rich only through this module.
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
    """A console that prints text literally; only `rich.text.Text` and tables have styles.

    In a file or a pipe, lines are not wrapped and cells are not truncated unless the environment variable COLUMNS is
    set.
    """

    def __init__(self, **options: Any):
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})
        if not (self.is_terminal or self.is_jupyter or "width" in options or os.environ.get("COLUMNS")):
            self.width = PIPE_WIDTH

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Segments in which control characters are escaped. Codes of rich are control segments and stay."""
        for segment in super().render(renderable, options):
            text = visible(segment.text, allowed="\n")
            yield segment if segment.control or text == segment.text else Segment(text, segment.style)


class PlainTable(Table):
    """A table whose headings and cells are literal text on any console."""

    def __init__(self, *headers: Any, **options: Any):
        super().__init__(*headers, **{**options, "title": plain(options.get("title"))})

    def add_column(self, header: RenderableType = "", footer: RenderableType = "", **options: Any) -> None:
        """As in rich."""
        super().add_column(plain(header), plain(footer), **options)

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """As in rich."""
        super().add_row(*map(plain, cells), **options)


def plain(cell: Any) -> Any:
    """A str as literal `Text` of visible characters; any other value unchanged."""
    return Text(visible(cell, allowed="\n")) if isinstance(cell, str) else cell


def say(content: Any, *, wrap: bool = False) -> None:
    """Print a line or a table literally: brackets are not markup, and `:name:` is not an emoji.

    Args:
        wrap: wrap lines at the width of the terminal.
    """
    PlainConsole().print(content, soft_wrap=not wrap)
