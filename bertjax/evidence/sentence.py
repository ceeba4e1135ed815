"""What was found, in a sentence: how many ablations matter for sure, the extremes, and what cannot be told."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertjax.evidence.intervals import LEVEL
from bertjax.evidence.weighing import Evidence, Q
from bertjax.formatting import count_of, equals_p, format_change


def summarise(evidence: Evidence, names: Sequence[str], kind: str) -> str:
    """The plain sentence: how many ablations raise or lower the score for sure, the extremes, and what is unknown.

    A gain is a rise of the score by an ablation, a loss a fall.

    Args:
        names: of the ablations.
        kind: what one is: 'head', 'layer' or 'set'.
    """
    differences, total = evidence.difference, len(names)
    called = [f"layer {name}" if kind == "layer" else name for name in names]
    known = np.isfinite(differences)
    if not known.any():
        return f"{_name(evidence)} is undefined: no {kind}'s effect can be told."
    raised, lowered = (int((evidence.found & (sign * differences > 0)).sum()) for sign in (1, -1))
    unknown = int(known.sum()) - raised - lowered
    counted = f"the score for {raised} of {count_of(total, kind)} and lowers it for {lowered}"
    parts = [f"Ablating one {kind} raises {counted}, at q < {Q} ({_name(evidence)})"]
    place = int(np.nanargmax(differences))
    if differences[place] > 0:
        p = equals_p("p", evidence.best[place], evidence.least_best_p)
        chance = f"by chance the best of {total} would stand out as much with {p}"
        parts.append(f"the largest gain is {_change(evidence, place)} for {called[place]}; {chance}")
    else:
        parts.append("there is no gain")
    place = int(np.nanargmin(differences))
    if differences[place] < 0:
        parts.append(f"the largest loss is {_change(evidence, place)} for {called[place]}")
    if unknown:
        examples = count_of(evidence.examples, "example")
        parts.append(f"{unknown} cannot be told from zero with {examples}, which {_shown(evidence, kind)}")
    return "; ".join(parts) + "."


def _shown(evidence: Evidence, kind: str) -> str:
    """Which changes of those that cannot be told from zero these examples would show."""
    known = evidence.detectable[np.isfinite(evidence.detectable) & ~evidence.found]
    least = float(np.median(known)) if known.size else np.inf
    if least >= 1 - evidence.metric.lowest:
        return "can show none"
    low, high = (f"{100 * end:.1f}" for end in (known.min(), known.max()))
    between = "" if low == high else f" ({low} to {high}, by {kind})"
    return f"would show changes of about {100 * least:.1f} points and more{between}"


def _name(evidence: Evidence) -> str:
    return evidence.metric.label


def _change(evidence: Evidence, place: int) -> str:
    ends = " to ".join(format_change(100 * float(end[place])) for end in (evidence.low, evidence.high))
    return f"{format_change(100 * float(evidence.difference[place]))} points (95 % CI {ends})"


def name_test(found: Evidence) -> str:
    """Which test the p-values are of."""
    if found.metric.flips_alone:
        return "McNemar, exact"
    return f"{'all' if found.exact else 'random'} swaps, {found.draws:,}"


def describe_statistics(found: Evidence, names: Sequence[str], kind: str) -> dict[str, Any]:
    """How the numbers of a metric were made, and what choosing heads on half of the data gives; for `summary.json`."""
    return {
        "sentence": summarise(found, names, kind),
        "examples": found.examples,
        "level": LEVEL,
        "q": Q,
        "resamples": found.resamples,
        "test": name_test(found),
        "least_p": found.least_p,
        "least_best_p": found.least_best_p,
        "seed": found.seed,
        "effect_size": found.metric.effect_size.text,
        "halves": {**found.halves, "chosen": [[names[place], share] for place, share in found.halves["chosen"]]},
    }
