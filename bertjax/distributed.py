"""Several processes, on one machine or many, share the examples of a sweep: `bertjax ablate --distributed`.

The examples are cut into shares. In each round every process sweeps one share on its own devices, without a word to the
others; then the outputs come together, and process 0 writes them into the journal. A journal keeps its shares whatever
the number of processes, so an unfinished sweep goes on with any number of them. A process that ends ends all, within
seconds (`watch`).
"""

import contextlib
import hashlib
import platform
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src.distributed import global_state  # who the coordinator is, where a cluster says it, nothing else tells
from jax.experimental import multihost_utils
from jaxtyping import Shaped

from bertjax import engine
from bertjax.ablations import Ablation
from bertjax.compile_cache import use_compile_cache
from bertjax.errors import EXIT_MISTAKE, InputError, ProcessLostError, SweepInterrupted
from bertjax.fingerprint import facts_of
from bertjax.job import Job, make_job
from bertjax.journal import Journal, open_journal
from bertjax.memory import default_budget, memory_in_use
from bertjax.packing import pack, total_lengths
from bertjax.schedule import Progress
from bertjax.watch import Watch, end

# Seconds without a sign of life after which a process counts as lost.
HEARTBEAT, FAREWELL = 50, 30
JOINING = 240  # seconds that processes wait for each other; JAX's own 300 would end in an abort
LOST = (
    "another process has ended, so all do; if it says why, mend that; then start all of them again with the same "
    "command: what process 0 has saved stays"
)
# Runs of an example that a share has at most: 32 and 512 examples with BERT-base's 144 heads and the base run.
RUNS_OF_SHARE = {"cpu": 32 * 145, "other": 512 * 145}


def start(coordinator: str | None = None, processes: int | None = None, process: int | None = None) -> Watch:
    """Join the other processes, before anything is computed.

    A process that waits for the others too long, or hears that one of them has ended, ends with a line and exit code 2.

    Args:
        coordinator: HOST:PORT of process 0; by default all three are those that a TPU pod, Slurm, Open MPI or
            Kubernetes says.
        processes: how many there are.
        process: this one's number, from 0.

    Returns: what hears of the others' end; `close` it when the job is done.

    Raises:
        InputError: nothing says who the others are, they cannot be reached, or the coordinator's port is taken.
    """
    if coordinator is not None:
        _check_address(coordinator, process == 0)
    jax.config.update("jax_enable_preemption_service", False)  # it would keep SIGTERM from ending the process
    given: dict[str, Any] = {"heartbeat_timeout_seconds": HEARTBEAT, "shutdown_timeout_seconds": FAREWELL}
    late = f"not all processes have come within {JOINING // 60} minutes: start all of them with the same --coordinator"
    timer = threading.Timer(JOINING, lambda: end(EXIT_MISTAKE, f"bertjax: error: {late}"))
    timer.daemon = True
    timer.start()
    try:
        jax.distributed.initialize(
            coordinator_address=coordinator, num_processes=processes, process_id=process, **given
        )
        return _watch(coordinator)  # the connections are made now, where all are here at once: later some would be late
    except (ValueError, RuntimeError) as error:
        raise InputError(
            f"the processes cannot be joined ({' '.join(str(error).split())[:300]}): give --coordinator HOST:PORT, "
            "--processes N and --process I, or start them by Slurm, Open MPI or a TPU pod"
        ) from error
    finally:
        timer.cancel()


def _check_address(coordinator: str, here: bool) -> None:
    """Raise `InputError` where it is no HOST:PORT, or is to be this process' own and is taken; JAX would crash."""
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(f"--coordinator {coordinator!r} is not HOST:PORT, such as node1:1234")
    if here:
        try:
            socket.create_server(("", int(port))).close()
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"cannot listen at {coordinator} ({reason}): give --coordinator another port") from error


def _watch(coordinator: str | None) -> Watch:
    """Watch the other processes, by connections to process 0."""
    watch = Watch(lambda: end(EXIT_MISTAKE, f"bertjax: error: {LOST}"))
    port = int(agree(np.int32(watch.listen() if is_first() else 0)))
    address = coordinator or getattr(global_state, "coordinator_address", None)
    if not is_first() and address:
        watch.join(address.rpartition(":")[0].strip("[]"), port)
    return watch


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
    content = np.ascontiguousarray(values).reshape(-1).view(np.uint8)  # JAX would make float64 float32
    found = np.ascontiguousarray(_together(multihost_utils.process_allgather, content))
    return found.view(values.dtype).reshape(len(found), *values.shape)


