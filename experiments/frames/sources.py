"""Sentences in which a predicate and its core elements are marked: the authors' own, and FrameNet's.

FrameNet is read through nltk (optional): version 1.7 or 1.5, of ICSI Berkeley, CC BY 3.0. What is kept of it is what
the authors kept: sentences of at most 12 words, of all lexical units, in which the target is one span, every element
has at most three words, none of these is within two words of the target, and at least one element is of the frame's
core sets. The authors' code compares the words themselves, not their places (`published_reason_against`).
"""

import csv
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertjax.errors import DataError
from bertjax.paths import is_file, user_path
from bertjax.progress import Report
from experiments.frames.classes import classes_of
from experiments.words.annotated import import_optional
from experiments.words.spans import Span, find_words

PUBLISHED = Path(__file__).parent.parent / "data" / "framenet_473.tsv"
VERSIONS = ("framenet_v17", "framenet_v15")
INDEXES = ["frRelation.xml", "frameIndex.xml", "fulltextIndex.xml", "luIndex.xml", "semTypes.xml"]
MOST_WORDS, LONGEST, NEAR = 12, 3, 2


@dataclass(frozen=True)
class Sentence:
    """A text, its words, where its predicate stands in it, and where its core elements.

    `tags` are parts of speech, one for each word, of `tagset` (`classes.py`); none where the source has none.
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
        words: in their order.
        predicate: where it stands, in one span or several.
        elements: where its elements stand.
        core: those of them that count.
        whole: whether each element is one stretch of words.
        tags: the part of speech of each word, or none.
        tagset: whose names the tags are.
    """

    text: str
    words: tuple[Span, ...]
    predicate: tuple[Span, ...]
    elements: tuple[Span, ...]
    core: tuple[Span, ...]
    whole: bool = True
    tags: tuple[str, ...] = ()
    tagset: str = ""


def split_words(text: str) -> tuple[Span, ...]:
    """The words of a text whose words have spaces between them.

    >>> split_words("he ran .")
    ((0, 2), (3, 6), (7, 8))
    """
    return tuple(found.span() for found in re.finditer(r"\S+", text))


def words_in(words: tuple[Span, ...], span: Span) -> list[int]:
    """Which words overlap a span.

    >>> words_in(((0, 2), (3, 6), (7, 8)), (3, 8))
    [1, 2]
    """
    return [place for place, (start, end) in enumerate(words) if start < span[1] and span[0] < end]


def reason_against(found: Annotation, most_words: int = MOST_WORDS) -> str | None:
    """Why a sentence is left out, by the first of the filters that does so, or None."""
    if len(found.words) > most_words:
        return f"more than {most_words} words"
    if len(found.predicate) != 1:
        return "not one target span"
    if not found.whole:
        return "an element in several parts"
    places = [words_in(found.words, span) for span in found.elements]
    if any(len(element) > LONGEST for element in places):
        return f"an element of more than {LONGEST} words"
    target = words_in(found.words, found.predicate[0])
    if any(abs(one - other) <= NEAR for element in places for one in element for other in target):
        return f"an element within {NEAR} words of the target"
    return None if found.core else "no core element"


def published_reason_against(found: Annotation, most_words: int = MOST_WORDS) -> str | None:
    """The same as the authors' code has it: words are looked up where a sentence has them first.

    So a target or an element that is part of a word, or is of several words, is none of the sentence's, and a word that
    stands twice may be near though the one that is meant is far.
    """
    words = [found.text[slice(*word)] for word in found.words]
    if len(words) > most_words:
        return f"more than {most_words} words"
    if len(found.predicate) != 1:
        return "not one target span"
    if (target := found.text[slice(*found.predicate[0])]) not in words:
        return "a target that is not one word"
    elements = [found.text[slice(*span)].split() for span in found.elements]
    if any(len(element) > LONGEST for element in elements):
        return f"an element of more than {LONGEST} words"
    parts = [word for element in elements for word in element]
    if any(word not in words for word in parts):
        return "an element of parts of words"
    if any(abs(words.index(word) - words.index(target)) <= NEAR for word in parts):
        return f"an element within {NEAR} words of the target"
    return None if found.core else "no core element"


