"""Classification and regression of texts or pairs: the tasks of GLUE, and data of the user.

Classifiers have logits. The scores of cross-encoders and the similarities of sentence embedders are scored by metrics
of ranks.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Num, Shaped

from bertjax.data import (
    CUSTOM,
    GLUE,
    READABLE,
    DatasetSpec,
    Examples,
    Source,
    Table,
    Tokenizer,
    plain_label,
    read_by_name,
    read_examples,
    read_sample,
    split_named,
)
from bertjax.errors import ConfigError, DataError, some_of
from bertjax.formatting import count_of
from bertjax.interventions import readouts
from bertjax.models import BertForSentenceEmbedding, BertForSequenceClassification, PretrainedModel
from bertjax.tasks.encoded import EncodedDataset, TaskOutputs, TextEncodings
from bertjax.tasks.outputs import (
    Form,
    Graded,
    Objective,
    OutputSpec,
    binary_cross_entropy,
    cosine_and_gradients,
    cross_entropy,
    squared_error,
)
from bertjax.tasks.task import EncodeArguments, Task, as_task, check_single_prompt, encode_texts

SAMPLE = "qnli-sample"  # the task whose examples are part of bertjax


def cosine(
    first: Float[np.ndarray, "*examples embed"], second: Float[np.ndarray, "*examples embed"]
) -> Float[np.ndarray, "*examples"]:
    """Cosine similarity of vectors, summed in float64, in the dtype of the vectors.

    Args:
        first: vectors, `[..., embed]`.
        second: vectors of the same shape.

    >>> cosine(np.array([[3.0, 4.0]]), np.array([[4.0, 3.0]]))
    array([0.96])
    """
    sums = [
        np.einsum("...e,...e->...", left, right, dtype=np.float64)
        for left, right in ((first, second), (first, first), (second, second))
    ]
    return (sums[0] / np.maximum(np.sqrt(sums[1] * sums[2]), 1e-12)).astype(first.dtype)


LOGITS = Form("logits", readouts.logits, predicts=True)
SCORE = Form("score", readouts.score, called="scores", by_rank=True)
SIMILARITY = Form("similarity", readouts.sentence_embedding, cosine, called="similarities", by_rank=True)


def default_metrics(label_names: tuple[str, ...] | None) -> tuple[str, ...]:
    """The metrics of custom data: as in GLUE's tasks, and for a regression also errors."""
    if label_names is not None:
        return ("accuracy",)
    return "pearson", "spearman", "mean_squared_error", "mean_absolute_error"


