"""Name and tokenizer of a model's checkpoint."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from bertjax.checkpoints import has_tokenizer
from bertjax.data import Tokenizer


@dataclass
class Origin:
    """Name and tokenizer of a model's checkpoint.

    Args:
        name: name of the checkpoint as the user wrote it; None for a model in memory.
        source: tokenizer, or the directory of its files. They are read on first use: that imports transformers, which
            takes two seconds.
    """

    name: str | None = None
    source: Tokenizer | Path | None = None

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer, or None. Raises as `Tokenizer.from_pretrained`."""
        if isinstance(self.source, Path):
            self.source = Tokenizer.from_pretrained(self.source) if has_tokenizer(self.source) else None
        return self.source


ORIGINS: WeakKeyDictionary[Any, Origin] = WeakKeyDictionary()
"""Origins of models. As attributes they would be static in `nnx.split`, and prevent models from sharing programs."""
