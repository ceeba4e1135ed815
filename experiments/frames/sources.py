"""Sentences in which a predicate and its core elements are marked: the authors' and FrameNet's.

FrameNet is read through nltk (optional): version 1.7 or 1.5, of ICSI Berkeley, CC BY 3.0. The authors' selection is
kept: sentences of at most 12 words, of all lexical units, in which the target is one span, every element has at most
three words, none of these is within two words of the target, and at least one element is of the frame's core sets. The
authors' code compares the words themselves, not their places (`published_reason_against`).
"""

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nltk
from nltk.corpus.reader.framenet import FramenetCorpusReader
from tqdm import tqdm

from experiments.frames.classes import classes_of
from experiments.words.spans import Span, find_words

PUBLISHED = Path(__file__).parent.parent / "data" / "framenet_473.tsv"
VERSIONS = ("framenet_v17", "framenet_v15")
INDEXES = ["frRelation.xml", "frameIndex.xml", "fulltextIndex.xml", "luIndex.xml", "semTypes.xml"]
MOST_WORDS, LONGEST, NEAR = 12, 3, 2


@dataclass(frozen=True)
class Sentence:
    """A text, its words, and the spans of its predicate and of its core elements.

    `tags` are parts of speech, one for each word, of `tagset` (`classes.py`); empty where the source has none.
    """

    text: str
    words: tuple[Span, ...]
    predicate: Span
    elements: tuple[Span, ...]
    tags: tuple[str, ...] = ()
    tagset: str = ""

    @property
    def classes(self) -> tuple[str, ...]:
        """The class of each word."""
        return classes_of([self.text[slice(*word)] for word in self.words], self.tags, self.tagset)


@dataclass(frozen=True)
class Annotation:
    """What is marked in a text for one predicate.

    Args:
        text: the text.
        words: in order.
        predicate: its span, or several.
        elements: the spans of its elements.
        core: the spans of its core elements.
        contiguous: whether each element is one stretch of words.
        tags: the part of speech of each word, or none.
        tagset: the tagset of the tags.
    """

    text: str
    words: tuple[Span, ...]
    predicate: tuple[Span, ...]
    elements: tuple[Span, ...]
    core: tuple[Span, ...]
    contiguous: bool = True
    tags: tuple[str, ...] = ()
    tagset: str = ""


def split_words(text: str) -> tuple[Span, ...]:
    """The words of a text, separated by white space.

    >>> split_words("he ran .")
    ((0, 2), (3, 6), (7, 8))
    """
    return tuple(match.span() for match in re.finditer(r"\S+", text))


def words_in(words: tuple[Span, ...], span: Span) -> list[int]:
    """Which words overlap a span.

    >>> words_in(((0, 2), (3, 6), (7, 8)), (3, 8))
    [1, 2]
    """
    return [index for index, (start, end) in enumerate(words) if start < span[1] and span[0] < end]


def reason_against(annotation: Annotation, most_words: int = MOST_WORDS) -> str | None:
    """Why a sentence is left out: the first filter that drops it, or None."""
    if len(annotation.words) > most_words:
        return f"more than {most_words} words"
    if len(annotation.predicate) != 1:
        return "not one target span"
    if not annotation.contiguous:
        return "an element in several parts"
    elements = [words_in(annotation.words, span) for span in annotation.elements]
    if any(len(element) > LONGEST for element in elements):
        return f"an element of more than {LONGEST} words"
    target = words_in(annotation.words, annotation.predicate[0])
    if any(
        abs(element_word - target_word) <= NEAR
        for element in elements
        for element_word in element
        for target_word in target
    ):
        return f"an element within {NEAR} words of the target"
    return None if annotation.core else "no core element"


