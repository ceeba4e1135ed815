"""What does fine-tuning add, and what pre-training? (Kovaleva et al. 2019, table 1)

Trains a classifier (for STS-B a regression) on tasks of GLUE from three initialisations: the pre-trained weights;
random weights N(0, 0.02); and "none", the pre-trained encoder with an untrained head, which is not trained at all. The
head is always new, even where the checkpoint has one. The settings are the paper's: learning rate 5e-5 with 10 %
warm-up and linear decay, 3 epochs, batches of 32, at most 128 tokens, dropout 0.1 (only in training); AdamW. Each run
is scored on the validation set after every epoch. The last epoch counts; the best one, chosen on the data that scores
it, is listed beside it. The model after the last epoch is kept in DIR/runs/TASK-INIT-SEED/last for `transformers` and
for the other experiments.

A killed run resumes after its last full epoch, on a CPU to the same bytes (the same command without --overwrite). Runs
already in DIR are not repeated, so tasks, initialisations and seeds can be added; table, values and figure cover all
finished runs in DIR with the same settings. Several devices share each batch.

--as-published trains as the authors' program does (BertAdam: no bias correction, epsilon 1e-6, the gradient of each
parameter clipped by itself; plain random batches; rates counted over full batches; seed 42), in
DIR/runs/TASK-INIT-SEED-published; the table has both kinds of runs that DIR holds, and their difference.

    python -m experiments.finetune --task mrpc --data GLUE --init pretrained        20 minutes on one CPU core
    python -m experiments.finetune --task qqp --data GLUE --hold-out 2000 --limit 2000 --seeds 0 1 2

For the results see `RESULTS.md`.
"""

import argparse
import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.table import Table

from bertjax import BertForSequenceClassification, BertModel
from bertjax.checkpoints import CheckpointWarning, hash_checkpoint, locate, read_config
from bertjax.cli import Parser, positive
from bertjax.console import say
from bertjax.data import Examples, draw
from bertjax.errors import DataError, Interrupted
from bertjax.evidence import score
from bertjax.model import PretrainedModel, make_numerics
from bertjax.paths import is_file, user_path
from bertjax.tasks import EncodedDataset, encode_examples, metrics_of
from experiments.shared.program import (
    Outcome,
    Run,
    above_zero,
    describe_settings,
    fraction,
    make_parser,
    run_program,
    whole,
)
from experiments.shared.samples import hold_out, known_task, read_examples
from experiments.training.state import Epoch, Result, RunDirectory, finished_runs, read_logits, run_name
from experiments.training.table import (
    INITS,
    Trained,
    draw_scores,
    gain_lines,
    make_table,
    markdown_table,
    read_runs,
    recipe_lines,
    summarise,
)
from experiments.training.trainer import Recipe, Trainer, predict

PUBLISHED_SEED = 42  # the authors' program's seed


@dataclasses.dataclass(frozen=True)
class Data:
    """A task's examples for training and for evaluation."""

    train: Examples
    validation: Examples

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """The description of the two parts in results."""
        return {part: {"source": examples.source, "examples": len(examples)} for part, examples in vars(self).items()}


def read_data(run: Run, task: str) -> Data:
    """The two parts of a task's data: GLUE's own, or with `--hold-out` a seeded split of its training data.

    Raises:
        DataError: the data cannot be found, read or understood, are too few, or both parts are the same file.
    """
    options = run.options
    train = _read(run, task, "train")
    if options.hold_out is None:
        if options.data is not None and is_file(user_path(options.data)):
            hint = "give a GLUE directory, or --hold-out N to judge by N of its examples"
            raise DataError(f"{options.data} cannot be both learnt from and judged by: {hint}")
        try:
            validation = _read(run, task, "validation")
        except DataError as error:
            raise DataError(f"{error} (--hold-out N judges by N examples of the training data instead)") from error
    else:
        train, validation = hold_out(train, options.hold_out, options.seed)
    return Data(train.take(draw(len(train), options.limit or len(train), options.seed)), validation)


