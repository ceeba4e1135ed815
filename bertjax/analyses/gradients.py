"""Importance and attribution of heads, from the gradients of each example's loss with respect to their gates.

A gate of 1 leaves a head as it is, and 0 puts in its place what the mode says. To first order, taking a head's gate
from 1 to 0 changes the loss by minus its gradient: with mode 'zero' that is the attribution of Michel et al. 2019
before its absolute value is taken, with another replacement attribution patching (Nanda 2023; Syed et al. 2023). With
`steps` the gradient is the mean along the way on which all gates go to 0 together (integrated gradients, Sundararajan
et al. 2017), so that the heads' attributions sum to what replacing all of them changes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float

from bertjax import arguments
from bertjax.engine import GateGradients, GatePasses, GateTexts
from bertjax.errors import InputError
from bertjax.interventions import ablation, every_head, find_mode
from bertjax.models import PretrainedModel
from bertjax.progress import Progress, silent
from bertjax.statistics import Metric, ratios
from bertjax.tasks import EncodedDataset

# What is kept for each example and head, by what it is.
NUMBERS = ratios.GRADIENTS
"""What is kept of each head and example: the loss that is predicted without the head, what that differs by, and the sum
over tokens of the absolute values of what each token's gate contributes."""


@dataclass(frozen=True)
class HeadGradients:
    """What gradients say of each head on each example; heads as `every_head` lists them, layer by layer.

    Args:
        losses: of the model as it is; NaN of examples without a label.
        changes: of the loss when the head is replaced, to first order.
        at_tokens: the sum over tokens of the absolute values of what each contributes to that.
    """

    losses: Float[np.ndarray, " examples"]
    changes: Float[np.ndarray, "heads examples"]
    at_tokens: Float[np.ndarray, "heads examples"]

    @property
    def base(self) -> Float[np.ndarray, "examples three"]:
        """`NUMBERS` of the model as it is."""
        return np.stack([self.losses, np.zeros_like(self.losses), np.zeros_like(self.losses)], axis=-1)

    @property
    def outputs(self) -> Float[np.ndarray, "heads examples three"]:
        """`NUMBERS` of each head and example."""
        return np.stack([self.losses + self.changes, self.changes, self.at_tokens], axis=-1)


def head_gradients(
    model: PretrainedModel,
    encoded: EncodedDataset,
    mode: str = "zero",
    *,
    steps: int = 1,
    means: Float[np.ndarray, "layers heads head_dim"] | None = None,
    gone: Sequence[tuple[int, int]] = (),
    progress: Progress = silent,
) -> HeadGradients:
    """What gradients say of every head of a model on a task's examples.

    Args:
        encoded: the examples (`tasks.encode_examples`).
        mode: what takes a head's place: of 'zero', 'uniform', 'mean' or another that needs no source.
        steps: 1 for the gradient at the model as it is; of more, the mean of gradients on the way to gates of 0.
        means: the heads' outputs that mode 'mean' puts in place of their own.
        gone: heads that are replaced already, by layer and number.
        progress: called with the work done and the total work.

    Raises:
        InputError: a mode that needs sources, or outputs that are not finite.
        OverrideError: mode 'mean' without means.
    """
    arguments.check_int(steps, "steps", 1)
    passes, config = gate_passes(model, encoded, mode, means=means), model.config
    total = float(steps + (steps > 1))
    is_there = np.ones((config.num_hidden_layers, config.num_attention_heads))
    for layer, head in gone:
        is_there[layer, head] = 0

    def passed(gate: float, before: int) -> GateGradients:
        def report(done: float, all_of_it: float) -> None:
            progress(before + done / all_of_it, total)

        return passes.run_all(gate * is_there, report)

    first = passed(1.0, 0)
    several = [first] if steps == 1 else [passed((step + 0.5) / steps, step + 1) for step in range(steps)]
    layers, heads = np.array(every_head(config)).T
    missing = np.isnan(first.losses)
    slopes = np.mean([one.gradients for one in several], axis=0)[layers, heads]
    sizes = np.mean([one.absolute for one in several], axis=0)[layers, heads]
    return HeadGradients(first.losses, np.where(missing, np.nan, -slopes), np.where(missing, np.nan, sizes))


