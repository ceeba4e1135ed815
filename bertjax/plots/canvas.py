"""The page of all figures: style, headings, axes, ticks and files.

Scores arrive as metrics define them and are drawn as a `Measure` prints them, most of them in points. Colours: red
for worse scores, blue for better ones, white at the base (ColorBrewer's RdBu, which colour-blind people can read).
Signs and numbers repeat the information of colours. Figures use matplotlib's object interface on the Agg canvas and
its default style, independent of the user's style: no window, no global figure, and equal input gives equal files.
"""

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from jaxtyping import Float

from bertjax.atomic_files import atomic_write
from bertjax.errors import DataError, InputError, OutputError
from bertjax.formatting import visible
from bertjax.paths import user_path
from bertjax.statistics import SCORE, Measure, Q

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Matplotlib's map of colours for changes.
COLOURS = "RdBu"
# The colours of text, secondary text, and grid lines.
INK, GREY, PALE = "#1a1a1a", "#6b6b6b", "#e3e3e3"
WIDTH, LEFT, RIGHT = 8.0, 0.62, 1.72  # inches; 8 inches are 800 pixels at 100 pixels per inch
PIXELS_PER_INCH = 200  # twice what a README shows, for high-resolution screens
STEPS = [1, 2, 4, 5, 10]  # between ticks
PDF_FONTS = 42  # TrueType, which journals require, instead of matplotlib's Type 3


def printed_changes(
    scores: Float[np.ndarray, "..."], base: float, measure: Measure, *, axes: tuple[str, ...]
) -> Float[np.ndarray, "..."]:
    """The changes from the base as they are printed; NaN if either score is undefined."""
    if scores.ndim != len(axes) or 0 in scores.shape:
        raise DataError(f"found scores of shape {list(scores.shape)}: this picture needs [{', '.join(axes)}]")
    changes = measure.factor * (scores.astype(np.float64) - base)
    return np.where(np.isfinite(changes), changes, np.nan)


def colours_of(measure: Measure) -> str:
    """The colours of changes from the lowest to the highest, by name: red is worse."""
    return COLOURS if measure.greater_is_better else f"{COLOURS}_r"


@dataclass(frozen=True)
class Frame:
    """The title of a figure, and the axes to draw into.

    Args:
        title: replaces title and subtitle; '' leaves them out; None keeps them.
        ax: axes to draw into, without subtitle, notes and legend; None draws a page.
        size: width and height of the page in inches; fonts scale with the smaller of both ratios.
    """

    title: str | None = None
    ax: "Axes | None" = None
    size: Sequence[int | float] | None = None

    def open_axes(
        self, title: str, subtitle: str, bottom: float, box: tuple[float, float, float]
    ) -> "tuple[Figure, Axes]":
        """The figure and axes to draw into.

        Args:
            title: title of the figure.
            subtitle: line below the title.
            bottom: the bottom of the axes on a page, in inches.
            box: left, width and height of the axes on a page, in inches.
        """
        left, width, height = box
        if self.ax is None:
            figure = start_page(title, subtitle, bottom, height, self)
            return figure, add_axes(figure, left, bottom, width, height)
        self.ax.set_title(visible(title if self.title is None else self.title), fontsize=9.5, color=INK)
        clear_axes(self.ax)
        return cast("Figure", self.ax.figure), self.ax

    def resize(self, figure: "Figure") -> float:
        """Give a page its size. Returns the ratio by which fonts changed.

        Args:
            figure: the figure with its page.
        """
        from matplotlib.text import Text

        if self.size is None:
            return 1.0
        scale = float(np.min(np.asarray(self.size) / figure.get_size_inches()))
        figure.set_size_inches(self.size[0], self.size[1])
        for axes in figure.axes:
            for axis in (axes.xaxis, axes.yaxis):
                axis.get_ticklabels()  # creates the ticks
        for text in figure.findobj(Text):
            text.set_fontsize(scale * float(text.get_fontsize()))
        return scale


PAGE = Frame()  # a page of the default size, with the default title


def start_page(title: str, subtitle: str, bottom: float, height: float, frame: Frame = PAGE) -> "Figure":
    """A page with its headings, and space for a drawing of `height`, `bottom` above its lower edge.

    Args:
        title: the title of the figure.
        subtitle: the line below the title.
        bottom: the space below the drawing, in inches.
        height: the height of the drawing, in inches.
        frame: title, and size of the figure.

    Raises:
        InputError: the frame has axes, but the figure needs a page.
    """
    if frame.ax is not None:
        raise InputError("this figure has several panels, which need a page: leave ax out")
    if frame.title is not None:
        title, subtitle = frame.title, ""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from bertjax.plots.picture import Picture

    title, subtitle = fill(visible(title), 68), _even_lines(visible(subtitle), 110)
    title_height = 0.24 * (title.count("\n") + 1) if title else -0.2
    subtitle_height = 0.17 * (subtitle.count("\n") + 1) if subtitle else 0
    total = bottom + height + title_height + subtitle_height + 0.32
    figure = Picture(figsize=(WIDTH, total), dpi=PIXELS_PER_INCH, facecolor="white")
    FigureCanvasAgg(figure)
    alignment: dict[str, Any] = {"ha": "left", "va": "top"}
    figure.text(0.2 / WIDTH, 1 - 0.16 / total, title, fontsize=13, weight="bold", color=INK, **alignment)
    place = 1 - (0.2 + title_height) / total
    figure.text(0.2 / WIDTH, place, subtitle, fontsize=9, color=GREY, **alignment)
    return figure


