"""The tasks that examples belong to, and the examples themselves.

A `Task` defines which columns hold texts and labels and which metrics judge it; `Examples` are texts with labels,
wherever they came from. The public interface is `bertjax.data`.
"""

import difflib
import hashlib
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float32, Int32

from bertjax import arguments
from bertjax.errors import DataError
from bertjax.formatting import HALF_CHARACTER

# The task that is a file of your own.
CUSTOM = "custom"
# The task whose examples come with bertjax.
SAMPLE = "qnli-sample"
# The task of masked words.
MASKED = "mlm"

PAIRS, AGREEMENT = "minimal-pairs", "agreement"
TAGGING, ANSWERING, CHOOSING = "token-classification", "question-answering", "multiple-choice"
MULTI_LABEL, RANKING = "multi-label", "ranking"

# What a task asks of a model: labels of texts, masked words, which of two sentences or forms is likelier, tags of
# words, where the answer to a question is, which choice is right, sets of labels, or an order of texts.
Asks: TypeAlias = Literal["labels", "words", "pairs", "agreement", "tags", "answers", "choices", "label-sets", "order"]

_BINARY = ("f1", "accuracy")
_ENTAILMENT = ("entailment", "not_entailment")
_THREE_WAY = ("entailment", "neutral", "contradiction")


@dataclass(frozen=True)
class Task:
    """A task: the names of its columns and the metrics that judge its outputs.

    Args:
        name: the name on the command line and in results.
        text_columns: one or two text columns, as named in GLUE's TSV files.
        label_column: the column of labels, as named there.
        label_names: the classes, in the order of their numbers; None for regression.
        metrics: names of metrics, the main one first.
        folder: its folder in GLUE; empty where there is none.
        config: its configuration in TensorFlow Datasets' `glue`; empty where there is none.
        renamed: the text columns in TensorFlow Datasets and on the HuggingFace hub.
        section: `matched` or `mismatched` where the names of evaluation splits carry it.
        asks: what it asks of a model. Examples of masked words are single texts without labels; those of minimal
            pairs and of agreement are two sentences, the good one first.

    Raises:
        DataError: columns, metrics or label names are not a tuple of texts, or a label holds half a character.

    Source: Wang et al. 2018, GLUE, table 1 (metrics); the class numbers are those of GLUE's loaders.

    >>> TASKS["mrpc"].metrics, TASKS["stsb"].kind
    (('f1', 'accuracy'), 'regression')
    """

    name: str
    text_columns: tuple[str, ...]
    label_column: str
    label_names: tuple[str, ...] | None
    metrics: tuple[str, ...]
    folder: str = ""
    config: str = ""
    renamed: tuple[str, ...] = ()
    section: str = ""
    asks: Asks = "labels"
    scale: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        for name in ("text_columns", "metrics", "label_names"):
            if getattr(self, name) is not None:
                arguments.several(
                    getattr(self, name), f"{name} of task {self.name}", "a tuple of texts", str, DataError
                )
        for name in self.label_names or ():
            if HALF_CHARACTER.search(name):  # cannot be written as UTF-8
                raise DataError(f"label {name!r} holds half a character (a lone surrogate)")

    @property
    def kind(self) -> Literal["classification", "regression"]:
        """Whether labels are class numbers or real numbers."""
        return "regression" if self.label_names is None else "classification"


FORMS_OF_PAIRS = ("bad", "good")  # of equally likely ones the first is predicted, which is then wrong
_GOOD_BAD = ("sentence_good", "sentence_bad")
_S12 = ("sentence1", "sentence2")
_Q12 = ("question1", "question2")
_MNLI = Task(
    "mnli",
    _S12,
    "gold_label",
    _THREE_WAY,
    metrics=("accuracy",),
    folder="MNLI",
    config="mnli",
    renamed=("premise", "hypothesis"),
    section="matched",
)
_QNLI = Task(
    "qnli", ("question", "sentence"), "label", _ENTAILMENT, metrics=("accuracy",), folder="QNLI", config="qnli"
)

