"""Can more heads go if the model learns while their gates close? (Voita et al. 2019, Louizos et al. 2018)

Takes a fine-tuned classifier and the results of `bertjax prune` for it, and learns gates on the task's training data at
several prices of an open gate: of the model as it is, and while all of its weights learn too. Each run starts from the
fine-tuned model with gates that are open; price 0 is the control: what more training does by itself. A head whose gate
is open less than half of the time is taken out, all others stay whole; what is left is judged by the examples that
judged the orders of `bertjax prune`, which chose nothing here either, and drawn beside these.

    bertjax prune --model DIR/last --task mrpc --data GLUE --mode zero --output PRUNED
    python -m experiments.gated_training --model DIR/last --task mrpc --data GLUE --pruned PRUNED

A price is said for all gates together, in mean losses of the model on its training data, as `bertjax prune
--strengths` says it of the examples that choose. For the results see `RESULTS.md`.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

import bertjax
from bertjax.checkpoints import hash_checkpoint, locate
from bertjax.cli import positive
from bertjax.data import Examples, draw
from bertjax.errors import DataError, InputError
from bertjax.evidence import Measure, contributions, find_metric
from bertjax.interventions import ablation, every_head
from bertjax.model import PretrainedModel
from bertjax.plots import Curve
from bertjax.jobs import sweep_examples
from bertjax.tasks import EncodedDataset, encode_examples, positive_label
from experiments.disabling.summary_lines import table_of
from experiments.shared.curves import curve_of, describe_curve, describe_pruning, draw_pruning
from experiments.shared.program import (
    Outcome,
    Run,
    above_zero,
    make_parser,
    run_program,
)
from experiments.shared.samples import read_examples
from experiments.training.gates import GateTrainer, mean_loss
from experiments.training.trainer import Recipe, predict

KINDS = {"gates": True, "gates and weights": False}  # whether the weights are frozen
OPEN = 0.5
MODE = "zero"
STRENGTHS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


@dataclass(frozen=True)
class Material:
    """What all runs of a command share: training examples, those that judge, and the model's mean loss on the first."""

    train: Examples
    judged: Examples
    encoded: EncodedDataset
    encoded_judged: EncodedDataset
    loss: float


def compute(run: Run) -> Outcome:
    """Learn gates at each price, with frozen weights and with learning ones."""
    options = run.options
    saved = bertjax.read_results(options.pruned)
    material = read_material(run, saved)
    recipe = Recipe(
        learning_rate=options.learning_rate, epochs=options.epochs, batch_size=options.batch_size, seed=options.seed
    )
    planned = [(kind, strength) for kind in KINDS for strength in sorted(set(options.strengths))]
    found = []
    for number, (kind, strength) in enumerate(planned):

        def advance(share: float, note: str, number: int = number, what: str = f"{kind} {strength:g}") -> None:
            run.report(number + share, float(len(planned)), f"{what} {note}")

        given = {"gate_rate": options.gate_rate, "metric": saved.metric}
        found.append(learn(run.model, material, recipe, (kind, strength), **given, advance=advance))
    numbers = {
        "pruning": describe_pruning(saved),
        "train": {"source": material.train.source, "examples": len(material.train), "loss": material.loss},
        "runs": found,
    }
    values = {f"{one['kind']} {one['strength']:g}": np.array(one["open"]) for one in found}
    lines = tables({"results": numbers}).split("\n")
    return Outcome(numbers, values, figures({"results": numbers})["figure"], lines)


def read_material(run: Run, saved: bertjax.Results) -> Material:
    """The examples to learn from, and those that judged the orders.

    Raises:
        InputError: results of another model or task, or in another mode.
        DataError: the examples that judge are not in the data.
    """
    options, summary = run.options, saved.summary
    train = read_examples(_read(options, "train"))
    if summary["data"]["task"] != train.task.name or summary["mode"]["name"] != MODE:
        raise InputError(
            f"{options.pruned} is of {summary['data']['task']}, mode {summary['mode']['name']}: give "
            f"results of bertjax prune --task {options.task} --mode {MODE}"
        )
    if summary["model"]["weights_sha256"] != hash_checkpoint(locate(options.model)):
        raise InputError(f"{options.pruned} is of another model than --model {options.model}")
    train = train.take(draw(len(train), options.limit or len(train), options.seed))
    validation = read_examples(_read(options, "validation"))
    place_of = {str(name): place for place, name in enumerate(validation.ids)}
    wanted = [str(name) for name in saved.outputs["ids"]]
    if missing := [name for name in wanted if name not in place_of]:
        raise DataError(f"example {missing[0]}, which judged {options.pruned}, is not in the validation data")
    judged = validation.take([place_of[name] for name in wanted])
    length = min(options.max_length, run.model.config.max_tokens)
    encoded, encoded_judged = (encode_examples(run.model, run.tokenizer, part, length) for part in (train, judged))
    loss = mean_loss(predict(run.model, encoded), train.labels)
    return Material(train, judged, encoded, encoded_judged, loss)


def _read(options: argparse.Namespace, split: str) -> argparse.Namespace:
    return argparse.Namespace(**vars(options) | {"split": split, "limit": None})


