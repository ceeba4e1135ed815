"""Words of plain text: their spans, and their parts of speech by a tagger that learns from annotated sentences."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nltk.tag.perceptron import PerceptronTagger

from experiments.words.annotated import Annotated, Word
from experiments.words.conllu_files import read_sentences

# Splits words as the English treebanks do: "do n't", "can not", "John 's", "U.S.", "1,000", "...".
WORD = re.compile(
    r"(?:[^\W\d_]\.){2,}|\d+(?:[.,]\d+)*|can(?=not\b)|\w+?(?=n['’]t\b)|n['’]t\b|['’](?:s|re|ve|ll|d|m)\b|\w+|\.{2,}|-{2,}|[^\w\s]",
    re.IGNORECASE,
)
ROUNDS = 5
HELD_OUT = 10  # every tenth sentence tests the tagger


@dataclass(frozen=True)
class Tagger:
    """A perceptron over words and their neighbours (nltk's).

    Args:
        model: tags a list of words.
        source: the file it learnt from.
        accuracy: of its tags, on sentences that it did not learn from.
    """

    model: PerceptronTagger
    source: str
    accuracy: float

    def annotate(self, texts: Sequence[str]) -> list[Annotated]:
        """The words of texts with Penn tags."""
        annotated = []
        for text in map(split_words, texts):
            tags = [tag for _, tag in self.model.tag([word.form for word in text.words])]
            words = (replace(word, tag=tag) for word, tag in zip(text.words, tags, strict=True))
            annotated.append(Annotated(text.text, tuple(words)))
        return annotated


def split_words(text: str) -> Annotated:
    """The words of a text, with their spans and nothing else.

    >>> [word.form for word in split_words("He can't, U.S. cannot: 1,000 do n't...").words]
    ['He', 'ca', "n't", ',', 'U.S.', 'can', 'not', ':', '1,000', 'do', "n't", '...']
    """
    return Annotated(text, tuple(Word(match[0], match.span(), "", "", -1, "") for match in WORD.finditer(text)))


def learn_tagger(path: Path, seed: int = 0) -> Tagger:
    """A tagger that learns from nine of every ten sentences of a CoNLL-U file, and is tested on the tenth."""
    sentences = [[(word.form, word.tag) for word in text.words] for text in read_sentences(path)]
    model = PerceptronTagger(load=False)
    random.seed(seed)  # nltk shuffles by the global generator
    model.train([sentence for index, sentence in enumerate(sentences) if index % HELD_OUT], nr_iter=ROUNDS)
    held_out = sentences[::HELD_OUT]
    tagged = [model.tag([form for form, _ in sentence]) for sentence in held_out]
    correct = [
        expected == predicted
        for pair in zip(held_out, tagged, strict=True)
        for expected, predicted in zip(*pair, strict=True)
    ]
    return Tagger(model, path.name, sum(correct) / len(correct))
