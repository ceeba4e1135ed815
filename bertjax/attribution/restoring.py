"""What a patch brings back: how far the score of a corrupted text moves towards that of the clean one.

Of each contrast three numbers are kept: the score of the patched run, of the run that is patched, and of the donor. The
share restored is the sum over contrasts of (patched - own) over the sum of (donor's - own): 0 for a patch that does
nothing, 100 points for one that gives the donor's score. Sums over contrasts are divided, and not each contrast's two
numbers, so that contrasts whose scores hardly differ do not weigh most. Sources: Meng et al. 2022 trace so; Wang et al.
2023 divide by the difference of the two runs.
"""

import numpy as np

from bertjax.evidence import Metric, ratios


def patching_metrics(label: str, unit: str = "", *, lost: bool = False) -> tuple[Metric, ...]:
    """The share that a patch restores, and the score itself.

    Args:
        label, unit: of the score.
        lost: whether clean texts are patched from corrupted ones, and the share is what they lose.
    """
    ends = {"lowest": -np.inf, "highest": np.inf, "by": "patching"}
    name = "lost" if lost else "restored"
    share = Metric.of_sums(name, f"Share {name}", ratios.RESTORED, of_effects=True, **ends)
    return share, Metric.of_sums("score", label, ratios.mean_number(ratios.PATCHING, "patched"), unit=unit, **ends)
