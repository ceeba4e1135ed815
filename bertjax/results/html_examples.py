"""Which examples an ablation changes most, with their texts and labels, for the page."""

from typing import Any

import numpy as np
from jaxtyping import Float, Num

from bertjax.evidence import find_metric, predictions_from_logits
from bertjax.results.directory import SavedResults

SHOWN = 20  # examples of an ablation
LONGEST = 500  # characters of a text


def choose_examples(saved: SavedResults, kept: list[int]) -> dict[str, Any]:
    """For each ablation the examples that it changes most: those whose prediction flips first.

    Args:
        kept: numbers of the ablations.

    Returns: `reads`: 'predictions' or 'values'; `changed`: for each ablation how many flip (None for values), and
        examples as [place in `texts`, value before, value after, prediction before, after]; `texts`: id, label and
        texts of those that occur. A value is the probability of the example's own label, or the output.
    """
    arrays, reads = saved.outputs, find_metric(saved.metric).reads
    predicted = reads == "predictions"
    base, labels = arrays["base"], arrays["labels"]
    names = saved.summary["data"]["label_names"]
    before = _values(base, labels) if predicted else base.reshape(-1)
    first = predictions_from_logits(base[None])[0] if predicted else None
    chosen: list[tuple[int | None, list[list[Any]]]] = []
    for number in kept:
        outputs = arrays["outputs"][number]
        after = _values(outputs, labels) if predicted else outputs.reshape(-1)
        size = np.abs(after - before)
        second, flips = None, None
        if first is not None:
            second = predictions_from_logits(outputs[None])[0]
            flipped = second != first
            flips = int(flipped.sum())
            size = size + 2 * flipped  # a probability changes by 1 at most
        order = np.argsort(-size, kind="stable")[:SHOWN]
        rows = [
            [int(place), _short(before[place]), _short(after[place])]
            + ([] if first is None or second is None else [int(first[place]), int(second[place])])
            for place in order.tolist()
            if size[place] > 0
        ]
        chosen.append((flips, rows))
    sampled = saved.attention["examples"].tolist() if saved.has_attention else []
    places = sorted({row[0] for _, rows in chosen for row in rows} | {*sampled})
    where = {place: number for number, place in enumerate(places)}
    changed = [[flips, [[where[row[0]], *row[1:]] for row in rows]] for flips, rows in chosen]
    texts = [_text(saved.examples[place], saved.label_of(saved.examples[place])) for place in places]
    return {"reads": reads, "labels": names, "changed": changed, "places": places, "texts": texts}


def _values(logits: Float[np.ndarray, "examples labels"], labels: Num[np.ndarray, " examples"]) -> np.ndarray:
    """The probability of each example's label; of an example without one, of the likeliest."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    shares = shifted / shifted.sum(-1, keepdims=True)
    known = np.nan_to_num(labels.astype(np.float64), nan=-1.0).astype(int)
    column = np.where(known >= 0, known, logits.argmax(-1))
    return np.take_along_axis(shares, column[:, None], axis=1)[:, 0]


def _text(example: dict[str, Any], label: str) -> list[Any]:
    texts = [example[name] for name in ("first", "second") if name in example]
    shown = [text if len(text) <= LONGEST else f"{text[:LONGEST]} …" for text in texts]
    return [str(example["id"]), label, *shown]


def _short(value: Any) -> float:
    return float(f"{float(value):.4g}")
