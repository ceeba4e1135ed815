"""Table 1: what does fine-tuning add, and what pre-training? (Kovaleva et al. 2019)

Trains a classifier (for STS-B a regression) on tasks of GLUE from three initialisations: the pre-trained weights;
random weights N(0, 0.02); and "none", the pre-trained encoder with an untrained head, which is not trained at all. The
head is always new. The settings are the paper's: learning rate 5e-5 with 10 % warm-up and linear decay, 3 epochs,
batches of 32, at most 128 tokens, dropout 0.1; AdamW. Each run is scored on the validation set after every epoch. The
last epoch counts. Its model is in DIR/runs/TASK-INIT-SEED/last for `transformers` and for the other experiments.

Finished runs in DIR are not repeated, so tasks, initialisations and seeds can be added; the table covers all of them.

--as-published trains as the authors' program does (BertAdam: no bias correction, epsilon 1e-6, the gradient of each
parameter clipped by itself; plain random batches; rates counted over full batches; seed 42).

    python -m experiments.table1_finetuning --task mrpc --data GLUE --init pretrained        20 minutes on one CPU core
    python -m experiments.table1_finetuning --task qqp --data GLUE --hold-out 2000 --limit 2000 --seeds 0 1 2
"""

import argparse
import dataclasses
import json
import warnings
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bertjax import BertForSequenceClassification, BertModel
from bertjax.data import Examples, draw
from bertjax.models import make_numerics
from bertjax.statistics import score
from bertjax.tasks import encode_examples, load_examples, metrics_of, task_named
from experiments.shared.data import hold_out
from experiments.shared.run import Figures, Found, Numbers, Run, Runs, finite, make_parser, run_script
from experiments.training.table import INITS, draw_scores, gain_lines, scores_table, summarise
from experiments.training.trainer import Recipe, Trainer, predict

PUBLISHED_SEED = 42  # the seed of the authors' program
LENGTH = 128


def read_data(options: argparse.Namespace, task: str) -> tuple[Examples, Examples]:
    """A task's examples for training and for evaluation; with `--hold-out` a seeded split of its training data."""
    train = load_examples(task, data=options.data, split="train")
    if options.hold_out is None:
        validation = load_examples(task, data=options.data, split="validation")
    else:
        train, validation = hold_out(train, options.hold_out, options.seed)
    return train.take(draw(len(train), options.limit or len(train), options.seed)), validation


def make_model(run: Run, data: Examples, init: str, seed: int) -> BertForSequenceClassification:
    """A classifier for a task from one of the three initialisations; `seed` is for its random parts."""
    precision = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    config = run.model.config.with_dropout(run.options.dropout)
    config = dataclasses.replace(config, id2label=dict(enumerate(data.task.label_names or ("LABEL_0",))))
    if init == "random":
        config = dataclasses.replace(config, initializer_range=0.02)
    model = BertForSequenceClassification(config, jax.random.key(seed), make_numerics(precision))
    if init != "random":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about heads that are not used
            pooler = model.bert.pooler is not None  # which not every family's classifier reads
            options: dict[str, Any] = {"config": config, "dtype": precision, "seed": seed}
            model.bert = BertModel.from_pretrained(run.options.model, **options, add_pooling_layer=pooler)
    return model


def train_one(run: Run, data: tuple[Examples, Examples], init: str, recipe: Recipe, directory: Path) -> None:
    """Train and score one model, and write it and its results."""
    train, validation = data
    model = make_model(run, train, init, recipe.seed)
    length = min(LENGTH, model.config.max_tokens)
    encoded, encoded_validation = (encode_examples(model, run.tokenizer, part, length) for part in data)

    def evaluate(loss: float | None) -> dict[str, Any]:
        logits = predict(model, encoded_validation)
        metrics = metrics_of(encoded_validation.form, train.task)
        scores = {metric.name: float(score(metric, logits[None], validation.labels)[0]) for metric in metrics}
        return {"loss": loss, "scores": scores}

    epochs = [] if init != "none" else [evaluate(None)]
    if init != "none":
        trainer = Trainer(model, encoded, train.labels, recipe)
        for epoch in range(recipe.epochs):
            losses = trainer.run_epoch(epoch)
            model = trainer.model
            epochs.append(evaluate(float(np.mean(losses))))
        model.save_pretrained(directory / "last", run.tokenizer)
    facts = {"task": train.task.name, "init": init, "seed": recipe.seed, "published": recipe.published}
    facts |= {"examples": [len(train), len(validation)], "data": f"{train.sha256} {validation.sha256}"}
    facts |= {"recipe": dataclasses.asdict(recipe), "model": run.options.model, "epochs": epochs}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "result.json").write_text(json.dumps(finite(facts)))


def make_recipe(options: argparse.Namespace, seed: int) -> Recipe:
    """The recipe from the options."""
    names = [field.name for field in dataclasses.fields(Recipe) if field.name not in ("seed", "published")]
    return Recipe(**{name: getattr(options, name) for name in names}, seed=seed, published=options.as_published)


def compute(run: Run) -> Found:
    """Perform all requested runs; the results are those of all runs in the directory."""
    options, runs = run.options, run.options.output / "runs"
    data = {task_named(name).name: read_data(options, name) for name in options.task}
    seeds = options.seeds or [PUBLISHED_SEED if options.as_published else 0]
    for seed, init, task in product(seeds, options.init, data):
        published = options.as_published and init != "none"
        directory = runs / f"{task}-{init}-{seed}{'-published' if published else ''}"
        if not (directory / "result.json").exists():
            recipe = dataclasses.replace(make_recipe(options, seed), published=published)
            train_one(run, data[task], init, recipe, directory)
    found = [json.loads(path.read_text()) for path in sorted(runs.glob("*/result.json"))]
    found.sort(key=lambda one: (one["task"], INITS.index(one["init"]), one["published"], one["seed"]))
    return {"runs": found}, {}


def figures(numbers: Numbers) -> Figures:
    """The scores of each seed and the paper's."""
    settings, rows = numbers["settings"], summarise(numbers["results"]["runs"])
    subtitle = f"{settings['model']}; after {settings['epochs']} epochs"
    return {"figure": partial(draw_scores, rows=rows, title="What pre-training and fine-tuning add", subtitle=subtitle)}


def tables(runs: Runs) -> str:
    """Scores, and the mean gain by fine-tuning."""
    rows = summarise([one for numbers in runs.values() for one in numbers["results"]["runs"]])
    return "\n\n".join([scores_table(rows), *gain_lines(rows)])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser(__doc__, published=True)
    add, defaults = parser.add_argument, Recipe()
    add("--task", nargs="+", default=["rte"], metavar="T", help="tasks of GLUE (default rte)")
    add("--init", nargs="+", default=list(INITS), choices=INITS, help="initialisations (default all)")
    add("--seeds", nargs="+", type=int, metavar="S", help="a run for each (default 0; as published 42)")
    add("--data", metavar="PATH", help="GLUE directory")
    add("--hold-out", type=int, metavar="N", help="evaluate on N examples held out of the training data")
    add("--dropout", type=float, default=0.1, help="share of units dropped in training (default 0.1)")
    for field in dataclasses.fields(Recipe):
        if field.name not in ("seed", "published"):
            default = getattr(defaults, field.name)
            text = "default %(default)s"
            add(f"--{field.name.replace('_', '-')}", type=type(default), default=default, metavar="N", help=text)
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
