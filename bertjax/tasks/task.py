"""`Task`: what each kind of task defines. A kind is a subclass in a file of its own, registered in `registry.TASKS`."""

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

# A metric: itself, its name, or a function of labels and outputs.
Chosen: TypeAlias = Metric | str | Callable[[Any, Any], float]


@dataclass(frozen=True)
class TaskOptions:
    """The options of a task: none. A task that has some declares them in a subclass."""


@dataclass(frozen=True)
class EncodeArguments:
    """How examples are encoded.

    Args:
        max_length: tokens after which a text (pair) is cut.
        prompts: text before the first and the second texts, by names of the tokenizer's prompts or as texts; one for
            both; None for the tokenizer's own.
        seed: of random draws.
        options: the task's, of the class `Task.options`.
    """

    max_length: int
    prompts: Sequence[str] | None = None
    seed: int = 0
    options: TaskOptions = TaskOptions()


@dataclass(frozen=True)
class Task(DatasetSpec):
    """A kind of task: how its data are read, what a model computes for them, and what is scored.

    Args:
        metrics: names of metrics, the main one first.

    Attributes:
        models: the classes of models that can do it; those without a head, sentence embedders, come first.
        needs: what these models have, for messages.
        forms: what these models give for an example.
        options: the class of its own options.
        files: what data it needs, for messages.
        texts: how many texts an example of `load_examples(texts=...)` may have; none if it needs more than texts.
        texts_called: what these are, for messages.
        has_labels: whether labels and their column can be named.
        has_ids: whether the column of ids can be named.
        reads_pairs: whether an example is encoded as a pair although it has a single text.
        takes_prompts: whether prompts may stand before its texts.
        is_plain: whether its examples are nothing but texts or pairs.

    Raises:
        DataError: columns, metrics or label names are not a tuple of texts, or a label holds half a character.
    """

    metrics: tuple[str, ...] = ()

    models: ClassVar[tuple[type[PretrainedModel], ...]]
    needs: ClassVar[str]
    forms: ClassVar[tuple[Form, ...]]
    options: ClassVar[type[TaskOptions]] = TaskOptions
    files: ClassVar[str] = ""
    texts: ClassVar[tuple[int, ...]] = ()
    texts_called: ClassVar[str] = ""
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
        """Examples of a table.

        Args:
            source: whose split is its full name.

        Raises:
            DataError: a row of it is wrong.
        """

    def read(self, source: Source) -> Examples:
        """Examples of a source."""
        if source.data is None:
            raise DataError(f"{self.name} needs data: {self.files}")
        if not is_path(source.data):
            table, split = table_of(source.data, self, source.split)
            return replace(self.read_table(table, replace(source, split=split)), split=split)
        path, split = self._path_and_split(user_path(source.data), source.split)
        return replace(self.read_path(path, replace(source, split=split)), split=split)

    def read_path(self, path: Path, source: Source) -> Examples:
        """Examples of a file, of a saved dataset or of a directory of the task's own form; as `read_table`."""
        return self.read_table(read_table(path, self), source)

    def advice_on_directory(self, path: Path) -> str:
        """What to give instead of a split of a directory of the task's own form; empty if there is no such form."""
        return ""

    def _path_and_split(self, path: Path, split: str) -> tuple[Path, str]:
        """What to read, and the split that it holds."""
        is_own = is_there(path) and is_directory(path) and not is_saved_dataset(path)
        if not is_own:
            return file_and_split(path, self, split)
        advice = self.advice_on_directory(path)
        if not advice:
            raise DataError(f"{path}: is a directory; {self.name} needs {self.files}")
        if split != "validation":
            problem = "--split does not choose among files of a directory"
            raise DataError(f"{path}: {problem}; {advice}, or leave --split out")
        return path, split

    def with_labels(self, names: tuple[str, ...] | None) -> "Task":
        """The task with these classes; None for regression."""
        return replace(self, label_names=names)

    def check_texts(self, count: int, has_labels: bool, split: str) -> None:
        """Raise `DataError` if texts in memory do not suffice.

        Args:
            count: how many texts an example has.
            has_labels: whether there are labels.
        """
        if not self.texts:
            raise DataError(f"{self.name} takes no texts: give data with the columns of {self.files}")
        if count not in self.texts:
            raise DataError(f"{self.name} takes {self.texts_called}")
        if has_labels and not self.has_labels:
            raise DataError(f"{self.name} has no labels: leave them out")
        if self.has_labels and not has_labels and not split.startswith("test"):
            raise DataError(f"{self.name} needs labels=[...], one for each text; only a test split may lack them")

    # Encoding.

    @abstractmethod
    def encode(
        self, model: PretrainedModel, tokenizer: Tokenizer, examples: Examples, arguments: EncodeArguments
    ) -> EncodedDataset:
        """Examples as a model reads them.

        Raises:
            BertjaxError: the model does not fit them, or none of them can be encoded.
        """

    def fits(self, model: PretrainedModel) -> bool:
        """Whether a model can do this kind of task."""
        return isinstance(model, self.models)

    @property
    def unmet(self) -> str:
        """What other models do not have, for messages."""
        return f"no {self.needs}, which {self.name} needs"

    def default_length(self, model: PretrainedModel, most: int) -> int:
        """Tokens after which a text (pair) is cut by default, of at most `most`."""
        return most

    # Metrics.

    def metric_names(self, form: OutputSpec) -> tuple[str, ...]:
        """The metrics of outputs, the main one first; values that order examples have those of ranks."""
        if not form.by_rank:
            return self.metrics
        return ("spearman", "pearson") if self.kind == "regression" else ("roc_auc", "average_precision")

    def can_be_scored(self, form: OutputSpec, metric: Metric) -> bool:
        """Whether a metric can score the outputs."""
        return form.fits(metric, self)


def metrics_of(form: OutputSpec, spec: DatasetSpec, chosen: Chosen | None = None) -> tuple[Metric, ...]:
    """Which metrics score the outputs of a task, the main one first.

    Args:
        spec: a `Task`.
        chosen: the main metric, in place of the task's; a name, a `Metric` or a function.

    Raises:
        InputError: the chosen one cannot score such outputs.
    """
    task = as_task(spec)
    metrics = tuple(find_metric(name) for name in task.metric_names(form))
    if chosen is None:
        return metrics
    main = as_metric(chosen, "classes" if task.kind == "classification" else "numbers")
    if not task.can_be_scored(form, main):
        outputs = form.called or ("predicted classes" if task.kind == "classification" else "values")
        fitting = " or ".join(metric.name for metric in METRICS.values() if task.can_be_scored(form, metric))
        raise InputError(f"--metric {main.name} does not judge {outputs} of {task.name}: choose {fitting}")
    return (main, *(metric for metric in metrics if metric.name != main.name))


def as_task(spec: DatasetSpec) -> Task:
    """A spec that is a task.

    Raises:
        InputError: it describes data that belong to no task, such as contrasts.
    """
    if not isinstance(spec, Task):
        raise InputError(f"{spec.name} is no task: it has no metrics and no outputs of its own")
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
        raise InputError(f"{name} reads a pair as one text, whose prompt stands before the first: give one prompt")
