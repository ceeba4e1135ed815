"""The sign-flip test: are the differences of examples above 0 on average?"""

import numpy as np
from jaxtyping import Float

AT_ONCE = 1000  # sign vectors in memory
ROUNDING = 1e-9


def sign_test(
    differences: Float[np.ndarray, "examples layers heads"], draws: int, rng: np.random.Generator
) -> Float[np.ndarray, "layers heads"]:
    """p-values of the sums of differences: how often random signs of the examples give sums at least as large.

    Args:
        differences: of each example.
        draws: number of random sign vectors; p is (1 + hits) / (1 + draws).

    Returns: NaN where a difference is NaN.

    Source: Phipson and Smyth 2010, on why p is never 0.
    """
    flat = differences.reshape(len(differences), -1).astype(np.float64)  # sums in float32 would miss ties
    total, hits = flat.sum(0), np.zeros(flat.shape[1])
    for part in np.array_split(np.arange(draws), max(1, draws // AT_ONCE)):
        signs = rng.choice(np.array([-1.0, 1.0]), (len(part), len(flat)))
        hits += (signs @ flat >= total - ROUNDING).sum(0)
    return np.where(np.isnan(total), np.nan, (1 + hits) / (1 + draws)).reshape(differences.shape[1:])