def _read(run: Run, task: str, split: str) -> Examples:
    """All examples of a split."""
    return read_examples(argparse.Namespace(**vars(run.options) | {"task": task, "split": split, "limit": None}))


def make_model(run: Run, data: Data, init: str, seed: int) -> BertForSequenceClassification:
    """A classifier for a task from one of the three initialisations; `seed` is for its random parts."""
    options, directory = run.options, locate(run.options.model)
    names = data.train.task.label_names or ("LABEL_0",)
    config = read_config(directory).with_dropout(options.dropout)
    config = dataclasses.replace(config, id2label=dict(enumerate(names)))
    if init == "random":
        config = dataclasses.replace(config, initializer_range=0.02)
    model = BertForSequenceClassification(config, jax.random.key(seed), make_numerics(options.precision))
    if init != "random":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CheckpointWarning)  # about heads that are not used
            pooler = model.bert.pooler is not None  # which not every family's classifier reads
            model.bert = BertModel.from_pretrained(
                directory, config=config, dtype=options.precision, seed=seed, add_pooling_layer=pooler
            )
    return model


def train_one(
    run: Run, data: Data, settings: dict[str, Any], init: str, seed: int, advance: Callable[[float, str], None]
) -> None:
    """Perform one run, or what is left of it, and write its results to its directory.

    Args:
        settings: those that all runs of the command share.
        advance: called with the share done and a note.

    Raises:
        OutputError: its directory holds another run, or cannot be written.
    """
    assert run.directory is not None
    choices = {name: getattr(run.options, name) for name in ("limit", "hold_out", "seed", "data")}
    recipe = make_recipe(run, seed)
    facts = _facts(data, settings, init, recipe)
    directory = RunDirectory(run.directory / "runs" / run_name(facts), facts, choices)
    if run.options.overwrite:
        directory.discard()
    if directory.is_finished():
        return
    model = make_model(run, data, init, seed)
    length = min(run.options.max_length, model.config.max_tokens)
    encoded, validation = (
        encode_examples(model, run.tokenizer, part, length) for part in (data.train, data.validation)
    )
    if init == "none":
        epochs: list[Epoch] = []
        _judge(data, model, validation, None, epochs, directory)
    else:
        trainer = Trainer(model, encoded, data.train.labels, recipe)
        epochs = _train(trainer, data, validation, directory, advance)
        directory.save_model(trainer.model, run.tokenizer)
    directory.finish(data.to_dict(), epochs)


def _train(
    trainer: Trainer,
    data: Data,
    judged: EncodedDataset,
    directory: RunDirectory,
    advance: Callable[[float, str], None],
) -> list[Epoch]:
    """Train from the last checkpoint; save one after each epoch."""
    saved_state = directory.load_state((trainer.parameters, trainer.memory))
    epochs: list[Epoch] = []
    if saved_state is not None:
        (trainer.parameters, trainer.memory), epochs = saved_state
        say(f"{directory.path.name}: {len(epochs)} of {trainer.recipe.epochs} epochs are there, resuming after them")
    for epoch in range(len(epochs), trainer.recipe.epochs):
        losses: list[float] = []
        try:
            for loss in trainer.run_epoch(epoch):
                losses.append(loss)
                share = (epoch + len(losses) / trainer.steps) / trainer.recipe.epochs
                note = f"{epoch + 1}/{trainer.recipe.epochs} loss {np.mean(losses[-20:]):.2f}{_last(epochs)}"
                advance(share, note)
        except KeyboardInterrupt as interruption:
            message = f"{epoch} of {trainer.recipe.epochs} epochs of {directory.path.name} are saved"
            raise Interrupted(message) from interruption
        _judge(data, trainer.model, judged, float(np.mean(losses)), epochs, directory)
        directory.save_state((trainer.parameters, trainer.memory), epochs)
    return epochs


