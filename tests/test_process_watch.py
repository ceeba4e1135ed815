"""Processes of a job hear of each other's end; strangers at the port are nobody."""

import contextlib
import socket
import threading
import time

import pytest

from bertjax.engine.distributed import watch as module
from bertjax.engine.distributed.watch import SECRET_BYTES, Watch

pytestmark = pytest.mark.integration


@pytest.fixture
def first():
    """Process 0: its watch, its port, and the event that a loss sets."""
    lost = threading.Event()
    watch = Watch(lost.set)
    yield watch, watch.listen("127.0.0.1"), lost
    hang_up(watch)


def hang_up(watch):
    watch.close()
    for connection in watch.connections:
        connection.close()


def strangers_call(port):
    """Connections of those who do not know the secret: one hangs up, one talks, one sends what a process would send."""
    for words in (b"", b"GET / HTTP/1.1\r\n\r\n", b".", bytes(SECRET_BYTES), b"x" * 1000):
        with socket.create_connection(("127.0.0.1", port), 5) as stranger:
            stranger.sendall(words)
            with contextlib.suppress(OSError):  # the other end may have hung up by now
                stranger.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                assert stranger.recv(1) == b""  # it hangs up, and tells nothing


def join(watch, port):
    other = Watch(threading.Event().set)
    other.secret = watch.secret
    other.join("127.0.0.1", port)
    assert len(other.connections) == 1
    return other


def test_unknown_connections_are_ignored_by_the_process_watch(first):
    watch, port, lost = first
    strangers_call(port)
    assert watch.connections == []
    other = join(watch, port)
    strangers_call(port)
    assert len(watch.connections) == 1
    assert not lost.is_set()
    other.connections[0].shutdown(socket.SHUT_RDWR)  # as when the process ends
    assert lost.wait(5)
    hang_up(other)


def test_a_process_that_says_that_it_is_done_is_no_loss(first):
    watch, port, lost = first
    other = join(watch, port)
    other.close()
    other.connections[0].shutdown(socket.SHUT_RDWR)
    assert not lost.wait(0.3)
    hang_up(other)


def test_strangers_who_say_nothing_keep_nobody_out(first, monkeypatch):
    monkeypatch.setattr(module, "GREETING", 0.3)
    watch, port, _ = first
    silent = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(module.STRANGERS + 5)]
    started = time.monotonic()
    other = join(watch, port)
    assert time.monotonic() - started < module.CONNECTING
    for stranger in [*silent, *other.connections]:
        stranger.close()


def test_process_0_that_does_not_know_the_secret_is_not_joined(first, monkeypatch):
    monkeypatch.setattr(module, "CONNECTING", 0.5)
    _, port, lost = first
    other = Watch(threading.Event().set)  # with a secret of its own
    other.join("127.0.0.1", port)
    assert other.connections == []
    assert not lost.is_set()


@pytest.mark.parametrize(
    ("host", "address"), [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("192.0.2.1", "0.0.0.0")]
)
def test_process_0_listens_where_the_others_look_for_it(host, address):
    with module._listen(host) as listening:
        assert listening.getsockname()[0] in (address, "::1" if host == "localhost" else address)


def test_a_host_name_that_means_loopback_is_found_by_others(monkeypatch):
    monkeypatch.setattr(
        module.socket, "getaddrinfo", lambda host, port, type: [(socket.AF_INET, type, 6, "", ("127.0.1.1", 0))]
    )
    with module._listen("node1") as listening:
        assert listening.getsockname()[0] == "0.0.0.0"
