"""Several processes, on one machine or many, share the examples of a sweep: `bertjax ablate --distributed`.

The examples are cut into shares. In each round every process sweeps one share on its own devices, without a word to the
others; then the outputs come together, and process 0 writes them into the journal. Shares do not depend on how many
processes there are, so an unfinished sweep goes on with any number of them. A process that ends ends all: those that
wait for it are told at once, those that compute within a minute.
"""

import contextlib
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Shaped

from bertjax import engine
from bertjax.ablations import Ablation
from bertjax.errors import InputError, ProcessLostError
from bertjax.fingerprint import facts_of
from bertjax.job import Job, make_job
from bertjax.journal import Journal, open_journal
from bertjax.memory import default_budget, memory_in_use
from bertjax.schedule import Progress

# Seconds without a sign of life after which a process counts as lost.
HEARTBEAT, FAREWELL = 20, 30
# Examples of a share: a few minutes of work at most.
EXAMPLES_OF_SHARE = {"cpu": 32, "other": 512}


def start(coordinator: str | None = None, processes: int | None = None, process: int | None = None) -> None:
    """Join the other processes, before anything is computed.

    Args:
        coordinator: HOST:PORT of process 0; by default all three are those that a TPU pod, Slurm, Open MPI or
            Kubernetes says.
        processes: how many there are.
        process: this one's number, from 0.

    Raises:
        InputError: nothing says who the others are, or they cannot be reached.
    """
    given: dict[str, Any] = {"heartbeat_timeout_seconds": HEARTBEAT, "shutdown_timeout_seconds": FAREWELL}
    try:
        jax.distributed.initialize(
            coordinator_address=coordinator, num_processes=processes, process_id=process, **given
        )
    except (ValueError, RuntimeError) as error:
        raise InputError(
            f"the processes cannot be joined ({' '.join(str(error).split())[:300]}): give --coordinator HOST:PORT, "
            "--processes N and --process I, or start them by Slurm, Open MPI or a TPU pod"
        ) from error


