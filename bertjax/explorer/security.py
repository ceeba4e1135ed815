"""The checks of each request: its token, its host, its origin and its size."""

import asyncio
import hmac
import ipaddress
import json
import secrets
import socket
from collections.abc import Iterable
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST_BODY = 64 * 1024
SLOWEST_BODY = 10.0  # seconds
NEEDS_ADDRESS = "Open the address that bertjax explore printed: it has a token, which this address lacks.\n"
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


def served_names(host: str, port: int) -> frozenset[str]:
    """The values of the header Host that a server accepts.

    Args:
        host: the address that the server listens on.
        port: the port that the server listens on.
    """
    names = {host, "localhost", "127.0.0.1"}
    if is_every_address(host):
        names |= set(_machine_names())
    shown = {f"[{name}]" if ":" in name else name.lower() for name in names}
    return frozenset({f"{name}:{port}" for name in shown} | (shown if port == 80 else set()))


def is_every_address(host: str) -> bool:
    """Whether a server with this address listens on all addresses of the machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _machine_names() -> Iterable[str]:
    name = socket.gethostname()
    yield name
    try:
        for entry in socket.getaddrinfo(name, None):
            yield str(entry[4][0]).partition("%")[0]
    except OSError:
        return


class Guard:
    """Middleware that refuses requests which fail a check, and reads the bodies of the others.

    Args:
        app: the application that answers the other requests.
        names: the accepted values of the header Host (`served_names`).
        token: a random text that each request must have. The request for the page has it in the address; all others
            have it in the header Authorization.
    """

    def __init__(self, app: ASGIApp, names: frozenset[str], token: str):
        self.app, self.names, self.token = app, names, token
        self._code: str | None = None

    def address_to_open(self, server: str) -> str:
        """An address that redirects to the page only once, so that nobody who sees it later can use it.

        Args:
            server: the address of the server, such as 'http://127.0.0.1:8000'.
        """
        self._code = secrets.token_urlsafe(32)
        return f"{server}/?start={self._code}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, or answer it with an error."""
        if scope["type"] != "http":
            raise RuntimeError("the explorer answers HTTP only")
        if self._is_start(scope):
            self._code = None
            await _redirect(send, f"/?token={self.token}")
            return
        refused = self._refusal(scope)
        if refused is not None:
            await _refuse(send, *refused, is_page=_is_page(scope))
            return
        try:
            body = await asyncio.wait_for(_read_body(scope, receive), SLOWEST_BODY)
        except TimeoutError:
            await _refuse(send, 408, "the request did not arrive in time")
            return
        if body is None:
            await _refuse(send, 413, f"the request is larger than {LARGEST_BODY:,} bytes")
            return
        sent = False

        async def replay() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, replay, _with_headers(send))

    def _is_start(self, scope: Scope) -> bool:
        """Whether a request has the code of `address_to_open`, and no earlier request had it."""
        code = _parameter(scope, "start")
        known = self._code is not None and hmac.compare_digest(code.encode(), self._code.encode())
        return known and _is_page(scope) and Headers(scope=scope).get("host", "").lower() in self.names

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and message of the error; None if the request is fine."""
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or hosts[0].lower() not in self.names:
            return 403, "the request names another host"
        allowed = {f"http://{name}" for name in self.names}
        if any(origin.lower() not in allowed for origin in origins):
            return 403, "the request comes from another page"
        if _is_page(scope):
            return None if self._is_token(_parameter(scope, "token")) else (403, NEEDS_ADDRESS)
        if scope["method"] != "POST":
            return 405, "only POST is answered here"
        kind, _, sent_token = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not self._is_token(sent_token.strip()):
            return 401, "the token is wrong: open the address that bertjax explore printed"
        return None

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "replace"), self.token.encode())


def _parameter(scope: Scope, name: str) -> str:
    """A parameter of the address; empty if the address does not have it."""
    return parse_qs(scope["query_string"].decode("latin-1")).get(name, [""])[0]


def _is_page(scope: Scope) -> bool:
    return bool(scope["path"] == "/" and scope["method"] in ("GET", "HEAD"))


async def _read_body(scope: Scope, receive: Receive) -> bytes | None:
    """The body; None if it is too large."""
    length = Headers(scope=scope).get("content-length", "0")
    if not length.isdecimal() or int(length) > LARGEST_BODY:
        return None
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > LARGEST_BODY:
            return None
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            return body


async def _redirect(send: Send, address: str) -> None:
    headers = [*HEADERS, (b"location", address.encode()), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _refuse(send: Send, status: int, text: str, *, is_page: bool = False) -> None:
    kind = b"text/plain; charset=utf-8" if is_page else b"application/json"
    body = (text if is_page else json.dumps({"error": text})).encode()
    headers = [
        *HEADERS,
        (b"content-type", kind),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *HEADERS]}
        await send(message)

    return send_with_headers
