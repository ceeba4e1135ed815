"""A base model and those that were fine-tuned from it."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import bertjax
from bertjax import BertConfig
from bertjax.cli import Parser
from bertjax.encoded import label_order
from bertjax.errors import BertjaxError, ConfigError
from bertjax.files import hash_weights, read_weights
from bertjax.locate import locate
from bertjax.tasks import Task
from experiments.shared.program import Run
from experiments.shared.samples import task_runs

SIZES = ("num_hidden_layers", "num_attention_heads", "hidden_size", "max_position_embeddings", "vocab_size")
TEXTS_COMPARED = 100


def add_tuned_option(parser: Parser) -> None:
    """The option that names fine-tuned models: one for each task, once for each seed."""
    text = (
        "the model fine-tuned on each task, named as --model; given again: those of another seed "
        "(python -m experiments.finetune --task TASK --init pretrained makes one, in DIR/runs/TASK-pretrained-0/last)"
    )
    parser.add_argument("--tuned", nargs="+", action="append", metavar="M", help=text)


def tuned_runs(run: Run) -> dict[str, list[Run]]:
    """For each task a run with each of its fine-tuned models, a seed each.

    Raises:
        ConfigError: there are no models, or not as many as tasks.
    """
    runs: dict[str, list[Run]] = {task: [] for task in task_runs(run)}
    if not run.options.tuned:
        tasks = " ".join(dict.fromkeys(task.partition(":")[0] for task in runs))
        raise ConfigError(
            "--tuned is missing: name the model fine-tuned on each task; python -m experiments.finetune "
            f"--task {tasks} --init pretrained --output DIR makes them, in DIR/runs/TASK-pretrained-0/last"
        )
    for names in run.options.tuned:
        if len(names) != len(runs):
            raise ConfigError(
                f"--tuned names {len(names)}, --task {len(runs)}: give one fine-tuned model for each task"
            )
        for (task, one), name in zip(task_runs(run).items(), names, strict=True):
            runs[task].append(replace(one, options=Namespace(**vars(one.options) | {"tuned": name})))
    return runs


def check_tuned(run: Run, first: Sequence[str], second: Sequence[str] | None = None, task: Task | None = None) -> Path:
    """The directory of the fine-tuned model that `--tuned` names; its weights are not read.

    Args:
        first: texts that both models are to read, or the first of each pair.
        second: the second of each pair.
        task: what it was fine-tuned on, where that is known.

    Raises:
        ConfigError: it has other sizes than `--model`, reads the texts as other tokens, or classifies as another task
            does. One that comes without a tokenizer reads them alike.
    """
    directory = locate(run.options.tuned)
    config = BertConfig.from_directory(directory)
    for name in SIZES:
        base, other = getattr(run.model.config, name), getattr(config, name)
        if base != other:
            raise _unfit(run, f"has {name} {other}", f"has {base}")
    if task is not None and any("SequenceClassification" in name for name in config.architectures):
        try:
            label_order(config.id2label, task)
        except ConfigError as error:
            raise ConfigError(f"--tuned {run.options.tuned} was fine-tuned on another task: {error}") from error
    try:
        tokenizer = bertjax.Tokenizer.from_pretrained(directory)
    except BertjaxError:
        return directory
    some = first[:TEXTS_COMPARED], None if second is None else second[:TEXTS_COMPARED]
    for ours, theirs in zip(run.tokenizer.encode(*some), tokenizer.encode(*some), strict=True):
        if ours.input_ids != theirs.input_ids:
            pairs = zip(ours.tokens, theirs.tokens, strict=False)
            base, other = next((pair for pair in pairs if pair[0] != pair[1]), ("the same pieces", "other numbers"))
            raise _unfit(run, f"reads texts as other tokens ({other!r})", f"reads {base!r}")
    return directory


def tell_tuned(name: str) -> dict[str, str]:
    """What is said of a fine-tuned model in results."""
    return {"name": name, "weights_sha256": hash_weights(read_weights(locate(name)))}


def _unfit(run: Run, theirs: str, ours: str) -> ConfigError:
    return ConfigError(
        f"--tuned {run.options.tuned} {theirs}, --model {run.options.model} {ours}: "
        "give a model that was fine-tuned from the other"
    )
