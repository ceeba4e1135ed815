"""Turn texts into token ids, and token ids into padded batches."""

import hashlib
import threading
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from jaxtyping import Int, Int32

from bertjax import arguments
from bertjax.checkpoints import (
    TextSettings,
    includes_prompts,
    locate,
    read_text_settings,
    texts_directory,
)
from bertjax.data.long_texts import Texts, shorten
from bertjax.data.tokenizer_files import (
    check_backend,
    lower_first,
    read_limit,
    read_tokenizer,
    takes_token_types,
    wrap,
    write_tokenizer,
)
from bertjax.errors import DataError, InputError, OutputError, library_errors, some_of
from bertjax.formatting import format_bytes
from bertjax.machine import memory_left
from bertjax.paths import user_path

LARGEST_ID = 2**31 - 1
ENCODING = threading.Lock()  # of all tokenizers: copies share a backend, whose truncation is set before it encodes
TEXTS_AT_ONCE = 1_000  # Ctrl-C takes effect after this many
SIDES = ("right", "left")
TOKEN_NAMES = {
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
    "unk_token": "[UNK]",
}

# Padded lengths. Each costs a compilation of about a second, so there are few. The step grows with the length, which
# keeps padding near a tenth of the computation for short and long texts alike.
BUCKETS = (
    *range(8, 32, 4),
    *range(32, 64, 8),
    *range(64, 128, 16),
    *range(128, 256, 32),
    *range(256, 513, 64),
)


@dataclass(frozen=True)
class Encoding:
    """One text, or pair of texts, as tokens.

    Args:
        input_ids: the token ids, with [CLS] first and [SEP] after each text.
        token_type_ids: 0 for the first text and its special tokens, 1 for the second; all 0 if the model takes no token
            types (RoBERTa and others).
        tokens: the word pieces.
        offsets: start and end of each token in its text, in characters; (0, 0) for special tokens.
        truncated: whether tokens were cut off.
        boundary: the number of tokens of a pair's first text and its special tokens, if `token_type_ids` are all 0.
        word_ids: the index of each token's word, as the pre-tokenizer splits the text; None for special tokens. From
            `encode_words`, the index of the word in its sentence. Empty unless `encode` has `word_ids=True`.
    """

    input_ids: tuple[int, ...]
    token_type_ids: tuple[int, ...]
    tokens: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]
    truncated: bool
    boundary: int | None = None
    word_ids: tuple[int | None, ...] = ()

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def segments(self) -> tuple[int, ...]:
        """0 for the first text and its special tokens, 1 for the second, for every model.

        >>> Encoding((0, 7, 2, 2, 8, 2), (0,) * 6, ("",) * 6, ((0, 0),) * 6, False, boundary=3).segments
        (0, 0, 0, 1, 1, 1)
        """
        first = self.boundary
        return self.token_type_ids if first is None else (0,) * first + (1,) * (len(self) - first)


