"""Contrasts as a model reads them: clean and corrupted texts with equal numbers of tokens, spans, and a score.

A contrast can be patched if both texts have the same number of tokens and differ in at least one. Others are left out
and reported. The score depends on the model. Masked-word model: log-probability of the good word minus that of the bad
word. Classifier: logit of the label predicted for the clean text minus that of the label predicted for the corrupted
text (or of its second best label if both are equal). Model with one output: that output. Sentence embedder: cosine
similarity with the second text.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int, Int32

from bertjax.data import Contrasts, Encoding, Tokenizer, read_contrasts
from bertjax.engine import Combine
from bertjax.errors import ConfigError, DataError, InputError
from bertjax.formatting import count_of
from bertjax.interventions import Change, Readout, readouts
from bertjax.models import (
    BertForMaskedLM,
    BertForPreTraining,
    BertForSentenceEmbedding,
    BertForSequenceClassification,
    PretrainedModel,
)
from bertjax.tasks import MARKS, cosine, differing_piece, fill_template, hide

SPANS = ("auto", "tokens", "regions", "all")
ALL_TOKENS = "all tokens"
# Sites of layer 0 that depend on the embedding of one token only.
OF_EMBEDDINGS = ("hidden_states", "queries", "keys", "values")
# Sites that affect only the hidden state of their token in the same layer.
OF_OWN_TOKEN = ("queries", "head_outputs", "attention_outputs", "feed_forward_outputs")
REGIONS = ("first", "before", "changed", "after", "masked", "other text", "special")
MOST_TOKENS = 48  # columns of a figure; longer texts are shown as regions
Spans = Sequence[Int[np.ndarray, " _"]]


@dataclass(frozen=True)
class Scored:
    """The readout of a run, and the score computed from it.

    Args:
        label: the name of the score.
        readout: computes the outputs of a text, as in `engine.sweep`.
        combine: combines the outputs of the texts of a contrast, as in `engine.sweep`.
        score: computes the score of each run and contrast from the outputs of all runs, of the clean texts, and of the
            corrupted texts.
        at: token positions that the readout reads, as in `engine.sweep`.
        targets: the second argument of the readout, as in `engine.sweep`.
    """

    label: str
    readout: Readout
    score: Callable[[np.ndarray, np.ndarray, np.ndarray], Float[np.ndarray, "runs contrasts"]]
    combine: Combine | None = None
    at: Int32[np.ndarray, "contrasts targets"] | None = None
    targets: Int32[np.ndarray, "contrasts targets"] | None = None


@dataclass(frozen=True)
class EncodedContrasts:
    """Contrasts that can be patched.

    Args:
        contrasts: the contrasts that are kept.
        clean: the clean texts of each contrast, one or two.
        corrupted: the corrupted texts of each contrast, one or two.
        spans: the index of each token's span in the corrupted texts; -1 for none.
        names: the names of the spans.
        changed: the spans in which the two texts of any contrast differ.
        read: the spans whose last hidden state the score of any contrast depends on.
        scored: the readout and the score.
        note: which contrasts were left out, and why.
    """

    contrasts: Contrasts
    clean: list[tuple[Encoding, ...]]
    corrupted: list[tuple[Encoding, ...]]
    spans: list[tuple[Int[np.ndarray, " _"], ...]]
    names: tuple[str, ...]
    changed: frozenset[int]
    read: frozenset[int]
    scored: Scored
    note: str

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the spans in names of cells: a position, or the name of the span."""
        return tuple(str(span) if name.startswith(f"{span} ") else name for span, name in enumerate(self.names))

    def can_act(self, change: Change, span: int, layers: int) -> bool:
        """Whether a patch can change a score.

        Equal tokens are equal before layer 0, and the score depends on few hidden states of the last layer.

        Args:
            change: the patch.
            span: the span that is patched.
            layers: the number of layers of the model.
        """
        if change.layer == 0 and change.site in OF_EMBEDDINGS and span not in self.changed:
            return False
        return not (change.layer == layers - 1 and change.site in OF_OWN_TOKEN and span not in self.read)


