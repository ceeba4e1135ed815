"""Contrasts as a model reads them: clean and corrupted texts token by token beside each other, spans, and a score.

A contrast is of use where both texts have as many tokens and differ in some; others are left out, and said. What is
scored depends on the model: of a masked-word model how much likelier the good word is than the bad one (difference of
log-probabilities); of a classifier by how much the logit of the label that it gives the clean text exceeds that which
it gives the corrupted one, or else its second best; of a model with one output that; of a sentence embedder the cosine
similarity with the second text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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
OF_EMBEDDINGS = ("hidden_states", "queries", "keys", "values")  # of a token, in layer 0
OF_OWN_TOKEN = ("queries", "head_outputs", "attention_outputs", "feed_forward_outputs")  # act on its hidden state alone
CHANGED = "changed"
REGIONS = ("first", "before", CHANGED, "after", "masked", "other text", "special")
MOST_TOKENS = 48  # columns of a picture, beyond which regions are taken


@dataclass(frozen=True)
class Scored:
    """What is read of each run, and what is made of it.

    Args:
        label: what the score is.
        readout, combine: as a sweep takes them.
        score: takes outputs of all runs, and of the clean and the corrupted run; gives a number for each.
        at, targets: as a sweep takes them.
    """

    label: str
    readout: Readout
    score: Callable[[np.ndarray, np.ndarray, np.ndarray], Float[np.ndarray, "runs contrasts"]]
    combine: Combine | None = None
    at: Int32[np.ndarray, "contrasts wanted"] | None = None
    targets: Int32[np.ndarray, "contrasts wanted"] | None = None


@dataclass(frozen=True)
class EncodedContrasts:
    """Contrasts that can be patched.

    Args:
        contrasts: those that are kept.
        clean, corrupted: of each its texts, one or two.
        spans: of each token of the corrupted texts the span, by number; -1 for none.
        names: of spans.
        changed: the spans in which the two texts of some contrast differ.
        read: the spans of which some contrast's last hidden state is read.
        scored: what is read.
        note: what is to be said of those that were left out.
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
        """Of spans, for names of cells: a position, or what the span is called."""
        return tuple(str(span) if name.startswith(f"{span} ") else name for span, name in enumerate(self.names))

    def can_act(self, change: Change, span: int, layers: int) -> bool:
        """Whether a patch can change a score: equal tokens are equal before layer 0, and few are read of the last.

        Args:
            change: what is patched at the span.
            layers: how many the model has.
        """
        if change.layer == 0 and change.site in OF_EMBEDDINGS and span not in self.changed:
            return False
        return not (change.layer == layers - 1 and change.site in OF_OWN_TOKEN and span not in self.read)


def encode_contrasts(
    model: PretrainedModel, tokenizer: Tokenizer, contrasts: Contrasts, max_length: int, spans: str = "auto"
) -> EncodedContrasts:
    """Tokenise contrasts, and leave out those that cannot be patched.

    Args:
        spans: 'tokens', each position a span, where all texts have as many tokens; 'regions' (`REGIONS`); 'auto', the
            first where texts are of one length of at most `MOST_TOKENS`, else the second; 'all', one span.

    Raises:
        ConfigError: the model gives nothing that could be scored.
        DataError: no contrast is left, or texts of different lengths for 'tokens'.
    """
    _check_columns(model, contrasts)
    sides, kept, note = _tokenise(model, tokenizer, contrasts, max_length)
    numbers, names = _spans(sides, spans)
    contrasts, clean, corrupted = contrasts.take(kept), _alone(sides.clean), _alone(sides.corrupted)
    whole: list[tuple[Int[np.ndarray, " _"], ...]] = [(own,) for own in numbers]
    if isinstance(model, BertForSentenceEmbedding):
        others = tokenizer.encode(contrasts.more["second"], None, max_length)
        clean, corrupted = (
            [(*own, other) for own, other in zip(side, others, strict=True)] for side in (clean, corrupted)
        )
        whole = [(own, np.full(len(other), -1)) for own, other in zip(numbers, others, strict=True)]
    acting = _changed(sides, numbers), _read(model, sides, numbers)
    return EncodedContrasts(contrasts, clean, corrupted, whole, names, *acting, _scored(model, sides), note)


