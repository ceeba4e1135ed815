"""Several devices share the rows of every chunk: each takes all runs through all layers on rows of its own.

Examples know nothing of each other, so no step moves anything between devices; weights are on all of them, and
outputs come together on the host. A step is compiled for the rows of one device (`jax.shard_map`), so the operations of
each fall as 1/n.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

T = TypeVar("T")
# The name of the mesh's one axis, along which examples are shared.
AXIS = "data"
# Blocks have the axes runs, rows, and others; all else is whole on every device.
SPLIT, WHOLE = PartitionSpec(None, AXIS), PartitionSpec()
# Batches have their examples first.
BATCH = PartitionSpec(AXIS)


def make_mesh(devices: Sequence[jax.Device] | None, rows: int) -> Mesh | None:
    """A mesh of as many of these devices as can share the rows evenly; None if that is one.

    Args:
        devices: default all of this process.
    """
    several = list(jax.local_devices() if devices is None else devices)
    count = max(number for number in range(1, len(several) + 1) if rows % number == 0)
    default = devices is None or several[0] == jax.local_devices()[0]
    return None if count == 1 and default else Mesh(np.array(several[:count]), (AXIS,))


def place_on_mesh(tree: T, mesh: Mesh | None, where: PartitionSpec = WHOLE) -> T:
    """Arrays on the devices of a mesh: on every one of them whole, or split as `where` says."""
    return tree if mesh is None else jax.device_put(tree, NamedSharding(mesh, where))


def over_rows(step: Callable[..., T], mesh: Mesh | None, split: Sequence[PyTree], whole: Sequence[PyTree] = ()) -> T:
    """`step(*split, *whole)`, on a mesh on the rows of each device apart.

    Args:
        step: gives an array, or a tree of them, whose second axis is rows.
        split: arrays, and trees of them, whose second axis is rows.
        whole: arrays, and trees of them, that each device needs whole.
    """
    if mesh is None:
        return step(*split, *whole)
    specs = tuple(SPLIT for _ in split) + tuple(WHOLE for _ in whole)
    on_mesh: Callable[..., T] = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=SPLIT, check_vma=False)
    return on_mesh(*split, *whole)
