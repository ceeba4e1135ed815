"""Contrasts: two texts each, a clean and a corrupted one, that differ in what is to be traced through the model.

A file has columns `clean` and `corrupted`; or `template` with a place `{}`, into which both are put. Beside them may
stand `good` and `bad`, two words for the one place that `[MASK]`, `<mask>` or `***mask***` marks in both texts; and
`second`, a text with which both are paired. An `id` names a contrast.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bertjax.data.examples import Content, DatasetSpec, Examples, draw
from bertjax.data.local_files import distinct_ids, read_table
from bertjax.data.memory import is_path, table_of
from bertjax.data.tables import brief
from bertjax.errors import DataError
from bertjax.formatting import count_of
from bertjax.paths import user_path

# The columns of a file of contrasts, as a task without labels.
CONTRASTS = DatasetSpec("contrasts", ("clean", "corrupted"))
COLUMNS, ID = ("clean", "corrupted", "template", "good", "bad", "second"), "id"
PLACE = "{}"


@dataclass(frozen=True)
class Beside(Content):
    """The texts that both texts of a contrast share.

    Args:
        texts: by column, such as `good` and `bad`.
    """

    texts: Mapping[str, str]

    def facts(self) -> dict[str, Any]:
        """The texts."""
        return {"texts": dict(self.texts)}

    def describe(self, arrays: Mapping[str, Any], example: int) -> dict[str, Any]:
        """The texts."""
        return {"beside": dict(self.texts)}


@dataclass(frozen=True)
class Contrasts:
    """Clean and corrupted texts.

    Args:
        examples: the clean texts as first, the corrupted as second ones, with what stands beside them.
    """

    examples: Examples

    @cached_property
    def more(self) -> Mapping[str, tuple[str, ...]]:
        """`good`, `bad` and `second` of each, those that there are."""
        beside = [content.texts for content in self.examples.content or () if isinstance(content, Beside)]
        return {name: tuple(texts[name] for texts in beside) for name in (beside[0] if beside else ())}

    def take(self, indices: Sequence[int]) -> "Contrasts":
        """Those at these positions."""
        return Contrasts(self.examples.take(indices))

    def limited(self, limit: int | None, seed: int) -> "Contrasts":
        """At most so many, drawn with a seed; all for None."""
        count = len(self.examples)
        return self if limit is None or limit >= count else self.take(draw(count, limit, seed))


def read_contrasts(data: Any) -> Contrasts:
    """Contrasts of a file: TSV, CSV, JSONL or Parquet, also compressed; or of an object in memory.

    Args:
        data: as for `load_examples`.

    Raises:
        DataError: it cannot be read, or a row is no contrast.
    """
    table = read_table(user_path(data), CONTRASTS) if is_path(data) else table_of(data, CONTRASTS, "validation")[0]
    columns: dict[str, tuple[Any, ...]] = {name: table.texts(name) for name in COLUMNS if name in table.columns}
    if ID in table.columns:
        columns[ID] = tuple(distinct_ids(table, ID))
    return _contrasts(columns, str(table.path), table.error)


def _contrasts(
    columns: Mapping[str, tuple[Any, ...]], source: str, error: Callable[[int, str], DataError]
) -> Contrasts:
    """Contrasts of columns, templates filled in."""
    for name in ("clean", "corrupted"):
        if name not in columns:
            found = ", ".join(columns) or "neither"
            raise DataError(f"{source}: contrasts need columns clean and corrupted; found {found}")
    texts = {name: list(columns[name]) for name in ("clean", "corrupted")}
    for row, template in enumerate(columns.get("template", ())):
        if template.count(PLACE) != 1:
            raise error(row, f"{brief(template)} has no single place {PLACE} for the words that are exchanged")
        for filled in texts.values():
            filled[row] = template.replace(PLACE, filled[row])
    if ("good" in columns) != ("bad" in columns):
        raise DataError(f"{source}: give both good and bad, the words for the masked place, or none")
    count = len(texts["clean"])
    ids = tuple(value if isinstance(value, int) else str(value) for value in columns.get(ID, ()))
    more = {name: columns[name] for name in ("good", "bad", "second") if name in columns}
    beside = tuple(Beside({name: texts[row] for name, texts in more.items()}) for row in range(count))
    examples = Examples(
        CONTRASTS,
        ids if len(set(ids)) == count else tuple(range(count)),
        tuple(texts["clean"]),
        tuple(texts["corrupted"]),
        np.zeros(count, np.float32),
        f"{source} ({count_of(count, 'contrast')})",
        "given",
        content=beside if more else None,
    )
    return Contrasts(examples)
