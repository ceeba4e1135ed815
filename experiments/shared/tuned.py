"""A base model and the models fine-tuned from it."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import bertjax
from bertjax.checkpoints import hash_checkpoint, locate, read_config
from bertjax.cli import Parser
from bertjax.data import DatasetSpec
from bertjax.errors import BertjaxError, ConfigError
from bertjax.tasks import label_order
from experiments.shared.program import Run
from experiments.shared.samples import task_runs

SIZES = ("num_hidden_layers", "num_attention_heads", "hidden_size", "max_position_embeddings", "vocab_size")
TEXTS_COMPARED = 100
NONE = "-"  # in place of a model


def add_tuned_option(parser: Parser, *, optional: bool = False) -> None:
    """Add the option that names fine-tuned models: one for each task, given once for each seed.

    Args:
        optional: whether a task may have none.
    """
    none = f" ({NONE} for none)" if optional else ""
    text = (
        f"the model fine-tuned on each task, in their order, named as --model{none}; given again: those of another "
        "seed, and all is said of their mean and spread (python -m experiments.finetune --task TASK --init pretrained "
        "makes one, in DIR/runs/TASK-pretrained-0/last)"
    )
    parser.add_argument("--tuned", nargs="+", action="append", default=[], metavar="M", help=text)


def tuned_models(options: Namespace, tasks: Sequence[str]) -> dict[str, list[str]]:
    """The fine-tuned models of each task, one per seed, as `--tuned` names them; `NONE` stands for no model.

    Raises:
        ConfigError: the number of models differs from the number of tasks.
    """
    for names in options.tuned:
        if len(names) != len(tasks):
            raise ConfigError(
                f"--tuned names {len(names)}, --task {len(tasks)}: give one fine-tuned model for each task"
            )
    return {task: [names[n] for names in options.tuned if names[n] != NONE] for n, task in enumerate(tasks)}


def with_tuned(run: Run, name: str) -> Run:
    """The run with one fine-tuned model, as `check_tuned` expects it."""
    return replace(run, options=Namespace(**vars(run.options) | {"tuned": name}))


def tuned_runs(run: Run) -> dict[str, list[Run]]:
    """For each task, runs with its fine-tuned models, one per seed.

    Raises:
        ConfigError: there are no models, their number differs from that of the tasks, or a task has none.
    """
    runs = task_runs(run)
    models = tuned_models(run.options, list(runs))
    if missing := [task for task, names in models.items() if len(names) < max(1, len(run.options.tuned))]:
        tasks = " ".join(dict.fromkeys(task.partition(":")[0] for task in missing))
        raise ConfigError(
            "--tuned is missing: name the model fine-tuned on each task; python -m experiments.finetune "
            f"--task {tasks} --init pretrained --output DIR makes them, in DIR/runs/TASK-pretrained-0/last"
        )
    return {task: [with_tuned(runs[task], name) for name in names] for task, names in models.items()}


def check_tuned(
    run: Run, first: Sequence[str], second: Sequence[str] | None = None, task: DatasetSpec | None = None
) -> Path:
    """The directory of the fine-tuned model that `--tuned` names; its weights are not read.

    Args:
        first: texts that both models will read, or the first of each pair.
        second: the second of each pair.
        task: the task it was fine-tuned on, if known.

    Raises:
        ConfigError: it differs in size from `--model`, tokenises the texts differently, or has the labels of another
            task. A model without a tokenizer is assumed to tokenise them alike.
    """
    directory = locate(run.options.tuned)
    config = read_config(directory)
    for name in SIZES:
        base, tuned = getattr(run.model.config, name), getattr(config, name)
        if base != tuned:
            raise _unfit(run, f"has {name} {tuned}", f"has {base}")
    if task is not None and any("SequenceClassification" in name for name in config.architectures):
        try:
            label_order(config.id2label, task)
        except ConfigError as error:
            raise ConfigError(f"--tuned {run.options.tuned} was fine-tuned on another task: {error}") from error
    try:
        tokenizer = bertjax.Tokenizer.from_pretrained(directory)
    except BertjaxError:
        return directory
    sample = first[:TEXTS_COMPARED], None if second is None else second[:TEXTS_COMPARED]
    for base_encoding, tuned_encoding in zip(run.tokenizer.encode(*sample), tokenizer.encode(*sample), strict=True):
        if base_encoding.input_ids != tuned_encoding.input_ids:
            pairs = zip(base_encoding.tokens, tuned_encoding.tokens, strict=False)
            base, tuned = next((pair for pair in pairs if pair[0] != pair[1]), ("the same pieces", "other numbers"))
            raise _unfit(run, f"reads texts as other tokens ({tuned!r})", f"reads {base!r}")
    return directory


def describe_tuned(name: str) -> dict[str, str]:
    """The description of a fine-tuned model for results."""
    return {"name": name, "weights_sha256": hash_checkpoint(locate(name))}


def _unfit(run: Run, tuned_fact: str, base_fact: str) -> ConfigError:
    return ConfigError(
        f"--tuned {run.options.tuned} {tuned_fact}, --model {run.options.model} {base_fact}: "
        "give a model that was fine-tuned from the other"
    )
