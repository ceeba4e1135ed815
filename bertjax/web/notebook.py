"""Attention of texts as the output of a notebook cell, and as a page."""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from bertjax import arguments
from bertjax.atomic_files import atomic_write
from bertjax.errors import InputError, OutputError
from bertjax.formatting import count_of, format_bytes
from bertjax.paths import is_file, user_path
from bertjax.web.attention import pack_attention
from bertjax.web.bundle import make_page

VIEWS = ("head", "matrix", "model")
TITLE = "bertjax attention"
MARK, MARKED = f"<title>{TITLE}</title>".encode(), 4096  # of pages that may be replaced, among their first bytes
LARGEST = 64_000_000  # bytes of weights before compression
UNTRUSTED = "Trust this notebook to see the attention here, or run the cell again."


class AttentionView:
    """Attention weights of one or several texts. A notebook shows them as lines, matrix and thumbnails.

    Args:
        tokens: the tokens of each text.
        weights: the weights of each text, `[layers, heads, query, key]`.
        ablated: the weights of each text when heads are ablated, `[layers, heads, query, key]`; None without ablation.
        caption: the caption of the weights `ablated`.
        off: the names of the ablated heads, such as '2.7'.
        head: the head that is selected first, as layer and head; None for the first head in `off`, or 0.0.
        show: the view that is shown first: 'head' (lines between tokens), 'matrix', or 'model' (all heads).
        quantity: the name of the quantity: 'weight' or 'share of norms'.

    Raises:
        InputError: there is no text, the weights do not fit the tokens or take more than 64 MB, the head does not
            exist, or `show` is unknown.
    """

    def __init__(
        self,
        tokens: Sequence[Sequence[str]],
        weights: Sequence[Float[np.ndarray, "layers heads _ _"]],
        ablated: Sequence[Float[np.ndarray, "layers heads _ _"]] | None = None,
        *,
        caption: str = "Ablated",
        off: Sequence[str] = (),
        head: tuple[int, int] | None = None,
        show: str = "head",
        quantity: str = "weight",
    ):
        arguments.check_choice(show, "show", VIEWS)
        if not tokens:
            raise InputError("there is no text to show")
        size = 2 * sum(array.size for array in (*weights, *(ablated or ())))
        if size > LARGEST:
            raise InputError(
                f"the attention weights take {format_bytes(size)}, and a page at most {format_bytes(LARGEST)}: show "
                "fewer or shorter texts"
            )
        self.layers, self.heads = weights[0].shape[:2]
        self.tokens = [tuple(text) for text in tokens]
        named = [arguments.parse_head_name(name) for name in off]
        layer, number = head or next(filter(None, named), None) or (0, 0)
        if not (0 <= layer < self.layers and 0 <= number < self.heads):
            raise InputError(f"there is no head {layer}.{number}: {self.layers} layers of {self.heads} heads, from 0")
        self._has_ablated = ablated is not None
        runs = {"base": weights, **({} if ablated is None else {"ablated": ablated})}
        self._data: dict[str, Any] = {
            "texts": [
                {name: pack_attention(text, run[index]) for name, run in runs.items()}
                for index, text in enumerate(self.tokens)
            ],
            **{"captions": ["Base", caption], "off": [*off], "layer": layer, "head": number, "view": show},
            **{"name": "attention", "quantity": quantity},
        }

    def __repr__(self) -> str:
        counts = [count_of(len(text), "token") for text in self.tokens]
        texts = counts[0] if len(counts) == 1 else count_of(len(counts), "text")
        ablated = ", base and ablated" if self._has_ablated else ""
        return (
            f"AttentionView({texts}, {count_of(self.layers, 'layer')} of {count_of(self.heads, 'head')}{ablated}; "
            ".save('attention.html') writes a page)"
        )

    def _repr_html_(self) -> str:
        """The page in a frame that cannot access the notebook."""
        source = html.escape(self.to_html())
        return (
            f'<iframe title="{TITLE}" sandbox="allow-scripts allow-downloads" srcdoc="{source}" '
            f'style="width: 100%; height: {self._height()}px; border: 0;">{UNTRUSTED}</iframe>'
        )

    def _height(self) -> int:
        """Pixels that show the longest text without scrolling, up to a screen's height."""
        tokens, rows = 22 * max(map(len, self.tokens)), 50 * self.layers
        return 170 + min(max(tokens, rows, 200), 540)

    def to_html(self) -> str:
        """The page as one self-contained HTML file."""
        return make_page("notebook/page", self._data, title=TITLE)

    def save(self, path: str | Path) -> Path:
        """Write the page as a file, atomically.

        Args:
            path: the path of the file, which ends in `.html`. A file that this method wrote is replaced.

        Returns:
            The path of the file.

        Raises:
            OutputError: the path has another suffix, the file exists and this method did not write it, or the file
                cannot be written.
        """
        path = user_path(path, OutputError)
        if path.suffix not in (".html", ".htm"):
            raise OutputError(f"cannot write {path}: the name of a page must end in .html")
        if (is_file(path, OutputError) or path.is_symlink()) and not _has_mark(path):
            raise OutputError(f"{path} exists, and this method did not write it: give another name, or move it away")
        atomic_write(path, self.to_html().encode())
        return path


def _has_mark(path: Path) -> bool:
    """Whether a page was written by `AttentionView.save`, or is empty or missing."""
    try:
        with path.open("rb") as file:
            content = file.read(MARKED)
    except OSError:
        return not path.exists()
    return not content or MARK in content


def make_view(
    tokens: Sequence[Sequence[str]],
    weights: Float[np.ndarray, "layers texts heads query key"],
    keep: Any,
    ablated: Float[np.ndarray, "layers texts heads query key"] | None = None,
    **options: Any,
) -> AttentionView:
    """An `AttentionView` of the weights of a batch. Padding is removed.

    Args:
        tokens: the tokens of each text, without padding.
        weights: the weights of the batch, `[layers, texts, heads, query, key]`.
        keep: 1 at real tokens and 0 at padding, `[texts, key]` or `[texts, query, key]`.
        ablated: the weights when heads are ablated, of the same shape; None without ablation.
        options: further arguments of `AttentionView`, by name.

    Raises:
        InputError: the tokens do not fit the batch, or `AttentionView` raises the error.
    """
    keep = np.asarray(keep) > 0
    real = keep.any(axis=1) if keep.ndim == 3 else keep
    counts = real.sum(axis=1).tolist()
    if [len(text) for text in tokens] != counts:
        found, expected = ([*map(str, one[:4])] for one in ([len(text) for text in tokens], counts))
        raise InputError(
            f"the tokens do not fit the batch: its texts have {', '.join(expected)} tokens without padding, found "
            f"{', '.join(found) or 'none'}"
        )

    def rows(array: Float[np.ndarray, "layers texts heads query key"]) -> list[Any]:
        kept = [np.flatnonzero(row) for row in real]
        return [array[:, text][:, :, index][..., index] for text, index in enumerate(kept)]

    return AttentionView(tokens, rows(weights), None if ablated is None else rows(ablated), **options)
