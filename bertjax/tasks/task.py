"""`Task`, the base class of tasks. Each kind of task is a subclass in its file, and is listed in `registry.TASKS`."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from bertjax.data import (
    DatasetSpec,
    Encoding,
    Examples,
    Source,
    Table,
    Tokenizer,
    file_and_split,
    is_path,
    is_saved_dataset,
    read_table,
    table_of,
)
from bertjax.errors import DataError, InputError
from bertjax.models import BertForSentenceEmbedding, PretrainedModel
from bertjax.paths import is_directory, is_there, user_path
from bertjax.statistics import METRICS, Metric, as_metric, find_metric
from bertjax.tasks.encoded import EncodedDataset
from bertjax.tasks.outputs import Form, OutputSpec

# A metric, its name, or a function of labels and outputs.
Chosen: TypeAlias = Metric | str | Callable[[Any, Any], float]


@dataclass(frozen=True)
class TaskOptions:
    """The options of a task. Tasks with options declare a subclass."""


@dataclass(frozen=True)
class EncodeArguments:
    """How examples are encoded.

    Args:
        max_length: the maximum number of tokens of a text (pair).
        prompts: the prompts of the first and the second texts, or one for both, by name or as str; None for the
            tokenizer's prompt.
        seed: the seed of random draws.
        options: the options of the task, an instance of `Task.options`.
    """

    max_length: int
    prompts: Sequence[str] | None = None
    seed: int = 0
    options: TaskOptions = TaskOptions()


@dataclass(frozen=True)
class Task(DatasetSpec):
    """A kind of task: reading its data, encoding them for a model, and its metrics.

    Args:
        metrics: names of metrics, the main one first.

    Attributes:
        models: the classes of models for this task, models without a head (sentence embedders) first.
        needs: the head that these models have, for messages.
        forms: the possible outputs.
        options: the class of the task's options.
        files: the data it needs, for messages.
        texts: the possible numbers of texts in an example of `load_examples(texts=...)`; empty if texts do not suffice.
        texts_called: a description of these texts, for messages.
        max_tokens: the default maximum length of a text (pair); None for the model's.
        has_labels: whether the user can name the labels and their column.
        has_ids: whether the user can name the id column.
        reads_pairs: whether an example with a single text is encoded as a pair.
        takes_prompts: whether texts may have prompts.
        is_plain: whether examples are only texts or pairs.

    Raises:
        DataError: columns, metrics or label names are not a tuple of str, or a label contains a lone surrogate.
    """

    metrics: tuple[str, ...] = ()

    models: ClassVar[tuple[type[PretrainedModel], ...]]
    needs: ClassVar[str]
    forms: ClassVar[tuple[Form, ...]]
    options: ClassVar[type[TaskOptions]] = TaskOptions
    files: ClassVar[str] = ""
    texts: ClassVar[tuple[int, ...]] = ()
    texts_called: ClassVar[str] = ""
    max_tokens: ClassVar[int | None] = None
    has_labels: ClassVar[bool] = False
    has_ids: ClassVar[bool] = False
    reads_pairs: ClassVar[bool] = False
    takes_prompts: ClassVar[bool] = False
    is_plain: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_texts("metrics")

    # Reading.

    @abstractmethod
    def read_table(self, table: Table, source: Source) -> Examples:
        """Read the examples of a table.

        Args:
            table: the rows of the data.
            source: the data, with the full name of the split.

        Raises:
            DataError: a row is wrong.
        """

    def read(self, source: Source) -> Examples:
        """Read the examples of a source.

        Args:
            source: the data, with the user's columns and labels.
        """
        if source.data is None:
            raise DataError(f"{self.name} needs data: {self.files}")
        if not is_path(source.data):
            table, split = table_of(source.data, self, source.split)
            return replace(self.read_table(table, replace(source, split=split)), split=split)
        path, split = self._path_and_split(user_path(source.data), source.split)
        return replace(self.read_path(path, replace(source, split=split)), split=split)

    def read_path(self, path: Path, source: Source) -> Examples:
        """Read the examples of a file, a saved data set, or a directory in a format of this task.

        Args:
            path: the file or directory.
            source: the data, with the full name of the split.
        """
        return self.read_table(read_table(path, self), source)

    def advice_on_directory(self, path: Path) -> str:
        """How to select a part of a directory in a format of this task; empty if there is no such format.

        Args:
            path: the directory that the user passed.
        """
        return ""

    def _path_and_split(self, path: Path, split: str) -> tuple[Path, str]:
        """The path to read, and its split."""
        if not is_there(path) or not is_directory(path) or is_saved_dataset(path):
            return file_and_split(path, self, split)
        advice = self.advice_on_directory(path)
        if not advice:
            raise DataError(f"{path}: is a directory; {self.name} needs {self.files}")
        if split != "validation":
            raise DataError(f"{path}: --split does not select files of a directory; {advice}, or leave --split out")
        return path, split

    def with_labels(self, names: tuple[str, ...] | None) -> "Task":
        """The task with these classes; None for regression.

        Args:
            names: the names of the classes, in the order of their ids.
        """
        return replace(self, label_names=names)

    def check_texts(self, count: int, has_labels: bool, split: str) -> None:
        """Raise `DataError` if the task cannot be read from texts in memory.

        Args:
            count: the number of texts in an example.
            has_labels: whether there are labels.
            split: the split of the data.
        """
        if not self.texts:
            raise DataError(f"{self.name} needs more than texts: give data with the columns of {self.files}")
        if count not in self.texts:
            raise DataError(f"{self.name} needs {self.texts_called}")
        if has_labels and not self.has_labels:
            raise DataError(f"{self.name} has no labels: leave them out")
        if self.has_labels and not has_labels and not split.startswith("test"):
            raise DataError(f"{self.name} needs labels=[...], one for each text; only a test split may lack them")

    # Encoding.

    @abstractmethod
    def encode(
        self, model: PretrainedModel, tokenizer: Tokenizer, examples: Examples, arguments: EncodeArguments
    ) -> EncodedDataset:
        """Encode examples for a model.

        Args:
            model: the loaded model.
            tokenizer: the tokenizer of the model.
            examples: the examples of this task.
            arguments: maximum length, prompts, seed and options of the task.

        Raises:
            BertjaxError: the model does not fit the data, or no example can be encoded.
        """

    def fits(self, model: PretrainedModel) -> bool:
        """Whether a model has the outputs for this task.

        Args:
            model: the loaded model.
        """
        return isinstance(model, self.models)

    @property
    def unmet(self) -> str:
        """The problem of other models, for messages."""
        return f"no {self.needs}, which {self.name} needs"

    def default_length(self, model: PretrainedModel, most: int) -> int:
        """The default maximum length of a text (pair), at most `most`.

        Args:
            model: the loaded model.
            most: the largest number of tokens that the model reads.
        """
        return min(most, self.max_tokens or most)

    # Metrics.

    def metric_names(self, form: OutputSpec) -> tuple[str, ...]:
        """The names of the metrics, the main one first.

        Args:
            form: the specification of the outputs.
        """
        if not form.by_rank:
            return self.metrics
        return ("spearman", "pearson") if self.kind == "regression" else ("roc_auc", "average_precision")

    def can_be_scored(self, form: OutputSpec, metric: Metric) -> bool:
        """Whether a metric can score the outputs.

        Args:
            form: the specification of the outputs.
            metric: a metric of any kind.
        """
        return form.fits(metric, self)


def metrics_of(form: OutputSpec, spec: DatasetSpec, chosen: Chosen | None = None) -> tuple[Metric, ...]:
    """The metrics of a task, the main one first.

    Args:
        form: the specification of the outputs.
        spec: the columns, labels and metrics of the dataset, such as a `Task`.
        chosen: the main metric in place of the task's: a name, a `Metric` or a function.

    Raises:
        InputError: the chosen metric cannot score the outputs.
    """
    task = as_task(spec)
    metrics = tuple(find_metric(name) for name in task.metric_names(form))
    if chosen is None:
        return metrics
    main = as_metric(chosen, "classes" if task.kind == "classification" else "numbers")
    if not task.can_be_scored(form, main):
        outputs = form.called or ("predicted classes" if task.kind == "classification" else "values")
        fitting = " or ".join(metric.name for metric in METRICS.values() if task.can_be_scored(form, metric))
        raise InputError(f"--metric {main.name} cannot score {outputs} of {task.name}: choose {fitting}")
    return (main, *(metric for metric in metrics if metric.name != main.name))


def as_task(spec: DatasetSpec) -> Task:
    """Check that a spec is a task. Raises `InputError` for other data, such as contrasts."""
    if not isinstance(spec, Task):
        raise InputError(f"{spec.name} is not a task: it has no metrics and no outputs")
    return spec


def encode_texts(
    tokenizer: Tokenizer, first: Sequence[str], second: Sequence[str] | None, max_length: int
) -> Sequence[Encoding]:
    """Tokenised texts or pairs."""
    return tuple(tokenizer.encode(first, second, max_length))


def model_labels(model: PretrainedModel) -> tuple[str, ...]:
    """The names of a model's labels, in the order of its outputs."""
    return tuple(name for _, name in sorted(model.config.id2label.items()))


def check_single_prompt(model: PretrainedModel, prompts: Sequence[str] | None) -> None:
    """Raise `InputError` for two prompts if the model reads a pair as one text."""
    if prompts is not None and len(prompts) > 1 and not isinstance(model, BertForSentenceEmbedding):
        name = model.class_name
        raise InputError(f"{name} reads a pair as one text with one prompt at its beginning: give one prompt")
