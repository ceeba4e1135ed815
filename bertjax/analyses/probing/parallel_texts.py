"""Parallel texts: sentences and their translations, from files of one language each, or from a table."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.data import SUFFIXES, CommonTexts, DatasetSpec, Examples, Table, is_path, read_table, table_of
from bertjax.errors import DataError
from bertjax.formatting import count_of
from bertjax.paths import user_path
from bertjax.tasks import load_examples

PARALLEL = DatasetSpec("parallel-texts", ("text",))
ID, LINE = "id", "text"
OF_ONE_LANGUAGE = (".json", ".json.gz", ".txt", ".txt.gz")  # files that are not tables


def read_parallel(data: Any) -> tuple[tuple[str, ...], Examples]:
    """Read sentences with their translations.

    Args:
        data: one of these: paths of one file for each language, in SQuAD's format (questions with equal ids are
            translations of each other) or with one sentence in each line (`.txt`), the language being the last part of
            the name before the suffix, such as `xquad.de.json`; or the path of one table or a table in memory, with a
            column for each language and perhaps a column `id`.

    Returns: the languages, and the sentences in the first language, with the translations as content.

    Raises:
        DataError: the data cannot be read, have fewer than two languages, or are not parallel.
    """
    paths = [data] if is_path(data) else data
    if isinstance(paths, Sequence) and paths and all(map(is_path, paths)):
        files = [user_path(path) for path in paths]
        if len(files) == 1 and files[0].name.endswith(OF_ONE_LANGUAGE):
            raise DataError(f"{files[0]} has the sentences of one language: give a file for each language")
        columns, ids, source = _of_files(files) if len(files) > 1 else _of_table(read_table(files[0], PARALLEL))
    else:
        columns, ids, source = _of_table(table_of(data, PARALLEL, "validation")[0])
    if len(columns) < 2:
        raise DataError(f"{source}: parallel texts need two or more languages; found {', '.join(columns) or 'none'}")
    first, *others = columns
    content = [CommonTexts({name: columns[name][row] for name in others}) for row in range(len(ids))]
    described = f"{source} ({count_of(len(ids), 'sentence')} in {', '.join(columns)})"
    texts, labels = tuple(columns[first]), np.zeros(len(ids), np.float32)
    examples = Examples(PARALLEL, tuple(ids), texts, None, labels, described, "given", content=tuple(content))
    return tuple(columns), examples


Columns = Mapping[str, Sequence[str]]


def _of_table(table: Table) -> tuple[Columns, Sequence[int | str], str]:
    """The columns of a table, one for each language, the ids of its rows, and its name."""
    columns = {name: table.texts(name) for name in table.columns if name != ID}
    ids = table.texts(ID) if ID in table.columns else range(len(table))
    return columns, ids if len({*ids}) == len(table) else range(len(table)), str(table.path)


def _of_files(paths: Sequence[Path]) -> tuple[Columns, Sequence[int | str], str]:
    """The sentences of several files that have translations in all of them, their ids, and the names of the files."""
    languages = [language_of(path) for path in paths]
    if len({*languages}) < len(languages):
        raise DataError(f"two files are of one language in {', '.join(languages)}: name them NAME.LANGUAGE.json")
    of_files = [_sentences(path) for path in paths]
    shared = [key for key in of_files[0] if all(key in of_file for of_file in of_files)]
    names = ", ".join(path.name for path in paths)
    lines = {path.name: len(of_file) for path, of_file in zip(paths, of_files, strict=True)}
    if not shared:
        raise DataError(f"{names}: no id is in all files, so that no sentence has translations")
    if isinstance(shared[0], int) and len({*lines.values()}) > 1:
        found = ", ".join(f"{name} has {count}" for name, count in lines.items())
        raise DataError(f"files of parallel sentences must have equal numbers of lines: {found}")
    columns = {name: [of_file[key] for key in shared] for name, of_file in zip(languages, of_files, strict=True)}
    return columns, shared, names


def language_of(path: Path) -> str:
    """The language in the name of a file.

    Args:
        path: the path of the file.

    >>> [language_of(Path(name)) for name in ("xquad.de.json.gz", "de.txt", "tatoeba.deu-eng.eng")]
    ['de', 'de', 'eng']
    """
    return re.sub(r"(\.gz|\.jsonl?|\.txt)+$", "", path.name).rpartition(".")[2]


def _sentences(path: Path) -> dict[int | str, str]:
    """The sentences of a file by id, or by index if it has one in each line."""
    if path.name.endswith(SUFFIXES):
        return dict(enumerate(read_table(path, PARALLEL).texts(LINE)))
    examples = load_examples("question-answering", data=path)
    return dict(zip(examples.ids, examples.first, strict=True))
