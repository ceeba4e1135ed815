"""Several processes on this machine, each with cores of its own: `bertjax ablate --processes N`.

Operations of small blocks do not fill all cores of a process, and wait for the slowest at their end. Processes that
share the examples wait for each other once in a share.
"""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import IO

import jax

from bertjax.engine.distributed.watch import end_process
from bertjax.errors import EXIT_MISTAKE, InputError

LOOKING = 0.3  # seconds between looks at the others
GRACE = 1.0  # seconds in which a mistake that all make is found by this process too, which then says it
ERROR = "bertjax: error: "


class Others:
    """The other processes, which are told who they are by the command's options.

    Args:
        command: what `bertjax` was given.
        shares: the cores of each process, the first one's first; None where processes cannot be bound to cores.
        files: one for what each of the others says.
    """

    def __init__(self, command: Sequence[str], shares: Sequence[Sequence[int]] | None, files: Sequence[IO[bytes]]):
        self.coordinator, self.count = f"127.0.0.1:{_free_port()}", len(files) + 1
        self._started: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
        self._done = threading.Event()
        job = ["--distributed", "--coordinator", self.coordinator, "--processes", str(self.count), "--process"]
        for number, said in enumerate(files, 1):
            if shares is not None:
                os.sched_setaffinity(0, shares[number])  # inherited
            arguments = [sys.executable, "-m", "bertjax", *command, *job, str(number)]
            nothing = subprocess.DEVNULL
            # Ctrl-C is this process' own; the others hear of its end.
            process = subprocess.Popen(arguments, stdin=nothing, stdout=nothing, stderr=said, start_new_session=True)
            self._started.append((process, said))
        threading.Thread(target=self._look, daemon=True).start()

    def lost(self) -> None:
        """End this process because another one has ended, with what that one said."""
        time.sleep(GRACE)
        if not self._done.is_set():
            end_process(EXIT_MISTAKE, ERROR + self._reason())

    def close(self) -> None:
        """The job is done here, and the others are waited for; where they have not been joined yet, they are ended."""
        self._done.set()
        joined = jax.distributed.is_initialized()
        if joined:
            jax.distributed.shutdown()  # all wait for it
        for process, _ in self._started:
            if not joined:
                process.terminate()
            process.wait()

    def _look(self) -> None:
        while not self._done.wait(LOOKING):
            if any(process.poll() for process, _ in self._started):
                self.lost()

    def _reason(self) -> str:
        """The line of the first process that ended with an error."""
        for number, (process, said) in enumerate(self._started, 1):
            if process.poll():
                said.seek(0)
                lines = said.read().decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
                line = next((line for line in reversed(lines) if line.startswith(ERROR)), lines[-1]).removeprefix(ERROR)
                return f"process {number} of {self.count} has ended, so all do: {line}"
        return "another process has ended, so all do"


@contextlib.contextmanager
def start_others(count: int, command: Sequence[str]) -> Iterator[Others]:
    """Start the other processes of a job, and keep this one to its share of the cores until the job has ended.

    Args:
        count: of all processes, this one among them.
        command: what `bertjax` was given.

    Raises:
        InputError: there are fewer cores.
    """
    bound = hasattr(os, "sched_setaffinity")
    cores = sorted(os.sched_getaffinity(0)) if bound else list(range(os.cpu_count() or 1))
    if count > len(cores):
        raise InputError(f"--processes {count}, but this process may use {len(cores)} cores")
    shares = [cores[len(cores) * number // count : len(cores) * (number + 1) // count] for number in range(count)]
    if any(name.lower().endswith("_proxy") for name in os.environ):  # none would find the way back to this machine
        for name in ("no_proxy", "NO_PROXY"):
            os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1"]))
    with contextlib.ExitStack() as opened:
        files = [opened.enter_context(tempfile.TemporaryFile()) for _ in range(1, count)]
        if bound:
            opened.callback(os.sched_setaffinity, 0, cores)
        others = Others(command, shares if bound else None, files)
        opened.callback(others.close)
        if bound:
            os.sched_setaffinity(0, shares[0])
        yield others


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
