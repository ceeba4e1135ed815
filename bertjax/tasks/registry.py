"""The tasks by name, their examples, and these as a model reads them.

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
from bertjax.tasks.token_classification import TAGGING, TOKEN_CLASSIFICATION

# By name; add your own.
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
    """The task with this name, in any common spelling; `custom` is data of your own.

    Args:
        name: such as `mrpc`, `MRPC`, `sts-b`, `glue/sst2` or `mnli_mismatched`.

    Raises:
        DataError: there is no such task.

    >>> task_named("STS-B").name, task_named("mnli_mismatched").name
    ('stsb', 'mnli-mm')
    """
    return CUSTOM_TASK if name.lower() == CUSTOM else look_up(name, TASKS, _OTHER_SPELLINGS)


def form_named(name: str) -> Form | None:
    """The output spec that `summary.json` calls so; None for one of a task that is not in `TASKS`."""
    return next((form for task in TASKS.values() for form in task.forms if form.name == name), None)


def make_options(task: Task, values: Mapping[str, Any]) -> TaskOptions:
    """The options of a task.

    Args:
        values: of options of any task, by name.

    Raises:
        InputError: an option that the task does not have has another value than its default.
    """
    mine = {field.name for field in fields(task.options)}
    for name, value in values.items():
        others = [(other, field) for other in TASKS.values() for field in fields(other.options) if field.name == name]
        if name not in mine and all(value != field.default for _, field in others):
            flag, names = f"--{name.replace('_', '-')}", " and ".join(other.name for other, _ in others)
            owners = f"is an option of {names}, which {task.name} does not have" if names else "is no option of a task"
            raise InputError(f"{flag} {owners}: leave it out")
    return task.options(**{name: value for name, value in values.items() if name in mine})


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
) -> Examples:
    """Examples of a task, in the order of their source.

    Args:
        task: the name of a task of GLUE in any common spelling, `qnli-sample` (shipped with bertjax), `mlm` (texts
            whose words are masked), any other in `TASKS`, or `custom` or None for a file of your own.
        split: `train`, `validation` or `test`; a test split may lack labels. If it is `validation`, a file whose
            name states a split is read as that split. Of a saved dataset with several splits, any of their names.
            Other directories of minimal pairs and of ranking have no splits.
        data: a path, or an object in memory, which is not changed: a DataFrame of pandas or polars, an Arrow table or
            anything else that exports one, a `Dataset` of `datasets`, a `DatasetDict` of which `split` chooses one, a
            list of dicts, or a dict of columns. It has the columns of a file. A path is that of a GLUE directory, a
            task's folder in it, a `.tsv`, `.csv`, `.jsonl` or `.parquet` file (also `.gz`), or a directory saved by
            HuggingFace `datasets`. TSV is read without quoting, CSV with it. For `mlm` also a `.txt` file with a text
            in each line; ` @-@ ` and the like, as WikiText has them, are joined. Where neither `data` nor `texts` is
            there, `mlm` reads the sentences of `qnli-sample`, and a task of GLUE is looked up by its name: in
            TensorFlow Datasets, then on the Hugging Face hub or in the cache of `datasets` (`nyu-mll/glue`).
        texts: in place of `data` and columns: a list of str, or of pairs of str.
        labels: of `texts`, one for each: names, class numbers or ratings; None for tasks without labels and for a test
            split.
        data_dir: the directory of TensorFlow Datasets, which is then read; its default where None.
        text_columns: one or two columns of your file, in place of the task's; for a custom task they are guessed
            where just one or two are called as texts are, such as `sentence1` and `sentence2`, or `text`.
        label_column: the column of labels, in place of the task's; by default `label` for a custom task, or the one
            that is called as labels are. The `source` of the examples says what was guessed.
        id_column: the column of ids; by default `index` or `idx` if it holds distinct whole numbers, else rows are
            numbered from 0.
        label_names: the classes in the order of their numbers, in place of the task's. For a custom task they are
            otherwise those that the file names (`ClassLabel` of `datasets`), or are taken from the labels: names in
            alphabetical order, whole numbers in ascending order; other numbers make it a regression, as `()` does.
        model_labels: the names of the model's labels in the order of its outputs. Where the classes of a custom task
            are inferred and are numbers, these number the model's labels from 0, and `source` says so; unless the
            names say nothing (`LABEL_0`) or have numbers of their own (`1 star`, the first).
        limit: the most examples to take: the first ones or, with a seed, a random choice.
        seed: of the random choice; without `limit` it has no effect.
        exclude_self: of `ranking`: leave out the candidate that has the query's id, its own document, as in the
            published scores of ArguAna and Quora. By default it is a candidate like any other, as in trec_eval.

    Returns:
        The examples; their `source` says where they came from.

    Raises:
        DataError: the examples cannot be found, read or parsed; with the line of a text file, or the row from 0.
        InputError: the task has no candidates to exclude.
        MissingDependencyError: TensorFlow Datasets, or `datasets`, is needed but not installed.

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
        raise DataError(f"columns or label names are of your own file; give the {READABLE} file as data")
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
        options=make_options(chosen, {"exclude_self": exclude_self}),
    )
    return _limited(chosen.read(source), limit, seed)


