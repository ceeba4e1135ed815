"""What a model gives for the examples of a task, and which metrics can judge that: one entry in `FORMS` for each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from bertjax.data import Task, plain_label
from bertjax.engine import Combine, SweepResult
from bertjax.errors import ConfigError, DataError, InputError, some_of
from bertjax.evidence import METRICS, Metric, as_metric, find_metric, ratios
from bertjax.formatting import count_of
from bertjax.interventions import Readout, readouts
from bertjax.probes import NUMBERS, ROLES

Chosen: TypeAlias = Metric | str | Callable[[Any, Any], float]


@dataclass(frozen=True)
class Form:
    """What a model gives for an example.

    Args:
        name: as `summary.json` has it.
        readout: what the engine keeps of each text.
        combine: what it makes of an example's several texts.
        called: what outputs are called in messages; empty where labels decide.
        numbers: what each output's numbers are, for metrics that read them all; empty where it has one for each label,
            or one alone.
        of_each_label: what those are that follow for each of the task's labels.
        counted: what there is one of at each token that a model is asked at.
        predicts: whether its largest number is a predicted class, where labels are classes.
        by_rank: whether values are judged by how they order examples, whatever the task's own metrics.
        sized: how many of the numbers have changes that can be compared in size; None for all.
        derived: whether they are made of what runs of the model gave, and so are not what another run of it gives.
    """

    name: str
    readout: Readout
    combine: Combine | None = None
    called: str = ""
    numbers: tuple[str, ...] = ()
    of_each_label: tuple[str, ...] = ()
    counted: str = ""
    predicts: bool = False
    by_rank: bool = False
    sized: int | None = None
    derived: bool = False

    def sizes(self, result: SweepResult) -> tuple[np.ndarray, np.ndarray]:
        """Base and ablated outputs whose changes can be compared in size."""
        if self.sized is None:
            return result.base, result.outputs
        return result.base[..., : self.sized], result.outputs[..., : self.sized]

    def numbers_of(self, task: Task) -> tuple[str, ...]:
        """What each output's numbers are, those of labels by their names."""
        labels = task.label_names or ()
        return *self.numbers, *(f"{name}: {number}" for name in labels for number in self.of_each_label)

    def fits(self, metric: Metric, task: Task) -> bool:
        """Whether a metric can judge outputs of this form with the task's labels."""
        classes, two_classes = task.kind == "classification", len(task.label_names or (0, 0)) == 2
        if metric.reads == "outputs":
            sums = metric.sums
            if self.name == "tags" and METRICS.get(metric.name) == metric and metric.name not in task.metrics:
                return False  # metrics of entities that the tags of the data do not have
            return sums is None or (sums.numbers, sums.of_each_label) == (self.numbers, self.of_each_label)
        if metric.scale_of_labels and self.by_rank:
            return False
        if (metric.targets == "classes") != classes or not (self.by_rank or self.predicts):
            return False
        predicts = classes and self.predicts
        if metric.reads != ("predictions" if predicts else "values"):
            return False
        return two_classes or not predicts or not metric.of_one_label

    def names_of_metrics(self, task: Task) -> tuple[str, ...]:
        """The task's metrics, the main one first; values that order examples have those of ranks."""
        if not self.by_rank:
            return task.metrics
        return ("spearman", "pearson") if task.kind == "regression" else ("roc_auc", "average_precision")


def cosine(
    first: Float[np.ndarray, "*examples embed"], second: Float[np.ndarray, "*examples embed"]
) -> Float[np.ndarray, "*examples"]:
    """Cosine similarity of vectors, summed in float64, given in the vectors' dtype.

    >>> cosine(np.array([[3.0, 4.0]]), np.array([[4.0, 3.0]]))
    array([0.96])
    """
    sums = [
        np.einsum("...e,...e->...", left, right, dtype=np.float64)
        for left, right in ((first, second), (first, first), (second, second))
    ]
    return (sums[0] / np.maximum(np.sqrt(sums[1] * sums[2]), 1e-12)).astype(first.dtype)


def side_by_side(*scores: Float[np.ndarray, "*examples 1"]) -> Float[np.ndarray, "*examples choices"]:
    """The scores of the choices of each example."""
    return np.concatenate(scores, axis=-1)


