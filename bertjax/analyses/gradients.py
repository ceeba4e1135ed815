"""Importance and attribution of heads, from the gradients of each example's loss with respect to their gates.

A gate of 1 leaves a head unchanged, and a gate of 0 replaces it by the mode. To first order, closing a gate changes the
loss by minus its gradient: with mode 'zero' this is the importance of Michel et al. 2019 before the absolute value,
with other modes attribution patching (Nanda 2023; Syed et al. 2023). With several `steps` the gradient is the mean over
points between the model and the model with all heads replaced (integrated gradients, Sundararajan et al. 2017), so that
the attributions of the heads sum to the effect of replacing all of them.
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
from bertjax.progress import Progress, part_of, silent
from bertjax.statistics import Metric, ratios
from bertjax.tasks import EncodedDataset

NUMBERS = ratios.GRADIENTS
"""The names of the numbers of each head and example: the predicted loss without the head, its change, and the sum over
tokens of the absolute contributions of each token's gate."""


@dataclass(frozen=True)
class HeadGradients:
    """Gradients of each head on each example; heads in the order of `every_head`.

    Args:
        losses: the loss of the unchanged model; NaN for examples without a label.
        changes: the change of the loss when the head is replaced, to first order.
        at_tokens: the sum over tokens of the absolute contributions to the change.
    """

    losses: Float[np.ndarray, " examples"]
    changes: Float[np.ndarray, "heads examples"]
    at_tokens: Float[np.ndarray, "heads examples"]

    @property
    def base(self) -> Float[np.ndarray, "examples three"]:
        """`NUMBERS` of the unchanged model."""
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
    """Compute the gradients of all heads of a model on a task's examples.

    Args:
        model: the model.
        encoded: the examples (`tasks.encode_examples`).
        mode: what replaces a head: 'zero', 'uniform', 'mean' or another mode that needs no source.
        steps: 1 for the gradient of the unchanged model; otherwise the mean at this number of points between open and
            closed gates.
        means: the heads' mean outputs, for mode 'mean'.
        gone: heads that are already replaced, as layer and index.
        progress: called with the work done and the total work.

    Raises:
        InputError: the mode needs sources, or outputs are not finite.
        OverrideError: mode 'mean' without means.
    """
    arguments.check_int(steps, "steps", 1)
    passes, config = gate_passes(model, encoded, mode, means=means), model.config
    total = float(steps + (steps > 1))
    is_there = np.ones((config.num_hidden_layers, config.num_attention_heads))
    for layer, head in gone:
        is_there[layer, head] = 0

    def passed(gate: float, before: int) -> GateGradients:
        return passes.run_all(gate * is_there, part_of(progress, before, 1.0, total))

    first = passed(1.0, 0)
    points = [first] if steps == 1 else [passed((step + 0.5) / steps, step + 1) for step in range(steps)]
    layers, heads = np.array(every_head(config)).T
    missing = np.isnan(first.losses)
    slopes = np.mean([point.gradients for point in points], axis=0)[layers, heads]
    sizes = np.mean([point.absolute for point in points], axis=0)[layers, heads]
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
    """Backward passes from a task's loss to gates on all heads.

    Args:
        encoded: the tokenised examples, as in `head_gradients`.
        mode: what replaces a head, as in `head_gradients`.
        means: the heads' mean outputs, as in `head_gradients`.
        tokens: the approximate number of tokens of a pass; by default as many as memory allows.
        order: the order of the examples; by default that of `encoded`.

    Raises:
        InputError: the mode needs sources, or the task has no loss.
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
    """The texts of some examples, example by example; a text that examples share is repeated."""
    members = [encoded.numbers_of(example) for example in examples]
    numbers = np.array([number for texts in members for number in texts], np.int64)
    owners = np.repeat(np.arange(len(members)), [len(texts) for texts in members])
    at, targets = (None if array is None else array[numbers] for array in (encoded.at, encoded.targets))
    encodings = [encoded.encodings[number] for number in numbers.tolist()]
    return GateTexts(encodings, owners, len(members), at, targets)


def _without_missing(
    grade: Callable[[int, np.ndarray], tuple[float, np.ndarray]],
    examples: Sequence[int],
    index: int,
    outputs: np.ndarray,
) -> tuple[float, np.ndarray]:
    """Loss and gradient of an example; NaN and 0 if it has no label."""
    loss, gradient = grade(examples[index], outputs)
    return (loss, gradient) if np.isfinite(loss) else (np.nan, np.zeros(outputs.shape))


def gradient_metrics(unit: str) -> tuple[Metric, ...]:
    """The metrics of `NUMBERS`: predicted loss, importance, and importance as in the program of Michel et al. 2019.

    Args:
        unit: the unit of the loss.
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
    """Divide importance by its Euclidean norm in each layer (Molchanov et al. 2017; Michel et al. 2019).

    Args:
        importance: the importance of each head, `[layers, heads]`.

    >>> normalise_by_layer(np.array([[3.0, 4.0]])).tolist()
    [[0.6, 0.8]]
    """
    lengths = np.linalg.norm(importance, axis=1, keepdims=True)
    return np.divide(importance, lengths, out=np.zeros(importance.shape), where=lengths > 0)
