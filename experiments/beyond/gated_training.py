"""Can more heads be removed if the model learns while their gates close? (Voita et al. 2019, Louizos et al. 2018)

Takes a fine-tuned classifier and the results of `bertjax prune` for it, and learns gates on the task's training data at
several prices of an open gate: with frozen weights, and while all weights learn. Each run starts from the fine-tuned
model with open gates; price 0 is the control for further training. Heads whose gate is open less than half of the time
are removed. The remaining model is evaluated on the examples that evaluated the orders of `bertjax prune`.

    bertjax prune --model DIR/last --task mrpc --data GLUE --mode zero --output PRUNED
    python -m experiments.beyond.gated_training --model DIR/last --task mrpc --data GLUE --pruned PRUNED

A price is that of all gates together, in mean training losses of the model, as in `bertjax prune --strengths`.
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import t as student

import bertjax
from bertjax.data import Examples
from bertjax.interventions import every_head, remove_heads
from bertjax.models import PretrainedModel
from bertjax.plots import Curve
from bertjax.statistics import Measure, contributions, find_metric
from bertjax.tasks import EncodedDataset, encode_examples, positive_label
from experiments.shared.curves import curve_of, describe_curve, describe_pruning, draw_pruning
from experiments.shared.data import read_examples
from experiments.shared.run import Figures, Found, Numbers, Run, Runs, make_parser, run_script
from experiments.shared.tables import make_table
from experiments.training.gates import GateTrainer, mean_loss
from experiments.training.trainer import Recipe, predict

KINDS = {"gates": True, "gates and weights": False}  # whether the weights are frozen
OPEN = 0.5
STRENGTHS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


@dataclass(frozen=True)
class Material:
    """What all runs share: training examples, examples for evaluation, and the model's mean loss on the first."""

    train: Examples
    evaluation: Examples
    encoded: EncodedDataset
    evaluated: EncodedDataset
    loss: float


def compute(run: Run) -> Found:
    """Learn gates at each price, with frozen weights and with learning ones."""
    options = run.options
    saved = bertjax.read_results(options.pruned)
    material = read_material(run, saved)
    names = ("learning_rate", "epochs", "batch_size", "seed")
    recipe = Recipe(**{name: getattr(options, name) for name in names})
    found = [
        learn(run.model, material, recipe, kind, strength, gate_rate=options.gate_rate, metric=saved.metric)
        for kind in KINDS
        for strength in sorted(set(options.strengths))
    ]
    train = {"source": material.train.source, "examples": len(material.train), "loss": material.loss}
    return {"pruning": describe_pruning(saved), "train": train, "runs": found}, {}


def read_material(run: Run, saved: bertjax.Results) -> Material:
    """The examples to learn from, and those that evaluated the orders of `bertjax prune`."""
    options = run.options
    train = read_examples(Namespace(**vars(options) | {"split": "train"}))
    validation = read_examples(Namespace(**vars(options) | {"split": "validation", "limit": None}))
    index_of = {str(name): index for index, name in enumerate(validation.ids)}
    evaluation = validation.take([index_of[str(name)] for name in saved.outputs["ids"]])
    length = min(options.max_length, run.model.config.max_tokens)
    encoded, evaluated = (encode_examples(run.model, run.tokenizer, part, length) for part in (train, evaluation))
    return Material(train, evaluation, encoded, evaluated, mean_loss(predict(run.model, encoded), train.labels))


def learn(
    model: PretrainedModel,
    material: Material,
    recipe: Recipe,
    kind: str,
    strength: float,
    *,
    gate_rate: float,
    metric: str,
) -> dict[str, Any]:
    """One run: how often each gate is open, which are closed, and the score of the heads that are left."""
    heads = every_head(model.config)
    options: dict[str, Any] = {"price": strength * material.loss / len(heads), "gate_rate": gate_rate}
    labels = material.train.labels
    trainer = GateTrainer(model, material.encoded, labels, recipe, **options, frozen=KINDS[kind])
    for epoch in range(recipe.epochs):
        trainer.run_epoch(epoch)
    learned = trainer.model
    is_open = trainer.probabilities(learned)
    closed = [head for head in heads if is_open[head] < OPEN]
    score, change = evaluate(model, learned, closed, material, metric)
    return {
        "kind": kind,
        "strength": strength,
        "left": len(heads) - len(closed),
        "closed": [f"{layer}.{head}" for layer, head in closed],
        "open": np.round(is_open, 4).tolist(),
        "score": score,
        "change": change,
    }