def learn(
    model: PretrainedModel,
    material: Material,
    recipe: Recipe,
    planned: tuple[str, float],
    *,
    gate_rate: float,
    metric: str,
    advance: Callable[[float, str], None],
) -> dict[str, Any]:
    """One run: how often each gate is open, which are closed, and what the heads that are left score."""
    kind, strength = planned
    price = strength * material.loss / len(every_head(model.config))
    trainer = GateTrainer(
        model, material.encoded, material.train.labels, recipe, price=price, gate_rate=gate_rate, frozen=KINDS[kind]
    )
    total = trainer.steps * recipe.epochs
    for epoch in range(recipe.epochs):
        for number, loss in enumerate(trainer.run_epoch(epoch), start=1):
            advance((epoch * trainer.steps + number) / total, f"loss {loss:.2f}")
    learned = trainer.model
    is_open = trainer.probabilities(learned)
    closed = [head for head in every_head(learned.config) if is_open[head] < OPEN]
    score, change = judge(model, learned, closed, material, metric)
    return {
        "kind": kind,
        "strength": strength,
        "left": len(every_head(learned.config)) - len(closed),
        "closed": [f"{layer}.{head}" for layer, head in closed],
        "open": np.round(is_open, 4).tolist(),
        "score": score,
        "change": change,
    }


def judge(
    before: PretrainedModel,
    after: PretrainedModel,
    closed: Sequence[tuple[int, int]],
    material: Material,
    metric: str,
) -> tuple[float, tuple[float, float, float]]:
    """The score without the closed heads, and its change from the model as it was, with a 95 % interval by Student's t.

    What is averaged is what each example contributes to the score (`bertjax.evidence.contributions`).
    """
    labels, encoded = material.judged.labels, material.encoded_judged
    whole, without = predict(before, encoded), predict(after, encoded)
    if closed:
        without = sweep_examples(after, encoded, [ablation(after.config, closed, MODE)]).outputs[0]
    positive = positive_label(encoded.form, material.judged.task)
    _, found = contributions(find_metric(metric), np.stack([whole, without]), labels, positive)
    change = found[1] - found[0]
    half = float(student.ppf(0.975, len(change) - 1) * change.std(ddof=1) / np.sqrt(len(change)))
    mean = float(change.mean())
    return float(found[1].mean()), (mean, mean - half, mean + half)


def tables(numbers: Mapping[str, Any]) -> str:
    """The table in Markdown, from `numbers.json` alone: a row for each price."""
    results = numbers["results"]
    pruning, measure = results["pruning"], Measure(**results["pruning"]["measure"])
    nested = [curve for curve in map(curve_of, pruning["curves"]) if curve.name in ("greedy", "gradient")]
    rows = []
    for strength in sorted({one["strength"] for one in results["runs"]}):
        row = [f"{strength:g}"]
        for kind in KINDS:
            one = next(one for one in results["runs"] if (one["kind"], one["strength"]) == (kind, strength))
            mean, low, high = (measure.factor * value for value in one["change"])
            digits = measure.digits - 1
            change = f"{mean:+.{digits}f}, {low:+.{digits}f} to {high:+.{digits}f}"
            row += [
                str(one["left"]),
                f"{measure.factor * one['score']:.{digits}f} ({change})",
                *(f"{_at(curve, one['left'], pruning):.{digits}f}" for curve in nested),
            ]
        rows.append(row)
    headings = ["price"]
    for kind in KINDS:
        headings += [
            f"{kind}: heads left",
            f"{measure.label} (change)",
            *(f"{curve.name} with as many" for curve in nested),
        ]
    return table_of(headings, rows)


def _at(curve: Curve, left: int, pruning: Mapping[str, Any]) -> float:
    """An order's score with so many heads left, between its points on a straight line."""
    counts = [pruning["heads"], *pruning["points"]]
    scores = [pruning["base"], *curve.scores[0].tolist()]
    return float(np.interp(left, counts[::-1], scores[::-1]))


def figures(numbers: Mapping[str, Any]) -> dict[str, Callable[[Path], None]]:
    """The picture, from `numbers.json` alone: both kinds of gates beside the orders of `bertjax prune`."""
    results = numbers["results"]
    pruning = {**results["pruning"]}
    beside = ("gradient", "greedy", "random")
    pruning["curves"] = [curve for curve in pruning["curves"] if curve["name"] in beside]
    factor = Measure(**pruning["measure"]).factor
    more = []
    for kind in KINDS:
        own = sorted((one for one in results["runs"] if one["kind"] == kind), key=lambda one: -one["left"])
        scores = factor * np.array([[one["score"] for one in own]])
        ends = factor * np.array([[one["score"] - one["change"][0] + one["change"][n] for one in own] for n in (1, 2)])
        more.append(describe_curve(Curve(kind, scores, ends, np.array([one["left"] for one in own]))))
    return {"figure": draw_pruning(pruning, more)}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser("gated_training", __doc__, published=False)
    add = parser.add_argument
    add("--task", default="mrpc", metavar="T", help="of GLUE (default mrpc)")
    add("--data", metavar="PATH", help="GLUE directory, in place of TensorFlow Datasets")
    add("--data-dir", metavar="DIR", help="directory of TensorFlow Datasets")
    add("--pruned", required=True, metavar="DIR", help="results of bertjax prune of this model and task, mode zero")
    add(
        "--strengths", nargs="+", type=_price, default=list(STRENGTHS), metavar="S", help="prices of all gates together"
    )
    defaults = Recipe(epochs=1)
    number = partial(add, metavar="N")
    number("--epochs", type=positive, default=1, help="times that every example is seen (default 1)")
    number("--batch-size", type=positive, default=defaults.batch_size, help="examples of a step (default %(default)s)")
    number("--learning-rate", type=above_zero, default=2e-5, help="of weights, the highest (default %(default)s)")
    number("--gate-rate", type=above_zero, default=0.2, help="of gates' log a, the highest (default %(default)s)")
    number("--max-length", type=positive, default=128, help="tokens after which texts are cut (default 128)")
    return run_program(parser, compute, arguments)


def _price(text: str) -> float:
    """An option type: a finite number of at least 0."""
    try:
        return 0.0 if float(text) == 0 else above_zero(text)
    except ValueError:
        return above_zero(text)  # which says what is wrong


if __name__ == "__main__":
    raise SystemExit(main())
