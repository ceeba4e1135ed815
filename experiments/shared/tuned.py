"""A base model and those that were fine-tuned from it."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import bertjax
from bertjax import BertConfig
from bertjax.encoded import label_order
from bertjax.errors import BertjaxError, ConfigError
from bertjax.files import hash_weights, read_weights
from bertjax.locate import locate
from bertjax.tasks import Task
from experiments.shared.program import Run
from experiments.shared.samples import task_runs

SIZES = ("num_hidden_layers", "num_attention_heads", "hidden_size", "max_position_embeddings", "vocab_size")
TEXTS_COMPARED = 100


def tuned_runs(run: Run) -> dict[str, Run]:
    """A run for each task, with its fine-tuned model.

    Raises:
        ConfigError: there are not as many models as tasks.
    """
    runs, names = task_runs(run), run.options.tuned
    if len(names) != len(runs):
        raise ConfigError(f"--tuned names {len(names)}, --task {len(runs)}: give one fine-tuned model for each task")
    return {
        task: replace(one, options=Namespace(**vars(one.options) | {"tuned": name}))
        for (task, one), name in zip(runs.items(), names, strict=True)
    }


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
