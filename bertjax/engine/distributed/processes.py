"""Several processes find each other, tell each other what they have, and end when one of them ends."""

import contextlib
import hashlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Shaped

from bertjax.engine.distributed.watch import Watch, end_process, is_local
from bertjax.errors import EXIT_MISTAKE, InputError, ProcessLostError

T = TypeVar("T")
# Seconds without a sign of life after which a process counts as lost.
HEARTBEAT, FAREWELL = 50, 30
LONGEST_HOST = 255  # bytes of a host's name
JOINING = 240  # seconds that processes wait for each other; JAX's own 300 would end in an abort
LOST = (
    "another process has ended, so all do; if it says why, fix that, then start all of them again with the same "
    "command: what process 0 has saved stays"
)


def start(coordinator: str | None = None, processes: int | None = None, process: int | None = None) -> Watch:
    """Join the other processes, before anything is computed.

    JAX's preemption service is switched off for the whole process: it would keep SIGTERM from ending it.

    A process that waits for the others too long, or hears that one of them has ended, ends with a line and exit code 2.

    Args:
        coordinator: HOST:PORT of process 0; by default all three are those that a TPU pod, Slurm, Open MPI or
            Kubernetes says.
        processes: how many there are.
        process: this one's number, from 0.

    Returns: what hears of the others' end; `close` it when the work is done.

    Raises:
        InputError: nothing says who the others are, they cannot be reached, or the coordinator's port is taken.
    """
    if coordinator is not None:
        _check_address(coordinator, process == 0)
    jax.config.update("jax_enable_preemption_service", False)  # it would keep SIGTERM from ending the process
    given: dict[str, Any] = {"heartbeat_timeout_seconds": HEARTBEAT, "shutdown_timeout_seconds": FAREWELL}
    if coordinator is not None and is_local(coordinator):
        given["coordinator_bind_address"] = coordinator  # JAX would listen to other machines too
    late = f"not all processes have come within {JOINING // 60} minutes: start all of them with the same --coordinator"
    timer = threading.Timer(JOINING, lambda: end_process(EXIT_MISTAKE, f"bertjax: error: {late}"))
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


def _check_address(coordinator: str, is_own: bool) -> None:
    """Raise `InputError` where it is no HOST:PORT, or is to be this process' own and is taken; JAX would crash."""
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(f"--coordinator {coordinator!r} is not HOST:PORT, such as node1:1234")
    if is_own:
        try:
            socket.create_server(("", int(port))).close()
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"cannot listen at {coordinator} ({reason}): give --coordinator another port") from error


def _watch(coordinator: str | None) -> Watch:
    """Watch the other processes, by connections to process 0."""
    watch = Watch(lambda: end_process(EXIT_MISTAKE, f"bertjax: error: {LOST}"))
    host = (coordinator or "").rpartition(":")[0].strip("[]") or _own_address()
    port = watch.listen(host) if is_first() else 0
    address = host.encode()[:LONGEST_HOST].ljust(LONGEST_HOST, b"\0")
    with _silence():
        # By JAX's own connections, which only the processes of the job have.
        port, *agreed = agree(np.array([port, *address, *watch.secret], np.int32)).tolist()
    if not is_first():
        watch.secret = bytes(agreed[LONGEST_HOST:])
        watch.join(bytes(agreed[:LONGEST_HOST]).rstrip(b"\0").decode(), port)
    return watch


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Nothing is printed: the library that connects the processes (Gloo) says so on the terminal, past Python."""
    with contextlib.ExitStack() as opened:
        if sys.stdout is sys.__stdout__ and sys.stdout is not None:  # else descriptor 1 may be anything
            sys.stdout.flush()
            kept = os.dup(1)
            opened.callback(os.close, kept)
            opened.callback(os.dup2, kept, 1)
            os.dup2(opened.enter_context(Path(os.devnull).open("wb")).fileno(), 1)
        yield


def _own_address() -> str:
    """The address under which other machines reach this one; its own alone where it has no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation; choosing the way to it sends nothing
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def is_first() -> bool:
    """Whether this is process 0, which writes."""
    return jax.process_index() == 0


def agree(value: T) -> T:
    """What process 0 has, on all; all give arrays of one shape. Raises `ProcessLostError`."""
    return value if jax.process_count() == 1 else _together(multihost_utils.broadcast_one_to_all, value)


def gather(values: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "processes ..."]:
    """What every process has; arrays of one shape. Raises `ProcessLostError`."""
    if jax.process_count() == 1:
        return values[None]
    content = np.ascontiguousarray(values).reshape(-1).view(np.uint8)  # JAX would make float64 float32
    gathered = np.ascontiguousarray(_together(multihost_utils.process_allgather, content))
    return gathered.view(values.dtype).reshape(len(gathered), *values.shape)


def _together(action: Callable[[T], T], value: T) -> T:
    try:
        return action(value)
    except (RuntimeError, ValueError) as error:
        raise ProcessLostError(f"{LOST} ({' '.join(str(error).split())[:120]})") from error


def check_alike(facts: Mapping[str, str]) -> None:
    """Raise `InputError` where the processes were given something else each; all give facts of the same names."""
    names = list(facts)
    digests = [hashlib.sha256(f"{name} {facts[name]}".encode()).digest() for name in names]
    every = gather(np.frombuffer(b"".join(digests), np.uint8).reshape(len(names), -1))
    alike = (every == every[0]).all((0, 2))
    if not alike.all():
        different = ", ".join(name for name, same in zip(names, alike, strict=True) if not same)
        raise InputError(f"the processes were given different {different}: start all with the same command and files")
