"""In which order heads can go: by gradients or exact losses taken anew as they go, by their weights, at random.

Michel et al. 2019 (section 4) remove heads in the order of their gradients' importance, a tenth of all at a time, as it
was at the start. Here importance is taken anew each time, of what is left. The exact order asks at each step which
heads the loss misses least, those before being gone: each step is a sweep, whose runs share with each other all that
lies below the head in which they differ.
"""

from collections.abc import Callable, Sequence
from math import ceil

import numpy as np
from jaxtyping import Float

from bertjax.attribution.gradients import head_gradients
from bertjax.interventions import every_head
from bertjax.model import PretrainedModel
from bertjax.tasks import EncodedDataset

Costs = Callable[[Sequence[tuple[int, int]], Sequence[tuple[int, int]]], Float[np.ndarray, " heads"]]
"""Takes the heads that are gone and those that are left; returns what each one left is worth."""


def order_by(costs: Costs, heads: Sequence[tuple[int, int]], share: float) -> list[tuple[int, int]]:
    """Heads in the order in which they go: at each step those that are worth least of what is left.

    Args:
        costs: what each head that is left is worth.
        heads: all of them.
        share: of all heads, which goes at a step; one head at least.

    >>> worth = {(0, 0): 3.0, (0, 1): 1.0, (1, 0): 2.0}
    >>> order_by(lambda gone, left: np.array([worth[head] for head in left]), list(worth), 0.1)
    [(0, 1), (1, 0), (0, 0)]
    """
    at_once, gone, left = _at_once(len(heads), share), list[tuple[int, int]](), list(heads)
    while len(left) > at_once:
        order = np.argsort(costs(gone, left), kind="stable")[:at_once].tolist()
        gone += [left[place] for place in order]
        left = [head for place, head in enumerate(left) if place not in set(order)]
    last = np.argsort(costs(gone, left), kind="stable").tolist() if len(left) > 1 else range(len(left))
    return [*gone, *(left[place] for place in last)]


def steps_of(heads: int, share: float) -> list[int]:
    """How many heads are left at each step of `order_by`.

    >>> steps_of(10, 0.3)
    [10, 7, 4, 1]
    """
    return [*range(heads, 0, -_at_once(heads, share))]


def _at_once(heads: int, share: float) -> int:
    return max(1, ceil(share * heads - 1e-9))


def gradient_costs(
    model: PretrainedModel,
    encoded: EncodedDataset,
    mode: str,
    means: Float[np.ndarray, "layers heads head_dim"] | None,
) -> Costs:
    """Importance by gradients, where some heads are gone: the mean of absolute values of examples."""

    places = {head: place for place, head in enumerate(every_head(model.config))}

    def costs(gone: Sequence[tuple[int, int]], left: Sequence[tuple[int, int]]) -> Float[np.ndarray, " heads"]:
        found = head_gradients(model, encoded, mode, means=means, gone=gone)
        importance = np.nanmean(np.abs(found.changes), axis=1)
        return np.asarray(importance[[places[head] for head in left]])

    return costs


def magnitudes(model: PretrainedModel) -> dict[tuple[int, int], float]:
    """The size of each head's weights: the Frobenius norm of what takes a value's input to the head's output.

    That is the product of the head's value and output kernels: whatever one of the two is scaled by can be undone in
    the other.
    """
    sizes = {}
    for number, layer in enumerate(model.body.encoder.applications()):
        value = np.asarray(layer.attention.value.kernel[...], np.float64)  # embed, heads, head_dim
        output = np.asarray(layer.attention.output.kernel[...], np.float64)  # heads, head_dim, embed
        products = np.einsum("ehd,ehc->hdc", value, value), np.einsum("hde,hce->hdc", output, output)
        squares = np.einsum("hdc,hdc->h", *products).tolist()
        for head, squared in zip(model.config.heads_of(number), squares, strict=True):
            sizes[number, head] = float(np.sqrt(max(squared, 0.0)))
    return sizes


def heads_left(heads: int, points: int = 10) -> list[int]:
    """How many heads are left at each point of a curve: from a part less than all down to none, about equally apart.

    >>> heads_left(12, 4)
    [9, 6, 3, 0]
    """
    counts = dict.fromkeys(round(heads * (1 - point / points)) for point in range(1, points + 1))
    return [count for count in counts if count < heads]