def _check_alone(data: object, data_dir: object, *columns: object) -> None:
    """Raise `DataError` where `texts` or `labels` are given and so are other data, or names of columns."""
    if data is not None or data_dir is not None:
        other = "data_dir" if data is None else "data"
        raise DataError(f"texts and labels are data by themselves: leave {other} out, or texts and labels")
    if any(column is not None for column in columns):
        raise DataError("texts and labels have no columns: leave text_columns, label_column and id_column out")


def _check_columns(text_columns: Sequence[str] | None) -> None:
    """Raise `DataError` for other than one or two text columns."""
    if text_columns is not None and len(text_columns) not in (1, 2):
        named = ", ".join(text_columns or ("none",))
        raise DataError(f"a custom task needs the names of one or two text columns; found {named}")


def _check_names(task: Task, labels: object, id_column: str | None) -> None:
    """Raise `DataError` for names of columns or labels that a task does not have.

    Args:
        labels: whether a column or names of labels are chosen.
    """
    if labels and not task.has_labels:
        raise DataError(f"{task.name} has no labels in a file: leave them out")
    if id_column is not None and not task.has_ids:
        raise DataError(f"{task.name} takes no id column: leave it out")


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
        model: one that can do the task: for labels a `BertForSequenceClassification` or `BertForSentenceEmbedding`.
        max_length: tokens after which a text (pair) is cut; default what model and tokenizer say, and for classifiers
            that are no cross-encoders of sentence-transformers at most 128, as GLUE's reference scripts do.
        prompts: text before the first and the second texts, by names of the tokenizer's prompts or as texts
            (`Tokenizer.with_prompt`); one for both; None for the tokenizer's own.
        seed: of random draws.
        options: of the task: the fields of its `Task.options`.

    Raises:
        ConfigError: the model has no outputs that the task's metrics could read.
        InputError: the task does not have such an option, the maximum length is beyond the model's positions, or the
            tokenizer's ids are beyond its vocabulary.
    """
    task = as_task(examples.task)
    chosen = make_options(task, options)
    length = _choose_length(model, tokenizer, examples, max_length)
    if not task.fits(model):
        raise ConfigError(f"{model.class_name} has {task.unmet}: {what_it_can_do(model)}")
    if prompts is not None and not task.takes_prompts:
        raise InputError(f"--prompts stand before texts of labels and similarities: {task.name} takes none")
    return task.encode(model, tokenizer, examples, EncodeArguments(length, prompts, seed, chosen))


def what_it_can_do(model: PretrainedModel) -> str:
    """Which tasks fit a model, as the end of a message."""
    others = [task for task in TASKS.values() if not isinstance(task, TextClassification)]
    names = [task.name for task in others if task.fits(model)]
    if isinstance(model, BertForSequenceClassification):  # it does not say whether it was trained for sets of labels
        labels, scores = count_of(model.config.num_labels, "label"), ", or ranking" if is_regression(model) else ""
        return f"it is a classifier of {labels}: give the task that it was fine-tuned on{scores}"
    if isinstance(model, BertForSentenceEmbedding):
        return f"it measures similarities: give a task of pairs, or --task {some_of(names, most=len(names))}"
    if names:
        return f"it can do --task {some_of(names, most=len(names))}"
    return "give a checkpoint with a head for a task, or one of sentence-transformers"


def _choose_length(model: PretrainedModel, tokenizer: Tokenizer, examples: Examples, max_length: int | None) -> int:
    """Tokens after which a text (pair) is cut. Raises `InputError` if that or the tokenizer does not fit."""
    task, positions = as_task(examples.task), model.config.max_tokens
    most = min(positions, tokenizer.max_length or positions)
    length = max_length or getattr(model, "max_length", None) or task.default_length(model, most)
    if length > positions:
        raise InputError(
            f"max_length {length} is more than the {positions} tokens that the model takes: give --max-length "
            f"{positions} (max_length={positions}) or less"
        )
    if tokenizer.vocab_size > model.config.vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the model only {model.config.vocab_size}: "
            "they do not belong together"
        )
    pairs = not isinstance(model, BertForSentenceEmbedding) and (examples.second is not None or task.reads_pairs)
    if length <= (special := tokenizer.special_tokens(pairs)):
        raise InputError(f"max_length {length} leaves no room for a text beside {special} special tokens")
    return length
