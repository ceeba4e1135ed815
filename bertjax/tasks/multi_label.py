"""Sets of labels: each label by itself is found where its logit is above 0, its probability above one half.

That is what `problem_type` "multi_label_classification" means in transformers.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from jaxtyping import Bool, Float

from bertjax.data import Examples, LabelSet, Tokenizer
from bertjax.interventions import readouts
from bertjax.tasks.encoded import Collected, Encoded, encode_texts
from bertjax.tasks.forms import label_order
from bertjax.tasks.losses import Graded, Objective, binary_cross_entropy
from bertjax.tasks.options import Options


def encode(tokenizer: Tokenizer, examples: Examples, options: Options) -> Encoded:
    """Texts or pairs, each asked for all labels.

    Raises:
        ConfigError: the model has another number of labels than the data, or other names.
    """
    order = label_order(dict(enumerate(options.label_names)), examples.task)
    sets = [content.labels for content in examples.content or () if isinstance(content, LabelSet)]
    numbers = {name: number for number, name in enumerate(examples.task.label_names or ())}
    true = np.zeros((len(sets), len(numbers)), np.bool_)
    for row, labels in zip(true, sets, strict=True):
        row[[numbers[name] for name in labels or ()]] = True
    encodings = encode_texts(tokenizer, examples.first, examples.second, options)
    return Encoded(
        "label-sets",
        encodings,
        tokenizer.pad_id,
        len(examples),
        order,
        collect=partial(_collect, true, order),
        labels=np.array([np.nan if labels is None else len(labels) for labels in sets], np.float32),
        objective=Objective(
            readouts.logits, partial(grade_label_set, true, order), "mean binary cross-entropy of a text's labels"
        ),
    )


def _collect(
    true: Bool[np.ndarray, "examples labels"],
    order: Sequence[int],
    given: Float[np.ndarray, "runs examples labels"],
) -> Collected:
    """Of each example the mean log-likelihood of its labels, whether all are right, and what is found of each."""
    logits = given[..., list(order)]
    found = logits > 0
    likelihoods = -np.logaddexp(0, np.where(true, -1, 1) * logits.astype(np.float64)).mean(axis=-1)
    exact = (found == true).all(axis=-1)
    by_label = np.stack([found & true, found, np.broadcast_to(true, found.shape)], axis=-1)
    parts = (likelihoods[..., None], exact[..., None], by_label.reshape(*exact.shape, -1))
    return Collected(np.concatenate(parts, axis=-1, dtype=given.dtype, casting="unsafe"))


def grade_label_set(
    true: Bool[np.ndarray, "examples labels"], order: Sequence[int], example: int, given: Float[np.ndarray, "texts all"]
) -> Graded:
    """The mean binary cross-entropy of a text's labels."""
    gradient = np.zeros(given.shape)
    loss, gradient[0, list(order)] = binary_cross_entropy(given[0, list(order)], true[example].astype(np.float64))
    return loss, gradient