@dataclass(frozen=True)
class TextClassification(Task):
    """Texts or pairs with classes, or with ratings if there are no label names."""

    models = (BertForSequenceClassification,)
    needs = "output"
    forms = (LOGITS, SCORE, SIMILARITY)
    texts = (1, 2)
    has_labels = has_ids = takes_prompts = is_plain = True
    instead_of_directory: ClassVar[str] = ""  # advice if the data are a directory; empty if GLUE's may be read

    def read(self, source: Source) -> Examples:
        """Read the examples of a file or an object in memory, or of a task of GLUE by its name."""
        if source.data is None:
            if not self.config:
                raise DataError(f"TensorFlow Datasets has no task {self.name}: give its {READABLE} file as data")
            return read_by_name(self, split_named(self, source.split), source.data_dir)
        table, split = source.open_table(self, self.instead_of_directory)
        return self.read_table(table, replace(source, split=split))

    def read_table(self, table: Table, source: Source) -> Examples:
        """Read texts with labels."""
        examples = read_examples(
            table,
            self,
            source.split,
            text_columns=source.text_columns,
            label_column=source.label_column,
            id_column=source.id_column,
            infer_labels=source.infer_labels,
            model_labels=source.model_labels,
        )
        if not source.infer_labels:
            return examples
        return replace(
            examples, task=replace(as_task(examples.task), metrics=default_metrics(examples.task.label_names))
        )

    def with_labels(self, names: tuple[str, ...] | None) -> Task:
        """The task with other classes; its metrics change if it changes between classification and regression."""
        same_kind = (names is None) == (self.label_names is None)
        return replace(self, label_names=names, metrics=self.metrics if same_kind else default_metrics(names))

    def fits(self, model: PretrainedModel) -> bool:
        """Whether a model is a classifier or a sentence embedder."""
        return isinstance(model, BertForSentenceEmbedding | BertForSequenceClassification)

    @property
    def unmet(self) -> str:
        """The problem of other models, for messages."""
        return f"no {self.needs} for {self.name}"

    def default_length(self, model: PretrainedModel, most: int) -> int:
        """The model's length for models of sentence-transformers; 128 for others, as in GLUE's scripts."""
        return most if isinstance(model, BertForSentenceEmbedding) or is_cross_encoder(model) else min(128, most)

    def encode(
        self, model: PretrainedModel, tokenizer: Tokenizer, examples: Examples, arguments: EncodeArguments
    ) -> EncodedDataset:
        """Encode texts or pairs; for a sentence embedder, first and second texts separately."""
        if isinstance(model, BertForSentenceEmbedding):
            return self._encode_separately(tokenizer, examples, arguments)
        check_single_prompt(model, arguments.prompts)
        if arguments.prompts is not None:
            tokenizer = tokenizer.with_prompt(arguments.prompts[0])
        scores = is_regression(model) and (is_cross_encoder(model) or self.kind == "classification")
        order = None if scores else label_order(model.config.id2label, self)
        encodings = encode_texts(tokenizer, examples.first, examples.second, arguments.max_length)
        common = encodings, tokenizer.pad_id, len(examples), examples.labels
        if order is None:
            return ScoredPairs(SCORE, *common, **_targets(SCORE, examples))
        return ClassifiedTexts(LOGITS, *common, label_order=order, classes=self.kind == "classification")

    def _encode_separately(
        self, tokenizer: Tokenizer, examples: Examples, arguments: EncodeArguments
    ) -> EncodedDataset:
        """Encode all first texts and then all second texts, with their prompts."""
        if examples.second is None:
            raise ConfigError(
                f"a sentence embedder needs pairs, but {self.name} has single texts: give a model that was fine-tuned "
                "on it"
            )
        texts = [*examples.first, *examples.second]
        if arguments.prompts is not None:
            prompts = [tokenizer.with_prompt(prompt).prompt for prompt in arguments.prompts]
            both = ((prompts[0], examples.first), (prompts[-1], examples.second))
            texts = [prompt + text for prompt, side in both for text in side]
            tokenizer = tokenizer.with_prompt("")
        encodings = encode_texts(tokenizer, texts, None, arguments.max_length)
        common = encodings, tokenizer.pad_id, len(examples), examples.labels
        return ComparedTexts(SIMILARITY, *common, copies=2, **_targets(SIMILARITY, examples))


@dataclass(frozen=True)
class Sample(TextClassification):
    """The pairs of QNLI that are part of bertjax."""

    def read(self, source: Source) -> Examples:
        """Read all pairs."""
        if source.data is not None:
            raise DataError(f"{self.name} is part of bertjax and needs no data; for another QNLI file use qnli")
        if split_named(self, source.split) != "validation":
            raise DataError(f"{self.name} has no split {source.split!r}; it is a part of QNLI's validation split")
        return read_sample(self)


@dataclass(frozen=True)
class CustomClassification(TextClassification):
    """Data of the user, whose columns and classes are guessed unless they are named."""

    instead_of_directory = f", and datasets did not save it; give a {READABLE} file"

    def with_labels(self, names: tuple[str, ...] | None) -> Task:
        """The task with other classes and their metrics."""
        return replace(self, label_names=names, metrics=default_metrics(names))


