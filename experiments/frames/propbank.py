"""Predicates and their core arguments, from CoNLL-U files with PropBank's columns (Universal Propositions).

Beyond the ten columns of CoNLL-U, such a file has the roleset of each predicate, and a column for each predicate: V at
the predicate itself, ARG0 (or A0) and so on at the heads of its arguments. Here

- core arguments are those with numbers, and ARGA; they count as elements. Modifiers (ARGM-...), including negation and
  modal verbs, have no counterpart in FrameNet and do not matter to the filters;
- an argument is what depends on its head, directly or through other words, without the predicate's branch and
  without punctuation at its ends. A predicate with an argument in several parts is left out.
"""

import gzip
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import conllu

from experiments.frames.sources import Annotation
from experiments.words.conllu_files import find_spans, join_forms

FIELDS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc", "roleset")
MOST_PREDICATES = 200  # in one sentence
CORE = re.compile(r"(ARG|A)([0-9]|A)")

Token = dict[str, Any]


def read_propbank(path: Path) -> Iterator[Annotation]:
    """Every predicate of a file with its arguments; elements and core elements are the same."""
    columns = [str(number) for number in range(MOST_PREDICATES)]
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        for sentence in conllu.parse_incr(file, fields=[*FIELDS, *columns]):
            yield from _annotations(sentence.metadata.get("text"), list(sentence), columns)


def _annotations(text: str | None, tokens: Sequence[Token], columns: Sequence[str]) -> Iterator[Annotation]:
    text = text or join_forms(tokens)
    spans = find_spans(text, tokens)
    words = [token for token in tokens if type(token["id"]) is int]  # no multiword tokens, no empty nodes
    heads = [(token["head"] or 0) - 1 for token in words]
    marks = [token["upos"] == "PUNCT" for token in words]
    for column in columns[: max(map(len, words), default=0)]:
        labels = [token.get(column) or "_" for token in words]
        if labels.count("V") != 1:
            continue
        predicate = labels.index("V")
        arguments = [index for index, label in enumerate(labels) if CORE.fullmatch(label)]
        parts = [covered_words(heads, marks, index, predicate) for index in arguments]
        elements = tuple((spans[part[0]][0], spans[part[-1]][1]) for part in parts)
        contiguous = all(part[-1] - part[0] + 1 == len(part) for part in parts)
        tags = tuple(token["upos"] or "" for token in words)
        yield Annotation(
            text=text,
            words=tuple(spans),
            predicate=(spans[predicate],),
            elements=elements,
            core=elements,
            contiguous=contiguous,
            tags=tags,
            tagset="UPOS",
        )


def covered_words(heads: Sequence[int], marks: Sequence[bool], argument: int, predicate: int) -> list[int]:
    """The words of an argument.

    Args:
        heads: for each word the one that it depends on; -1 for none.
        marks: for each word whether it is punctuation.
        argument: the argument's head.
        predicate: the predicate that it is an argument of.

    >>> covered_words([1, 4, 1, 2, -1], [False, False, False, True, False], 1, 4)  # the man there , left
    [0, 1, 2]
    """

    def belongs(index: int) -> bool:
        for _ in heads:  # no more steps than words, so that a cycle ends
            if index in (argument, predicate, -1):
                break
            index = heads[index]
        return index == argument

    indices = [index for index in range(len(heads)) if belongs(index)]
    kept = [index for index in indices if index == argument or not marks[index]]
    return [index for index in indices if kept[0] <= index <= kept[-1]]
