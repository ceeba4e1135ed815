"""Processes that share a job watch each other: when one ends or freezes, all hear of it at once, in a line.

JAX's own service would end a process whose coordinator is gone by an abort in C++, after a while and with a stack. Each
process keeps a connection to process 0, over which both send a sign of life every two seconds. Where that connection
cannot be made (a firewall), JAX's own way remains. A connection that does not know the job's secret is refused:
whatever connects, sends or hangs up at that port changes nothing.
"""

import contextlib
import hashlib
import hmac
import ipaddress
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NoReturn

PULSE, SILENCE, CONNECTING = 2.0, 30.0, 10.0  # seconds
GREETING, STRANGERS = 5.0, 64  # seconds that a greeting may take; connections that have not greeted yet, at most
SECRET_BYTES = 32
ALIVE, DONE = b".", b"x"

_ENDING = threading.Lock()


def end_process(code: int, line: str = "") -> NoReturn:
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

    `secret` is known to all processes of the job, and to nothing else: process 0 makes it, the others are given it.
    """

    def __init__(self, lost: Callable[[], object]):
        self.lost, self.done = lost, threading.Event()
        self.connections: list[socket.socket] = []
        self.secret = secrets.token_bytes(SECRET_BYTES)
        self._greeting = threading.Semaphore(STRANGERS)
        self._listening: socket.socket | None = None

    def listen(self, host: str) -> int:
        """Wait for the others, in the background.

        Args:
            host: the name or address under which they look for this process.

        Returns: the port.
        """
        self._listening = listening = _listen(host)
        _start(lambda: self._accept(listening))
        return int(listening.getsockname()[1])

    def join(self, host: str, port: int) -> None:
        """Connect to process 0, which listens there; where that fails for ten seconds, there is no connection."""
        until = time.monotonic() + CONNECTING
        while time.monotonic() < until and not self.done.wait(0.05):
            with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
                connection = opened.enter_context(socket.create_connection((host, port), CONNECTING))
                connection.sendall(self._word("process"))
                if _receive_exactly(connection, SECRET_BYTES) == self._word("process 0"):
                    opened.pop_all()
                    self._keep(connection)
                    return

    def close(self) -> None:
        """The job is done: if the others end now, nothing is lost."""
        self.done.set()
        if self._listening is not None:
            with contextlib.suppress(OSError):
                self._listening.shutdown(socket.SHUT_RDWR)  # ends the wait for connections
            self._listening.close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.sendall(DONE)

    def _accept(self, listening: socket.socket) -> None:
        while not self.done.is_set():
            try:
                connection = listening.accept()[0]
            except OSError:
                self.done.wait(0.1)  # too many open files, perhaps for a moment
                continue
            if self._greeting.acquire(blocking=False):
                _start(partial(self._greet, connection))
            else:
                connection.close()

    def _greet(self, connection: socket.socket) -> None:
        """Keep a connection whose other end knows the secret; a stranger's is closed."""
        try:
            if hmac.compare_digest(_receive_exactly(connection, SECRET_BYTES), self._word("process")):
                connection.sendall(self._word("process 0"))
                self._keep(connection)
            else:
                connection.close()
        except OSError:
            connection.close()
        finally:
            self._greeting.release()

    def _word(self, who: str) -> bytes:
        """What a process says of itself to show that it knows the secret, which it does not tell."""
        return hmac.digest(self.secret, who.encode(), hashlib.sha256)

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


def _listen(host: str) -> socket.socket:
    """A socket at the address under which the others look for this process.

    Where this machine knows its own name as a loopback address, or the address is another machine's that passes
    connections on, it listens everywhere: only those who know the secret are heard.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        if not (ipaddress.ip_address(address[0]).is_loopback and not is_local(host)):
            return socket.create_server(address[:2], family=family)
    except (OSError, ValueError):
        pass
    return socket.create_server(("", 0))


def is_local(host: str) -> bool:
    """Whether a host, or a host with a port, is this machine under a name that means nothing elsewhere."""
    name = host if host == "::1" else (host.rpartition(":")[0] or host).strip("[]")
    return name in ("localhost", "::1") or name.startswith("127.")


def _receive_exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes, or fewer where the other end hangs up. Raises `OSError` where it takes too long."""
    until, received = time.monotonic() + GREETING, b""
    while len(received) < count:
        connection.settimeout(max(0.001, until - time.monotonic()))
        if not (more := connection.recv(count - len(received))):
            break
        received += more
    return received


def _start(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()