@dataclass(frozen=True)
class _Sides:
    """Both texts of contrasts, tokenised.

    Args:
        masked: the place that is masked in both; None where none is.
        words: the good and the bad word's ids.
    """

    clean: list[Encoding]
    corrupted: list[Encoding]
    masked: list[int | None]
    words: list[tuple[int, int]]


def _alone(texts: Sequence[Encoding]) -> list[tuple[Encoding, ...]]:
    return [(text,) for text in texts]


def _tokenise(
    model: PretrainedModel, tokenizer: Tokenizer, contrasts: Contrasts, max_length: int
) -> tuple[_Sides, list[int], str]:
    """Both texts of the contrasts that can be patched, which these are, and why others are not.

    Raises:
        DataError: there is none.
    """
    assert contrasts.examples.second is not None
    both = contrasts.examples.first, contrasts.examples.second
    second = None if isinstance(model, BertForSentenceEmbedding) else contrasts.more.get("second")
    found, kept, left = _Sides([], [], [], []), list[int](), dict[str, list[int]]()
    if "good" in contrasts.more:
        sides = [_masked(tokenizer, texts, contrasts, max_length) for texts in both]
    else:
        several = (tokenizer.encode(texts, second, max_length, word_ids=True) for texts in both)
        sides = [[(own, None) for own in encodings] for encodings in several]
    for number, (one, other) in enumerate(zip(*sides, strict=True)):
        fault = _fault(one, other, max_length)
        if fault:
            left.setdefault(fault, []).append(number)
            continue
        assert one is not None
        assert other is not None
        (clean, asked), (corrupted, _) = one, other
        kept.append(number)
        found.clean.append(clean)
        found.corrupted.append(corrupted)
        found.masked.append(None if asked is None else asked[0])
        found.words.append((0, 0) if asked is None else asked[1:])
    names = contrasts.examples.ids
    reasons = [f"{len(those)} {fault} (first {names[those[0]]})" for fault, those in left.items()]
    if not kept:
        raise DataError(f"no contrast can be patched: {'; '.join(reasons)}")
    note = f"{count_of(len(names) - len(kept), 'contrast')} left out: {'; '.join(reasons)}" if left else ""
    return found, kept, note


_Side = tuple[Encoding, tuple[int, int, int] | None]


def _fault(one: _Side | None, other: _Side | None, max_length: int) -> str:
    """Why a contrast of these two texts cannot be patched; empty where it can be."""
    if one is None or other is None:
        return "with a word for the masked place that is of several pieces, or twice the same"
    (clean, asked), (corrupted, asked_of_other) = one, other
    if clean.truncated or corrupted.truncated:
        return f"of more than {max_length} tokens"
    if len(clean) != len(corrupted):
        return "with texts of different numbers of tokens"
    if asked != asked_of_other:
        return "whose masked places are not the same"
    return "with twice the same text" if clean.input_ids == corrupted.input_ids else ""


def _changed(sides: _Sides, spans: Sequence[Int[np.ndarray, " _"]]) -> frozenset[int]:
    """The spans in which texts differ."""
    found: set[int] = set()
    for clean, corrupted, own in zip(sides.clean, sides.corrupted, spans, strict=True):
        found |= {*own[np.array(clean.input_ids) != np.array(corrupted.input_ids)].tolist()}
    return frozenset(found)


