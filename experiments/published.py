"""What the authors' code does differently (Kovaleva et al. 2019, the published notebook).

It reads GLUE's TSV files with quote handling, for which these files are not written. An unbalanced quote swallows the
lines up to the next quote: MRPC's 408 validation rows become 389, STS-B's 1,500 become 1,470 and QNLI's 5,463 become
5,267. If a row then has too few or too many fields, the code takes whatever is in the position of a column, counted
from the start or the end of the row depending on the task.

Of words (4.4 and 4.5): a word's pieces count wherever the same pieces stand in the input; negation is a list of words
that are searched for as substrings of the text; pieces of the sources and targets of a relation are paired one to
one in order. Of frames (4.2) see `frames/links.py` and `frames/sources.py`, of fine-tuning `training/trainer.py`.
"""

import csv
import gzip
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

from bertjax import Tokenizer
from bertjax.data import Encoding, Examples
from bertjax.statistics import UNLABELLED
from bertjax.tasks import Task
from experiments.words.annotated import Annotated, AnnotatedSample
from experiments.words.features import FEATURES, PUBLISHED_FEATURES, TEXT, Masks, no_masks, word_features
from experiments.words.relations import Links, find_references, turned

LENGTH = 200  # tokens to which texts are cut and padded
# Tasks whose text columns, and whose label columns, are counted from the end of a row.
TEXTS_FROM_END = ("mrpc", "stsb", "mnli", "mnli-mm")
LABELS_FROM_END = ("stsb", "qqp", "rte", "qnli", "mnli", "mnli-mm")

# The authors' list; each is looked for as a substring of the text.
PUBLISHED_NEGATION = (
    *("neither", "nor", "not", "never", "none", "nothing", "nowhere", "don't", "won't", "didn't", "hadn't", "haven't"),
    *("can't", "isn't", "wasn't", "shouldn't", "couldn't"),
)
VERBS = ("VERB", "AUX")  # of Universal Dependencies


class _Row(NamedTuple):
    """The fields of an example, and the number (from 0) of the line on which it starts."""

    number: int
    fields: list[str]


def read_quoted(path: Path, task: Task, split: str) -> Examples:
    """Read all examples of a TSV file, gzipped or not; invalid labels become -1, or NaN for a regression.

    The id of an example is that of the line on which it starts, so that it denotes the same example as without quote
    handling. Rows that lack the position of a text are skipped.
    """
    header, rows = _read(path)
    places = [_place(header, name, task.name in TEXTS_FROM_END) for name in task.text_columns]
    complete = [row for row in rows if all(_has(row.fields, place) for place in places)]
    first, *second = (tuple(row.fields[place] for row in complete) for place in places)
    labels = np.full(len(complete), math.nan if task.label_names is None else UNLABELLED)
    if task.label_column in header:
        place = _place(header, task.label_column, task.name in LABELS_FROM_END)
        labels[:] = [_label(row.fields[place], task) if _has(row.fields, place) else labels[0] for row in complete]
    labels = labels.astype(np.float32 if task.label_names is None else np.int32)
    source = f"{path}, read with quote handling"
    return Examples(
        task=task,
        ids=_ids(header, complete),
        first=first,
        second=second[0] if second else None,
        labels=labels,
        source=source,
        split=split,
    )


