"""Processes that share a job watch each other: when one ends or freezes, all hear of it at once, in a line.

JAX's own service would end a process whose coordinator is gone by an abort in C++, after a while and with a stack. Each
process keeps a connection to process 0, over which both send a sign of life every two seconds. Where that connection
cannot be made (a firewall), JAX's own way remains.
"""

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

PULSE, SILENCE, CONNECTING = 2.0, 30.0, 10.0  # seconds
ALIVE, DONE = b".", b"x"

_ENDING = threading.Lock()


def end(code: int, line: str = "") -> NoReturn:
    """End this process without waiting for the others, with a line; only the first to call this speaks."""
    if not _ENDING.acquire(blocking=False):
        time.sleep(60)  # the other one is ending the process
    if line:
        print(line, file=sys.stderr)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


class Watch:
    """Signs of life between process 0 and the others.

    Args:
        lost: what to do when another process has ended or is silent; called in a thread of its own.
    """

    def __init__(self, lost: Callable[[], object]):
        self.lost, self.done = lost, threading.Event()
        self.connections: list[socket.socket] = []

    def listen(self) -> int:
        """Wait for the others, in the background. Returns the port."""
        listening = socket.create_server(("", 0))
        _start(lambda: self._accept(listening))
        return int(listening.getsockname()[1])

    def join(self, host: str, port: int) -> None:
        """Connect to process 0, which listens there."""
        with contextlib.suppress(OSError):
            self._keep(socket.create_connection((host, port), CONNECTING))

    def close(self) -> None:
        """The job is done: that the others end now is no loss."""
        self.done.set()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.sendall(DONE)

    def _accept(self, listening: socket.socket) -> None:
        while not self.done.is_set():
            with contextlib.suppress(OSError):
                self._keep(listening.accept()[0])

    def _keep(self, connection: socket.socket) -> None:
        connection.settimeout(SILENCE)
        self.connections.append(connection)
        _start(lambda: self._send(connection))
        _start(lambda: self._receive(connection))

    def _send(self, connection: socket.socket) -> None:
        while not self.done.wait(PULSE):
            try:
                connection.sendall(ALIVE)
            except OSError:
                return  # who receives hears of it

    def _receive(self, connection: socket.socket) -> None:
        while not self.done.is_set():
            try:
                heard = connection.recv(64)
            except OSError:
                heard = b""
            if DONE in heard:
                return
            if not heard and not self.done.is_set():
                self.lost()
                return


def _start(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()
