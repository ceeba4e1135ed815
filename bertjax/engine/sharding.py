"""Sharding: several devices share the rows of every chunk, and each computes all runs on its rows.

Examples are independent, so no step communicates between devices. Weights are replicated, and outputs are gathered on
the host. A step is compiled for the rows of one device (`jax.shard_map`), so n devices do 1/n of the work each.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

T = TypeVar("T")
AXIS = "data"  # the only axis of the mesh; examples are shared along it
SPLIT, WHOLE = PartitionSpec(None, AXIS), PartitionSpec()  # of blocks `[runs, rows, ...]`, and of replicated arrays
BATCH = PartitionSpec(AXIS)  # of batches `[examples, ...]`


def make_mesh(devices: Sequence[jax.Device] | None, rows: int) -> Mesh | None:
    """A mesh of as many devices as can share the rows evenly; None for the default device alone.

    Args:
        devices: devices that share the rows; by default all devices of this process.
        rows: the number of rows of a chunk.
    """
    candidates = list(jax.local_devices() if devices is None else devices)
    count = max(count for count in range(1, len(candidates) + 1) if rows % count == 0)
    default = candidates[0] == jax.local_devices()[0]
    return None if count == 1 and default else Mesh(np.array(candidates[:count]), (AXIS,))


def place_on_mesh(tree: T, mesh: Mesh | None) -> T:
    """Put copies of arrays on each device of a mesh."""
    return tree if mesh is None else jax.device_put(tree, NamedSharding(mesh, WHOLE))


def over_rows(step: Callable[..., T], mesh: Mesh | None, split: Sequence[PyTree], whole: Sequence[PyTree] = ()) -> T:
    """Compute `step(*split, *whole)`; on a mesh, each device computes it for its rows.

    Args:
        step: returns an array, or a tree of arrays, whose second axis is rows.
        split: arrays, or trees of arrays, whose second axis is rows.
        whole: arrays, or trees of arrays, that each device needs in full.
    """
    if mesh is None:
        return step(*split, *whole)
    specs = tuple(SPLIT for _ in split) + tuple(WHOLE for _ in whole)
    on_mesh: Callable[..., T] = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=SPLIT, check_vma=False)
    return on_mesh(*split, *whole)
