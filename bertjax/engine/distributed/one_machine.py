"""Several processes on this machine, each with cores of its own: `bertjax ablate --processes N`.

Operations on small blocks do not fill all cores of a process, and wait for the slowest at their end. Processes that
share the examples wait for each other once in a share.
"""

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType

import jax

from bertjax.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_MISTAKE, InputError

Work = Callable[[list[str]], int]
PATIENCE = 10.0  # seconds that the first process may take to end once another has, and the others once it has
ERROR = "bertjax: error: "

# The cores of the whole job, in a process that is bound to some of them.
_all_cores: list[int] = []


@dataclass(frozen=True)
class _Post:
    """Who a process is: its number, the options that tell it, its cores and all, where its own errors go."""

    number: int
    options: list[str]
    cores: list[int]
    all_cores: list[int]
    said: Path


def run_together(work: Work, count: int) -> int:
    """Run a job in several processes on this machine.

    Args:
        work: what each process does, given the options that tell it who it is; returns an exit code. It is pickled.
        count: of processes.

    Returns: the exit code of the first process, which alone prints; that of a mistake where another one failed.

    Raises:
        InputError: there are fewer cores, or it is no CPU whose cores they would share.
    """
    cores = sorted(os.sched_getaffinity(0)) if _can_bind() else list(range(os.cpu_count() or 1))
    if count > len(cores):
        raise InputError(f"--processes {count}, but this process may use {len(cores)} cores")
    if jax.default_backend() != "cpu":
        raise InputError("--processes alone shares the cores of a CPU; one process uses all devices here: leave it out")
    options = ["--distributed", "--coordinator", f"127.0.0.1:{_free_port()}", "--processes", str(count), "--process"]
    context = multiprocessing.get_context("spawn")
    started: list[SpawnProcess] = []
    with tempfile.TemporaryDirectory() as folder, _orderly_end(started), _reached_without_proxy():
        for number in range(count):
            own = cores[len(cores) * number // count : len(cores) * (number + 1) // count]
            post = _Post(number, [*options, str(number)], own, cores, Path(folder) / str(number))
            process = context.Process(target=_run_one, args=(work, post))
            started.append(process)
            process.start()
        return _wait(started, Path(folder))


def use_all_cores() -> None:
    """Give a process that was bound to its share of the cores all of them: the others have ended their work."""
    if _all_cores and _can_bind():
        os.sched_setaffinity(0, _all_cores)


def _run_one(work: Work, post: _Post) -> None:
    """One of the processes, in a session of its own: Ctrl-C is for the process that has started them."""
    os.setsid()
    _all_cores[:] = post.all_cores
    if _can_bind():
        os.sched_setaffinity(0, post.cores)  # before XLA and NumPy make their threads
    if post.number > 0:
        with post.said.open("wb") as said, Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(said.fileno(), 2)
    sys.exit(work(post.options))


def _wait(started: Sequence[SpawnProcess], folder: Path) -> int:
    """Wait until the job has ended; what a process died of is told where the first one cannot know it."""
    first, others = started[0], started[1:]
    codes = [process.exitcode for process in started]
    while codes[0] is None and not any(codes[1:]):
        # As they were when looked at: who has ended since then is still waited for, and so is seen at the next look.
        connection.wait([process.sentinel for process, code in zip(started, codes, strict=True) if code is None])
        codes = [process.exitcode for process in started]
    first.join(PATIENCE)  # if another has failed, the first hears of it, and says so
    if first.exitcode == 0:
        for process in others:
            process.join(PATIENCE)
        return 0
    if first.exitcode is not None and first.exitcode < 0:
        print(f"{ERROR}process 0 of {len(started)} was killed ({_cause(first.exitcode)})", file=sys.stderr)
        return EXIT_FAILED
    for number, process in enumerate(others, 1):
        if process.exitcode and (first.exitcode is None or process.exitcode not in (EXIT_MISTAKE, EXIT_INTERRUPTED)):
            reason = _last_line(folder / str(number)) or _cause(process.exitcode)
            print(f"{ERROR}process {number} of {len(started)} has ended, so all do: {reason}", file=sys.stderr)
            break
    return first.exitcode or EXIT_MISTAKE


def _cause(exit_code: int) -> str:
    return f"exit code {exit_code}" if exit_code > 0 else signal.Signals(-exit_code).name


def _last_line(said: Path) -> str:
    """The error that a process told, or the last line of what it said."""
    lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines() if said.exists() else []
    told = [line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)]
    return (told or lines or [""])[-1]


@contextlib.contextmanager
def _orderly_end(started: Sequence[SpawnProcess]) -> Iterator[None]:
    """No process outlives this; Ctrl-C goes to the first one, which tells what is saved, and ends all."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        if started and started[0].is_alive() and started[0].pid is not None:
            os.kill(started[0].pid, signal.SIGINT)
        else:
            raise KeyboardInterrupt

    def terminate(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    handlers = {signal.SIGINT: interrupt, signal.SIGTERM: terminate, signal.SIGHUP: terminate}
    own = threading.current_thread() is threading.main_thread()
    before = {one: signal.signal(one, handler) for one, handler in handlers.items()} if own else {}
    try:
        yield
    finally:
        for process in started:
            if process.pid is not None:
                process.kill()
                process.join()
        for one, handler in before.items():
            signal.signal(one, handler)


@contextlib.contextmanager
def _reached_without_proxy() -> Iterator[None]:
    """No proxy is asked for the way to this machine itself, which it would not find."""
    before = {name: os.environ.get(name) for name in ("no_proxy", "NO_PROXY")}
    known = before["no_proxy"] or before["NO_PROXY"] or ""
    if any(name.lower().endswith("_proxy") for name in os.environ) and known.strip() != "*":
        os.environ.update(dict.fromkeys(before, ",".join(filter(None, [known, "127.0.0.1"]))))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _can_bind() -> bool:
    return hasattr(os, "sched_setaffinity")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