# By name; add your own.
TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        # GLUE reports F1 and accuracy for the two paraphrase tasks; F1 comes first, so it is the main one.
        Task(
            "mrpc",
            ("#1 String", "#2 String"),
            "Quality",
            ("not_equivalent", "equivalent"),
            metrics=_BINARY,
            folder="MRPC",
            config="mrpc",
            renamed=_S12,
        ),
        Task(
            "stsb",
            _S12,
            "score",
            None,
            metrics=("pearson", "spearman"),
            folder="STS-B",
            config="stsb",
            scale=(0.0, 5.0),
        ),
        Task(
            "sst2",
            ("sentence",),
            "label",
            ("negative", "positive"),
            metrics=("accuracy",),
            folder="SST-2",
            config="sst2",
        ),
        Task("qqp", _Q12, "is_duplicate", ("not_duplicate", "duplicate"), metrics=_BINARY, folder="QQP", config="qqp"),
        Task("rte", _S12, "label", _ENTAILMENT, metrics=("accuracy",), folder="RTE", config="rte"),
        _QNLI,
        _MNLI,
        replace(_MNLI, name="mnli-mm", section="mismatched"),
        Task(
            "cola",
            ("sentence",),
            "label",
            ("unacceptable", "acceptable"),
            metrics=("matthews",),
            folder="CoLA",
            config="cola",
        ),
        replace(_QNLI, name=SAMPLE, folder="", config=""),
        Task(
            MASKED,
            ("text",),
            "",
            None,
            metrics=("cross_entropy", "word_accuracy", "pseudo_perplexity"),
            asks="words",
        ),
        Task(
            PAIRS, _GOOD_BAD, "", FORMS_OF_PAIRS, metrics=("accuracy", "margin"), renamed=("good", "bad"), asks="pairs"
        ),
        Task(TAGGING, ("sentence",), "", None, metrics=("entity_f1", "strict_entity_f1", "tag_accuracy"), asks="tags"),
        Task(ANSWERING, ("question", "context"), "", None, metrics=("answer_f1", "exact_match"), asks="answers"),
        Task(CHOOSING, ("context", "question"), "", None, metrics=("accuracy",), asks="choices"),
        Task(RANKING, ("query",), "", None, metrics=("ndcg_10", "mrr_10", "recall_10"), asks="order"),
        Task(MULTI_LABEL, (), "", None, metrics=("micro_f1", "macro_f1", "subset_accuracy"), asks="label-sets"),
        Task(AGREEMENT, _GOOD_BAD, "", FORMS_OF_PAIRS, metrics=("accuracy", "margin"), asks="agreement"),
    )
}

_OTHER_SPELLINGS = {
    "blimp": PAIRS,
    "ner": TAGGING,
    "swag": CHOOSING,
    "qa": ANSWERING,
    "squad": ANSWERING,
    "retrieval": RANKING,
    "reranking": RANKING,
    "maskedlm": MASKED,
    "maskedlanguagemodeling": MASKED,
    "mnlim": "mnli",
    "mnlimatched": "mnli",
    "mnlimismatched": "mnli-mm",
    "sst": "sst2",
}


def default_metrics(label_names: tuple[str, ...] | None) -> tuple[str, ...]:
    """The metrics of a custom task: those of GLUE's tasks of the same kind, and of a regression its errors."""
    if label_names is not None:
        return ("accuracy",)
    return "pearson", "spearman", "mean_squared_error", "mean_absolute_error"


def plain_name(text: str) -> str:
    """A name in lower case without punctuation: `STS-B` and `sts_b` become `stsb`."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


def plain_label(name: str) -> str:
    """A label's name without capitals and punctuation, in any alphabet."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def task_named(name: str) -> Task:
    """The task with this name, in any common spelling.

    Args:
        name: such as `mrpc`, `MRPC`, `sts-b`, `glue/sst2` or `mnli_mismatched`.

    Raises:
        DataError: there is no such task.

    >>> task_named("STS-B").name, task_named("mnli_mismatched").name
    ('stsb', 'mnli-mm')
    """
    plain = plain_name(name.lower().removeprefix("glue/"))
    spellings = {plain_name(key): key for key in TASKS} | _OTHER_SPELLINGS
    if plain in spellings:
        return TASKS[spellings[plain]]
    matches = difflib.get_close_matches(plain, spellings, n=1)
    hint = f"; did you mean {spellings[matches[0]]}?" if matches else "."
    raise DataError(f"no task is called {name!r}{hint} Known: {', '.join(TASKS)}; {CUSTOM} for your own file")