@dataclass(frozen=True)
class _Text:
    """A tokenised text.

    Args:
        encoding: the tokens.
        masked: the position of the masked token, and the ids of the good and the bad word; None if nothing is masked.
    """

    encoding: Encoding
    masked: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class _Pair:
    """Both texts of a contrast; the same token is masked in both."""

    clean: Encoding
    corrupted: Encoding
    masked: tuple[int, int, int] | None

    @property
    def differ(self) -> np.ndarray:
        """Which tokens differ."""
        return np.array(self.clean.input_ids) != np.array(self.corrupted.input_ids)


def encode_contrasts(
    model: PretrainedModel, tokenizer: Tokenizer, contrasts: Contrasts, max_length: int, spans: str = "auto"
) -> EncodedContrasts:
    """Tokenise contrasts, and leave out those that cannot be patched.

    Args:
        spans: 'tokens': each position is a span, if all texts have the same length; 'regions' (`REGIONS`); 'auto':
            tokens if all texts have the same length of at most `MOST_TOKENS`, else regions; 'all': one span.

    Raises:
        ConfigError: the model has no output that could be scored.
        DataError: no contrast is left, or the texts differ in length and `spans` is 'tokens'.
    """
    _check_columns(model, contrasts)
    pairs, kept, note = _tokenise(model, tokenizer, contrasts, max_length)
    indices, names = _spans(pairs, spans)
    contrasts = contrasts.take(kept)
    second: list[tuple[Encoding, ...]] = [()] * len(pairs)
    if isinstance(model, BertForSentenceEmbedding):
        second = [(other,) for other in tokenizer.encode(contrasts.more["second"], None, max_length)]
    both = list(zip(pairs, second, strict=True))
    return EncodedContrasts(
        contrasts,
        [(pair.clean, *others) for pair, others in both],
        [(pair.corrupted, *others) for pair, others in both],
        [
            (of_pair, *(np.full(len(other), -1) for other in others))
            for of_pair, others in zip(indices, second, strict=True)
        ],
        names,
        _union(of_pair[pair.differ] for pair, of_pair in zip(pairs, indices, strict=True)),
        _read(model, pairs, indices),
        _scored(model, pairs),
        note,
    )


def _union(indices: Iterable[Int[np.ndarray, " _"]]) -> frozenset[int]:
    return frozenset(index for some in indices for index in some.tolist())


def _tokenise(
    model: PretrainedModel, tokenizer: Tokenizer, contrasts: Contrasts, max_length: int
) -> tuple[list[_Pair], list[int], str]:
    """The contrasts that can be patched, their indices, and a note about the others.

    Raises:
        DataError: no contrast can be patched.
    """
    assert contrasts.examples.second is not None
    both = contrasts.examples.first, contrasts.examples.second
    sides: list[Sequence[_Text | None]]
    if "good" in contrasts.more:
        sides = [_mask(tokenizer, texts, contrasts, max_length) for texts in both]
    else:
        second = None if isinstance(model, BertForSentenceEmbedding) else contrasts.more.get("second")
        sides = [[_Text(text) for text in tokenizer.encode(texts, second, max_length, word_ids=True)] for texts in both]
    pairs, kept, left_out = list[_Pair](), list[int](), dict[str, list[int]]()
    for index, (clean, corrupted) in enumerate(zip(*sides, strict=True)):
        fault = _fault(clean, corrupted, max_length)
        if fault or clean is None or corrupted is None:
            left_out.setdefault(fault, []).append(index)
        else:
            kept.append(index)
            pairs.append(_Pair(clean.encoding, corrupted.encoding, clean.masked))
    ids = contrasts.examples.ids
    reasons = "; ".join(f"{len(some)} {fault} (first {ids[some[0]]})" for fault, some in left_out.items())
    if not kept:
        raise DataError(f"no contrast can be patched: {reasons}")
    return pairs, kept, f"{count_of(len(ids) - len(kept), 'contrast')} left out: {reasons}" if left_out else ""