def _together(action: Callable[[Any], Any], value: Any) -> Any:
    try:
        return action(value)
    except (RuntimeError, ValueError) as error:
        raise ProcessLostError(f"{LOST} ({' '.join(str(error).split())[:120]})") from error


def sweep(
    model: Any,
    examples: Sequence[Any],
    ablations: Sequence[Ablation],
    readout: Any,
    *,
    combine: engine.Combine | None = None,
    means: Any = None,
    memory: int | None = None,
    attention: str = "auto",
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
        SweepInterrupted: Ctrl-C; with a journal, what is finished is in it.
        BertjaxError: as `engine.sweep`; or the processes were given something else each.
    """
    use_compile_cache()
    job = make_job(model, examples, ablations, readout, combine=combine, means=means, attention=attention)
    facts = facts_of(job)
    _check_alike(facts)
    with contextlib.ExitStack() as opened:
        notes = None
        if journal is not None and is_first():
            facts |= {"shares": "of several processes"}
            there = open_journal(
                Path(journal), facts, {"shares": _count_shares(job)}, settings=settings, replace=replace_journal
            )
            notes = opened.enter_context(there)
            if notes.found:
                say(f"{notes.found} finished shares in {notes.directory.parent}, going on from there")
        wanted = notes.sizes["shares"] if notes else _count_shares(job)
        shares = cut(len(job.texts), int(agree(np.int32(wanted))))
        found = _finished(job, shares, notes)
        missing = np.flatnonzero(agree(np.array([number not in found for number in range(len(shares))]))).tolist()
        sizes = _choose_sizes(job, shares, memory or _own_memory())

        def run(share: range, report: Progress) -> np.ndarray:
            base, outputs = engine.run_job(_part_of(job, share), sizes, report)
            return np.concatenate([base[None], outputs])

        try:
            _run_rounds(shares, missing, run, found, notes, progress)
        except KeyboardInterrupt as interruption:
            if notes is None:
                raise
            raise SweepInterrupted(len(found), len(shares)) from interruption
    return _put_together(shares, found) if is_first() else None


def cut(examples: int, shares: int) -> list[range]:
    """The examples of each share: every so many-th, so that all are alike.

    >>> cut(7, 3)
    [range(0, 7, 3), range(1, 7, 3), range(2, 7, 3)]
    """
    return [range(number, examples, shares) for number in range(shares)]


def _count_shares(job: Job) -> int:
    """How many shares a sweep that begins has: as many for each process, unless there are fewer examples."""
    processes, examples, runs = jax.process_count(), len(job.texts), len(job.plan.ablations) + 1
    size = max(1, RUNS_OF_SHARE.get(jax.default_backend(), RUNS_OF_SHARE["other"]) // runs)
    return min(examples, -(-examples // (size * processes)) * processes)


def _part_of(job: Job, share: range) -> Job:
    return replace(job, texts=[job.texts[place] for place in share])


def _choose_sizes(job: Job, shares: Sequence[range], memory: int) -> dict[str, int]:
    """The sizes of all pieces, the same for all shares: each step is compiled once."""
    config = job.model.config
    length = engine.choose_length(config, total_lengths(job.texts))
    largest = max(shares, key=lambda share: sum(len(text) for place in share for text in job.texts[place]))
    sizes = engine.choose_sizes(_part_of(job, largest), row_length=length, memory=memory)
    places = [pack([job.texts[place] for place in share], length).starts.shape[1] for share in shares]
    return sizes | {"places": max(places)}


def _check_alike(facts: Mapping[str, str]) -> None:
    """Raise `InputError` where the processes were given something else each; their devices may differ."""
    names = [name for name in facts if name != "device"]
    digests = [hashlib.sha256(f"{name} {facts[name]}".encode()).digest() for name in names]
    every = gather(np.frombuffer(b"".join(digests), np.uint8).reshape(len(names), -1))
    alike = (every == every[0]).all((0, 2))
    if not alike.all():
        different = ", ".join(name for name, same in zip(names, alike, strict=True) if not same)
        raise InputError(f"the processes were given different {different}: start all with the same command and files")


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