def filter_annotations(
    several: Iterable[Annotation],
    most_words: int = MOST_WORDS,
    reason: Callable[[Annotation, int], str | None] = reason_against,
) -> tuple[list[Sentence], Counter]:
    """The sentences that no filter drops, and how many of all are kept or dropped by which."""
    kept, counts = [], Counter[str]()
    for found in several:
        why = reason(found, most_words)
        counts[why or "kept"] += 1
        if why is None:
            kept.append(Sentence(found.text, found.words, found.predicate[0], found.core, found.tags, found.tagset))
    return kept, counts


def read_published(path: Path) -> list[Sentence]:
    """The authors' sentences: a TSV file of sentence, target and core elements, these with " | " between them.

    It holds no places: words that stand in a sentence more than once are taken where they stand first.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    found = []
    for row in rows:
        text = row["sentence"].replace('\\"', '"')  # as FrameNet has it
        predicate = find_words(text, row["target"])
        elements: list[Span] = []
        for element in row["core_elements"].split(" | "):
            elements.append(find_words(text, element, [predicate, *elements]))
        found.append(Sentence(text, split_words(text), predicate, tuple(elements)))
    return found


def read_framenet(directory: str | None, report: Report = lambda done, total: None) -> Iterator[Annotation]:
    """Every sentence that FrameNet has annotated for a lexical unit, in the order of the units.

    Args:
        directory: where its files are; default: where nltk finds them.
        report: is told the units read and in all.

    Raises:
        MissingDependencyError: nltk is not installed.
        DataError: there is no FrameNet, or nltk cannot read it.
    """
    corpus = open_framenet(directory)
    try:
        units = list(corpus.lus())
        for number, unit in enumerate(units):
            core = {element.name for some in unit.frame.FEcoreSets for element in some}
            for sentence in unit.exemplars:
                yield _annotation(sentence, core)
            for name in ("exemplars", "subCorpus"):  # nltk would keep all of FrameNet in memory
                unit.pop(name, None)
            report(float(number + 1), float(len(units)))
    except LookupError as error:
        raise _not_found(directory) from error
    except (OSError, ValueError, SyntaxError, AssertionError, NameError) as error:  # nltk raises all of these
        raise DataError(f"nltk cannot read FrameNet: {' '.join(str(error).split())[:300]}") from error


def open_framenet(directory: str | None) -> Any:
    """nltk's reader of FrameNet; errors as in `read_framenet`."""
    nltk = import_optional("nltk", "pip install nltk")
    reader = import_optional("nltk.corpus.reader.framenet", "pip install nltk").FramenetCorpusReader
    if directory is None:
        for version in VERSIONS:
            try:
                return reader(nltk.data.find(f"corpora/{version}"), INDEXES)
            except LookupError:
                continue
        raise _not_found(directory)
    path = Path(os.path.realpath(user_path(directory)))
    if path.suffix == ".zip":
        raise DataError(f"{directory}: unzip it, and name the directory that it makes")
    if not is_file(path / "luIndex.xml"):
        raise _not_found(directory)
    if any(file.stat().st_mode & 0o022 for file in (path, path / "luIndex.xml")):
        raise DataError(f"{path}: nltk reads no corpus that others may write to (chmod -R go-w)")
    nltk.data.path.append(str(path.parent))  # it reads none from elsewhere either
    return reader(str(path), INDEXES)


def _not_found(directory: str | None) -> DataError:
    if directory is not None:
        return DataError(f"{directory}: no directory of FrameNet (it holds luIndex.xml, frame and lu)")
    return DataError("nltk finds no FrameNet: nltk.download('framenet_v17'), or name its directory with --data")


def _annotation(sentence: Any, core: set[str]) -> Annotation:
    """From nltk's form. Elements are those of the first layer; a span has its end behind it."""
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
