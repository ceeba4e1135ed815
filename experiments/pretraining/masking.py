"""Texts as rows of tokens, and words of them that are hidden, drawn anew for each step (Devlin et al. 2019).

A row holds several texts that do not see each other (`bertjax.engine.pack`), so that nothing is computed for padding.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int, Int32, Shaped

from bertjax import Tokenizer
from bertjax.data import Encoding
from bertjax.engine import Packed, pack
from bertjax.tasks import name_unknown
from experiments.pretraining.corpus import Text

SHARE = 0.15  # of the words of a row
HIDDEN, REPLACED = 0.8, 0.1  # of those; the rest stay as they are

WordBatch: TypeAlias = dict[str, Shaped[np.ndarray, "batch token_or_wanted"]]


def encode_texts(tokenizer: Tokenizer, texts: Sequence[Text], length: int) -> list[Encoding]:
    """Texts as tokens: one that is too long in parts of about the same length, one of two parts cut.

    Args:
        length: the most tokens of a text, special tokens included.
    """
    single = name_unknown(tokenizer, [text.first for text in texts if text.second is None])
    firsts = [text.first for text in texts if text.second is not None]
    seconds = [text.second for text in texts if text.second is not None]
    encodings = [part for encoding in tokenizer.encode(single) for part in _divide(encoding, length)]
    return encodings + tokenizer.encode(firsts, seconds, length)


def _divide(encoding: Encoding, length: int) -> list[Encoding]:
    """A text in as few parts as have room, each between the special tokens of the whole."""
    first, *words, last = encoding.input_ids
    count = -(-len(words) // (length - 2)) or 1
    borders = np.linspace(0, len(words), count + 1).round().astype(int).tolist()
    parts = [(first, *words[start:end], last) for start, end in itertools.pairwise(borders)]
    return [replace(encoding, input_ids=ids, token_type_ids=encoding.token_type_ids[: len(ids)]) for ids in parts]


@dataclass(frozen=True)
class Rows:
    """Texts in rows, of which words can be hidden.

    Args:
        packed: the rows.
        mask_id: the token that hides a word.
        special: tokens that are no words, [UNK] among them: they are never asked for.
        vocab: how many tokens there are.
    """

    packed: Packed
    mask_id: int
    special: tuple[int, ...]
    vocab: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, encodings: Sequence[Encoding], length: int) -> "Rows":
        """Tokenised texts in rows of a length."""
        ends, mask = (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id), tokenizer.mask_token_id
        packed = pack([[encoding] for encoding in encodings], length)
        return cls(packed, mask, (*ends, mask, tokenizer.unk_token_id), tokenizer.vocab_size)

    def __len__(self) -> int:
        return self.packed.rows

    @property
    def words(self) -> Int32[np.ndarray, " words"]:
        """All words that may be asked for."""
        ids = self.packed.input_ids
        return ids[~np.isin(ids, self.special)]

    def hide(self, numbers: Sequence[int], count: int, seed: Sequence[int]) -> WordBatch:
        """A batch of `count` rows, with words hidden: these rows, then repeats of the last that do not count.

        Args:
            numbers: which rows.
            seed: of the draw, which depends on nothing else.

        Returns: what a model reads, `[batch, token]`, and `segments` that do not see each other; `at`, `targets` and
            `share`, `[batch, wanted]`: the tokens asked for, their words, and 1 where these are real.
        """
        rng = np.random.default_rng(seed)
        places = np.array([*numbers, *[numbers[-1]] * (count - len(numbers))])
        ids = self.packed.input_ids[places]
        candidates = ~np.isin(ids, self.special)
        wanted = max(1, round(SHARE * ids.shape[1]))
        at = np.argsort(np.where(candidates, rng.random(ids.shape), 2.0), axis=1, kind="stable")[:, :wanted]
        real = np.arange(wanted) < np.round(SHARE * candidates.sum(axis=1, keepdims=True))
        real[len(numbers) :] = False
        targets = np.take_along_axis(ids, at, axis=1)
        shown = self._change(targets, rng)
        hidden = ids.copy()
        np.put_along_axis(hidden, at, np.where(real, shown, targets), axis=1)
        names = ("token_type_ids", "position_ids", "segments")
        kept = {name: getattr(self.packed, name)[places] for name in names}
        chosen = {"at": at.astype(np.int32), "targets": targets, "share": real.astype(np.float32)}
        return {"input_ids": hidden, **kept, **chosen}

    def _change(
        self, targets: Int32[np.ndarray, "batch wanted"], rng: np.random.Generator
    ) -> Int32[np.ndarray, "batch wanted"]:
        """What is shown in place of words: mostly [MASK], sometimes another word, sometimes the word itself."""
        draw: Float[np.ndarray, "batch wanted"] = rng.random(targets.shape)
        words = np.setdiff1d(np.arange(self.vocab), self.special)
        others: Int[np.ndarray, "batch wanted"] = rng.choice(words, targets.shape)
        shown = np.where(draw < HIDDEN, self.mask_id, np.where(draw < HIDDEN + REPLACED, others, targets))
        return shown.astype(np.int32)
