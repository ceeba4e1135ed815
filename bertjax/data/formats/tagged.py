"""Sentences whose words have tags: columns of words and tags as in CoNLL's files, or lists in JSONL and in Parquet.

A `.conll` file (also `.bio`, `.iob`, `.txt`, `.tsv`, each also `.gz`) has a word in each line, its first column, and
its tag in the last; columns are separated by tabs, or else by spaces. A line of nothing but white space ends a
sentence. Lines of `-DOCSTART-` are left out. A `.conllu` file has its own columns: the words' forms and their universal
parts of speech. JSONL, Parquet and directories of HuggingFace `datasets` have `tokens` (or `words`) and `tags` (or
`ner_tags`, `labels`), lists of texts; tags may be class numbers whose names the file has (`ClassLabel`). Words are
kept as they are: a word may contain white space or be blank. Sentences without words are left out.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from bertjax.data.formats.tag_schemes import scheme_of
from bertjax.data.local_files import read_table
from bertjax.data.tables import Table, brief, numbered_lines
from bertjax.data.tasks import Examples, Tagged, Task
from bertjax.errors import DataError
from bertjax.formatting import count_of
from bertjax.paths import is_directory

WORDS, TAGS = ("tokens", "words"), ("tags", "ner_tags", "pos_tags", "labels")
OF_LISTS = (".jsonl", ".jsonl.gz", ".parquet", ".parquet.gz")
DOCUMENT = "-DOCSTART-"
ENTITY = re.compile(r"[BIOESLU]-.+|O")  # a tag that says where in an entity its word is
OF_TAGS = ("tag_accuracy",)  # of tags that are none of entities
STRICT = "strict_entity_f1"  # needs a scheme
NUMBERED = (
    ": tag names are missing; write names in place of the numbers, or save a data set of `datasets` whose tags are "
    "ClassLabel"
)
BLANKS = " \t\r"  # between columns; a word may hold all other white space


def open_tagged(path: Path, task: Task) -> Table:
    """A file of columns with a word in each line, or of rows with lists; or a saved dataset.

    Raises:
        DataError: it cannot be read.
    """
    return read_table(path, task) if is_directory(path) or path.name.endswith(OF_LISTS) else _read_columns(path)


def read_tagged(table: Table, task: Task, columns: Sequence[str] | None = None) -> Examples:
    """Sentences of a table.

    Args:
        task: `token-classification`; where tags are none of entities, accuracy alone judges.
        columns: of lists, the one of words and the one of tags.

    Raises:
        DataError: a line of it is wrong.
    """
    if columns is not None and len(columns) != 2:
        raise DataError(f"{task.name} takes two columns, of words and of tags; found {', '.join(columns)}")
    names = tuple(columns) if columns else (table.need(WORDS), table.need(TAGS))
    columns_of = [(name, table.column(name)) for name in names]
    read = [_sentence(table, row, columns_of) for row in range(len(table))]
    rows = [row for row, sentence in enumerate(read) if sentence.words]
    if not rows:
        raise DataError(f"{table.path}: no sentence has a word")
    several = sum(len(_alternatives(tag)) > 1 for one in read for tag in one.tags)
    sentences = [replace(read[row], tags=tuple(_alternatives(tag)[0] for tag in read[row].tags)) for row in rows]
    task, scheme, called = _judged(task, sentences)
    source = f"{table.path} ({called}"
    source += f"; {count_of(len(read) - len(rows), 'sentence')} without words left out" * (len(rows) < len(read))
    source += f"; {count_of(several, 'word')} with several tags, the first taken" * (several > 0)
    return Examples(
        task=task,
        ids=tuple(table.numbers[row] for row in rows),
        first=tuple(" ".join(sentence.words) for sentence in sentences),
        second=None,
        labels=np.full(len(rows), np.nan, np.float32),
        source=f"{source})",
        split="validation",
        content=tuple(replace(sentence, scheme=scheme) for sentence in sentences),
    )


def _judged(task: Task, sentences: Sequence[Tagged]) -> tuple[Task, str | None, str]:
    """The task with the metrics that fit the tags, the tagging scheme, and what there is in words."""
    count, tags = sum(len(one.words) for one in sentences), {tag for one in sentences for tag in one.tags}
    called = f"{count_of(len(sentences), 'sentence')}, {count_of(count, 'word')}, {count_of(len(tags), 'tag')}"
    if not all(map(ENTITY.fullmatch, tags)):
        return replace(task, metrics=OF_TAGS), None, called
    scheme, apart = scheme_of(one.tags for one in sentences)
    if scheme is None:
        metrics = tuple(name for name in task.metrics if name != STRICT)
        return replace(task, metrics=metrics), None, f"{called}, which follow no tagging scheme: no {STRICT}"
    return task, scheme, f"{called} in {scheme}" + f" but for {count_of(apart, 'word')}" * (apart > 0)


def _alternatives(tag: str) -> list[str]:
    """The tags of a word that annotators gave several, as in the test part of WNUT 2017: `B-location,B-group`."""
    parts = tag.split(",")
    return parts if all(map(ENTITY.fullmatch, parts)) else [tag]


def _sentence(table: Table, row: int, columns: Sequence[tuple[str, Sequence[object]]]) -> Tagged:
    words, tags = (cast(Sequence[str], _named(table, row, name, values[row])) for name, values in columns)
    for (name, _), values in zip(columns, (words, tags), strict=True):
        if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
            hint = NUMBERED if name == columns[1][0] and _is_numbered(values) else ""
            raise table.error(row, f"column {name!r} holds {brief(values)}, which is no list of texts{hint}")
        table.text_list(row, name, values)
    if not all(map(str.strip, tags)):
        raise table.error(row, f"column {columns[1][0]!r} holds an empty text: each word needs a tag")
    if len(words) != len(tags):
        raise table.error(row, f"there are {len(words)} words and {len(tags)} tags: each word needs one")
    return Tagged(tuple(words), tuple(tags))


def _is_numbered(values: object) -> bool:
    """Whether tags are numbers whose names the file does not have."""
    return isinstance(values, list | tuple) and any(isinstance(value, int) for value in values)


def _named(table: Table, row: int, name: str, value: object) -> object:
    """A value of a column, in which numbers of classes that the file names are these names."""
    classes = table.classes.get(name, ())
    if not classes or not isinstance(value, list):
        return value
    for number in value:
        if isinstance(number, int) and not 0 <= number < len(classes):
            problem = f"is none of the classes that the {table.called} names"
            raise table.error(row, f"tag {number} of column {name!r} {problem}")
    return [classes[item] if isinstance(item, int) else item for item in value]


def _fields(text: str) -> list[str]:
    """The columns of a line; a first one that is blank is a word if tabs follow it."""
    if "\t" in text.rstrip(BLANKS):
        return text.split("\t")
    return re.split(f"[{BLANKS}]+", text.strip(BLANKS))


def _read_columns(path: Path) -> Table:
    """Words and tags of a file of columns, a row for each sentence."""
    universal = path.name.endswith((".conllu", ".conllu.gz"))
    sentences: list[tuple[list[str], list[str]]] = []
    lines: list[int] = []
    width, last, ended = 0, 0, True
    for line, text in numbered_lines(path):
        blank = not text.strip()
        if line > last + 1 or blank:
            ended = True
        last = line
        fields = _fields(text)
        if blank or fields[0] == DOCUMENT or (universal and not fields[0].isdecimal()):
            continue  # of CoNLL-U also comments, words of several tokens and words that are not there
        if len(fields) < 2 or (width and len(fields) != width):
            raise DataError(
                f"{path}, line {line}: {count_of(len(fields), 'column')}"
                f"{f', not the {width} of the lines before' * bool(width)}: a word and its tag are needed"
            )
        width = len(fields)
        word, tag = (fields[1], fields[3]) if universal and width > 3 else (fields[0], fields[-1])
        if not tag.strip():
            raise DataError(f"{path}, line {line}: the tag of {brief(word)} is empty")
        if ended:
            sentences.append(([], []))
            lines.append(line)
            ended = False
        sentences[-1][0].append(word)
        sentences[-1][1].append(tag.strip())
    if not sentences:
        raise DataError(f"{path}: holds no examples")
    values = {"tokens": [words for words, _ in sentences], "tags": [tags for _, tags in sentences]}
    return Table(path, ("tokens", "tags"), values.__getitem__, range(len(sentences)), lambda: lines)