def split_named(task: Task, split: str) -> str:
    """The split's full name in GLUE: `dev` is `validation`, and MNLI's carries the task's section.

    Args:
        task: the task the split belongs to.
        split: `train`, `validation` (or `dev`) or `test`; for MNLI also names such as `validation_matched`.

    Raises:
        DataError: there is no such split.

    >>> split_named(TASKS["mnli"], "dev"), split_named(TASKS["rte"], "dev")
    ('validation_matched', 'validation')
    """
    base, _, section = split.partition("_")
    base = {"dev": "validation"}.get(base, base)
    sections = ("", "matched", "mismatched") if task.section and base != "train" else ("",)
    if base not in ("train", "validation", "test") or section not in sections:
        raise DataError(f"{task.name} has no split {split!r}; there are train, validation and test")
    if base == "train" or not task.section:
        return base
    return f"{base}_{section or task.section}"


@dataclass(frozen=True)
class Tagged:
    """A sentence whose words have tags.

    Args:
        words: as the data have them; a word may contain white space.
        tags: one for each, by name.
        scheme: the tagging scheme of all data of the source (`tag_schemes.SCHEMES`); None if they follow none.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    scheme: str | None = None


@dataclass(frozen=True)
class Answers:
    """What is true of a question.

    Args:
        texts: the answers, each of which is right; none where the context has no answer.
        can_lack: whether questions of these data may have no answer, as in SQuAD 2.0.
    """

    texts: tuple[str, ...]
    can_lack: bool


@dataclass(frozen=True)
class Choices:
    """Answers to choose from.

    Args:
        texts: as many for each example.
    """

    texts: tuple[str, ...]


@dataclass(frozen=True)
class LabelSet:
    """The labels of a text that may have several.

    Args:
        labels: names among the task's `label_names`, in their order; None where it is not known which are true.
    """

    labels: tuple[str, ...] | None


@dataclass(frozen=True)
class Beside:
    """What stands beside the two texts of a contrast.

    Args:
        texts: by column, such as `good` and `bad`.
    """

    texts: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Pool:
    """Texts in which queries look for theirs; several may share one.

    Args:
        names: no two alike.
        texts: one for each.
    """

    names: tuple[str, ...] = field(repr=False)
    texts: tuple[str, ...] = field(repr=False)

    @cached_property
    def sha256(self) -> str:
        """A hash of names and texts."""
        return hashlib.sha256(json.dumps([self.names, self.texts]).encode()).hexdigest()


@dataclass(frozen=True)
class Candidates:
    """What a query is to find, and among what.

    Args:
        pool: the candidates.
        relevance: of the texts that are relevant, by name, whole numbers from 1; also of those that are no candidates.
        excluded: the name of the text in the pool that is no candidate of this query: its own document; None for none.
    """

    pool: Pool
    relevance: Mapping[str, int]
    excluded: str | None = None


Content: TypeAlias = (
    tuple[Tagged, ...]
    | tuple[Answers, ...]
    | tuple[Choices, ...]
    | tuple[LabelSet, ...]
    | tuple[Candidates, ...]
    | tuple[Beside, ...]
)


@dataclass(frozen=True, eq=False)
class Examples:
    """Texts with their labels, in the order of their source.

    Args:
        task: the task of the examples.
        ids: one per example: the row number that GLUE's loaders call `idx`, or the id in the source.
        first: the texts, or the first of each pair.
        second: the second of each pair, or None.
        labels: class numbers (int32, -1 where unlabelled) or scores (float32, NaN where unlabelled).
        source: one line saying where they came from.
        split: the part of the task's data.
        content: what else each example has, of tasks that ask for more than labels: `Tagged`, `Answers`, `Choices`,
            `LabelSet`, `Candidates` or `Beside`.
        groups: to which part of the data each belongs, whose scores are given apart too: a paradigm, say; or None.

    Raises:
        DataError: the columns differ in length.

    >>> from bertjax.data.loading import load_examples
    >>> examples = load_examples("qnli-sample").head(2)
    >>> len(examples), examples.labels.dtype.name
    (2, 'int32')
    """

    task: Task
    ids: tuple[int | str, ...]
    first: tuple[str, ...]
    second: tuple[str, ...] | None
    labels: Int32[np.ndarray, " examples"] | Float32[np.ndarray, " examples"]
    source: str
    split: str
    groups: tuple[str, ...] | None = None
    content: Content | None = None

    def __post_init__(self) -> None:
        rest = [given for given in (self.second, self.groups, self.content) if given is not None]
        lengths = len(self.ids), len(self.first), len(self.labels)
        if len({*lengths, *map(len, rest)}) != 1:
            second = len(self.first if self.second is None else self.second)
            counts = (*lengths[:2], second, lengths[2])
            raise DataError(f"ids, first, second and labels must have equal numbers; they have {counts}")

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def sha256(self) -> str:
        """A hash of ids, texts and labels; equal for equal data from any source."""
        digest = hashlib.sha256()
        second = self.second or (None,) * len(self)
        contents = [()] * len(self) if self.content is None else [[_facts(content)] for content in self.content]
        for *row, content in zip(self.ids, self.first, second, self.labels.tolist(), contents, strict=True):
            # NaN is written as a string, because JSON has no number for it.
            line = json.dumps([*row[:3], row[3] if row[3] == row[3] else "unlabelled", *content])
            digest.update(line.encode() + b"\n")
        return digest.hexdigest()

    @property
    def scale(self) -> tuple[float, float] | None:
        """The lowest and highest rating: the task's, or of these examples if it has none or a rating lies beyond it.

        None of tasks without ratings, and where no example has one.
        """
        rated = self.labels[np.isfinite(self.labels)]
        if self.task.kind != "regression" or self.task.asks != "labels" or not len(rated):
            return None
        low, high = float(rated.min()), float(rated.max())
        known = self.task.scale
        return known if known is not None and known[0] <= low and high <= known[1] else (low, high)

    def take(self, indices: Sequence[int]) -> "Examples":
        """The examples at these positions, in the order given; their task keeps the scale of all ratings.

        Args:
            indices: positions from 0, not ids.
        """
        scale = self.scale
        task = self.task if scale in (None, self.task.scale) else replace(self.task, scale=scale)
        second = self.second and tuple(self.second[i] for i in indices)
        ids, first = tuple(self.ids[i] for i in indices), tuple(self.first[i] for i in indices)
        labels = self.labels[np.asarray(indices, dtype=np.int64)]
        groups = self.groups and tuple(self.groups[i] for i in indices)
        content: Any = self.content and tuple(self.content[i] for i in indices)
        return replace(
            self, task=task, ids=ids, first=first, second=second, labels=labels, groups=groups, content=content
        )

    def head(self, count: int) -> "Examples":
        """The first `count` examples, or all if there are fewer."""
        return self.take(range(min(count, len(self))))


def _facts(content: Tagged | Answers | Choices | LabelSet | Candidates | Beside) -> dict[str, Any]:
    """What makes an example's content, for a hash."""
    if isinstance(content, Candidates):
        facts = {"pool": content.pool.sha256, "relevance": dict(content.relevance)}
        return facts if content.excluded is None else {**facts, "excluded": content.excluded}
    if isinstance(content, Tagged):
        return {"words": content.words, "tags": content.tags}  # the scheme follows from all of them
    return asdict(content)


def draw(count: int, size: int, seed: int) -> list[int]:
    """Draw `size` of `count` positions at random without replacement, in ascending order.

    Each position gets a number from Python's `random.random`, the one random stream guaranteed to stay the same across
    versions; the positions with the smallest numbers are drawn.

    Args:
        count: the number of positions.
        size: the number to draw; all are drawn if there are fewer.
        seed: the same seed gives the same draw.

    >>> draw(10, 3, seed=1)
    [0, 8, 9]
    """
    generator = random.Random(seed)
    keys = [generator.random() for _ in range(count)]
    return sorted(sorted(range(count), key=keys.__getitem__)[:size])
