"""A figure that notebooks show without pyplot, which would keep every figure in memory."""

import io

from matplotlib.figure import Figure


class Picture(Figure):
    """A matplotlib figure that displays itself as the last value of a notebook's cell."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=self.dpi / 2)
        return buffer.getvalue()