def _read(path: Path) -> tuple[list[str], list[_Row]]:
    """The header and the rows. Lines are counted as without quote handling: blank lines do not count, and a carriage
    return ends a row for the authors' code but not a line."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig", newline="") as file:
        lines = file.read().replace("\r\n", "\n").split("\n")
    filled = np.cumsum([bool(line) for line in lines]) - 2  # the header is -1
    parts: list[tuple[str, int]] = []
    for line, number in zip(lines, filled.tolist(), strict=True):
        parts += [(f"{part}\n", number) for part in line.split("\r")]
    parts[-1] = parts[-1][0].removesuffix("\n"), parts[-1][1]
    table = csv.reader((part for part, _ in parts if part), delimiter="\t")
    header, rows, first_line = next(table, []), [], 1
    for fields in table:
        if fields:
            rows.append(_Row(parts[first_line][1], fields))
        first_line = table.line_num
    return header, rows


def _place(header: Sequence[str], name: str, from_end: bool) -> int:
    return header.index(name) - (len(header) if from_end else 0)


def _has(fields: Sequence[str], place: int) -> bool:
    return -len(fields) <= place < len(fields)


def _ids(header: Sequence[str], rows: Sequence[_Row]) -> tuple[int, ...]:
    """The ids that bertjax would give the rows: the column that numbers them, or else their line numbers."""
    for name in ("index", "idx"):
        if name in header:
            ids = [row.fields[header.index(name)] for row in rows if _has(row.fields, header.index(name))]
            if len(set(ids)) == len(rows) and all(value.isdecimal() for value in ids):
                return tuple(int(value) for value in ids)
    return tuple(row.number for row in rows)


def _label(value: str, task: Task) -> int | float:
    """A label as a class number or a score; -1 or NaN if it is invalid."""
    names = task.label_names
    if names is not None:
        numbers = {str(number): number for number in range(len(names))}
        numbers |= {name: number for number, name in enumerate(names)}
        return numbers.get(value, UNLABELLED)
    try:
        number = float(value)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def published_masks(sample: AnnotatedSample, tokenizer: Tokenizer) -> Masks:
    """The tokens of each feature as the authors' code finds them: every occurrence of a piece of one of its words."""
    masks = no_masks(sample.texts)
    for example, (encoding, texts) in enumerate(zip(sample.texts, sample.annotations, strict=True)):
        forms: list[set[str]] = [set() for _ in PUBLISHED_FEATURES]
        for text in texts:
            members = word_features(text)[: len(forms) - 1]
            for feature_forms, words in zip(forms, members, strict=False):
                feature_forms |= {text.words[word].form for word in words}
            forms[-1] |= published_negation(text.text)
        for feature, feature_forms in enumerate(forms):
            pieces = pieces_of_forms(tokenizer, feature_forms)
            masks[example, feature, : len(encoding)] = [token in pieces for token in encoding.tokens]
    return masks


def counted_as_published(sample: AnnotatedSample) -> Bool[np.ndarray, "examples features"]:
    """Which examples the authors' code averages: all, but for negation only those with one of its words in a text.

    The code has a single feature [SEP], without first and second, and neither punctuation nor all tokens of the texts.
    """
    absent = {"punctuation", TEXT, "[SEP] first", "[SEP] second", *sample.unknown}
    counted = np.tile([feature not in absent for feature in FEATURES], (len(sample), 1))
    for example, texts in enumerate(sample.annotations):
        counted[example, FEATURES.index("negation")] = any(published_negation(text.text) for text in texts)
    return counted


def published_negation(text: str) -> set[str]:
    """Which of the authors' negations occur in a text, even as part of another word."""
    return {word for word in PUBLISHED_NEGATION if word in text}


def pieces_of_forms(tokenizer: Tokenizer, forms: Iterable[str]) -> set[str]:
    """The word pieces of words, each encoded on its own."""
    return {piece for form in forms for piece in tokenizer.encode([form])[0].tokens[1:-1]}


def published_pairs(encoding: Encoding, texts: Sequence[Annotated], tokenizer: Tokenizer) -> list[Links]:
    """Pairs (query, key) as the authors' code forms them.

    The pieces of all sources, wherever they occur in the input, are paired one to one with those of all targets; only
    nsubj of a verb counts. The tags of the authors' spaCy, like those of all its versions before 2.2, counted "is" and
    other auxiliaries as verbs; they are now separate, and are included here. Their code has subject and verb only;
    pronouns and nouns are treated the same way.
    """
    pair_lists: list[Links] = []
    forward: list[list[tuple[str, str]]] = [[], []]
    for text in texts:
        words = text.words
        subjects = [word for word in words if word.relation == "nsubj" and word.head >= 0]
        forward[0] += [(word.form, words[word.head].form) for word in subjects if words[word.head].part in VERBS]
        forward[1] += [(words[pronoun].form, words[noun].form) for pronoun, noun in find_references(text)]
    for forms in forward:
        occurrences = []
        for side in zip(*forms, strict=True) if forms else ((), ()):
            pieces = pieces_of_forms(tokenizer, set(side))
            occurrences.append([index for index, piece in enumerate(encoding.tokens) if piece in pieces])
        pairs = list(zip(*occurrences, strict=False))
        pair_lists += [pairs, turned(pairs)]
    return pair_lists