def shorten_name(name: str, longest: int) -> str:
    """Shorten a name, and replace invisible characters.

    >>> shorten_name("heads of syntax", 9)
    'heads of…'
    """
    name = visible(name)
    return name if len(name) <= longest else name[: longest - 1].rstrip() + "…"


def text_width(text: str, size: float) -> float:
    """The width of a text in the default font, in inches.

    Args:
        size: the font size in points.
    """
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    width: float = text_to_path.get_text_width_height_descent(text, FontProperties(size=size), False)[0]
    return width / 72


def _even_lines(text: str, width: int) -> str:
    """Break a text into the fewest lines of at most `width` characters, of about equal length.

    >>> _even_lines("one two three four", 14)
    'one two\\nthree four'
    """
    most = fill(text, width).count("\n")
    widths = range(max(1, len(text) // (most + 1)), width + 1)
    return next((lines for lines in (fill(text, limit) for limit in widths) if lines.count("\n") == most), text)


def add_axes(figure: "Figure", left: float, bottom: float, width: float, height: float) -> "Axes":
    """Axes at a position in inches, without frame or tick marks.

    Args:
        figure: the figure with its page.
        left: the distance from the left edge of the page, in inches.
        bottom: the distance from the lower edge of the page, in inches.
        width: the width in inches.
        height: the height in inches.
    """
    page_width, page_height = figure.get_size_inches()
    axes = figure.add_axes((left / page_width, bottom / page_height, width / page_width, height / page_height))
    clear_axes(axes)
    return axes


def clear_axes(axes: "Axes") -> None:
    """Remove frame and tick marks."""
    axes.tick_params(length=0, labelsize=8.5, colors=INK)
    axes.spines[:].set_visible(False)


def size_of(axes: "Axes") -> tuple[float, float]:
    """Width and height of axes in inches."""
    box = axes.get_window_extent().transformed(axes.figure.dpi_scale_trans.inverted())
    return float(box.width), float(box.height)


def draw_as_shapes(bar: Any) -> None:
    """Draw a colour bar in SVG and PDF as shapes without gaps between them, instead of as pixels."""
    bar.solids.set_rasterized(False)
    bar.solids.set_edgecolor("face")
    bar.outline.set_visible(False)


def add_note(figure: "Figure", text: str) -> None:
    """Add a grey line at the foot of the page.

    Args:
        figure: the figure with its page.
        text: the line.
    """
    figure.text(0.2 / WIDTH, 0.15 / float(figure.get_size_inches()[1]), text, fontsize=8.5, color=GREY)


def count_found(significant: int, total: int, measure: Measure = SCORE) -> str:
    """The note about filled marks and lines."""
    if not measure.tested:
        return f"lines: 95 % intervals; {measure.untested}"
    return f"filled: significant (q < {Q}), {significant} of {total}; lines: 95 % intervals"


def choose_ticks(
    low: float, high: float, base: float, measure: Measure, *, most: int, separator: str
) -> tuple[list[float], list[str]]:
    """Ticks around the base as changes are printed, and their labels: score and change; only the change for effects."""
    from matplotlib.ticker import MaxNLocator

    candidates = np.round(MaxNLocator(most, steps=STEPS).tick_values(low, high), 6)
    ticks = [float(tick) for tick in candidates if low <= tick <= high]
    digits = next(digits for digits in range(7) if np.allclose(np.round(ticks, digits), ticks, atol=1e-9))
    changes = ["base" if tick == 0 else f"{tick:+.{digits}f}".replace("-", "−") for tick in ticks]
    if measure.of_effects:
        sign = "+" if measure.tested else ""
        return ticks, [f"{tick:{sign}.{digits}f}".replace("-", "−") if tick else "0" for tick in ticks]
    scores = [f"{measure.factor * base + tick:.{max(measure.digits, digits)}f}" for tick in ticks]
    if not np.isfinite(base):
        scores = ["" if tick else "undefined" for tick in ticks]
    return ticks, [f"{score}{separator}({change})" for score, change in zip(scores, changes, strict=True)]


# Metadata of files: the program, by which bertjax recognises its figures (`results.check_replaceable`), and no dates.
METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": "bertjax"},
    "pdf": {"Creator": "bertjax", "Producer": None, "CreationDate": None},
    "svg": {"Creator": "bertjax", "Date": None},
}


def save_page(figure: "Figure", path: str | os.PathLike[str]) -> None:
    """Write a PNG, PDF or SVG file by the path's suffix, without version and date.

    Args:
        figure: the figure to write.
        path: a path with the suffix .png, .pdf or .svg.

    Raises:
        OutputError: the path has another suffix, or the file cannot be written.
    """
    path = user_path(path, OutputError)
    buffer, kind = io.BytesIO(), path.suffix.lstrip(".").lower()
    metadata = METADATA.get(kind)
    if metadata is None:
        raise OutputError(f"cannot write {path}: a picture's name ends in .png, .pdf or .svg")
    from matplotlib.style import context

    with context(["default", {"svg.hashsalt": "bertjax", "svg.fonttype": "none", "pdf.fonttype": PDF_FONTS}]):
        figure.savefig(buffer, format=kind, metadata=metadata)
    content = buffer.getvalue()
    if kind == "svg":  # XML may not contain control characters, wherever they came from
        content = visible(content.decode(), allowed="\n\t").encode()
    atomic_write(path, content)
