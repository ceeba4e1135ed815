"""How the page shows examples: their values, and lines of text with marks.

A line is a list of pieces, each a str and its mark. Nothing is HTML. A task defines the display of its examples as a
subclass of `Display`, in the file of the task.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Num

from bertjax.results.contents import Contents

Line = list[tuple[str, str]]  # pieces with their marks
# Marks: a name, plain text, the truth, and a right or wrong prediction.
NAME, PLAIN, TRUE, RIGHT, WRONG = "name", "", "true", "right", "wrong"
LONGEST = 500  # characters of a text
AROUND = 40  # characters on each side of an answer
PREDICTS = {"logits": True, "score": False, "similarity": False}
"""The outputs with the default display, and whether their largest number is the predicted class."""


@dataclass(frozen=True)
class Display:
    """The display of examples: their texts, and the probability of a label or a single output.

    Args:
        saved: the results.
        predicts: whether the largest number of an output is the predicted class.
    """

    saved: Contents
    predicts: bool = False

    @property
    def value(self) -> str:
        """The name of an example's value."""
        return "probability" if self.predicts else "output"

    @property
    def note(self) -> str:
        """A note on the value for the reader."""
        return "The probability is that of the example's label." if self.predicts else ""

    def values(self, outputs: Float[np.ndarray, "outputs ..."]) -> Float[np.ndarray, " examples"]:
        """The value of each example in one run; NaN if an example has no output.

        Args:
            outputs: the outputs of one run.
        """
        if self.predicts:
            return _probabilities(outputs, self.saved.outputs["labels"])
        return outputs.reshape(-1)

    def lines(self, example: int) -> list[Line]:
        """The texts of an example.

        Args:
            example: the index of the example.
        """
        row = self.saved.examples[example]
        return [[(shorten(row[name]), PLAIN)] for name in ("first", "second") if name in row]

    def change(self, run: int, example: int) -> list[Line]:
        """Lines on how an ablation changes an example, besides its value.

        Args:
            run: the index of the ablation.
            example: the index of the example.
        """
        return []


class NumberDisplay(Display):
    """Texts, and one of the numbers of each output.

    Attributes:
        number: the index of the number.
    """

    number = 0

    def values(self, outputs: Float[np.ndarray, "outputs numbers"]) -> Float[np.ndarray, " examples"]:
        """The number of each output.

        Args:
            outputs: the outputs of one run.
        """
        return np.asarray(outputs[:, self.number])


def cut_out(text: str, start: int, end: int, mark: str, around: int = AROUND) -> Line:
    """A part of a text with its surroundings.

    Args:
        text: the whole text.
        start: the index of the first character of the part.
        end: the index after its last character.
        mark: the mark of the part in the result.
        around: the number of characters on either side.

    >>> cut_out("the Panthers defense gave up 308 points in all", 29, 32, "true", around=8)
    [('… up ', ''), ('308', 'true'), (' points …', '')]
    """
    first, last = max(0, start - around), min(len(text), end + around)
    first = text.find(" ", first, start) if first and " " in text[first:start] else first
    last = text.rfind(" ", end, last) if last < len(text) and " " in text[end:last] else last
    before, after = ("…" * (first > 0) + text[first:start]), text[end:last] + " …" * (last < len(text))
    return [piece for piece in ((before, PLAIN), (shorten(text[start:end]), mark), (after, PLAIN)) if piece[0]]


def shorten(text: str) -> str:
    """Shorten a text to the length that the page shows.

    Args:
        text: the whole text.
    """
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def _probabilities(
    logits: Float[np.ndarray, "examples labels"], labels: Num[np.ndarray, " examples"]
) -> Float[np.ndarray, " examples"]:
    """The probability of each example's label, or of the most likely label for examples without a label."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    probabilities = shifted / shifted.sum(-1, keepdims=True)
    classes = np.nan_to_num(labels.astype(np.float64), nan=-1.0).astype(int)
    column = np.where(classes >= 0, classes, logits.argmax(-1))
    return np.asarray(np.take_along_axis(probabilities, column[:, None], axis=1)[:, 0])


def display_of(saved: Contents) -> Display:
    """The display of the examples of results."""
    name, has_classes = saved.summary["outputs"], len(saved.summary["data"]["label_names"]) > 1
    if name in PREDICTS:  # without an import of JAX
        return Display(saved, PREDICTS[name] and has_classes)
    from bertjax.analyses import ANALYSES  # imports JAX
    from bertjax.tasks import form_named

    specs = (analysis.outputs for analysis in ANALYSES.values())
    form = next((spec for spec in specs if spec is not None and spec.name == name), form_named(name))
    if form is None:  # of a task or an analysis of the user
        return NumberDisplay(saved) if "numbers" in saved.summary else Display(saved)
    return form.display(saved, form.predicts and has_classes)