class Tokenizer:
    """A checkpoint's tokenizer.

    Args:
        backend: a tokenizer of the `tokenizers` library; its padding and truncation are switched off.
        names: names of special tokens that differ from [PAD], [CLS], [SEP], [MASK] and [UNK].
        max_length: the maximum number of tokens of the model (`max_seq_length` in sentence-transformers); `encode` does
            not truncate to it by default.
        truncation_side: the side on which `encode` truncates, 'right' or 'left'.
        prompt: text that `encode` puts before each text (the first text of each pair).
        prompts: prompts by name, for `with_prompt`.
        token_types: whether the model takes token types.

    Raises:
        DataError: a special token is not in the vocabulary, or a token id does not fit in 32 bits.
        InputError: `truncation_side` is neither 'right' nor 'left', or `backend` is not a tokenizer.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        names: Mapping[str, str] | None = None,
        *,
        max_length: int | None = None,
        truncation_side: str = "right",
        prompt: str = "",
        prompts: Mapping[str, str] | None = None,
        token_types: bool = True,
    ):
        expected = "a tokenizers.Tokenizer (Tokenizer.from_pretrained(name) reads a checkpoint's)"
        arguments.check_instance(backend, "backend", tokenizers.Tokenizer, expected)
        arguments.check_choice(truncation_side, "truncation_side", SIDES)
        backend.no_padding()
        backend.no_truncation()
        self._backend, self._names = backend, {**TOKEN_NAMES, **(names or {})}
        self.max_length, self.truncation_side, self.prompt = max_length, truncation_side, prompt
        self.prompts, self._counts_prompts = dict(prompts or {}), True
        self.token_types = arguments.check_bool(token_types, "token_types")
        self._theirs: Any = None  # the tokenizer of transformers that contains `backend`
        self._splits_as_roberta = False
        ids = {key: backend.token_to_id(self._names[key]) for key in ("pad_token", "cls_token", "sep_token")}
        if missing := ", ".join(self._names[key] for key, token_id in ids.items() if token_id is None):
            raise DataError(f"the tokenizer's vocabulary lacks {missing}: give its names for them (names=)")
        self.pad_id, self.cls_id, self.sep_id = (int(token_id or 0) for token_id in ids.values())
        self._largest_id = max(backend.get_vocab(with_added_tokens=True).values())
        if self._largest_id > LARGEST_ID:
            raise DataError(f"the tokenizer has the token id {self._largest_id}; the largest possible is {LARGEST_ID}")

    @classmethod
    def from_pretrained(cls, name_or_path: str | Path, **hub: Any) -> "Tokenizer":
        """Load the tokenizer of a checkpoint with `transformers.AutoTokenizer`.

        No code of the checkpoint runs. The text settings of sentence-transformers (lower-casing, the default prompt)
        apply as well.

        Args:
            name_or_path: as for a model. The directory has `tokenizer.json` or a vocabulary (`vocab.txt`; `vocab.json`
                and `merges.txt`; SentencePiece's `spiece.model` and the like, which need the extra `sentencepiece`).
            hub: `revision`, `local_files_only`, `cache_dir`, `token`, as for a model.

        Raises:
            DataError: there is no tokenizer, transformers cannot read it, or it needs custom Python code.
            ConfigError: the files of sentence-transformers have text settings that bertjax does not support.
            MissingDependencyError: a package that reads the vocabulary is not installed.
        """
        directory = texts_directory(locate(name_or_path, **hub), **hub)
        text = read_text_settings(directory)
        return cls._wrap(read_tokenizer(directory), str(directory), text, includes_prompts(directory))

    @classmethod
    def from_transformers(
        cls, tokenizer: Any, text: TextSettings | None = None, *, counts_prompts: bool = True
    ) -> "Tokenizer":
        """Convert a tokenizer of transformers, such as `AutoTokenizer.from_pretrained` returns; it is copied.

        Args:
            tokenizer: a "fast" tokenizer, which the `tokenizers` library runs.
            text: the text settings of a sentence-transformers model.
            counts_prompts: whether the model's pooling includes a prompt's tokens; if not, prompts are refused.

        Raises:
            InputError: it is not a tokenizer of transformers.
            DataError: it runs in Python, has no vocabulary, or lacks a special token.
        """
        name = type(tokenizer).__name__
        if not hasattr(tokenizer, "special_tokens_map"):
            arguments.refuse("tokenizer", "a bertjax.Tokenizer or a fast tokenizer of transformers", tokenizer)
        check_backend(tokenizer, name)
        copied = deepcopy(tokenizer)
        copied.init_kwargs.setdefault("model_input_names", copied.model_input_names)  # read by `takes_token_types`
        return cls._wrap(copied, name, text or TextSettings(), counts_prompts)

    @classmethod
    def _wrap(cls, theirs: Any, source: str, text: TextSettings, counts_prompts: bool) -> "Tokenizer":
        """Wrap a tokenizer of transformers that has no other user; messages begin with `source`."""
        lowered = text.do_lower_case and lower_first(theirs.backend_tokenizer)
        try:
            tokenizer = cls(
                theirs.backend_tokenizer,
                theirs.special_tokens_map,
                max_length=text.max_length or read_limit(theirs),
                truncation_side=theirs.truncation_side,
                prompt=text.prompt,
                prompts=text.prompts,
                token_types=takes_token_types(theirs),
            )
        except DataError as error:
            raise DataError(f"{source}: {error}") from None
        # If the checkpoint names no special tokens, BERT's names are used, and saved.
        tokenizer._splits_as_roberta = type(theirs).__name__ == "RobertaTokenizer"
        tokenizer._theirs = None if lowered or theirs.pad_token is None else theirs
        tokenizer._counts_prompts = counts_prompts
        return tokenizer

    def save_pretrained(self, directory: str | Path) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`, for transformers and bertjax.

        Prompts are written by the `save_pretrained` of a sentence embedder. `bertjax.json` lists the written files, so
        that saving again replaces only these.

        Args:
            directory: the directory to write to; it is created if needed.

        Raises:
            OutputError: the directory has files that bertjax did not save, or cannot be written; its earlier content is
                kept.
        """
        path = user_path(directory, OutputError)
        self._backend.no_truncation()
        limits: dict[str, Any] = {"max_length": self.max_length, "truncation_side": self.truncation_side}
        write_tokenizer(path, self._theirs or wrap(self._backend, self._names, self.token_types), **limits)

    def with_prompt(self, prompt: str) -> "Tokenizer":
        """The same tokenizer with another prompt.

        Args:
            prompt: a name in `prompts` ('query'), or the prompt itself, which must contain white space ('query: '); an
                empty string for no prompt.

        Raises:
            InputError: there is no such prompt, or the checkpoint's pooling excludes prompts, which bertjax does not
                support.
        """
        arguments.check_instance(prompt, "prompt", str, "the name of a prompt, or a string")
        if prompt and prompt not in self.prompts and not any(map(str.isspace, prompt)):
            names = some_of([*self.prompts]) if self.prompts else "none"
            raise InputError(
                f"there is no prompt {prompt!r}: this checkpoint's prompts are {names}; a prompt that is not a name "
                "must contain white space, such as 'query: '"
            )
        text = self.prompts.get(prompt, prompt)
        if text and not self._counts_prompts:
            raise InputError(
                f"the checkpoint's pooling has include_prompt false, which excludes the prompt {text!r} from the "
                "vectors; bertjax does not support that"
            )
        other = copy(self)
        other.prompt = text
        return other

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id, added tokens included: the embedding rows that the model must have."""
        return int(self._largest_id) + 1

    @property
    def digest(self) -> str:
        """A hash of everything that determines the tokens of a text."""
        self._backend.no_truncation()
        settings = [] if (self.truncation_side, self.prompt) == ("right", "") else [self.truncation_side, self.prompt]
        settings += [] if self.token_types else ["without token types"]
        settings += ["special tokens are split"] if self._backend.encode_special_tokens else []
        return hashlib.sha256("\0".join([self._backend.to_str(), *settings]).encode()).hexdigest()

    def encode(
        self,
        first: Sequence[str],
        second: Sequence[str] | None = None,
        max_length: int | None = None,
        *,
        word_ids: bool = False,
    ) -> list[Encoding]:
        """Tokenise texts, or pairs of texts.

        Args:
            first: the texts, or the first of each pair.
            second: the second of each pair.
            max_length: truncate to this many tokens, special tokens included, as HuggingFace's `longest_first` does:
                from the longer text of a pair, at the tokenizer's `truncation_side`. None does not truncate.
            word_ids: also return the index of each token's word.

        Raises:
            InputError: the arguments are not lists of str of equal length, `max_length` is too small for the special
                tokens, or the tokenizer cannot read a text.
        """
        first = arguments.check_sequence(first, "texts", "a list of str", str)
        second = None if second is None else arguments.check_sequence(second, "second texts", "a list of str", str)
        if second is not None and len(first) != len(second):
            raise InputError(f"there are {len(first)} first texts and {len(second)} second texts; give equal numbers")
        self._check_length(max_length, pairs=second is not None)
        with ENCODING, library_errors("these texts cannot be tokenised", InputError):
            first = [self.prompt + text for text in first] if self.prompt else first
            texts: list[Texts] = [*zip(first)] if second is None else [*zip(first, second, strict=True)]
            return self._encode(texts, max_length, word_ids=word_ids)

    def encode_words(self, sentences: Sequence[Sequence[str]], max_length: int | None = None) -> list[Encoding]:
        """Tokenise sentences that are split into words, as transformers does with `is_split_into_words=True`.

        RoBERTa's byte-level BPE puts a space before each word (`add_prefix_space=True`), as transformers'
        `run_ner.py` does. The prompt is not used.

        Args:
            sentences: the words of each sentence; a word may contain spaces.
            max_length: as for `encode`.

        Returns:
            Encodings whose `word_ids` are indices of the sentence's words.

        Raises:
            InputError: as for `encode`.
        """
        self._check_length(max_length, pairs=False)
        with ENCODING, library_errors("these words cannot be tokenised", InputError):
            backend, pre_tokenizer = self._backend, self._backend.pre_tokenizer
            if self._splits_as_roberta:
                backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
            try:
                return self._encode([tuple(words) for words in sentences], max_length, are_words=True)
            finally:
                backend.pre_tokenizer = pre_tokenizer

    def _encode(
        self,
        texts: list[Texts],
        max_length: int | None,
        *,
        word_ids: bool = False,
        are_words: bool = False,
    ) -> list[Encoding]:
        """The encodings of texts, of pairs of texts, or of the words of sentences (`are_words`)."""
        interned: dict[Any, Any] = {}
        encodings: list[Encoding] = []
        self._backend.no_truncation()
        if max_length is not None:
            texts = texts if are_words else self._shorten(texts, max_length)
            limit = min(max_length, LARGEST_ID)
            self._backend.enable_truncation(limit, strategy="longest_first", direction=self.truncation_side)
        prompt = 0 if are_words else len(self.prompt)
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            chunk = texts[start : start + TEXTS_AT_ONCE]
            inputs: list[Any] = (
                [list(words) for words in chunk] if are_words else [one[0] if len(one) == 1 else one for one in chunk]
            )
            encoded = self._backend.encode_batch(inputs, is_pretokenized=are_words)
            chunk_encodings = [_encoding(encoding, interned, prompt, self.token_types) for encoding in encoded]
            if word_ids or are_words:
                chunk_encodings = [
                    replace(encoding, word_ids=_shared(words.word_ids, interned))
                    for encoding, words in zip(chunk_encodings, encoded, strict=True)
                ]
            encodings += chunk_encodings
        return encodings

    def special_tokens(self, pairs: bool) -> int:
        """The number of special tokens that `encode` adds to each text, or to each pair of texts."""
        return int(self._backend.num_special_tokens_to_add(is_pair=pairs))

    def _check_length(self, max_length: int | None, pairs: bool) -> None:
        """Raise `InputError` if a maximum length is too small for the special tokens."""
        needed = self.special_tokens(pairs)
        if max_length is not None and arguments.check_int(max_length, "max_length") < needed:
            raise InputError(f"max_length is {max_length}; the special tokens alone are {needed}")

    def _shorten(self, texts: list[Texts], max_length: int) -> list[Texts]:
        """Drop the end of very long texts, which truncation on the right would remove anyway."""
        if self.truncation_side != "right":
            return texts

        def encode(text: str) -> tokenizers.Encoding:
            return self._backend.encode(text, add_special_tokens=False)

        return [shorten(text_pair, max_length, encode) for text_pair in texts]

    def __call__(
        self, first: str | Sequence[str], second: str | Sequence[str] | None = None, max_length: int | None = None
    ) -> dict[str, Int32[np.ndarray, "batch token"]]:
        """Texts, or pairs of texts, as a padded batch ready for a model.

        Args:
            first: the texts, or the first of each pair; one text is a batch of one.
            second: the second of each pair.
            max_length: as for `encode`.

        Returns:
            `input_ids`, `attention_mask` and `token_type_ids` (`collate`).

        Raises:
            InputError: as for `encode`, or there is no text.
        """
        first = [first] if isinstance(first, str) else first
        second = [second] if isinstance(second, str) else second
        return collate(self.encode(first, second, max_length), pad_id=self.pad_id)

    def decode(self, ids: int | Sequence[int] | Int[np.ndarray, "token"], skip_special_tokens: bool = False) -> str:
        """Convert token ids to text; capitals and spaces may be lost.

        Args:
            ids: the ids of one text, or a single id.
            skip_special_tokens: leave out [CLS], [SEP], [PAD] and the like.

        Raises:
            InputError: `ids` are not the integers of one text, or an id is not in the vocabulary.
        """
        array = arguments.as_array(ids, "ids")
        if array.ndim > 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
            arguments.refuse("ids", "the integers of one text", ids)
        token_ids = [int(token_id) for token_id in np.ravel(array)]
        for token_id in token_ids:
            if not 0 <= token_id < self.vocab_size:
                raise InputError(f"id {token_id} is outside the vocabulary, 0 to {self.vocab_size - 1}")
        skip = arguments.check_bool(skip_special_tokens, "skip_special_tokens")
        return str(self._backend.decode(token_ids, skip_special_tokens=skip))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Convert token ids to word pieces, as in `Encoding.tokens`; '' for an id that is not in the vocabulary.

        Args:
            ids: token ids.
        """
        return [self._backend.id_to_token(token_id) or "" for token_id in ids]

    def piece_id(self, piece: str) -> int | None:
        """The id of a word piece; None if it is not in the vocabulary."""
        token_id = self._backend.token_to_id(piece)
        return None if token_id is None else int(token_id)

    @property
    def pad_token_id(self) -> int:
        """The id of [PAD]."""
        return self.pad_id

    @property
    def cls_token_id(self) -> int:
        """The id of [CLS], which starts each text or pair."""
        return self.cls_id

    @property
    def sep_token_id(self) -> int:
        """The id of [SEP], which ends each text."""
        return self.sep_id

    @property
    def mask_token(self) -> str:
        """The name of [MASK] in the vocabulary."""
        return self._names["mask_token"]

    @property
    def unk_token(self) -> str:
        """The name of [UNK] in the vocabulary."""
        return self._names["unk_token"]

    @property
    def mask_token_id(self) -> int:
        """The id of [MASK]. Raises `InputError` if the vocabulary has none."""
        return self._id_of("mask_token")

    @property
    def unk_token_id(self) -> int:
        """The id of [UNK], for words that cannot be split. Raises `InputError` if the vocabulary has none."""
        return self._id_of("unk_token")

    def _id_of(self, key: str) -> int:
        name = self._names[key]
        token_id = self._backend.token_to_id(name)
        if token_id is None:
            raise InputError(f"the tokenizer's vocabulary has no {name}")
        return int(token_id)


def _encoding(encoded: tokenizers.Encoding, interned: dict[Any, Any], prompt: int, token_types: bool) -> Encoding:
    """Convert an encoding of tokenizers; equal ids, pieces and offsets are shared through `interned` to save memory.

    Args:
        prompt: characters of the prompt before the first text, which are subtracted from its offsets.
        token_types: whether the model takes token types.
    """
    offsets = encoded.offsets
    if prompt:
        shifts = [prompt if sequence == 0 else 0 for sequence in encoded.sequence_ids]
        shifted = zip(offsets, shifts, strict=True)
        offsets = [(max(start - shift, 0), max(end - shift, 0)) for (start, end), shift in shifted]
    types = tuple(encoded.type_ids) if token_types else (0,) * len(encoded)
    is_pair = encoded.n_sequences == 2 and 1 not in types
    return Encoding(
        input_ids=_shared(encoded.ids, interned),
        token_type_ids=types if any(types) else interned.setdefault(types, types),
        tokens=_shared(encoded.tokens, interned),
        offsets=_shared(offsets, interned),
        truncated=bool(encoded.overflowing),
        boundary=_boundary(encoded) if is_pair else None,
    )


def _shared(values: Sequence[Any], interned: dict[Any, Any]) -> tuple[Any, ...]:
    return tuple(interned.setdefault(value, value) for value in values)


def _boundary(encoded: tokenizers.Encoding) -> int:
    """The number of tokens of a pair's first text, with the special tokens before and after it."""
    if 1 in encoded.type_ids:
        return encoded.type_ids.index(1)
    return 2 + encoded.sequence_ids.count(0)


def collate(
    encodings: Sequence[Encoding], length: int | None = None, pad_id: int = 0
) -> dict[str, Int32[np.ndarray, "batch token"]]:
    """Pad encodings on the right into one batch.

    Args:
        encodings: at least one.
        length: tokens in a row; by default the length of the longest encoding.
        pad_id: the id of the padding token, at which the mask is 0.

    Returns:
        `input_ids`, `attention_mask` and `token_type_ids`, each [batch, token].

    Raises:
        InputError: there is no encoding, or one is longer than `length`.

    >>> pair = Encoding((2, 7, 3, 8, 3), (0, 0, 0, 1, 1), ("",) * 5, ((0, 0),) * 5, False)
    >>> collate([pair], length=6)["attention_mask"]
    array([[1, 1, 1, 1, 1, 0]], dtype=int32)
    """
    encodings = arguments.check_sequence(encodings, "encodings", "what Tokenizer.encode returns", Encoding)
    if not encodings:
        raise InputError("there is nothing to collate; give at least one encoding")
    if arguments.check_int(pad_id, "pad_id", 0) > LARGEST_ID:
        raise InputError(f"pad_id is {pad_id}; the largest possible token id is {LARGEST_ID}")
    length = None if length is None else arguments.check_int(length, "length", 1)
    longest = max(len(encoding) for encoding in encodings)
    width = longest if length is None else length
    if longest > width:
        raise InputError(
            f"an encoding has {longest} tokens, but the batch only {width}; encode with max_length={width}"
        )
    shape = len(encodings), width
    if (needed := 12 * len(encodings) * width) > memory_left():
        raise InputError(f"a batch of length {width} takes {format_bytes(needed)} of memory, more than is free")
    batch = {name: np.zeros(shape, np.int32) for name in ("input_ids", "attention_mask", "token_type_ids")}
    batch["input_ids"][:] = pad_id
    for row, encoding in enumerate(encodings):
        batch["input_ids"][row, : len(encoding)] = encoding.input_ids
        batch["attention_mask"][row, : len(encoding)] = 1
        batch["token_type_ids"][row, : len(encoding)] = encoding.token_type_ids
    return batch


def batches_by_length(
    lengths: Sequence[int], batch_size: int, buckets: Sequence[int] = BUCKETS, max_length: int | None = None
) -> list[tuple[tuple[int, ...], int]]:
    """Batches of examples of similar length, with few distinct shapes.

    Examples are sorted by length, the longest first, and cut into batches; each batch is padded to the bucket of its
    longest example. Only the last batch can be incomplete. It is filled by repeating its last example, so that all
    batches of one padded length have one shape: write results by index, and exclude repeats from sums over a batch. A
    single batch is not filled.

    Args:
        lengths: tokens of each example.
        batch_size: examples in a batch.
        buckets: padded lengths to choose from, ascending; longer examples are padded to the next multiple of the last.
        max_length: the largest padded length allowed (a model's number of positions).

    Returns:
        For each batch, longest first: the indices of its examples in `lengths`, and the padded length.

    Raises:
        InputError: a length is below 1 or above `max_length`, `batch_size` is below 1, or `buckets` is empty.

    >>> batches_by_length([5, 30, 6, 28, 7], batch_size=2)
    [((1, 3), 32), ((4, 2), 8), ((0, 0), 8)]
    """
    batch_size = arguments.check_int(batch_size, "batch_size")
    if batch_size < 1 or not buckets:
        raise InputError(f"batch_size is {batch_size} with {len(buckets)} buckets; both must be at least 1")
    limit = max_length or max(lengths, default=1) + buckets[-1]
    invalid = [length for length in lengths if not 1 <= length <= limit]
    if invalid:
        how = f": encode with max_length={limit} (--max-length {limit})" * (invalid[0] > limit)
        raise InputError(f"an example has {invalid[0]} tokens; there must be from 1 to {limit}{how}")
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    batches = []
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        longest = lengths[batch[0]]
        step = buckets[-1]
        padded = next((b for b in buckets if b >= longest), -(-longest // step) * step)
        if start:
            batch += batch[-1:] * (batch_size - len(batch))
        batches.append((tuple(batch), min(padded, limit)))
    return batches