FORMS: Mapping[str, Form] = MappingProxyType(
    {
        form.name: form
        for form in (
            Form("logits", readouts.logits, predicts=True),
            Form("choices", readouts.logits, side_by_side, predicts=True),
            Form("score", readouts.score, called="scores", by_rank=True),
            Form("similarity", readouts.sentence_embedding, cosine, called="similarities", by_rank=True),
            Form("words", readouts.words, called="masked words", counted="masked word", numbers=ratios.WORDS, sized=1),
            Form("tags", readouts.tags, called="tags of words", counted="word", numbers=ratios.TAGS, sized=1),
            Form("answers", readouts.answers, called="answers", numbers=ratios.ANSWERS, sized=1),
            Form("ranking", readouts.sentence_embedding, called="rankings", numbers=ratios.RANKINGS, sized=1),
            Form("scored-ranking", readouts.score, called="rankings", numbers=ratios.RANKINGS, sized=1),
            Form(
                "label-sets",
                readouts.logits,
                called="sets of labels",
                numbers=ratios.LABEL_SETS,
                of_each_label=ratios.OF_EACH_LABEL,
                sized=1,
            ),
            Form("gradients", readouts.logits, called="gradients", numbers=ratios.GRADIENTS, sized=1, derived=True),
            Form(
                "interactions",
                readouts.logits,
                called="interactions",
                numbers=ratios.INTERACTIONS,
                sized=1,
                derived=True,
            ),
            Form("roles", readouts.logits, called="roles", numbers=NUMBERS, sized=len(ROLES), derived=True),
            Form("patching", readouts.logits, called="patches", numbers=ratios.PATCHING, sized=1, derived=True),
            Form("shapley", readouts.logits, called="Shapley values", numbers=ratios.SHAPLEY, derived=True),
            Form(
                "likelihoods",
                readouts.log_probabilities,
                called="log-likelihoods",
                counted="masked word",
                numbers=ratios.LIKELIHOODS,
                predicts=True,
            ),
        )
    }
)


def metrics_of(kind: str, task: Task, chosen: Chosen | None = None) -> tuple[Metric, ...]:
    """Which metrics judge a task, the main one first.

    Logits and words are judged by the task's own; similarities and scores by rank correlation (regression) or by how
    well they tell the yes pairs from the no pairs (classification).

    Args:
        kind: the form of the outputs.
        chosen: the main one, in place of these metrics' first; a name, a Metric or a function of your own.

    Raises:
        InputError: the chosen one cannot judge such outputs.
    """
    form = FORMS[kind]
    own = tuple(find_metric(name) for name in form.names_of_metrics(task))
    if chosen is None:
        return own
    main = as_metric(chosen, "classes" if task.kind == "classification" else "numbers")
    if not form.fits(main, task):
        outputs = form.called or ("predicted classes" if task.kind == "classification" else "values")
        fitting = " or ".join(metric.name for metric in METRICS.values() if form.fits(metric, task))
        raise InputError(f"--metric {main.name} does not judge {outputs} of {task.name}: choose {fitting}")
    return (main, *(metric for metric in own if metric.name != main.name))


def positive_label(kind: str, task: Task) -> int:
    """The label that counts as yes: for similarities and scores entailment or paraphrase, else 1.

    Raises:
        DataError: similarities or scores, and neither is among the task's labels.
    """
    names = task.label_names or ()
    if not FORMS[kind].by_rank or not names:
        return 1
    meanings: tuple[str, ...] = ("entailment", "equivalent", "duplicate", "similar")
    if len(names) == 2:
        meanings += ("yes", "true", "1")
    for number, name in enumerate(names):
        if plain_label(name) in meanings:
            return number
    raise DataError(
        f"none of {task.name}'s labels {some_of(names)} says that a pair is similar: call one of two labels 'yes', "
        "or, where they are ratings, give --label-names with nothing behind it"
    )


def label_order(id2label: Mapping[int, str], task: Task) -> tuple[int, ...]:
    """Which of the model's outputs stands for each label of the task.

    Models name their labels; some checkpoints number them otherwise than GLUE does. Where the names are the
    task's own, they decide; where they are LABEL_0, LABEL_1 ..., GLUE's order is assumed.

    Raises:
        ConfigError: the model has another number of labels, or other names.
    """
    wanted = task.label_names or ("score",)
    names = tuple(id2label[number] for number in sorted(id2label))
    numbered = all(name.isdecimal() for name in wanted)
    if len(names) != len(wanted):
        advice = (
            "; give all classes in the order of their numbers with --label-names (label_names=)" if numbered else ""
        )
        found = f"the model has {count_of(len(names), 'label')}, but {task.name} has {len(wanted)}"
        raise ConfigError(f"{found}: {some_of(wanted)}{advice}")
    generic = tuple(f"LABEL_{number}" for number in range(len(names)))
    if task.label_names is None or names in (generic, wanted):
        return tuple(range(len(wanted)))
    of_model, of_task = [plain_label(name) for name in names], [plain_label(name) for name in wanted]
    if len(set(of_task)) < len(of_task) or sorted(of_model) != sorted(of_task):
        advice = "name them alike in the model's config.json (id2label)"
        if numbered:
            order = " ".join(names) if len(names) <= 6 else f"{names[0]} ..."
            advice = "give the names of your numbers in ascending order with --label-names (label_names=): "
            advice += f"--label-names {order}, if that is their order"
        raise ConfigError(f"the model's labels {some_of(names)} are not {task.name}'s {some_of(wanted)}: {advice}")
    return tuple(of_model.index(name) for name in of_task)
