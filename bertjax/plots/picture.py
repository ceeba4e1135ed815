"""A figure without formulas in texts, which notebooks display without pyplot."""

import io
from typing import Any

from matplotlib.figure import Figure
from matplotlib.text import Text


class Picture(Figure):
    """A matplotlib figure in which no text is parsed as a formula, since names and tokens may contain dollar signs.

    A notebook displays it as the last value of a cell; pyplot would keep all figures in memory.
    """

    def draw(self, renderer: Any) -> None:
        """Draw the figure without parsing text between two dollar signs as TeX."""
        for axes in self.axes:
            for axis in (axes.xaxis, axes.yaxis):
                axis.get_ticklabels()  # creates the ticks, which matplotlib delays until drawing
        for text in self.findobj(Text):
            text.set_parse_math(False)
        super().draw(renderer)

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=self.dpi / 2)
        return buffer.getvalue()