_PARAPHRASES = ("f1", "accuracy")  # GLUE reports both; F1 is the main metric here
_METRICS = {
    "mrpc": _PARAPHRASES,
    "qqp": _PARAPHRASES,
    "stsb": ("pearson", "spearman"),
    "cola": ("matthews",),
}
GLUE_TASKS = tuple(
    TextClassification(**{**asdict(spec), "metrics": _METRICS.get(name, ("accuracy",))}) for name, spec in GLUE.items()
)
SAMPLE_TASK = Sample(SAMPLE, ("question", "sentence"), "label", GLUE["qnli"].label_names, metrics=("accuracy",))
CUSTOM_TASK = CustomClassification(CUSTOM, (), "label", metrics=default_metrics(None))


@dataclass(frozen=True)
class ClassifiedTexts(TextEncodings):
    """Texts or pairs for a classifier.

    Args:
        label_order: the column of the model's output for each of the task's labels.
        classes: whether labels are classes.
    """

    label_order: tuple[int, ...] = ()
    classes: bool = True

    @property
    def zeros(self) -> Float[np.ndarray, "outputs labels"]:
        """Logits of one run, all 0."""
        return np.zeros((len(self.labels), len(self.label_order)))

    def collect(self, values: Shaped[np.ndarray, "runs texts labels"]) -> TaskOutputs:
        """The logits in the task's order of labels."""
        return TaskOutputs(values[..., list(self.label_order)])

    @property
    def objective(self) -> Objective:
        """The cross-entropy of the label, or the squared error of a rating."""
        definition, unit = ("cross-entropy of the label", "nats") if self.classes else ("squared error", "")
        return Objective(readouts.logits, self.grade, definition, unit)

    def grade(self, example: int, values: Float[np.ndarray, "texts labels"]) -> Graded:
        """An example's loss and its gradient."""
        gradient = np.zeros(values.shape)
        if self.classes:
            if self.labels[example] < 0:
                return np.nan, gradient
            order = list(self.label_order)
            loss, gradient[0, order] = cross_entropy(values[0, order], int(self.labels[example]))
            return loss, gradient
        loss, gradient[0, 0] = squared_error(float(values[0, 0]), float(self.labels[example]))
        return loss, gradient


@dataclass(frozen=True)
class ScoredPairs(TextEncodings):
    """Pairs for a cross-encoder.

    Args:
        unit_targets: the labels scaled to the range from 0 to 1.
        scaled: a description of the scaling.
    """

    unit_targets: Float[np.ndarray, " examples"] = field(kw_only=True)
    scaled: str = field(kw_only=True)

    @property
    def objective(self) -> Objective:
        """The binary cross-entropy of a score."""
        return Objective(readouts.logits, self.grade, f"binary cross-entropy {self.scaled}")

    def grade(self, example: int, values: Float[np.ndarray, "texts 1"]) -> Graded:
        """An example's loss and its gradient, with respect to the logit."""
        loss, gradient = binary_cross_entropy(values[0], self.unit_targets[example : example + 1])
        return loss, gradient[None]


@dataclass(frozen=True)
class ComparedTexts(ScoredPairs):
    """The texts of pairs for a sentence embedder."""

    @property
    def objective(self) -> Objective:
        """The squared error of a similarity."""
        return Objective(readouts.sentence_embedding, self.grade, f"squared error {self.scaled}, as cosine", "")

    def grade(self, example: int, values: Float[np.ndarray, "two embed"]) -> Graded:
        """An example's loss and its gradient, with respect to the vectors of a pair."""
        exact = values.astype(np.float64)
        cosines, of_first, of_second = cosine_and_gradients(exact[0], exact[1:])
        loss, slope = squared_error(float(cosines[0]), float(self.unit_targets[example]))
        return loss, slope * np.concatenate([of_first, of_second])


def _targets(form: OutputSpec, examples: Examples) -> dict[str, Any]:
    """The fields of `ScoredPairs`."""
    if examples.task.kind == "classification":
        positive = positive_label(form, examples.task)
        return {"unit_targets": to_unit_range(examples.labels, positive), "scaled": "of 1 for yes and 0 for no"}
    low, high = examples.scale or (0.0, 1.0)
    scaled = f"of the rating, {low:g} to {high:g} scaled to 0 to 1"
    return {"unit_targets": to_unit_range(examples.labels, None, examples.scale), "scaled": scaled}