def leave_at_once(code: int) -> NoReturn:
    """End this process without waiting for the others, as JAX would at exit: one of them is not there any more."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def is_first() -> bool:
    """Whether this is process 0, which writes."""
    return jax.process_index() == 0


def agree(value: Any) -> Any:
    """What process 0 has, on all; all give arrays of one shape. Raises `ProcessLostError`."""
    return value if jax.process_count() == 1 else _together(multihost_utils.broadcast_one_to_all, value)


def gather(values: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "processes ..."]:
    """What every process has; arrays of one shape. Raises `ProcessLostError`."""
    if jax.process_count() == 1:
        return values[None]
    found: np.ndarray = np.asarray(_together(multihost_utils.process_allgather, values))
    return found


def _together(action: Callable[[Any], Any], value: Any) -> Any:
    try:
        return action(value)
    except (RuntimeError, ValueError) as error:
        raise ProcessLostError(
            "another process has ended, so all do; what process 0 has saved stays: start all of them again with the "
            f"same command ({' '.join(str(error).split())[:120]})"
        ) from error


def sweep(
    model: Any,
    examples: Sequence[Any],
    ablations: Sequence[Ablation],
    readout: Any,
    *,
    combine: engine.Combine | None = None,
    means: Any = None,
    memory: int | None = None,
    journal: str | Path | None = None,
    replace_journal: bool = False,
    settings: Mapping[str, Any] | None = None,
    progress: Progress = lambda done, total: None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[Shaped[np.ndarray, "examples *readout"], Shaped[np.ndarray, "ablations examples *readout"]] | None:
    """`engine.sweep` on all processes, which give the same arguments; the outputs are process 0's.

    Returns: outputs of the base run and of the ablations; None on the other processes.

    Raises:
        ProcessLostError: another process has ended.
        BertjaxError: as `engine.sweep`.
    """
    job = make_job(model, examples, ablations, readout, combine=combine, means=means)
    with contextlib.ExitStack() as opened:
        notes = None
        if journal is not None and is_first():
            facts, sizes = facts_of(job) | {"shares": "of several processes"}, {"shares": _count_shares(len(job.texts))}
            notes = opened.enter_context(
                open_journal(Path(journal), facts, sizes, settings=settings, replace=replace_journal)
            )
            if notes.found:
                say(f"{notes.found} finished shares in {notes.directory.parent}, going on from there")
        wanted = notes.sizes["shares"] if notes else _count_shares(len(job.texts))
        shares = cut(len(job.texts), int(agree(np.int32(wanted))))
        found = _finished(job, shares, notes)
        missing = np.flatnonzero(agree(np.array([number not in found for number in range(len(shares))]))).tolist()
        options = {"combine": combine, "means": means, "memory": memory or _own_memory()}

        def run(share: range, report: Progress) -> np.ndarray:
            own = [examples[place] for place in share]
            one = engine.sweep(model, own, ablations, readout, **options, progress=report)
            return np.concatenate([one.base[None], one.outputs])

        _run_rounds(shares, missing, run, found, notes, progress)
    return _put_together(shares, found) if is_first() else None


def cut(examples: int, shares: int) -> list[range]:
    """The examples of each share: every so many-th, so that all are alike.

    >>> cut(7, 3)
    [range(0, 7, 3), range(1, 7, 3), range(2, 7, 3)]
    """
    return [range(number, examples, shares) for number in range(shares)]


def _count_shares(examples: int) -> int:
    """How many shares a sweep that begins has: a few for each process, unless they would be small or large."""
    processes = jax.process_count()
    size = EXAMPLES_OF_SHARE.get(jax.default_backend(), EXAMPLES_OF_SHARE["other"])
    return min(examples, -(-examples // (size * processes)) * processes)


def _own_memory() -> int:
    """What this process may hold where those on the same machine take as much."""
    host = np.frombuffer(platform.node().encode().ljust(64)[:64], np.uint8).astype(np.int32)
    alike = int((gather(host) == host).all(-1).sum()) if jax.default_backend() == "cpu" else 1
    used = memory_in_use()
    return used + max(0, default_budget() - used) // alike


def _finished(job: Job, shares: Sequence[range], notes: Journal | None) -> dict[int, np.ndarray]:
    """The outputs that the journal has, by share."""
    found: dict[int, np.ndarray] = {}
    if notes is not None:
        for number, share in enumerate(shares):
            part = notes.read(number)
            if part is not None and part.shape[:2] == (len(job.plan.ablations) + 1, len(share)):
                found[number] = part
    return found


def _run_rounds(
    shares: Sequence[range],
    missing: Sequence[int],
    run: Callable[[range, Progress], np.ndarray],
    found: dict[int, np.ndarray],
    notes: Journal | None,
    progress: Progress,
) -> None:
    """Deal the missing shares, a round of one for each process at a time; process 0 adds what they gave to `found`."""
    processes, longest = jax.process_count(), max(map(len, shares))
    done, total = sum(len(shares[number]) for number in found), sum(map(len, shares))
    for start in range(0, len(missing), processes):
        dealt = missing[start : start + processes]
        mine = shares[dealt[min(jax.process_index(), len(dealt) - 1)]]  # whoever has none does the last once more
        examples = sum(len(shares[number]) for number in dealt)

        def report(part: float, whole: float, before: int = done, here: int = examples) -> None:
            progress(before + here * part / max(whole, 1.0), float(total))

        own = run(mine, report)
        room = [(0, 0), (0, longest - len(mine)), *[(0, 0)] * (own.ndim - 2)]
        for number, part in zip(dealt, gather(np.pad(own, room)), strict=False):
            if is_first():
                found[number] = part[:, : len(shares[number])]
                if notes is not None:
                    notes.write(number, found[number])
        done += examples
    progress(float(total), float(total))


def _put_together(shares: Sequence[range], found: Mapping[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Base outputs, and the ablations', in the order of the examples."""
    first = found[0]
    outputs = np.zeros((len(first), sum(map(len, shares)), *first.shape[2:]), first.dtype)
    for number, share in enumerate(shares):
        outputs[:, np.array(share)] = found[number]
    return outputs[0], outputs[1:]