def _fault(clean: _Text | None, corrupted: _Text | None, max_length: int) -> str:
    """Why a contrast of two texts cannot be patched; empty if it can be."""
    if clean is None or corrupted is None:
        return "with words of several pieces, or twice the same word, for the masked token"
    one, other = clean.encoding, corrupted.encoding
    if one.truncated or other.truncated:
        return f"of more than {max_length} tokens"
    if len(one) != len(other):
        return "with texts of different numbers of tokens"
    if clean.masked != corrupted.masked:
        return "with different masked tokens"
    return "with two equal texts" if one.input_ids == other.input_ids else ""


def _read(model: PretrainedModel, pairs: Sequence[_Pair], spans: Spans) -> frozenset[int]:
    """The spans whose last hidden states are read: the masked token's, that of [CLS], or all."""
    if isinstance(model, BertForMaskedLM | BertForPreTraining):
        return _union(of_pair[[pair.masked[0]]] for pair, of_pair in zip(pairs, spans, strict=True) if pair.masked)
    output = "sentence_embedding" if isinstance(model, BertForSentenceEmbedding) else "logits"
    return _union(of_pair[:1] if output in model.fields_of_first_token else of_pair for of_pair in spans)


def contrasts_of_template(
    template: str | None, words: Sequence[str] | None, columns: Mapping[str, str | None]
) -> Contrasts | None:
    """Make contrasts of a template and pairs of words such as 'keys/key'; None if there is neither.

    Args:
        template: a text with `{}` in place of a word; None for none.
        words: pairs of words, clean and corrupted; None for none.
        columns: further columns with the same value in each row (good and bad words, a second text); None leaves a
            column out.

    Raises:
        InputError: a template without words, words without a template, or a word that is no pair.
    """
    more = {name: text for name, text in columns.items() if text is not None}
    if template is None and words is None:
        if more:
            raise InputError(f"--{next(iter(more))} goes with --template: in a file it is a column")
        return None
    if template is None or words is None:
        raise InputError("--template and --words go together: a text with {}, and the words to put there")
    rows = []
    for pair in words:
        clean, slash, corrupted = pair.partition("/")
        if not (clean and slash and corrupted) or "/" in corrupted:
            raise InputError(f"{pair!r} is no pair of words: write CLEAN/CORRUPTED")
        rows.append({"template": template, "clean": clean, "corrupted": corrupted, **more})
    source = f"template {template!r} ({count_of(len(rows), 'contrast')})"
    return Contrasts(replace(read_contrasts(rows).examples, source=source))


def _check_columns(model: PretrainedModel, contrasts: Contrasts) -> None:
    """Raise an error if columns are missing for a model, or the model has no single score."""
    embeds = isinstance(model, BertForSentenceEmbedding)
    predicts_words = isinstance(model, BertForMaskedLM | BertForPreTraining)
    if predicts_words and "good" not in contrasts.more:
        raise DataError(
            "the score of a masked-word model needs two words for a masked token: give columns good and bad"
        )
    if not predicts_words and "good" in contrasts.more:
        raise ConfigError(f"{model.class_name} has no masked-LM head, which good and bad words need")
    if embeds and "second" not in contrasts.more:
        raise DataError("the score of a sentence embedder needs a second text: give a column second")
    if not (predicts_words or embeds or isinstance(model, BertForSequenceClassification)):
        raise ConfigError(f"{model.class_name} has no single score: use a classifier, embedder or masked-word model")


def _mask(tokenizer: Tokenizer, texts: Sequence[str], contrasts: Contrasts, max_length: int) -> list[_Text | None]:
    """Texts with a masked token; None if one of the words has several pieces."""
    filled = []
    for index, (text, good, bad) in enumerate(zip(texts, contrasts.more["good"], contrasts.more["bad"], strict=True)):
        both = fill_template(text, good, bad)
        if both is None:
            raise DataError(f"contrast {index} (from 0) has no single masked place, marked by {MARKS[0]}")
        filled.append(both)
    second = contrasts.more.get("second")
    encodings = (tokenizer.encode(side, second, max_length, word_ids=True) for side in zip(*filled, strict=True))
    found: list[_Text | None] = []
    for with_good, with_bad in zip(*encodings, strict=True):
        token = differing_piece(with_good, with_bad)
        if token is None:
            found.append(None)
        else:
            ids = with_good.input_ids[token], with_bad.input_ids[token]
            found.append(_Text(hide(tokenizer, with_good, [token]), (token, *ids)))
    return found