def gate_passes(
    model: PretrainedModel,
    encoded: EncodedDataset,
    mode: str,
    *,
    means: Float[np.ndarray, "layers heads head_dim"] | None = None,
    tokens: int | None = None,
    order: Sequence[int] | None = None,
) -> GatePasses:
    """Passes back through a model from a task's loss to gates on all heads.

    Args:
        encoded, mode, means: as in `head_gradients`.
        tokens: that the examples of a pass have, about; default as many as memory allows.
        order: the examples in another order than their own.

    Raises:
        InputError: a mode that needs sources, or a task without a loss.
        OverrideError: mode 'mean' without means.
    """
    objective, config = encoded.objective, model.config
    if objective is None:
        raise InputError(f"outputs of the form {encoded.form.name} have no loss whose gradients could be taken")
    if find_mode(mode).replacement == "source":
        raise InputError(f"mode {mode!r} needs sources, and a task has none")
    examples = range(encoded.examples) if order is None else order
    grade = partial(_without_missing, objective.grade, examples)
    replaced = ablation(config, every_head(config), mode)
    texts = _texts(encoded, examples)
    return GatePasses(model, texts, replaced, objective.readout, grade, means=means, tokens=tokens)


def _texts(encoded: EncodedDataset, examples: Sequence[int]) -> GateTexts:
    """All texts of some examples, those of an example together; one that several examples share once for each."""
    members = [encoded.numbers_of(example) for example in examples]
    numbers = np.array([number for own in members for number in own], np.int64)
    owners = np.repeat(np.arange(len(members)), [len(own) for own in members])
    at, targets = (None if array is None else array[numbers] for array in (encoded.at, encoded.targets))
    encodings = [encoded.encodings[number] for number in numbers.tolist()]
    return GateTexts(encodings, owners, len(members), at, targets)


def _without_missing(
    grade: Callable[[int, np.ndarray], tuple[float, np.ndarray]],
    examples: Sequence[int],
    place: int,
    given: np.ndarray,
) -> tuple[float, np.ndarray]:
    """The grade of one of some examples, whose gradient is 0 where there is no loss."""
    loss, gradient = grade(examples[place], given)
    return (loss, gradient) if np.isfinite(loss) else (np.nan, np.zeros(given.shape))


def gradient_metrics(unit: str) -> tuple[Metric, ...]:
    """What is made of `NUMBERS`: the loss without a head, importance, and importance as in the authors' program.

    Args:
        unit: of the loss.
    """
    more = {"lowest": -np.inf, "highest": np.inf, "unit": unit, "by": "gradients"}
    sizes = more | {"lowest": 0.0, "of_effects": True, "tested": False}
    return (
        Metric.of_sums(
            "predicted_loss",
            "Predicted loss",
            ratios.mean_of(NUMBERS, lambda outputs: outputs[..., 0]),
            greater_is_better=False,
            **more,
        ),
        Metric.of_sums(
            "importance",
            "Gradient importance",
            ratios.mean_of(NUMBERS, lambda outputs: np.abs(outputs[..., 1])),
            **sizes,
        ),
        Metric.of_sums(
            "token_importance",
            "Gradient importance, at each token",
            ratios.mean_of(NUMBERS, lambda outputs: outputs[..., 2]),
            **sizes,
        ),
    )


def normalise_by_layer(importance: Float[np.ndarray, "layers heads"]) -> Float[np.ndarray, "layers heads"]:
    """Importance over the root of the sum of its squares in the layer (Molchanov et al. 2017; Michel et al. 2019).

    >>> normalise_by_layer(np.array([[3.0, 4.0]])).tolist()
    [[0.6, 0.8]]
    """
    lengths = np.linalg.norm(importance, axis=1, keepdims=True)
    return np.divide(importance, lengths, out=np.zeros(importance.shape), where=lengths > 0)
