"""What was found, in a sentence: how many ablations matter for sure, the extremes, and what cannot be told."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertjax.evidence import EFFECT_SIZES, STANDARDISED, Evidence, Q
from bertjax.intervals import LEVEL
from bertjax.metrics import find_metric
from bertjax.page import format_change


def tell(evidence: Evidence, names: Sequence[str], kind: str) -> str:
    """The plain sentence: how many ablations help or hurt for sure, the largest gain, and what cannot be told.

    Args:
        names: of the ablations.
        kind: what one is: 'head', 'layer' or 'set'.
    """
    differences, total = evidence.difference, len(names)
    called = [f"layer {name}" if kind == "layer" else name for name in names]
    known = np.isfinite(differences)
    if not known.any():
        return f"{_name(evidence)} is undefined: no {kind}'s effect can be told."
    help_, hurt = (int((evidence.found & (sign * differences > 0)).sum()) for sign in (1, -1))
    unknown = int(known.sum()) - help_ - hurt
    several = f"{kind}{'' if total == 1 else 's'}"
    parts = [f"{help_} of {total} {several} help when disabled and {hurt} hurt, at q < {Q} ({_name(evidence)})"]
    place = int(np.nanargmax(differences))
    if differences[place] > 0:
        chance = f"by chance the best of {total} would stand out as much with p = {format_p(evidence.best[place])}"
        parts.append(f"the largest gain is {_change(evidence, place)} for {called[place]}; {chance}")
    else:
        parts.append(f"no {kind} gains")
    place = int(np.nanargmin(differences))
    if differences[place] < 0:
        parts.append(f"the largest loss is {_change(evidence, place)} for {called[place]}")
    if unknown:
        examples = f"{evidence.examples:,} examples"
        parts.append(f"{unknown} cannot be told from zero with {examples}, which {_shown(evidence, kind)}")
    return "; ".join(parts) + "."


def _shown(evidence: Evidence, kind: str) -> str:
    """Which changes of those that cannot be told from zero these examples would show."""
    known = evidence.detectable[np.isfinite(evidence.detectable) & ~evidence.found]
    least = float(np.median(known)) if known.size else np.inf
    if least >= 1 - find_metric(evidence.metric).lowest:
        return "can show none"
    low, high = (f"{100 * end:.1f}" for end in (known.min(), known.max()))
    between = "" if low == high else f" ({low} to {high}, by {kind})"
    return f"would show changes of about {100 * least:.1f} points and more{between}"


def _name(evidence: Evidence) -> str:
    return find_metric(evidence.metric).label


def _change(evidence: Evidence, place: int) -> str:
    ends = " to ".join(format_change(100 * float(end[place])) for end in (evidence.low, evidence.high))
    return f"{format_change(100 * float(evidence.difference[place]))} points (95 % CI {ends})"


def format_p(value: float) -> str:
    """A p-value in two digits.

    >>> format_p(0.0314), format_p(0.00001), format_p(1.0)
    ('0.031', '0.00001', '1')
    """
    return f"{value:.2g}" if value >= 0.001 else f"{value:.5f}".rstrip("0") if value >= 0.00001 else "<0.00001"


def name_test(found: Evidence) -> str:
    """Which test the p-values are of."""
    if found.metric == "accuracy":
        return "McNemar, exact"
    return f"{'all' if found.exact else 'random'} swaps, {found.draws:,}"


def describe_statistics(found: Evidence, names: Sequence[str], kind: str) -> dict[str, Any]:
    """How the numbers of a metric were made, and what choosing heads on half of the data gives; for `summary.json`."""
    return {
        "sentence": tell(found, names, kind),
        "examples": found.examples,
        "level": LEVEL,
        "q": Q,
        "resamples": found.resamples,
        "test": name_test(found),
        "seed": found.seed,
        "effect_size": EFFECT_SIZES.get(found.metric, STANDARDISED),
        "halves": {**found.halves, "chosen": [[names[place], share] for place, share in found.halves["chosen"]]},
    }