def _spans(pairs: Sequence[_Pair], spans: str) -> tuple[Spans, tuple[str, ...]]:
    """The span of each token of each corrupted text, and the names of all spans."""
    texts = [pair.corrupted for pair in pairs]
    if spans == "all":
        return [np.zeros(len(text), np.int64) for text in texts], (ALL_TOKENS,)
    lengths = {len(text) for text in texts}
    if spans == "tokens" and len(lengths) > 1:
        raise DataError(f"texts have {min(lengths)} to {max(lengths)} tokens: take --spans regions")
    if spans == "tokens" or (spans == "auto" and len(lengths) == 1 and max(lengths) <= MOST_TOKENS):
        return [np.arange(len(text)) for text in texts], _token_names(pairs)
    regions = [_regions(pair) for pair in pairs]
    present, indices = np.unique(np.concatenate(regions), return_inverse=True)
    ends = np.cumsum([len(text) for text in texts])[:-1]
    return np.split(indices, ends), tuple(REGIONS[region] for region in present)


def _token_names(pairs: Sequence[_Pair]) -> tuple[str, ...]:
    """The token at each position of the first contrast, or its clean and corrupted tokens; '...' if others differ."""
    names = []
    for position in range(len(pairs[0].corrupted)):
        tokens = [(pair.clean.tokens[position], pair.corrupted.tokens[position]) for pair in pairs]
        name = "/".join(dict.fromkeys(tokens[0]))
        names.append(f"{position} {name}" + ("" if len({*tokens}) == 1 else " ..."))
    return tuple(names)


def _regions(pair: _Pair) -> Int[np.ndarray, " token"]:
    """The index in `REGIONS` of each token of the corrupted text."""
    differ, text = np.flatnonzero(pair.differ), pair.corrupted
    regions = np.full(len(text), REGIONS.index("before"))
    index, segments = np.arange(len(text)), np.array(text.segments)
    regions[index > differ[0]] = REGIONS.index("after")
    regions[differ] = REGIONS.index("changed")
    regions[segments != segments[differ[0]]] = REGIONS.index("other text")
    special = np.array([word is None for word in text.word_ids])
    regions[special] = REGIONS.index("special")
    if special[0]:
        regions[0] = REGIONS.index("first")
    if pair.masked is not None:
        regions[pair.masked[0]] = REGIONS.index("masked")
    return regions


def _scored(model: PretrainedModel, pairs: Sequence[_Pair]) -> Scored:
    """The readout and score for a model."""
    if isinstance(model, BertForMaskedLM | BertForPreTraining):
        masked = np.array([pair.masked for pair in pairs], np.int32)
        return Scored(
            "Log-probability of the good word less the bad one's (nats)",
            readouts.log_probabilities,
            lambda outputs, *both: outputs[..., 0] - outputs[..., 1],
            at=masked[:, [0, 0]],
            targets=masked[:, 1:],
        )
    if isinstance(model, BertForSentenceEmbedding):
        readout = readouts.sentence_embedding
        return Scored("Similarity with the second text", readout, lambda outputs, *both: outputs, combine=cosine)
    if model.config.num_labels == 1:
        return Scored("Output", readouts.logits, lambda outputs, *both: outputs[..., 0])
    return Scored("Logit of the clean text's label less the corrupted one's", readouts.logits, _margin)


def _margin(
    outputs: Float[np.ndarray, "runs contrasts labels"],
    clean: Float[np.ndarray, "contrasts labels"],
    corrupted: Float[np.ndarray, "contrasts labels"],
) -> Float[np.ndarray, "runs contrasts"]:
    """The logit of the clean text's label minus that of the corrupted text's label, or of its second best label."""
    rows = np.arange(len(clean))
    label = clean.argmax(axis=-1)
    others = corrupted.copy()
    others[rows, label] = -np.inf
    return outputs[:, rows, label] - outputs[:, rows, others.argmax(axis=-1)]
