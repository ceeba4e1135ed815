"""What [CLS] attends to in the last layer: features of the input (figure 7)."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from experiments.words.estimates import estimate, listed
from experiments.words.features import FEATURES, Masks, largest_of, mean_of

FORMS = ("largest", "largest_by_uniform", "mean_by_uniform")


@dataclass(frozen=True)
class Row:
    """What [CLS] gives the features of each example in the last layer; 0 for a feature that the example lacks.

    Args:
        largest: the weight of the feature's most attended token (the paper's form).
        mean: the mean weight of its tokens.
    """

    largest: Float[np.ndarray, "examples features heads"]
    mean: Float[np.ndarray, "examples features heads"]


def row_of(
    maps: Float[Array, "layers batch heads query key"],
    keep: Int[Array, "batch token"],
    masks: Bool[Array, "batch features width"],
) -> Float[Array, "batch 2 features layers heads"]:
    """The largest and the mean weight of [CLS] on each feature, in every layer."""
    row = jnp.moveaxis(maps[:, :, :, 0], 0, 1)
    return jnp.stack([largest_of(row, masks), mean_of(row, masks)], axis=1)


def report_row(row: Row, masks: Masks, lengths: Int[np.ndarray, " examples"]) -> dict[str, Any]:
    """For each feature, means over the examples that have it: by head, and over all heads.

    `largest`, `largest_by_uniform` and `mean_by_uniform`: the last two are multiplied by the number of tokens in the
    input, so that uniform attention gives 1; the last does not grow with the number of the feature's tokens.
    """
    report: dict[str, Any] = {}
    for index, feature in enumerate(FEATURES):
        present = masks[:, index].any(-1)
        if present.any():
            scaled = [values[present, index] * lengths[present, None] for values in (row.largest, row.mean)]
            forms = dict(zip(FORMS, [row.largest[present, index], *scaled], strict=True))
            report[feature] = {"examples": int(present.sum())}
            report[feature] |= {name: listed(values.astype(np.float64).mean(0)) for name, values in forms.items()}
            report[feature]["interval"] = estimate(scaled[1]).to_dict()["interval"]
            report[feature]["all_heads"] = {name: estimate(values.mean(-1)).to_dict() for name, values in forms.items()}
    return report
