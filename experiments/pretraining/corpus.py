"""Texts to learn from: where they lie, which are held out, and what of them a test set holds too.

    wikitext2/valid.txt.gz                      paragraphs of Wikipedia (Merity et al. 2017)
    glue/QNLI/dev.tsv, train_sample.tsv.gz      questions and sentences of SQuAD (Wang et al. 2019)
    xquad/xquad.en.json.gz                      paragraphs of SQuAD (Artetxe et al. 2020)
    ud/UD_English-EWT/en_ewt-ud-train.conllu.gz    sentences of the web (Silveira et al. 2014)

Half of QNLI's rows are texts of two parts, a question and a sentence; the questions and sentences of the others are
texts of their own.
"""

import hashlib
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertjax.errors import DataError, reading
from bertjax.paths import is_there, open_data
from bertjax.tasks import MASKED, UNKNOWN, load_examples

HELD_OUT = 0.02  # share of the texts
SHARED = 8  # words in a row that two texts have in common only if one was taken from the other

# Texts that the trained model is measured by; no text that shares words in a row with them is learnt from.
MEASURED_BY = ("wikitext2/test.txt.gz", "blimp/*.jsonl")
PAIRS = ("sentence_good", "sentence_bad")  # BLiMP's columns (Warstadt et al. 2020)


@dataclass(frozen=True)
class Text:
    """A text, or a text of two parts; `origin` is the name of its source."""

    first: str
    second: str | None
    origin: str

    @property
    def whole(self) -> str:
        """All of it."""
        return self.first if self.second is None else f"{self.first}\n{self.second}"


@dataclass(frozen=True)
class Corpus:
    """Texts in the order of their sources, each once.

    Args:
        train: those to learn from.
        held_out: others to be judged by.
        left_out: how many of each source are in neither, since they share words with those held out or measured by.
    """

    train: tuple[Text, ...]
    held_out: tuple[Text, ...]
    left_out: Mapping[str, int]

    @property
    def sha256(self) -> str:
        """A hash of the texts of both parts."""
        parts = [[text.first, text.second] for texts in (self.train, self.held_out) for text in texts]
        return hashlib.sha256(json.dumps([len(self.train), parts]).encode()).hexdigest()


def read_corpus(data: Path) -> Corpus:
    """Read the texts of those sources that a directory has, and hold a share of them out.

    Which are held out is said by a hash of the text alone, so another source changes nothing.

    Raises:
        DataError: there is none of the sources, one cannot be read, or there are too few texts.
    """
    texts = [
        text
        for name, (file, read) in SOURCES.items()
        for path in ([data / file] if is_there(data / file) else [])
        for text in read(path, name)
    ]
    if not texts:
        raise DataError(f"{data}: has none of {', '.join(file for file, _ in SOURCES.values())}")
    texts = list(dict.fromkeys(texts))
    held_out = [text for text in texts if _draw(text.second or text.first) < HELD_OUT]
    foreign = _runs([line for pattern in MEASURED_BY for path in sorted(data.glob(pattern)) for line in _lines(path)])
    train, of_held_out, left_out = [], _runs([text.whole for text in held_out]), dict.fromkeys(SOURCES, 0)
    chosen = set(held_out)
    for text in texts:
        runs = _runs([text.whole])
        if not foreign.isdisjoint(runs) or (text not in chosen and not of_held_out.isdisjoint(runs)):
            left_out[text.origin] += 1
            chosen.discard(text)
        elif text not in chosen:
            train.append(text)
    if not train or not chosen:
        raise DataError(f"{data}: {len(texts)} texts are too few to learn from some and be judged by others")
    return Corpus(tuple(train), tuple(text for text in held_out if text in chosen), left_out)


def _draw(text: str) -> float:
    """A number from 0 to 1 that looks random, the same for the same text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]) / 2**48


def _runs(texts: Sequence[str]) -> set[str]:
    """All runs of so many words of texts, without capitals and punctuation; of a shorter text all of its words."""
    runs = set()
    for line in (line for text in texts for line in text.splitlines()):
        parts = [re.findall(r"\w+", part.lower()) for part in line.split(UNKNOWN)]
        if len(parts) == 1 and len(parts[0]) < SHARED:
            runs.add(" ".join(parts[0]))
        for words in parts:
            runs |= {" ".join(words[start : start + SHARED]) for start in range(len(words) - SHARED + 1)}
    return runs - {""}


def _lines(path: Path) -> list[str]:
    """The texts of a file that a model is measured by."""
    columns = PAIRS if path.name.endswith(".jsonl") else (None,)
    texts = [load_examples(MASKED, data=path, text_columns=column and [column]).first for column in columns]
    return [text for several in texts for text in several]


def _read_wikitext(path: Path, name: str) -> list[Text]:
    return [Text(paragraph, None, name) for paragraph in load_examples(MASKED, data=path).first]


def _read_qnli(path: Path, name: str) -> list[Text]:
    examples = load_examples("qnli", data=path)
    texts = []
    for question, sentence in zip(examples.first, examples.second or (), strict=True):
        if _draw(f"{sentence} pair") < 0.5:
            texts.append(Text(question, sentence, name))
        else:
            texts += [Text(question, None, name), Text(sentence, None, name)]
    return texts


def _read_squad(path: Path, name: str) -> list[Text]:
    with reading(path, DataError), open_data(path) as file:
        articles = json.load(file)["data"]
        return [Text(paragraph["context"], None, name) for article in articles for paragraph in article["paragraphs"]]


def _read_conllu(path: Path, name: str) -> list[Text]:
    """The sentences alone, for which the package `conllu` is not needed."""
    mark = "# text = "
    with reading(path, DataError), io.TextIOWrapper(open_data(path), encoding="utf-8") as file:
        return [Text(line.removeprefix(mark).strip(), None, name) for line in file if line.startswith(mark)]


# The sources by name: file, and who reads it.
SOURCES: dict[str, tuple[str, Callable[[Path, str], list[Text]]]] = {
    "wikitext2": ("wikitext2/valid.txt.gz", _read_wikitext),
    "qnli dev": ("glue/QNLI/dev.tsv", _read_qnli),
    "qnli train": ("glue/QNLI/train_sample.tsv.gz", _read_qnli),
    "xquad": ("xquad/xquad.en.json.gz", _read_squad),
    "ewt": ("ud/UD_English-EWT/en_ewt-ud-train.conllu.gz", _read_conllu),
}
