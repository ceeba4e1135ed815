"""Modes: how a head is replaced. An entry of `MODES` is all that the engine, the reference and the figures need."""

import math
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass

from bertjax import arguments
from bertjax.errors import InputError

REPLACEMENTS = ("nothing", "uniform", "mean", "source", "parameters")
MODE_NAME = "[a-z][a-z0-9_-]*"  # as written in '3.0=zero', in files of sets and in results


@dataclass(frozen=True)
class Mode:
    """How a head is replaced: its output becomes `(1 - share) * output + share * replacement`.

    Args:
        definition: a full description, for `summary.json` and the report.
        title: a short description for titles, such as 'set to zero'.
        replacement: 'nothing' (zero); 'uniform', the output with attention weights 1/n; 'mean', the head's mean output
            over the evaluated examples; 'source', its output on another text; 'parameters', the parameters of another
            model.
        share: share of the output that is replaced, 1 for all of it.

    Raises:
        InputError: there is no such replacement, or the share is not a finite number other than 0.

    >>> from bertjax.interventions import MODES, Mode
    >>> MODES["half"] = Mode("the head's output times 1/2", "halved", share=0.5)
    >>> del MODES["half"]
    """

    definition: str
    title: str
    replacement: str = "nothing"
    share: float = 1.0

    def __post_init__(self) -> None:
        arguments.check_choice(self.replacement, "replacement", REPLACEMENTS)
        if not (isinstance(self.share, float | int) and math.isfinite(self.share) and self.share):
            arguments.refuse("share", "a finite number other than 0", self.share)


# By name; add your own.
MODES: dict[str, Mode] = {
    "uniform": Mode(
        "attention weights 1/n for every query over the n real tokens of the example that it may attend to ([CLS] and "
        "[SEP] count, padding does not); values and output projection stay (Kovaleva et al. 2019)",
        "made uniform",
        "uniform",
    ),
    "zero": Mode("the head's output before the output projection times 0 (Michel et al. 2019)", "set to zero"),
    "mean": Mode(
        "the head's output replaced at every token by its mean over the real tokens of the evaluated examples",
        "replaced by its mean",
        "mean",
    ),
    "patched": Mode(
        "the head's output replaced by its output on another text, its source (activation patching; Vig et al. 2020)",
        "patched from its source",
        "source",
    ),
}
# Modes of parameters, at sites of `PARAMETER_SITES`.
PARAMETER_MODES: Mapping[str, Mode] = {
    "restored": Mode(
        "parameters replaced by those of the base model (re-initialization of Zhang et al. 2022)",
        "restored from the base model",
        "parameters",
    ),
    "redrawn": Mode(
        "parameters drawn anew from the distribution that training starts from (re-randomization of Zhang et al. 2022)",
        "drawn anew",
        "parameters",
    ),
}


def find_mode(name: str) -> Mode:
    """Find a mode by its name.

    Raises:
        InputError: no mode has this name, or the name cannot be written in files of sets.
    """
    modes = {**MODES, **PARAMETER_MODES}
    if isinstance(name, str) and name not in modes:
        raise InputError(
            f"mode {reprlib.repr(name)} is not one of {', '.join(MODES)}; fixed weights and single edges are overrides "
            "for a call of the model, or many of them for reference.run and reference.sweep (--engine reference)"
        )
    mode = modes[arguments.check_choice(name, "mode", modes)]
    if not re.fullmatch(MODE_NAME, name):
        arguments.refuse("a mode's name", "lower-case letters, digits, - and _, starting with a letter", name)
    return mode
