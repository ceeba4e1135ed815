"""Where a study's model and data come from: objects in memory, or what was loaded from files, once."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from bertjax.data import Tokenizer
from bertjax.model import PretrainedModel

T = TypeVar("T")


class Sources:
    """Model, tokenizer and data in memory, and for a study a cache of what was loaded.

    Args:
        model: a model in memory; None loads the one that the settings name.
        tokenizer: its tokenizer; None for the model's.
        data: for `load_examples`: `data`, or `texts` with `labels`; empty for what the settings name.
        caches: whether what was loaded is kept; if not, each job reads its files again.
    """

    def __init__(
        self,
        model: PretrainedModel | None = None,
        tokenizer: Tokenizer | None = None,
        data: dict[str, Any] | None = None,
        *,
        caches: bool = False,
    ):
        self.model, self.tokenizer, self.data, self.caches = model, tokenizer, data or {}, caches
        self._loaded: dict[Hashable, Any] = {}

    def once(self, key: Hashable, load: Callable[[], T]) -> T:
        """What `load` returned when it was first called with this key."""
        if not self.caches:
            return load()
        if key not in self._loaded:
            self._loaded[key] = load()
        value: T = self._loaded[key]
        return value

    def loaded(self, kind: str) -> Any:
        """The first thing of a kind that was loaded; None if nothing was."""
        return next((value for key, value in self._loaded.items() if isinstance(key, tuple) and key[0] == kind), None)

    def without_data(self) -> "Sources":
        """The same model and tokenizer, and what was loaded, without data in memory."""
        other = Sources(self.model, self.tokenizer, caches=self.caches)
        other._loaded = self._loaded
        return other
