"""Multiple choice: each answer is read behind its question as a pair of its own, and the highest score is chosen."""

from functools import partial

import numpy as np
from jaxtyping import Float, Num

from bertjax.data import Choices, Examples, Tokenizer
from bertjax.interventions import readouts
from bertjax.tasks.encoded import Encoded, encode_texts
from bertjax.tasks.losses import Graded, Objective, cross_entropy
from bertjax.tasks.options import Options


def encode(tokenizer: Tokenizer, examples: Examples, options: Options) -> Encoded:
    """What stands before the choices, with each of them; a question goes to its answer where there is a context too."""
    choices = [content.texts for content in examples.content or () if isinstance(content, Choices)]
    questions = examples.second or ("",) * len(examples)
    count = len(choices[0])
    first = [*examples.first] * count
    second = [
        f"{question} {texts[number]}".strip()
        for number in range(count)
        for question, texts in zip(questions, choices, strict=True)
    ]
    encodings = encode_texts(tokenizer, first, second, options)
    return Encoded(
        "choices",
        encodings,
        tokenizer.pad_id,
        len(examples),
        copies=count,
        objective=Objective(
            readouts.logits, partial(grade_choices, examples.labels), "cross-entropy of the true choice"
        ),
    )


def grade_choices(labels: Num[np.ndarray, " examples"], example: int, given: Float[np.ndarray, "choices 1"]) -> Graded:
    """The cross-entropy of the true choice."""
    if labels[example] < 0:
        return np.nan, np.zeros(given.shape)
    loss, gradient = cross_entropy(given[:, 0], int(labels[example]))
    return loss, gradient[:, None]