def _judge(
    data: Data,
    model: PretrainedModel,
    judged: EncodedDataset,
    loss: float | None,
    epochs: list[Epoch],
    directory: RunDirectory,
) -> None:
    """Score a model, append the scores to `epochs`, and save its logits over those of the previous epoch."""
    logits, labels = predict(model, judged), data.validation.labels
    metrics = metrics_of(judged.form, data.train.task)
    scores = {metric.name: float(score(metric, logits[None], labels)[0]) for metric in metrics}
    epochs.append(Epoch(loss, {name: None if np.isnan(value) else value for name, value in scores.items()}))
    directory.save_logits(logits, labels)


def _last(epochs: Sequence[Epoch]) -> str:
    """The validation scores after the last epoch, in points, for the progress bar."""
    scores = epochs[-1].scores if epochs else {}
    return "".join(f" {name} {100 * value:.1f}" for name, value in scores.items() if value is not None)


def make_recipe(run: Run, seed: int) -> Recipe:
    """The recipe from the options."""
    names = [field.name for field in dataclasses.fields(Recipe) if field.name not in ("seed", "published")]
    numbers = {name: getattr(run.options, name) for name in names}
    return Recipe(**numbers, seed=seed, published=run.options.as_published)


def _settings(run: Run) -> dict[str, Any]:
    """The settings that all runs of a table share."""
    options = run.options
    model = {"model": options.model, "weights_sha256": hash_checkpoint(locate(options.model))}
    settings = {name: getattr(options, name) for name in ("dropout", "max_length", "precision")}
    recipe = dataclasses.asdict(make_recipe(run, 0))
    del recipe["seed"], recipe["published"]
    return model | settings | recipe


def _facts(data: Data, settings: dict[str, Any], init: str, recipe: Recipe) -> dict[str, Any]:
    """The facts that identify a run; a run without training does not count as published."""
    parts = {f"{name}_sha256": getattr(data, name).sha256 for name in ("train", "validation")}
    published = recipe.published and init != "none"
    identity = {"task": data.train.task.name, "init": init, "seed": recipe.seed, "published": published}
    return {**identity, **settings, **parts}


def compute(run: Run) -> Outcome:
    """Perform all requested runs; the table covers them and the other runs in the directory."""
    options = run.options
    assert run.directory is not None
    options.precision = options.precision or ("float32" if jax.default_backend() == "cpu" else "bfloat16")
    if named := [name for name in options.task if ":" in name]:
        raise DataError(f"--task {named[0]}: name no split; a task is learnt from and judged by its own")
    data = {name: read_data(run, name) for name in dict.fromkeys(known_task(name).name for name in options.task)}
    seeds = options.seeds or [PUBLISHED_SEED if options.as_published else 0]
    planned = [(seed, init, name) for seed in seeds for init in options.init for name in data]
    planned = list(dict.fromkeys(planned))
    settings = _settings(run)
    for number, (seed, init, name) in enumerate(planned):

        def advance(share: float, note: str, number: int = number, name: str = name, init: str = init) -> None:
            run.report(number + share, float(len(planned)), f"{name} {init} {note}")

        train_one(run, data[name], settings, init, seed, advance)
    results, skipped = finished_runs(run.directory / "runs", settings)
    tasks = list(dict.fromkeys([*data, *(result.facts["task"] for result in results)]))

    def order(result: Result) -> tuple[int, int, bool, int]:
        facts = result.facts
        return tasks.index(facts["task"]), INITS.index(facts["init"]), facts["published"], facts["seed"]

    results.sort(key=order)
    return _outcome(run, results, skipped)