def _read(model: PretrainedModel, sides: _Sides, spans: Sequence[Int[np.ndarray, " _"]]) -> frozenset[int]:
    """The spans whose last hidden states are read: the masked place's, [CLS]'s, or all."""
    if isinstance(model, BertForMaskedLM | BertForPreTraining):
        return frozenset(int(own[place]) for own, place in zip(spans, sides.masked, strict=True) if place is not None)
    output = "sentence_embedding" if isinstance(model, BertForSentenceEmbedding) else "logits"
    if output in model.fields_of_first_token:
        return frozenset(int(own[0]) for own in spans)
    return frozenset(int(number) for own in spans for number in own)


def contrasts_of_template(
    template: str | None, words: Sequence[str] | None, columns: Mapping[str, str | None]
) -> Contrasts | None:
    """The contrasts of a template and of pairs of words such as 'keys/key'; None where nothing is given.

    Args:
        columns: good and bad words, and a second text, the same for all; None for those that are not given.

    Raises:
        InputError: a template without words, words without a template, or no pair.
    """
    given = {name: text for name, text in columns.items() if text is not None}
    if template is None and words is None:
        if given:
            raise InputError(f"--{next(iter(given))} goes with --template: in a file it is a column")
        return None
    if template is None or words is None:
        raise InputError("--template and --words go together: a text with a place {}, and what is put there")
    rows = []
    for pair in words:
        clean, slash, corrupted = pair.partition("/")
        if not (clean and slash and corrupted) or "/" in corrupted:
            raise InputError(f"{pair!r} is no pair of words: write CLEAN/CORRUPTED")
        rows.append({"template": template, "clean": clean, "corrupted": corrupted, **given})
    return read_contrasts(rows)


def _check_columns(model: PretrainedModel, contrasts: Contrasts) -> None:
    """Raise an error where a model needs other columns than there are, or can do nothing with contrasts."""
    embeds, asks = isinstance(model, BertForSentenceEmbedding), isinstance(model, BertForMaskedLM | BertForPreTraining)
    if asks and "good" not in contrasts.more:
        raise DataError("a masked-word model is scored by two words for a masked place: give columns good and bad")
    if not asks and "good" in contrasts.more:
        raise ConfigError(f"{model.class_name} has no masked-LM head, which good and bad words need")
    if embeds and "second" not in contrasts.more:
        raise DataError("a sentence embedder is scored by the similarity with another text: give a column second")
    if not (asks or embeds or isinstance(model, BertForSequenceClassification)):
        raise ConfigError(f"{model.class_name} gives no single score: take a classifier, embedder or masked-word model")


def _masked(
    tokenizer: Tokenizer, texts: Sequence[str], contrasts: Contrasts, max_length: int
) -> list[tuple[Encoding, tuple[int, int, int] | None] | None]:
    """Texts with their place masked, and where that is with the good and the bad word there.

    None where the words are of several pieces.
    """
    filled = [_fill(text, number, contrasts.more) for number, text in enumerate(texts)]
    good, bad = (
        tokenizer.encode([pair[which] for pair in filled], contrasts.more.get("second"), max_length, word_ids=True)
        for which in (0, 1)
    )
    found: list[tuple[Encoding, tuple[int, int, int] | None] | None] = []
    for own, other in zip(good, bad, strict=True):
        place = differing_piece(own, other)
        if place is None:
            found.append(None)
            continue
        found.append((hide(tokenizer, own, [place]), (place, own.input_ids[place], other.input_ids[place])))
    return found


def _fill(text: str, number: int, more: Mapping[str, tuple[str, ...]]) -> tuple[str, str]:
    """A text with the good and with the bad word at its masked place."""
    filled = fill_template(text, more["good"][number], more["bad"][number])
    if filled is None:
        raise DataError(f"contrast {number} (from 0) has no single masked place, marked by {MARKS[0]}")
    return filled


