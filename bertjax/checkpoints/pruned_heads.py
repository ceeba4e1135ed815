"""Heads that a checkpoint has no weights for: `pruned_heads` of config.json, as transformers wrote it up to version 4.

A head keeps its name where others of its layer are gone: without 3.0, the first rows of the layer's weights are 3.1's.
"""

from collections.abc import Callable, Iterable, Mapping
from operator import index
from typing import Any

from bertjax import arguments
from bertjax.checkpoints.architecture import Architecture
from bertjax.errors import ConfigError

Pruned = tuple[tuple[int, tuple[int, ...]], ...]
"""By layer the heads that are gone, both in ascending order; layers that have all of theirs are left out."""


def read_pruned(given: Any, layers: int, heads: int, show: Callable[[Any], str] = repr) -> Pruned:
    """What a config says of pruned heads.

    Args:
        given: a table from layers, as numbers or texts, to lists of heads; or what this gave.
        layers, heads: how many there are.
        show: how a value is shown in a message.

    Raises:
        ConfigError: it is no such table, or names a layer or a head that there is not.

    >>> read_pruned({"1": [2, 0], "0": []}, 2, 3)
    ((1, (0, 2)),)
    """
    if given is None:
        return ()
    if not isinstance(given, Mapping | list | tuple):
        raise ConfigError(f"pruned_heads must be a table of lists of heads by layer, found {show(given)}")
    try:
        pairs = [(_number(layer), sorted({_number(head) for head in own})) for layer, own in dict(given).items()]
    except (TypeError, ValueError):
        raise ConfigError(f"pruned_heads must be a table of lists of heads by layer, found {show(given)}") from None
    for layer, own in pairs:
        wrong = [f"{layer}.{head}" for head in own if not (0 <= layer < layers and 0 <= head < heads)]
        if wrong:
            raise ConfigError(f"pruned_heads names head {wrong[0]}: there are {layers} layers of {heads} heads")
    return tuple(sorted((layer, tuple(own)) for layer, own in pairs if own))


def _number(given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise TypeError
    return int(given)


def read_heads(heads: Iterable[str | tuple[int, int]]) -> list[tuple[int, int]]:
    """Layer and number of each head of a list, whether or not there is such a head.

    Raises:
        ConfigError: it is no list of heads.

    >>> read_heads(["3.0", (2, 7)])
    [(3, 0), (2, 7)]
    """
    return [_pair(head) for head in arguments.check_sequence(heads, "heads", "a list of heads", error=ConfigError)]


def _pair(head: Any) -> tuple[int, int]:
    try:
        layer, number = map(index, (arguments.parse_head_name(head) or ()) if isinstance(head, str) else head)
    except (TypeError, ValueError):
        raise ConfigError(
            f"{arguments.brief(head)} names no head: give LAYER.HEAD, e.g. 3.0, or a pair of whole numbers"
        ) from None
    return layer, number


def check_shared_heads(architecture: Architecture) -> None:
    """Raise `ConfigError` where layers that share their weights do not have the same heads."""
    heads = dict[int, tuple[int, ...]]()
    for layer, (own, kind) in enumerate(zip(architecture.parameters_of, architecture.layers, strict=True)):
        if heads.setdefault(own, kind.heads) != kind.heads:
            raise ConfigError(f"pruned_heads of layer {layer} are not those of the layers that share its weights")
