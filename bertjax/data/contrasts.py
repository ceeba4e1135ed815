"""Contrasts: pairs of a clean and a corrupted text, which differ in what is traced through the model.

A file has columns `clean` and `corrupted`, which may be words that fill the placeholder `{}` of a column `template`.
Optional columns are `good` and `bad`, two words for the position that `[MASK]`, `<mask>` or `***mask***` marks in both
texts; `second`, a text that is paired with both; and `id`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bertjax.data.examples import Content, DatasetSpec, Examples
from bertjax.data.local_files import distinct_ids, read_table
from bertjax.data.memory import is_path, table_of
from bertjax.data.tables import brief
from bertjax.errors import DataError
from bertjax.formatting import count_of
from bertjax.paths import user_path

CONTRASTS = DatasetSpec("contrasts", ("clean", "corrupted"))
COLUMNS, ID = ("clean", "corrupted", "template", "good", "bad", "second"), "id"
PLACEHOLDER = "{}"


@dataclass(frozen=True)
class CommonTexts(Content):
    """The texts that both texts of a contrast share.

    Args:
        texts: the texts by column, such as `good` and `bad`.
    """

    texts: Mapping[str, str]

    def describe(self, arrays: Mapping[str, Any], example: int) -> dict[str, Any]:
        """The texts."""
        return {"beside": dict(self.texts)}


@dataclass(frozen=True)
class Contrasts:
    """Clean and corrupted texts.

    Args:
        examples: clean texts as `first`, corrupted texts as `second`, and the texts they share as `content`.
    """

    examples: Examples

    @cached_property
    def more(self) -> Mapping[str, tuple[str, ...]]:
        """The columns `good`, `bad` and `second`, as far as they exist."""
        common = [content.texts for content in self.examples.content or () if isinstance(content, CommonTexts)]
        return {name: tuple(texts[name] for texts in common) for name in (common[0] if common else ())}

    def take(self, indices: Sequence[int]) -> "Contrasts":
        """Select contrasts by index.

        Args:
            indices: the indices of the contrasts, from 0, in the order of the result.
        """
        return Contrasts(self.examples.take(indices))

    def limited(self, limit: int | None, seed: int) -> "Contrasts":
        """Draw at most `limit` contrasts; all if it is None.

        Args:
            limit: the largest number of contrasts; None for all.
            seed: the seed of the draw.
        """
        return Contrasts(self.examples.limited(limit, seed))


def read_contrasts(data: Any) -> Contrasts:
    """Read contrasts from a TSV, CSV, JSONL or Parquet file, compressed or not, or from an object in memory.

    Args:
        data: as for `load_examples`.

    Raises:
        DataError: the data cannot be read, or a row is not a contrast.
    """
    table = read_table(user_path(data), CONTRASTS) if is_path(data) else table_of(data, CONTRASTS, "validation")[0]
    columns: dict[str, tuple[Any, ...]] = {name: table.texts(name) for name in COLUMNS if name in table.columns}
    if ID in table.columns:
        columns[ID] = tuple(distinct_ids(table, ID))
    return _contrasts(columns, str(table.path), table.error)


def _contrasts(
    columns: Mapping[str, tuple[Any, ...]], source: str, error: Callable[[int, str], DataError]
) -> Contrasts:
    """Contrasts from columns; templates are filled."""
    for name in ("clean", "corrupted"):
        if name not in columns:
            found = ", ".join(columns) or "neither"
            raise DataError(f"{source}: contrasts need columns clean and corrupted; found {found}")
    texts = {name: list(columns[name]) for name in ("clean", "corrupted")}
    for row, template in enumerate(columns.get("template", ())):
        if template.count(PLACEHOLDER) != 1:
            raise error(row, f"{brief(template)} must contain the placeholder {PLACEHOLDER} exactly once")
        for filled in texts.values():
            filled[row] = template.replace(PLACEHOLDER, filled[row])
    if ("good" in columns) != ("bad" in columns):
        raise DataError(f"{source}: give both good and bad, the words for the masked position, or neither")
    count = len(texts["clean"])
    ids = tuple(value if isinstance(value, int) else str(value) for value in columns.get(ID, ()))
    more = {name: columns[name] for name in ("good", "bad", "second") if name in columns}
    common = tuple(CommonTexts({name: texts[row] for name, texts in more.items()}) for row in range(count))
    examples = Examples(
        CONTRASTS,
        ids if len(set(ids)) == count else tuple(range(count)),
        tuple(texts["clean"]),
        tuple(texts["corrupted"]),
        np.zeros(count, np.float32),
        f"{source} ({count_of(count, 'contrast')})",
        "given",
        content=common if more else None,
    )
    return Contrasts(examples)
