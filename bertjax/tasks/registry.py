"""The tasks by name, and functions that load and encode their examples.

To add a task, write its file (a subclass of `Task`) and add it to `TASKS`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bertjax.data import (
    CUSTOM,
    LABEL,
    READABLE,
    SPELLINGS,
    Examples,
    Source,
    Tokenizer,
    draw,
    look_up,
    table_of_texts,
)
from bertjax.errors import ConfigError, DataError, InputError, some_of
from bertjax.formatting import count_of
from bertjax.models import BertForSentenceEmbedding, BertForSequenceClassification, PretrainedModel
from bertjax.tasks.classification import CUSTOM_TASK, GLUE_TASKS, SAMPLE_TASK, TextClassification, is_regression
from bertjax.tasks.encoded import EncodedDataset
from bertjax.tasks.masked_words import MASKED, MASKED_WORDS
from bertjax.tasks.minimal_pairs import AGREEMENT_TASK, MINIMAL_PAIRS, PAIRS
from bertjax.tasks.multi_label import MULTI_LABEL_TASK
from bertjax.tasks.multiple_choice import CHOOSING, MULTIPLE_CHOICE
from bertjax.tasks.outputs import Form
from bertjax.tasks.question_answering import ANSWERING, QUESTION_ANSWERING
from bertjax.tasks.ranking import RANKING, RANKING_TASK
from bertjax.tasks.task import EncodeArguments, Task, TaskOptions, as_task
from bertjax.tasks.token_classification import TAGGING, TOKEN_CLASSIFICATION, TagOptions

# The tasks by name, to which users can add tasks.
TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        *GLUE_TASKS,
        SAMPLE_TASK,
        MASKED_WORDS,
        MINIMAL_PAIRS,
        TOKEN_CLASSIFICATION,
        QUESTION_ANSWERING,
        MULTIPLE_CHOICE,
        RANKING_TASK,
        MULTI_LABEL_TASK,
        AGREEMENT_TASK,
    )
}
_OTHER_SPELLINGS: Mapping[str, str] = MappingProxyType(
    {
        **SPELLINGS,
        "blimp": PAIRS,
        "ner": TAGGING,
        "swag": CHOOSING,
        "qa": ANSWERING,
        "squad": ANSWERING,
        "retrieval": RANKING,
        "reranking": RANKING,
        "maskedlm": MASKED,
        "maskedlanguagemodeling": MASKED,
    }
)


def task_named(name: str) -> Task:
    """Find a task by its name, in any common spelling; `custom` is for data of the user.

    Args:
        name: a name such as `mrpc`, `MRPC`, `sts-b`, `glue/sst2` or `mnli_mismatched`.

    Raises:
        DataError: there is no such task.

    >>> task_named("STS-B").name, task_named("mnli_mismatched").name
    ('stsb', 'mnli-mm')
    """
    return CUSTOM_TASK if name.lower() == CUSTOM else look_up(name, TASKS, _OTHER_SPELLINGS)


def form_named(name: str) -> Form | None:
    """The output spec with a name, as in `summary.json`; None if no task in `TASKS` has it.

    Args:
        name: the name.
    """
    return next((form for task in TASKS.values() for form in task.forms if form.name == name), None)


def make_options(task: Task, values: Mapping[str, Any]) -> TaskOptions:
    """Make the options of a task.

    Args:
        values: the values of options of all tasks, by name.

    Raises:
        InputError: an option of another task has a value other than its default.
    """
    names = {field.name for field in fields(task.options)}
    for name, value in values.items():
        others = [(other, field) for other in TASKS.values() for field in fields(other.options) if field.name == name]
        if name not in names and all(value != field.default for _, field in others):
            owners = " and ".join(other.name for other, _ in others)
            problem = f"an option of {owners}, not of {task.name}" if owners else "not an option of a task"
            raise InputError(f"--{name.replace('_', '-')} is {problem}: leave it out")
    return task.options(**{name: value for name, value in values.items() if name in names})


def load_examples(
    task: str | None,
    *,
    split: str = "validation",
    data: Any = None,
    texts: Any = None,
    labels: Any = None,
    data_dir: str | Path | None = None,
    text_columns: Sequence[str] | None = None,
    label_column: str | None = None,
    id_column: str | None = None,
    label_names: Sequence[str] | None = None,
    model_labels: Sequence[str] | None = None,
    limit: int | None = None,
    seed: int | None = None,
    exclude_self: bool = False,
    tags: str = TagOptions.tags,
) -> Examples:
    """Load the examples of a task, in the order of their source.

    Without `data` and `texts`, a task of GLUE is looked up by name in TensorFlow Datasets, then on the Hugging Face hub
    or in the cache of `datasets` (`nyu-mll/glue`), and `mlm` uses the sentences of `qnli-sample`.

    Args:
        task: a name in `TASKS` in any common spelling, such as a task of GLUE, `qnli-sample` (part of bertjax) or
            `mlm` (masked words); `custom` or None for other data with labels.
        split: `train`, `validation` or `test`, or the name of any split of a saved data set. A test split may lack
            labels. If it is `validation` and the name of a file states a split, that split is recorded. Directories of
            minimal pairs and of ranking have no splits.
        data: a path or an object in memory. A path is a GLUE directory, a task's folder in it, a `.tsv`, `.csv`,
            `.jsonl` or `.parquet` file (also `.gz`), or a directory saved by HuggingFace `datasets`; for `mlm` also a
            `.txt` file with a text in each line. TSV is read without quoting, CSV with it. An object is a DataFrame of
            pandas or polars, an Arrow table or an object that exports one, a `Dataset` or `DatasetDict`, a list of
            dicts, or a dict of columns; it is not changed.
        texts: texts in place of `data`: a list of str, or of pairs of str.
        labels: the labels of `texts`: names, class ids or ratings; None for tasks without labels and test splits.
        data_dir: the directory of TensorFlow Datasets, in place of `data`.
        text_columns: one or two columns, in place of the task's. For a custom task they are guessed by usual names,
            such as `sentence1` and `sentence2`, or `text`; the `source` of the examples says so.
        label_column: the label column, in place of the task's. For a custom task it is guessed by usual names.
        id_column: the id column; by default `index` or `idx` if it has distinct integers, else ids are row indices.
        label_names: the classes in the order of their ids, in place of the task's; `()` for a regression. For a custom
            task they are by default the class names of the data (`ClassLabel` of `datasets`), or inferred from the
            labels: names in alphabetical order, integers in ascending order; other numbers are ratings.
        model_labels: the names of the model's labels in the order of its outputs. If the inferred classes of a custom
            task are integers, they are ids of these labels, and `source` says so; unless the names are generic
            (`LABEL_0`) or contain other numbers (`1 star` at index 0).
        limit: the maximum number of examples: the first ones or, with a seed, a random choice.
        seed: the seed of the random choice; without `limit` it has no effect.
        exclude_self: for `ranking`: exclude the candidate that has the id of the query, as in published scores of
            ArguAna and Quora. By default it is a candidate, as in trec_eval.
        tags: for `token-classification`: the column of CoNLL-U with the tags: `upos`, `xpos` or `deprel` (without the
            subtype).

    Returns:
        The examples; their `source` describes where they came from.

    Raises:
        DataError: the data cannot be found, read or parsed; with the line of a text file, or the row from 0.
        InputError: the task has no option `exclude_self` or `tags`.
        MissingDependencyError: TensorFlow Datasets or `datasets` is needed but not installed.

    >>> examples = load_examples("qnli-sample", limit=5, seed=0)
    >>> len(examples), examples.task.label_names
    (5, ('entailment', 'not_entailment'))
    """
    if limit is not None and limit < 1:
        raise DataError(f"limit is {limit}; it must be at least 1")
    chosen = task_named(CUSTOM if task is None else task)
    if texts is not None or labels is not None:
        _check_alone(data, data_dir, text_columns, label_column, id_column)
        data = table_of_texts(texts, labels)
        text_columns, label_column = [name for name in data.columns if name != LABEL], None if labels is None else LABEL
    if chosen is CUSTOM_TASK:
        _check_columns(text_columns)
    if label_names is not None:
        chosen = chosen.with_labels(tuple(label_names) or None)
    if data is None and (chosen.name == CUSTOM or text_columns or label_column or id_column or label_names is not None):
        raise DataError(f"columns and label names need data; give the {READABLE} file as data")
    if texts is not None:
        chosen.check_texts(len(text_columns or ()), labels is not None, split)
    _check_names(chosen, label_column or label_names is not None, id_column)
    if data is not None and data_dir is not None:
        raise DataError("data and data_dir (of TensorFlow Datasets) cannot be given together: leave one out")
    source = Source(
        split,
        data,
        data_dir,
        text_columns,
        label_column,
        id_column,
        infer_labels=chosen.name == CUSTOM and label_names is None,
        model_labels=model_labels,
        options=make_options(chosen, {"exclude_self": exclude_self, "tags": tags}),
    )
    return _limited(chosen.read(source), limit, seed)


def _check_alone(data: object, data_dir: object, *columns: object) -> None:
    """Raise `DataError` if other data or columns are combined with `texts` and `labels`."""
    if data is not None or data_dir is not None:
        other = "data_dir" if data is None else "data"
        raise DataError(f"texts and labels are the data: leave {other} out, or texts and labels")
    if any(column is not None for column in columns):
        raise DataError("texts and labels have no columns: leave text_columns, label_column and id_column out")


def _check_columns(text_columns: Sequence[str] | None) -> None:
    """Raise `DataError` unless there are one or two text columns."""
    if text_columns is not None and len(text_columns) not in (1, 2):
        named = ", ".join(text_columns or ("none",))
        raise DataError(f"a custom task needs one or two text columns; found {named}")


def _check_names(task: Task, labels: object, id_column: str | None) -> None:
    """Raise `DataError` for label or id columns that a task does not have.

    Args:
        labels: whether the user named a label column or label names.
    """
    if labels and not task.has_labels:
        raise DataError(f"{task.name} has no labels in a file: leave them out")
    if id_column is not None and not task.has_ids:
        raise DataError(f"{task.name} has no id column: leave it out")


def _limited(examples: Examples, limit: int | None, seed: int | None) -> Examples:
    if limit is None or limit >= len(examples):
        return examples
    if seed is None:
        subset, selection = examples.head(limit), f"the first {limit} taken"
    else:
        subset, selection = examples.take(draw(len(examples), limit, seed)), f"{limit} drawn with seed {seed}"
    return replace(subset, source=f"{examples.source}, {selection}")


def encode_examples(
    model: PretrainedModel,
    tokenizer: Tokenizer,
    examples: Examples,
    max_length: int | None = None,
    *,
    prompts: Sequence[str] | None = None,
    seed: int = 0,
    **options: Any,
) -> EncodedDataset:
    """Tokenise examples for a model.

    Args:
        model: a model with the outputs of the task: for labels a `BertForSequenceClassification` or
            `BertForSentenceEmbedding`.
        tokenizer: the tokenizer of the model.
        examples: the examples of the task.
        max_length: the maximum number of tokens of a text (pair); by default that of model and tokenizer, and for
            classifiers other than cross-encoders of sentence-transformers at most 128, as in GLUE's reference scripts.
        prompts: the prompts of the first and the second texts, or one for both, by name or as str
            (`Tokenizer.with_prompt`); None for the tokenizer's prompt.
        seed: the seed of random draws.
        options: the options of the task: the fields of its `Task.options`.

    Raises:
        ConfigError: the model does not have the outputs of the task.
        InputError: the task does not have an option, the maximum length exceeds the model's positions, or the
            tokenizer's ids exceed its vocabulary.
    """
    task = as_task(examples.task)
    chosen = make_options(task, options)
    length = _choose_length(model, tokenizer, examples, max_length)
    if not task.fits(model):
        raise ConfigError(f"{model.class_name} has {task.unmet}: {possible_tasks(model)}")
    if prompts is not None and not task.takes_prompts:
        raise InputError(f"--prompts are for texts with labels and similarities: {task.name} has none")
    return task.encode(model, tokenizer, examples, EncodeArguments(length, prompts, seed, chosen))


def possible_tasks(model: PretrainedModel) -> str:
    """The tasks that fit a model, as the end of a message."""
    others = [task for task in TASKS.values() if not isinstance(task, TextClassification)]
    names = [task.name for task in others if task.fits(model)]
    if isinstance(model, BertForSequenceClassification):  # perhaps of sets of labels
        labels, scores = count_of(model.config.num_labels, "label"), ", or ranking" if is_regression(model) else ""
        return f"it is a classifier with {labels}: give the task that it was fine-tuned on{scores}"
    if isinstance(model, BertForSentenceEmbedding):
        return f"it computes similarities: give a task of pairs, or --task {some_of(names, most=len(names))}"
    if names:
        return f"give --task {some_of(names, most=len(names))}"
    return "give a checkpoint with a task head, or a model of sentence-transformers"


def _choose_length(model: PretrainedModel, tokenizer: Tokenizer, examples: Examples, max_length: int | None) -> int:
    """The maximum length of a text (pair). Raises `InputError` if it or the tokenizer does not fit the model."""
    task, positions = as_task(examples.task), model.config.max_tokens
    most = min(positions, tokenizer.max_length or positions)
    length = max_length or getattr(model, "max_length", None) or task.default_length(model, most)
    if length > positions:
        raise InputError(
            f"max_length {length} is more than the model's {positions} tokens: give --max-length {positions} "
            f"(max_length={positions}) or less"
        )
    if tokenizer.vocab_size > model.config.vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the model only {model.config.vocab_size}: give the "
            "tokenizer of this model"
        )
    pairs = not isinstance(model, BertForSentenceEmbedding) and (examples.second is not None or task.reads_pairs)
    if length <= (special := tokenizer.special_tokens(pairs)):
        raise InputError(f"max_length {length} leaves no room for a text after {special} special tokens")
    return length
