"""Heads without weights: `pruned_heads` of config.json, as transformers 4 wrote it.

Heads keep their names when others of their layer are removed: without 3.0, the first rows of the weights belong to 3.1.
"""

from collections.abc import Iterable, Mapping
from operator import index
from typing import Any

from bertjax import arguments
from bertjax.checkpoints.architecture import Architecture, Pruned
from bertjax.errors import ConfigError


def read_pruned(pruned: Any, layers: int, heads: int) -> Pruned:
    """Read `pruned_heads` of a config.

    Args:
        pruned: dict from layers, as ints or strings, to lists of heads; or an earlier result.
        layers: number of layers.
        heads: number of heads in a layer.

    Raises:
        ConfigError: another type, or a layer or head that does not exist.

    >>> read_pruned({"1": [2, 0], "0": []}, 2, 3)
    ((1, (0, 2)),)
    """
    if pruned is None:
        return ()
    try:
        if not isinstance(pruned, Mapping | list | tuple):
            raise TypeError
        by_layer = dict(pruned).items()
        pairs = [(_index(layer), sorted({_index(head) for head in removed})) for layer, removed in by_layer]
    except (TypeError, ValueError):
        raise ConfigError(
            f"pruned_heads must be a dict from layers to lists of heads, found {arguments.brief(pruned)}"
        ) from None
    for layer, removed in pairs:
        wrong = [f"{layer}.{head}" for head in removed if not (0 <= layer < layers and 0 <= head < heads)]
        if wrong:
            raise ConfigError(f"pruned_heads names head {wrong[0]}: there are {layers} layers of {heads} heads")
    return tuple(sorted((layer, tuple(removed)) for layer, removed in pairs if removed))


def _index(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError
    return int(value)


def read_heads(heads: Iterable[str | tuple[int, int]]) -> list[tuple[int, int]]:
    """(layer, head) of each head in a list; the heads need not exist.

    Raises:
        ConfigError: not a list of heads.

    >>> read_heads(["3.0", (2, 7)])
    [(3, 0), (2, 7)]
    """
    return [_pair(head) for head in arguments.check_sequence(heads, "heads", "a list of heads", error=ConfigError)]


def _pair(head: Any) -> tuple[int, int]:
    try:
        layer, position = map(index, (arguments.parse_head_name(head) or ()) if isinstance(head, str) else head)
    except (TypeError, ValueError):
        raise ConfigError(
            f"{arguments.brief(head)} is not a head: give LAYER.HEAD, e.g. 3.0, or a pair of ints"
        ) from None
    return layer, position


def check_shared_heads(architecture: Architecture) -> None:
    """Raise `ConfigError` where layers that share their weights do not have the same heads."""
    heads = dict[int, tuple[int, ...]]()
    for layer, (parameters, kind) in enumerate(zip(architecture.parameters_of, architecture.layers, strict=True)):
        if heads.setdefault(parameters, kind.heads) != kind.heads:
            raise ConfigError(f"pruned_heads of layer {layer} differ from those of layers that share its weights")