def published_reason_against(annotation: Annotation, most_words: int = MOST_WORDS) -> str | None:
    """The same as the authors' code has it: words are looked up at their first occurrence in a sentence.

    So a target or an element that is part of a word, or several words, is not among the sentence's words. A word that
    occurs twice may count as near though the occurrence that is meant is far.
    """
    words = [annotation.text[slice(*word)] for word in annotation.words]
    if len(words) > most_words:
        return f"more than {most_words} words"
    if len(annotation.predicate) != 1:
        return "not one target span"
    if (target := annotation.text[slice(*annotation.predicate[0])]) not in words:
        return "a target that is not one word"
    elements = [annotation.text[slice(*span)].split() for span in annotation.elements]
    if any(len(element) > LONGEST for element in elements):
        return f"an element of more than {LONGEST} words"
    parts = [word for element in elements for word in element]
    if any(word not in words for word in parts):
        return "an element of parts of words"
    if any(abs(words.index(word) - words.index(target)) <= NEAR for word in parts):
        return f"an element within {NEAR} words of the target"
    return None if annotation.core else "no core element"


def filter_annotations(
    annotations: Iterable[Annotation],
    most_words: int = MOST_WORDS,
    reason: Callable[[Annotation, int], str | None] = reason_against,
) -> tuple[list[Sentence], Counter]:
    """The sentences that no filter drops, and how many are kept, or dropped by each filter."""
    kept, counts = [], Counter[str]()
    for annotation in annotations:
        objection = reason(annotation, most_words)
        counts[objection or "kept"] += 1
        if objection is None:
            kept.append(
                Sentence(
                    annotation.text,
                    annotation.words,
                    annotation.predicate[0],
                    annotation.core,
                    annotation.tags,
                    annotation.tagset,
                )
            )
    return kept, counts


def read_published(path: Path) -> list[Sentence]:
    """The authors' sentences: a TSV file of sentence, target and core elements, the latter separated by " | ".

    It holds no places: words that occur more than once in a sentence are taken at their first occurrence.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    sentences = []
    for row in rows:
        text = row["sentence"].replace('\\"', '"')  # as FrameNet has it
        predicate = find_words(text, row["target"])
        elements: list[Span] = []
        for element in row["core_elements"].split(" | "):
            elements.append(find_words(text, element, [predicate, *elements]))
        sentences.append(Sentence(text, split_words(text), predicate, tuple(elements)))
    return sentences


def read_framenet(directory: str | None) -> Iterator[Annotation]:
    """Every sentence that FrameNet annotates for a lexical unit, in the order of the units.

    Args:
        directory: where its files are; by default where nltk finds them.
    """
    corpus = open_framenet(directory)
    for unit in tqdm(corpus.lus(), disable=None, leave=False):
        core = {element.name for core_set in unit.frame.FEcoreSets for element in core_set}
        for sentence in unit.exemplars:
            yield _annotation(sentence, core)
        for name in ("exemplars", "subCorpus"):  # nltk would keep all of FrameNet in memory
            unit.pop(name, None)


def open_framenet(directory: str | None) -> Any:
    """nltk's reader of FrameNet."""
    if directory is None:
        for version in VERSIONS:
            try:
                return FramenetCorpusReader(nltk.data.find(f"corpora/{version}"), INDEXES)
            except LookupError:
                continue
        raise SystemExit("nltk finds no FrameNet: nltk.download('framenet_v17'), or name its directory with --data")
    path = Path(directory).resolve()
    nltk.data.path.append(str(path.parent))  # nltk reads no corpus from elsewhere
    return FramenetCorpusReader(str(path), INDEXES)


def _annotation(sentence: Any, core: set[str]) -> Annotation:
    """An annotation from nltk's form. Elements are those of the first layer; a span ends one past its last letter."""
    elements = [((start, end), name) for start, end, name in sentence.get("FE", ([], {}))[0]]
    words = split_words(sentence.text)
    tags = {start: tag for start, _, tag in sentence.get("POS", ())}
    return Annotation(
        sentence.text,
        words,
        tuple(sentence.get("Target", ())),
        tuple(span for span, _ in elements),
        tuple(span for span, name in elements if name in core),
        tags=tuple(tags.get(start, "") for start, _ in words),
        tagset=sentence.get("POS_tagset") or "",
    )
