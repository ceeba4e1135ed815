"""What does fine-tuning add, and what pre-training? (Kovaleva et al. 2019, table 1)

Trains a classifier (for STS-B a regression) on tasks of GLUE from three beginnings: the pre-trained weights; random
weights N(0, 0.02); and "none", the pre-trained encoder with an untrained head, which is not trained at all. The
settings are the paper's: AdamW, learning rate 5e-5 with 10 % warm-up and linear decay, 3 epochs, batches of 32, at most
128 tokens, dropout 0.1 (in training alone). Each run is scored on the validation set after every epoch; the model of
the best epoch is kept in DIR/runs/TASK-INIT-SEED/best for `transformers` and for the other experiments.

A run that was killed goes on after its last full epoch, to the same bytes. Runs that DIR holds are not run again, so
that tasks, beginnings and seeds can be added. Several devices share each batch.

--as-published reads the data as the authors did, with quote handling that loses rows; they trained with one seed.

    python -m experiments.finetune --task rte --data GLUE
    python -m experiments.finetune --task qqp --data GLUE --hold-out 2000 --limit 2000 --seeds 0 1 2
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

from bertjax import BertConfig, BertForSequenceClassification
from bertjax.cli import Parser, positive
from bertjax.compile_cache import use_compile_cache
from bertjax.data import Examples, draw, task_named
from bertjax.errors import DataError
from bertjax.files import CheckpointWarning
from bertjax.locate import locate
from bertjax.metrics import UNLABELLED, score
from bertjax.task_outputs import Encoded, encode_examples
from experiments.shared.program import Outcome, Run, make_parser, run_program
from experiments.shared.samples import read_examples, read_published_examples
from experiments.training.state import LOGITS, Epoch, RunDirectory
from experiments.training.table import INITS, Trained, draw_scores, make_table, summarise
from experiments.training.trainer import Recipe, Trainer, predict


@dataclasses.dataclass(frozen=True)
class Data:
    """A task's examples to learn from and to be judged by."""

    train: Examples
    validation: Examples


def read_data(run: Run, task: str) -> Data:
    """The two parts of a task's data: GLUE's own, or with `--hold-out` a seeded split of its training data.

    Raises:
        DataError: they cannot be found, read or understood, or there are too few.
    """
    options = run.options
    train = _read(run, task, "train")
    if options.hold_out is None:
        validation = _read(run, task, "validation")
    elif options.hold_out >= len(train):
        raise DataError(f"{task} has {len(train)} examples for training: {options.hold_out} cannot be held out")
    else:
        held = draw(len(train), options.hold_out, options.seed)
        validation, train = train.take(held), train.take(sorted(set(range(len(train))) - set(held)))
    return Data(train.take(draw(len(train), options.limit or len(train), options.seed)), validation)


def _read(run: Run, task: str, split: str) -> Examples:
    """All examples of a split that have a label."""
    read = read_published_examples if run.options.as_published else read_examples
    found = read(argparse.Namespace(**vars(run.options) | {"task": task, "split": split, "limit": None}))
    labelled = np.isfinite(found.labels) if found.labels.dtype.kind == "f" else found.labels != UNLABELLED
    return found if labelled.all() else found.take(np.flatnonzero(labelled).tolist())


def make_model(run: Run, data: Data, init: str, seed: int) -> BertForSequenceClassification:
    """A classifier for a task at one of the three beginnings; `seed` is of what is random in it."""
    options, directory = run.options, locate(run.options.model)
    names = data.train.task.label_names or ("LABEL_0",)
    config = dataclasses.replace(
        BertConfig.from_directory(directory),
        hidden_dropout_prob=options.dropout,
        attention_probs_dropout_prob=options.dropout,
        classifier_dropout=None,
        id2label=tuple(enumerate(names)),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)  # the head is new, and is meant to be
        model = BertForSequenceClassification.from_pretrained(
            directory, config=config, dtype=options.precision, seed=seed
        )
    if init != "random":
        return model
    config = dataclasses.replace(config, initializer_range=0.02)
    return BertForSequenceClassification(config, jax.random.key(seed), model.numerics)


