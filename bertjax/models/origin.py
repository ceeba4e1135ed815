"""Where a model comes from: its name, and its tokenizer, which is read when it is first needed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from bertjax.checkpoints import has_tokenizer
from bertjax.data import Tokenizer


@dataclass
class Origin:
    """Where a model comes from.

    Args:
        name: of the checkpoint as the user wrote it; None for a model from memory.
        source: the model's tokenizer, or the directory with its files. Reading them imports transformers, which takes
            two seconds, so that it waits until somebody needs the tokenizer.
    """

    name: str | None = None
    source: Tokenizer | Path | None = None

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer; None where the directory has none. Raises as `Tokenizer.from_pretrained`."""
        if isinstance(self.source, Path):
            self.source = Tokenizer.from_pretrained(self.source) if has_tokenizer(self.source) else None
        return self.source


ORIGINS: WeakKeyDictionary[Any, Origin] = WeakKeyDictionary()
"""The origin of each model. No attribute of the model holds it: `nnx.split` would make it a part of what a program is
compiled for, and two checkpoints of one shape would not share their programs."""