def evaluate(
    before: PretrainedModel,
    after: PretrainedModel,
    closed: Sequence[tuple[int, int]],
    material: Material,
    metric: str,
) -> tuple[float, tuple[float, float, float]]:
    """The score without the closed heads, and its change from the model before, with a 95 % interval by Student's t.

    What is averaged is what each example contributes to the score (`bertjax.statistics.contributions`).
    """
    labels, encoded = material.evaluation.labels, material.evaluated
    unpruned = predict(before, encoded)
    remove_heads(after, closed)
    positive = positive_label(encoded.form, material.evaluation.task)
    _, found = contributions(find_metric(metric), np.stack([unpruned, predict(after, encoded)]), labels, positive)
    change = found[1] - found[0]
    half = float(student.ppf(0.975, len(change) - 1) * change.std(ddof=1) / np.sqrt(len(change)))
    mean = float(change.mean())
    return float(found[1].mean()), (mean, mean - half, mean + half)


def tables(runs: Runs) -> str:
    """A row for each price, in each run."""
    return "\n\n".join(_table(numbers["results"]) for numbers in runs.values())


def _table(results: Numbers) -> str:
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
            row += [str(one["left"]), f"{measure.factor * one['score']:.{digits}f} ({change})"]
            row += [f"{_at(curve, one['left'], pruning):.{digits}f}" for curve in nested]
        rows.append(row)
    headings = ["price"]
    for kind in KINDS:
        orders = (f"{curve.name}, as many heads" for curve in nested)
        headings += [f"{kind}: heads left", f"{measure.label} (change)", *orders]
    return make_table(headings, rows)


def _at(curve: Curve, left: int, pruning: Numbers) -> float:
    """An order's score with so many heads left, between its points on a straight line."""
    counts = [pruning["heads"], *pruning["points"]]
    scores = [pruning["base"], *curve.scores[0].tolist()]
    return float(np.interp(left, counts[::-1], scores[::-1]))


def figures(numbers: Numbers) -> Figures:
    """The picture, from `numbers.json` alone: both kinds of gates beside the orders of `bertjax prune`."""
    results = numbers["results"]
    pruning = {**results["pruning"]}
    pruning["curves"] = [curve for curve in pruning["curves"] if curve["name"] in ("gradient", "greedy", "random")]
    factor = Measure(**pruning["measure"]).factor
    more = []
    for kind in KINDS:
        of_kind = sorted((one for one in results["runs"] if one["kind"] == kind), key=lambda one: -one["left"])
        scores = factor * np.array([[one["score"] for one in of_kind]])
        ends = factor * np.array(
            [[one["score"] - one["change"][0] + one["change"][n] for one in of_kind] for n in (1, 2)]
        )
        more.append(describe_curve(Curve(kind, scores, ends, np.array([one["left"] for one in of_kind]))))
    return {"figure": draw_pruning(pruning, more)}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--task", default="mrpc", metavar="T", help="of GLUE (default mrpc)")
    add("--data", metavar="PATH", help="GLUE directory")
    add("--pruned", required=True, metavar="DIR", help="results of bertjax prune of this model and task, mode zero")
    add("--strengths", nargs="+", type=float, default=STRENGTHS, metavar="S", help="prices of all gates together")
    add("--epochs", type=int, default=1, help="default 1")
    add("--batch-size", type=int, default=32, help="default 32")
    add("--learning-rate", type=float, default=2e-5, help="of weights, the highest (default %(default)s)")
    add("--gate-rate", type=float, default=0.2, help="of gates' log a, the highest (default %(default)s)")
    add("--max-length", type=int, default=128, help="tokens after which texts are cut (default 128)")
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