def train_one(run: Run, data: Data, init: str, seed: int, advance: Callable[[float, str], None]) -> Trained:
    """One run, or what is left of it.

    Args:
        advance: is told the share that is done, and a note.

    Raises:
        OutputError: its directory holds another run, or cannot be written.
    """
    assert run.directory is not None
    directory = RunDirectory(run.directory / "runs" / run_name(data, init, seed), _facts(run, data, init, seed))
    if run.options.overwrite:
        directory.discard()
    epochs = directory.result()
    if epochs is None:
        model = make_model(run, data, init, seed)
        length = min(run.options.max_length, model.config.max_position_embeddings)
        encoded, judged = (
            encode_examples(model, run.tokenizer, part, length) for part in (data.train, data.validation)
        )
        if init == "none":
            epochs = []
            _judge(data, model, judged, None, epochs, directory, None)
        else:
            trainer = Trainer(model, encoded, data.train.labels, make_recipe(run, seed))
            epochs = _train(trainer, data, judged, directory, locate(run.options.model), advance)
        directory.finish(epochs)
    examples = len(data.train), len(data.validation)
    return Trained(data.train.task.name, init, seed, examples, tuple(epochs), best_epoch(epochs))


def _train(
    trainer: Trainer,
    data: Data,
    judged: Encoded,
    directory: RunDirectory,
    source: Path,
    advance: Callable[[float, str], None],
) -> list[Epoch]:
    """Train from the last checkpoint on; keep one after each epoch, and the best model."""
    kept = directory.load_state((trainer.parameters, trainer.memory))
    epochs: list[Epoch] = []
    if kept is not None:
        (trainer.parameters, trainer.memory), epochs = kept
    for epoch in range(len(epochs), trainer.recipe.epochs):
        losses: list[float] = []
        for loss in trainer.run_epoch(epoch):
            losses.append(loss)
            share = (epoch + len(losses) / trainer.steps) / trainer.recipe.epochs
            advance(share, f"epoch {epoch + 1}, loss {np.mean(losses[-20:]):.3f}{_last(epochs)}")
        _judge(data, trainer.model, judged, float(np.mean(losses)), epochs, directory, source)
        directory.save_state((trainer.parameters, trainer.memory), epochs)
    return epochs


def _judge(
    data: Data,
    model: Any,
    judged: Encoded,
    loss: float | None,
    epochs: list[Epoch],
    directory: RunDirectory,
    source: Path | None,
) -> None:
    """Score a model, add that to the epochs, and keep its logits if it is the best so far.

    Args:
        source: where its tokenizer is, to keep the model too; None for a model that was not trained.
    """
    logits, labels = predict(model, judged), data.validation.labels
    scores = {name: float(score(name, logits[None], labels)[0]) for name in data.train.task.metrics}
    epochs.append(Epoch(loss, {name: None if np.isnan(value) else value for name, value in scores.items()}))
    if best_epoch(epochs) == len(epochs) - 1:
        directory.save_logits(logits, labels)
        if source is not None:
            directory.save_best(model, source)


def best_epoch(epochs: Sequence[Epoch]) -> int:
    """The epoch with the highest main score (the first metric), the first of equal ones; undefined is lowest.

    >>> best_epoch([Epoch(0.7, {"f1": None}), Epoch(0.6, {"f1": 0.8}), Epoch(0.5, {"f1": 0.8})])
    1
    """
    main = [next(iter(epoch.scores.values())) for epoch in epochs]
    return int(np.argmax([-np.inf if value is None else value for value in main]))


def _last(epochs: Sequence[Epoch]) -> str:
    """The validation scores after the last epoch, in points, for the progress bar."""
    found = epochs[-1].scores if epochs else {}
    return "".join(f", {name} {100 * value:.1f}" for name, value in found.items() if value is not None)