def _outcome(run: Run, results: Sequence[Result], skipped: int) -> Outcome:
    assert run.directory is not None
    runs = [_trained(result) for result in results]
    rows = summarise(runs)
    record = {
        "data": {result.name: result.data for result in results},
        "runs": [dataclasses.asdict(trained) for trained in runs],
    }
    numbers = {"program": run.options.name, "settings": describe_settings(run.options), "results": record}
    values: dict[str, np.ndarray] = {}
    for result in results:
        arrays = read_logits(run.directory / "runs" / result.name)
        values |= {f"{part}_{result.name.replace('-', '_')}": arrays[part] for part in ("logits", "labels")}
    reason = "of other settings, or that cannot be read, are not in the table"
    notes = [f"{skipped} results in {run.directory / 'runs'} {reason}"] if skipped else []
    lines: list[str | Table] = [make_table(rows), *gain_lines(rows), *recipe_lines(rows), *notes]
    return Outcome(record, values, figures(numbers)["figure"], lines)


def _trained(result: Result) -> Trained:
    facts, examples = result.facts, (result.data["train"]["examples"], result.data["validation"]["examples"])
    data = f"{facts['train_sha256']} {facts['validation_sha256']}"
    return Trained(
        task=facts["task"],
        init=facts["init"],
        seed=facts["seed"],
        examples=examples,
        epochs=tuple(result.epochs),
        published=facts["published"],
        data=data,
    )


def figures(numbers: Mapping[str, Any]) -> dict[str, Callable[[Path], None]]:
    """The function that draws the figure, from a run's `numbers.json`."""
    settings, rows = numbers["settings"], summarise(read_runs(numbers["results"]))
    subtitle = f"{settings['model']}; after {settings['epochs']} epochs"
    return {"figure": partial(draw_scores, rows=rows, title="What pre-training and fine-tuning add", subtitle=subtitle)}


def tables(numbers: Mapping[str, Any]) -> str:
    """The table in Markdown, from a run's `numbers.json`."""
    rows = summarise(read_runs(numbers["results"]))
    return "\n\n".join([markdown_table(rows), *gain_lines(rows), *recipe_lines(rows)])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser("finetune", __doc__)
    defaults = Recipe()
    parser.add_argument("--task", nargs="+", default=["rte"], metavar="T", help="tasks of GLUE (default rte)")
    parser.add_argument("--init", nargs="+", default=list(INITS), choices=INITS, help="beginnings (default all)")
    each = "a run for each: new head, random weights, order, dropout (default 0; as published 42)"
    parser.add_argument("--seeds", nargs="+", type=whole, metavar="S", help=each)
    parser.add_argument("--data", metavar="PATH", help="GLUE directory, in place of TensorFlow Datasets")
    parser.add_argument("--data-dir", metavar="DIR", help="directory of TensorFlow Datasets")
    parser.add_argument(
        "--hold-out", type=positive, metavar="N", help="judge by N examples held out of the training data"
    )
    add = partial(_add_number, parser)
    add("--max-length", 128, "tokens after which texts are cut", positive)
    add("--epochs", defaults.epochs, "times that every example is seen", positive)
    add("--batch-size", defaults.batch_size, "examples of a step", positive)
    add("--learning-rate", defaults.learning_rate, "the highest", fraction)
    add("--warmup", defaults.warmup, "share of the steps until then", fraction)
    add("--weight-decay", defaults.weight_decay, "of kernels and embeddings", fraction)
    add("--largest-gradient", defaults.largest_gradient, "norm that gradients are scaled down to", above_zero)
    add("--dropout", 0.1, "share of units dropped in training", fraction)
    usual = "default bfloat16 on GPU and TPU, else float32"
    parser.add_argument("--precision", choices=["float32", "bfloat16"], help=f"of matrix products ({usual})")
    return run_program(parser, compute, arguments, extends=True)


def _add_number(parser: Parser, name: str, default: int | float, words: str, kind: Callable[[str], float]) -> None:
    parser.add_argument(name, type=kind, default=default, metavar="N", help=f"{words} (default {default})")


if __name__ == "__main__":
    raise SystemExit(main())
