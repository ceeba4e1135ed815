"""Where heads attend most in parsed sentences, and the trees of their weights."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from bertjax.data import Encoding
from experiments.shared.run import Run
from experiments.words.annotated import Annotated
from experiments.words.held_out import DIRECTIONS
from experiments.words.spans import pieces_of
from experiments.words.trees import ROOT, chain, spanning_edges, tree_hits
from experiments.words.word_attention import read_words

LEFT_OUT = ("root", "punct")
REACH = 10  # distances in words


@dataclass(frozen=True)
class Parsed:
    """A parsed sentence, and where each attention head points in it.

    Args:
        heads: the true head of each word; -1 of the root.
        relations: of each word to its head.
        most: the word to which each attends most, by head.
        trees: how many true edges, and true heads of words, each head's tree has, and then the chain.
        in_trees: of how many words.
    """

    heads: Int[np.ndarray, " word"]
    relations: tuple[str, ...]
    most: Int[np.ndarray, "all_heads word"]
    trees: Int[np.ndarray, "guesses 2"]
    in_trees: int

    @property
    def counted(self) -> Bool[np.ndarray, " word"]:
        """Words that are neither the root nor punctuation."""
        return np.array([relation.split(":")[0] not in LEFT_OUT for relation in self.relations])


def read_parsed(run: Run, sentences: Sequence[Annotated]) -> list[Parsed]:
    """The sentences of at least two words that all have tokens, in order."""
    known = list(_usable(run, sentences))
    encodings, pieces = [encoding for encoding, *_ in known], [words for *_, words in known]
    return read_words(run, encodings, pieces, lambda number, maps: _parse(known[number][1], maps))


def _usable(run: Run, sentences: Sequence[Annotated]) -> Iterator[tuple[Encoding, Annotated, list[list[int]]]]:
    encodings = run.tokenizer.encode([sentence.text for sentence in sentences], max_length=run.model.config.max_tokens)
    for encoding, sentence in zip(encodings, sentences, strict=True):
        pieces = [pieces_of(encoding, word.span) for word in sentence.words]
        roots = sum(word.head == ROOT for word in sentence.words)
        if len(pieces) > 1 and all(pieces) and roots == 1:
            yield encoding, sentence, pieces


def _parse(sentence: Annotated, weights: Float[np.ndarray, "all_heads word other"]) -> Parsed:
    heads = np.array([word.head for word in sentence.words])
    relations = tuple(word.relation for word in sentence.words)
    others = np.where(np.eye(len(heads), dtype=bool), -np.inf, weights)
    kept, inner_heads = without_punctuation(heads, relations)
    counted = inner_heads >= 0
    inner = weights[:, kept][:, :, kept]
    trees = [spanning_edges(one) for one in inner] if len(kept) > 1 else [[] for _ in inner]
    hits = [tree_hits(edges, inner_heads, counted) for edges in (*trees, chain(len(kept)))]
    return Parsed(heads, relations, others.argmax(axis=-1), np.array(hits, np.int64), int(counted.sum()))


def without_punctuation(
    heads: Int[np.ndarray, " word"], relations: Sequence[str]
) -> tuple[Int[np.ndarray, " kept"], Int[np.ndarray, " kept"]]:
    """The words that are no punctuation, and the heads of these, counted among them.

    Returns: the words; and their heads, -1 of the root, -2 of a word whose head is punctuation.

    >>> kept, heads = without_punctuation(np.array([2, 0, -1, 1]), ["nsubj", "punct", "root", "obj"])
    >>> kept.tolist(), heads.tolist()
    ([0, 2, 3], [1, -1, -2])
    """
    kept = np.flatnonzero([relation.split(":")[0] != "punct" for relation in relations])
    indices = {int(word): index for index, word in enumerate(kept)}
    renumbered = [ROOT if heads[word] == ROOT else indices.get(int(heads[word]), ROOT - 1) for word in kept]
    return kept, np.array(renumbered)


def guesses_of(parsed: Parsed) -> Int[np.ndarray, "guesses word"]:
    """The word that each attention head points to from each word, and then each fixed distance, -1 beyond the ends."""
    words = len(parsed.heads)
    offsets = np.array([offset for offset in range(-REACH, REACH + 1) if offset])
    indices = np.arange(words) + offsets[:, None]
    return np.concatenate([parsed.most, np.where((indices >= 0) & (indices < words), indices, ROOT - 1)])


def relation_hits(
    sentences: Sequence[Parsed], names: Sequence[str]
) -> tuple[Int[np.ndarray, "sentences relations directions guesses"], Int[np.ndarray, "sentences relations"]]:
    """How often each guess is right in each sentence, by relation and direction; and how often there is the relation.

    Args:
        names: of the relations; 'all' counts every one.
    """
    guesses = len(guesses_of(sentences[0]))
    hits = np.zeros((len(sentences), len(names), len(DIRECTIONS), guesses), np.int32)
    counts = np.zeros((len(sentences), len(names)), np.int32)
    indices = {name: index for index, name in enumerate(names)}
    for number, parsed in enumerate(sentences):
        pointed = guesses_of(parsed)
        for word in np.flatnonzero(parsed.counted).tolist():
            head = int(parsed.heads[word])
            right = np.stack([pointed[:, word] == head, pointed[:, head] == word])
            for name in (parsed.relations[word], "all"):
                if name in indices:
                    hits[number, indices[name]] += right
                    counts[number, indices[name]] += 1
    return hits, counts