def to_unit_range(
    labels: Num[np.ndarray, " examples"], positive: int | None, scale: tuple[float, float] | None = None
) -> Float[np.ndarray, " examples"]:
    """Scale labels to the range from 0 to 1: 1 for the positive class; ratings linearly. NaN for unlabelled examples.

    Args:
        positive: the positive class; None for ratings.
        scale: the lowest and highest rating; None if no example has a rating.

    >>> to_unit_range(np.array([2.0, 3.0]), None, (0.0, 5.0)).tolist()
    [0.4, 0.6]
    """
    if positive is not None:
        return np.where(labels < 0, np.nan, labels == positive).astype(np.float64)
    low, high = scale or (0.0, 1.0)
    return np.asarray((labels.astype(np.float64) - low) / (high - low if high > low else 1.0))


def is_cross_encoder(model: PretrainedModel) -> bool:
    """Whether a classifier is a cross-encoder of sentence-transformers, whose config names an activation."""
    return model.config.score_activation is not None


def is_regression(model: PretrainedModel) -> bool:
    """Whether a model has a single number as output.

    Args:
        model: the loaded model.
    """
    return isinstance(model, BertForSequenceClassification) and model.config.num_labels == 1


def positive_label(form: OutputSpec, task: DatasetSpec) -> int:
    """The id of the positive label: entailment or paraphrase for similarities and scores, else 1.

    Args:
        form: the specification of the outputs.
        task: the labels of the dataset.

    Raises:
        DataError: for similarities and scores, if the task has no such label.
    """
    names = task.label_names or ()
    if not form.by_rank or not names:
        return 1
    meanings: tuple[str, ...] = ("entailment", "equivalent", "duplicate", "similar")
    if len(names) == 2:
        meanings += ("yes", "true", "1")
    for index, name in enumerate(names):
        if plain_label(name) in meanings:
            return index
    raise DataError(
        f"none of {task.name}'s labels {some_of(names)} means that a pair is similar: name one of two labels 'yes' or, "
        "if they are ratings, give --label-names without names"
    )


def label_order(id2label: Mapping[int, str], task: DatasetSpec) -> tuple[int, ...]:
    """The index of the model's output for each label of the task.

    The order of labels in a checkpoint may differ from GLUE's. Labels are matched by name; for LABEL_0, LABEL_1 ... the
    task's order is assumed.

    Args:
        id2label: the names of the model's labels, by index.
        task: the labels of the dataset.

    Raises:
        ConfigError: the model has another number of labels, or other names.
    """
    labels = task.label_names or ("score",)
    names = tuple(id2label[index] for index in sorted(id2label))
    numbered = all(name.isdecimal() for name in labels)
    if len(names) != len(labels):
        advice = "; give all classes in the order of their ids with --label-names (label_names=)" if numbered else ""
        problem = f"the model has {count_of(len(names), 'label')}, but {task.name} has {len(labels)}"
        raise ConfigError(f"{problem}: {some_of(labels)}{advice}")
    generic = tuple(f"LABEL_{index}" for index in range(len(names)))
    if task.label_names is None or names in (generic, labels):
        return tuple(range(len(labels)))
    of_model, of_task = [plain_label(name) for name in names], [plain_label(name) for name in labels]
    if len(set(of_task)) < len(of_task) or sorted(of_model) != sorted(of_task):
        advice = "use the same names in the model's config.json (id2label)"
        if numbered:
            order = " ".join(names) if len(names) <= 6 else f"{names[0]} ..."
            advice = "give the names of your classes in ascending order with --label-names (label_names=): "
            advice += f"--label-names {order}, if that is their order"
        raise ConfigError(f"the model's labels {some_of(names)} are not {task.name}'s {some_of(labels)}: {advice}")
    return tuple(of_model.index(name) for name in of_task)