def _spans(sides: _Sides, spans: str) -> tuple[list[Int[np.ndarray, " _"]], tuple[str, ...]]:
    """The span of each token of each corrupted text, and the names of all."""
    if spans == "all":
        return [np.zeros(len(own), np.int64) for own in sides.corrupted], (ALL_TOKENS,)
    lengths = {len(own) for own in sides.corrupted}
    if spans == "tokens" and len(lengths) > 1:
        raise DataError(f"texts have {min(lengths)} to {max(lengths)} tokens: take --spans regions")
    if spans == "tokens" or (spans == "auto" and len(lengths) == 1 and max(lengths) <= MOST_TOKENS):
        return [np.arange(len(own)) for own in sides.corrupted], _token_names(sides.clean, sides.corrupted)
    several = [_regions(*own) for own in zip(sides.clean, sides.corrupted, sides.masked, strict=True)]
    there = sorted({int(region) for own in several for region in own})
    numbers = {region: number for number, region in enumerate(there)}
    return [np.array([numbers[int(r)] for r in own]) for own in several], tuple(REGIONS[region] for region in there)


def _token_names(clean: Sequence[Encoding], corrupted: Sequence[Encoding]) -> tuple[str, ...]:
    """What stands at each position: the token, or clean and corrupted ones, of the first contrast if they vary."""
    names = []
    for place in range(len(corrupted[0])):
        pairs = {(own.tokens[place], other.tokens[place]) for own, other in zip(clean, corrupted, strict=True)}
        first = clean[0].tokens[place], corrupted[0].tokens[place]
        name = first[0] if first[0] == first[1] else "/".join(first)
        names.append(f"{place} {name}" + ("" if len(pairs) == 1 else " ..."))
    return tuple(names)


def _regions(clean: Encoding, corrupted: Encoding, masked: int | None) -> Int[np.ndarray, " token"]:
    """Of each token which of `REGIONS` it is in."""
    number = {name: place for place, name in enumerate(REGIONS)}
    differ = np.flatnonzero(np.array(clean.input_ids) != np.array(corrupted.input_ids))
    regions = np.full(len(corrupted), number["before"])
    index, segments = np.arange(len(corrupted)), np.array(corrupted.segments)
    regions[index > differ[0]] = number["after"]
    regions[differ] = number[CHANGED]
    regions[segments != segments[differ[0]]] = number["other text"]
    special = np.array([word is None for word in corrupted.word_ids])
    regions[special] = number["special"]
    regions[0] = number["first"] if special[0] else regions[0]
    if masked is not None:
        regions[masked] = number["masked"]
    return regions


def _scored(model: PretrainedModel, sides: _Sides) -> Scored:
    """What is read of a model, and the score that is made of it."""
    if isinstance(model, BertForMaskedLM | BertForPreTraining):
        return Scored(
            "Log-probability of the good word less the bad one's (nats)",
            readouts.log_probabilities,
            lambda outputs, *both: outputs[..., 0] - outputs[..., 1],
            at=np.array([[place, place] for place in sides.masked], np.int32),
            targets=np.array(sides.words, np.int32),
        )
    if isinstance(model, BertForSentenceEmbedding):
        own = readouts.sentence_embedding
        return Scored("Similarity with the second text", own, lambda outputs, *both: outputs, combine=cosine)
    if model.config.num_labels == 1:
        return Scored("Output", readouts.logits, lambda outputs, *both: outputs[..., 0])
    return Scored("Logit of the clean text's label less the corrupted one's", readouts.logits, _margin)


def _margin(
    outputs: Float[np.ndarray, "runs contrasts labels"],
    clean: Float[np.ndarray, "contrasts labels"],
    corrupted: Float[np.ndarray, "contrasts labels"],
) -> Float[np.ndarray, "runs contrasts"]:
    """The logit of the label that the clean text has, less that of the corrupted one's, or of its second best."""
    rows = np.arange(len(clean))
    label = clean.argmax(axis=-1)
    others = corrupted.copy()
    others[rows, label] = -np.inf
    return outputs[:, rows, label] - outputs[:, rows, others.argmax(axis=-1)]
