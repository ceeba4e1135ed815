"""Maps with a number for each head, side by side, as a picture in a file."""

from collections.abc import Sequence
from pathlib import Path

from bertjax.plots import Panel, make_panels, save_page


def draw_maps(
    path: Path,
    panels: Sequence[Panel],
    title: str,
    subtitle: str,
    label: str,
    note: str = "",
    *,
    scale: tuple[float, float] | None = None,
    colours: str = "Blues",
) -> None:
    """Draw panels on one scale, at most three side by side.

    Args:
        path: PNG or PDF, by its suffix.
        panels: at least one, all of one shape.
        label: the meaning of the colours.
        note: the meaning of dots and pale cells.
        scale, colours: as in `make_panels`.
    """
    save_page(make_panels(panels, title, subtitle, label, note, scale=scale, colours=colours), path)
