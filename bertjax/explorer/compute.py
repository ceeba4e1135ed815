"""Answers and maps of a subject, computed by sweeps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import numpy as np
from jaxtyping import Shaped

from bertjax.data import Encoding
from bertjax.engine import SweepResult, compile_sweep, sweep
from bertjax.errors import InputError
from bertjax.explorer.kinds import Classes, Kind, Labels, NextSentence, Rating, Reading, Score, Similarity, Words
from bertjax.explorer.messages import Question, Target
from bertjax.explorer.subject import Subject
from bertjax.explorer.token_kinds import Answer, Entities
from bertjax.interventions import Ablation
from bertjax.models import (
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSentenceEmbedding,
    BertForSequenceClassification,
    BertForTokenClassification,
    PretrainedModel,
)

Check = Callable[[], None]
Send = Callable[[Mapping[str, Any]], None]
BY_CLASS: tuple[tuple[tuple[type[PretrainedModel], ...], type[Kind]], ...] = (
    ((BertForMaskedLM, BertForPreTraining), Words),
    ((BertForSentenceEmbedding,), Similarity),
    ((BertForTokenClassification,), Entities),
    ((BertForQuestionAnswering,), Answer),
    ((BertForNextSentencePrediction,), NextSentence),
)
MULTI_LABEL = "multi-label"


def kind_of(subject: Subject) -> Kind:
    """The kind of answer of a model.

    Args:
        subject: the model, and the examples of a task.

    Raises:
        InputError: the model has no task head, or one that the explorer does not support.
    """
    model = subject.model
    for classes, kind in BY_CLASS:
        if isinstance(model, classes):
            return kind(subject)
    if not isinstance(model, BertForSequenceClassification):
        raise InputError(
            f"{model.class_name} has no answer to show: give a checkpoint of masked words, classes, sentence "
            "embeddings, tags or answers to questions"
        )
    config = model.config
    if subject.task == MULTI_LABEL or config.problem_type == "multi_label_classification":
        return Labels(subject)
    if config.num_labels > 1:
        return Classes(subject)
    rates = config.problem_type == "regression" or (
        subject.examples is not None and subject.examples.task.kind == "regression"
    )
    return Rating(subject) if rates and config.score_activation is None else Score(subject)


@dataclass(frozen=True)
class Query:
    """Texts and ablated heads, checked and tokenised.

    Args:
        texts: the texts as the page sent them.
        encodings: the tokenised texts: one encoding for a text or pair, or one for each of two texts that the model
            reads separately.
        off: the heads that are ablated together, each as layer and head.
        mode: the mode of ablation: 'uniform', 'zero' or 'mean'.
    """

    texts: Sequence[str]
    encodings: tuple[Encoding, ...]
    off: frozenset[tuple[int, int]]
    mode: str


def read_query(kind: Kind, question: Question) -> Query:
    """Check and tokenise a question.

    Args:
        kind: the kind of the model's answer.
        question: the request of the page.

    Raises:
        InputError: the model cannot read the texts, or the mode needs the examples of a task.
        OverrideError: the model does not have one of the heads.
    """
    subject = kind.subject
    subject.check_mode(question.mode)
    off = subject.parse_heads(question.off)
    kind.check_texts(question.texts)
    return Query(question.texts, kind.encode(question.texts), off, question.mode)


def run_sweep(
    kind: Kind,
    query: Query,
    ablations: Sequence[Ablation],
    reading: Reading,
    *,
    single: bool,
    check: Check,
    on_outputs: Callable[[list[int], np.ndarray, np.ndarray], None] | None = None,
) -> SweepResult:
    """Run ablations on the texts of a query. Array shapes depend only on the bucket of the texts' length.

    Args:
        kind: the kind of the model's answer.
        query: the texts, and the mode of ablation.
        ablations: the ablations to run.
        reading: how outputs are read.
        single: whether each step runs only one ablation, as for an answer.
        check: a function that is called between steps; its exception ends the sweep.
        on_outputs: the argument `on_outputs` of `bertjax.sweep`.
    """
    return sweep(
        *_arguments(kind, query, ablations, reading),
        **_options(kind, query, reading, single),
        one_per_row=True,
        progress=lambda done, total: check(),
        on_outputs=on_outputs,
    )


def _arguments(kind: Kind, query: Query, ablations: Sequence[Ablation], reading: Reading) -> tuple[Any, ...]:
    return kind.subject.model, [query.encodings], ablations, reading.readout


def _options(kind: Kind, query: Query, reading: Reading, single: bool) -> dict[str, Any]:
    row_length = kind.row_length(query.encodings)
    return {
        "combine": reading.combine,
        "at": reading.at,
        "targets": reading.targets,
        "means": kind.subject.means_for(query.mode, kind.encode),
        "row_length": row_length,
        "tokens_at_once": row_length if single else None,
    }


def compile_query(kind: Kind, query: Query, target: Target, check: Check) -> None:
    """Compile the programs that answers and maps of all texts in the same bucket need, in the mode of the query."""
    off = [Ablation("off", kind.subject.changes(frozenset([kind.subject.heads[0]]), query.mode))]
    answer, quantity = kind.answer_reading(query.encodings), kind.map_reading(query.encodings, target)
    for reading, single in ((answer, True), (quantity, False)):
        if reading is not None:
            options = _options(kind, query, reading, single)
            compile_sweep(*_arguments(kind, query, off, reading), **options, check=check)


def in_next_bucket(kind: Kind, query: Query) -> Query | None:
    """The query with tokens appended until its texts are in the next bucket; None in the last bucket."""
    encodings, length = query.encodings, kind.row_length(query.encodings)
    *others, last = encodings
    more = length + 1 - sum(map(len, encodings))
    if length >= kind.subject.longest * len(encodings):
        return None
    longer = replace(
        last,
        input_ids=last.input_ids + last.input_ids[:1] * more,
        token_type_ids=last.token_type_ids + last.token_type_ids[-1:] * more,
        tokens=last.tokens + last.tokens[:1] * more,
        offsets=last.offsets + ((0, 0),) * more,
        word_ids=last.word_ids + (None,) * more,
    )
    return None if len(longer) > kind.subject.longest else replace(query, encodings=(*others, longer))


def compute_answer(kind: Kind, query: Query, check: Check) -> dict[str, Any]:
    """The answers without ablation and with the heads of the query ablated, as a response to the page.

    Args:
        kind: the kind of the model's answer.
        query: the texts, and the heads to ablate.
        check: a function that is called between steps; its exception ends the computation.

    Returns:
        `tokens`: the tokens of each text; `truncated`: whether a text was cut; `base` and `ablated`: the two answers,
        the second None if the query has no head.
    """
    encodings = query.encodings
    reading = kind.answer_reading(encodings)
    base: Shaped[np.ndarray, "..."] | None = None
    ablated: Shaped[np.ndarray, "..."] | None = None
    if reading is not None:
        ablation = Ablation("off", kind.subject.changes(query.off, query.mode))
        result = run_sweep(kind, query, [ablation], reading, single=True, check=check)
        base, ablated = np.asarray(result.base[0]), np.asarray(result.outputs[0, 0])
    return {
        "tokens": [list(encoding.tokens) for encoding in encodings],
        "truncated": any(encoding.truncated for encoding in encodings),
        "base": kind.answer(query.texts, encodings, base),
        "ablated": kind.answer(query.texts, encodings, ablated) if query.off else None,
    }


def compute_map(kind: Kind, query: Query, target: Target, send: Send, check: Check) -> None:
    """Compute the map of a query, and send each layer when it is ready.

    Args:
        kind: the kind of the model's answer.
        query: the texts, and the heads that are ablated in all runs.
        target: the part of the answer that the map follows.
        send: a function that sends one line of the response.
        check: a function that is called between steps; its exception ends the computation.

    Raises:
        InputError: the texts do not have the target.
    """
    started, encodings = monotonic(), query.encodings
    reading = kind.map_reading(encodings, target)
    left = [head for head in kind.subject.heads if head not in query.off]
    changes, off = kind.subject.changes, query.off
    ablations = [
        Ablation("off", changes(off, query.mode)),
        *(Ablation(f"{layer}.{head}", changes(off | {(layer, head)}, query.mode)) for layer, head in left),
    ]
    lines = MapLines(kind, left, send)

    def receive(indices: list[int], examples: np.ndarray, outputs: np.ndarray) -> None:
        lines.add(indices, kind.quantities(encodings, target, outputs[:, 0]))

    run_sweep(kind, query, ablations, reading, single=False, check=check, on_outputs=receive)
    send({"done": True, "seconds": monotonic() - started})


class MapLines:
    """The lines of a map: the base, and each layer when the values of all its heads are known.

    Args:
        kind: the kind of the model's answer.
        left: the heads of the map, in the order of the ablations after the first one, which ablates no further head.
        send: a function that sends one line of the response.
    """

    def __init__(self, kind: Kind, left: Sequence[tuple[int, int]], send: Send):
        config, self.quantity = kind.subject.model.config, kind.quantity
        self.left, self.send, self.has_base = left, send, False
        self.values: list[list[float | None]] = [
            [None] * config.num_attention_heads for _ in range(config.num_hidden_layers)
        ]
        self.missing = [0] * config.num_hidden_layers
        for layer, _ in left:
            self.missing[layer] += 1
        self.ready = [layer for layer, count in enumerate(self.missing) if not count]

    def add(self, indices: Sequence[int], values: Shaped[np.ndarray, " runs"]) -> None:
        """Add the quantities of some ablations, by index; index -1 is the run without ablation."""
        for index, value in zip(indices, values.tolist(), strict=True):
            if index == 0 and not self.has_base:
                self.has_base = True
                self.send({"base": value, "quantity": self.quantity})
            if index > 0:
                layer, head = self.left[index - 1]
                self.values[layer][head] = value
                self.missing[layer] -= 1
                if not self.missing[layer]:
                    self.ready.append(layer)
        if self.has_base:
            for layer in self.ready:
                self.send({"layer": layer, "values": self.values[layer]})
            self.ready.clear()