def run_name(data: Data, init: str, seed: int) -> str:
    """What a run's directory is called."""
    return f"{data.train.task.name}-{init}-{seed}"


def make_recipe(run: Run, seed: int) -> Recipe:
    """The options that are the recipe's."""
    names = [field.name for field in dataclasses.fields(Recipe) if field.name != "seed"]
    return Recipe(**{name: getattr(run.options, name) for name in names}, seed=seed)


def _facts(run: Run, data: Data, init: str, seed: int) -> dict[str, Any]:
    """What makes a run what it is."""
    options = run.options
    parts = {f"{name}_sha256": getattr(data, name).sha256 for name in ("train", "validation")}
    facts = {"model": options.model, "init": init, "dropout": options.dropout, "max_length": options.max_length}
    return {**facts, "precision": options.precision, **dataclasses.asdict(make_recipe(run, seed)), **parts}


def compute(run: Run) -> Outcome:
    """All runs that are asked for, and the table of them."""
    use_compile_cache()
    options = run.options
    several = {name: read_data(run, name) for name in dict.fromkeys(task_named(name).name for name in options.task)}
    wanted = [(seed, init, name) for seed in options.seeds for init in options.init for name in several]
    runs = []
    for number, (seed, init, name) in enumerate(wanted):

        def advance(share: float, note: str, number: int = number, name: str = name, init: str = init) -> None:
            run.report(number + share, float(len(wanted)), f"{name} {init} {note}")

        runs.append(train_one(run, several[name], init, seed, advance))
    runs.sort(key=lambda one: (list(several).index(one.task), INITS.index(one.init), one.seed))
    return _outcome(run, several, runs)


def _outcome(run: Run, several: Mapping[str, Data], runs: Sequence[Trained]) -> Outcome:
    rows = summarise(runs)
    numbers = {
        "data": {
            name: {part: {"source": found.source, "examples": len(found)} for part, found in vars(data).items()}
            for name, data in several.items()
        },
        "runs": [dataclasses.asdict(one) for one in runs],
        "table": [row.as_json() for row in rows],
    }
    values: dict[str, np.ndarray] = {}
    for one in runs:
        assert run.directory is not None
        found = np.load(run.directory / "runs" / f"{one.task}-{one.init}-{one.seed}" / LOGITS)
        values |= {f"logits_{one.task}_{one.init}_{one.seed}": found["logits"], f"labels_{one.task}": found["labels"]}
    size = "" if run.options.limit is None else f", {run.options.limit:,} examples of each task to learn from"
    subtitle = f"{run.options.model}{size}; best of {run.options.epochs} epochs"

    def draw_figure(path: Path) -> None:
        draw_scores(path, rows, "What pre-training and fine-tuning add", subtitle)

    return Outcome(numbers, values, draw_figure, [make_table(rows)])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser("finetune", __doc__)
    defaults = Recipe()
    parser.add_argument("--task", nargs="+", default=["rte"], metavar="T", help="tasks of GLUE (default rte)")
    parser.add_argument("--init", nargs="+", default=list(INITS), choices=INITS, help="beginnings (default all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="S", help="a run for each (default 0)")
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
    add("--largest-gradient", defaults.largest_gradient, "norm that gradients are scaled down to", float)
    add("--dropout", 0.1, "share of units dropped in training", fraction)
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"], help="(default float32)")
    return run_program(parser, compute, arguments, extends=True)


def _add_number(parser: Parser, name: str, default: int | float, words: str, kind: Callable[[str], float]) -> None:
    parser.add_argument(name, type=kind, default=default, metavar="N", help=f"{words} (default {default})")


def fraction(text: str) -> float:
    """A number from 0 up to but not including 1, as the type of an option."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to below 1")
    return found


if __name__ == "__main__":
    raise SystemExit(main())
