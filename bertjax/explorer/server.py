"""The server of the page. `Explorer` runs it in a thread."""

import asyncio
import contextlib
import json
import os
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any, TypeVar

import uvicorn
from msgspec import Struct
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from bertjax import arguments
from bertjax.checkpoints import BertConfig
from bertjax.errors import BertjaxError, InputError, explain
from bertjax.explorer.attention import compute_attention
from bertjax.explorer.compute import (
    Query,
    compile_query,
    compute_answer,
    compute_map,
    in_next_bucket,
    kind_of,
    read_query,
)
from bertjax.explorer.kinds import Kind
from bertjax.explorer.messages import AttentionRequest, ExamplesRequest, MapRequest, Question, Target, read_message
from bertjax.explorer.python_lines import python_lines
from bertjax.explorer.security import Guard, is_every_address, served_names
from bertjax.explorer.subject import Subject
from bertjax.explorer.worker import Busy, Cancelled, Task, Worker
from bertjax.web import make_page, security_policy

M = TypeVar("M", bound=Struct)
LARGEST_PORT = 65_535
END_SECONDS = 0.5  # for the threads to end
RANKS = {"answer": 0, "attention": 1, "map": 2}


class Explorer:
    """A running explorer.

    Args:
        subject: the model, and the examples of a task.
        host: the address of this machine to listen on.
        port: the port to listen on; 0 for any free port.

    Attributes:
        url: the address of the page, with the token.

    Raises:
        InputError: the model has no answer to show, or the address cannot be used.
    """

    def __init__(self, subject: Subject, host: str = "127.0.0.1", port: int = 0):
        self.kind = kind_of(subject)
        self._listener = _listen(host, port)
        self.worker = Worker()
        port = self._listener.getsockname()[1]
        self._token = secrets.token_urlsafe(32)
        shown = socket.gethostname() if is_every_address(host) else host
        self.url = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/?token={self._token}"
        application = Application(self.kind, self.worker)
        self._guard = Guard(application.starlette, served_names(host, port), self._token)
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._guard,
                http="h11",
                ws="none",
                lifespan="off",
                loop="asyncio",
                log_config=None,
                log_level="critical",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=0,
            )
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="bertjax explorer: server", daemon=True)
        self._thread.start()
        application.warm_up()

    def _serve(self) -> None:
        try:
            self._server.run(sockets=[self._listener])
        finally:
            self._listener.close()
            self._ended.set()

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.kind.subject.name

    def wait(self) -> None:
        """Wait until the server ends."""
        self._ended.wait()

    def close(self) -> bool:
        """End the server at once, and close all its connections.

        Returns: whether all threads have ended. The thread of computations ends only after JAX has compiled a program.
        """
        self._server.should_exit = self._server.force_exit = True
        ended = self.worker.close(END_SECONDS)
        self._thread.join(END_SECONDS)
        return ended and not self._thread.is_alive()

    def open(self) -> bool:
        """Open the page in a graphical browser, and return whether there is one.

        Other users of the machine can see the address in the browser's command line, so that address works only once.
        """
        if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            return False
        return webbrowser.open(self._guard.address_to_open(self.url.partition("/?")[0]))

    def __enter__(self) -> "Explorer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Explorer({self.url})"

    def _repr_html_(self) -> str:
        url = escape(self.url)
        return f'<p>Explorer of {escape(self.name)}: <a href="{url}" target="_blank">{url}</a></p>'


def _listen(host: str, port: int) -> socket.socket:
    arguments.check_instance(host, "host", str, "an address of this machine")
    if arguments.check_int(port, "port", 0) > LARGEST_PORT:
        raise InputError(f"port {port} is more than {LARGEST_PORT}")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"cannot listen on {host}, port {port} ({reason}): give another --host or --port") from error


class Application:
    """The routes of the server.

    Args:
        kind: the kind of the model's answer.
        worker: the thread that runs the computations.
    """

    def __init__(self, kind: Kind, worker: Worker):
        self.kind, self.worker = kind, worker
        self._compiled: set[tuple[int, str]] = set()
        routes = [Route("/", self.page)]
        for name in ("examples", "answer", "map", "attention", "python"):
            routes.append(Route(f"/api/{name}", getattr(self, name), methods=["POST"]))
        self.starlette = Starlette(routes=routes, exception_handlers={404: _not_found, Exception: _internal_error})

    async def page(self, request: Request) -> Response:
        """Respond with the page."""
        nonce = secrets.token_urlsafe(16)
        title = f"{self.kind.subject.name} - bertjax explore"
        text = make_page("explorer/page", page_data(self.kind), title=title, nonce=nonce)
        return HTMLResponse(text, headers={"Content-Security-Policy": security_policy(nonce)})

    async def examples(self, request: Request) -> Response:
        """Respond with examples of the task."""
        try:
            message = read_message(await request.body(), ExamplesRequest)
        except InputError as error:
            return _error(400, str(error))
        return JSONResponse(list_examples(self.kind, message))

    async def answer(self, request: Request) -> Response:
        """Respond with the answers before and after the ablation."""
        return await self._respond(request, Question, "answer", self._answer)

    def _answer(self, message: Question, task: Task) -> Any:
        return compute_answer(self.kind, read_query(self.kind, message), task.check)

    async def attention(self, request: Request) -> Response:
        """Respond with attention before and after the ablation."""
        return await self._respond(request, AttentionRequest, "attention", self._attention)

    def _attention(self, message: AttentionRequest, task: Task) -> Any:
        return compute_attention(self.kind, read_query(self.kind, message), message.weights, task.check)

    async def python(self, request: Request) -> Response:
        """Respond with Python code that computes a map."""
        try:
            message = read_message(await request.body(), MapRequest)
            query = read_query(self.kind, message)
            return JSONResponse({"code": python_lines(self.kind, query, message.target)})
        except BertjaxError as error:
            return _error_of(error)

    async def _respond(
        self, request: Request, kind: type[M], endpoint: str, compute: Callable[[M, Task], Any]
    ) -> Response:
        """Compute in the worker, and return the result."""
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Response] = loop.create_future()

        def finish(result: Any, error: BaseException | None) -> None:
            response = JSONResponse(result) if error is None else _error_of(error)
            _call(loop, lambda: None if found.done() else found.set_result(response))

        try:
            message = read_message(await request.body(), kind)
            client = getattr(message, "client", "")
            task = Task(client, endpoint, lambda task: compute(message, task), finish, rank=RANKS[endpoint])
            self.worker.submit(task)
        except (InputError, Busy) as error:
            return _error_of(error)
        try:
            return await found
        finally:
            task.cancel()

    async def map(self, request: Request) -> Response:
        """Respond with a map as a stream of lines."""
        loop = asyncio.get_running_loop()
        lines: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()

        def send(line: Mapping[str, Any] | None) -> None:
            _call(loop, lambda: lines.put_nowait(line))

        def finish(result: Any, error: BaseException | None) -> None:
            if error is None:
                self._compile_later(query, message.target)
            else:
                send({"cancelled": True} if isinstance(error, Cancelled) else {"error": explain(error)})
            send(None)

        try:
            message = read_message(await request.body(), MapRequest)
            query = read_query(self.kind, message)
            self.kind.map_reading(query.encodings, message.target)  # raises errors before the stream begins

            def compute(task: Task) -> None:
                compute_map(self.kind, query, message.target, send, task.check)

            task = Task(message.client, "map", compute, finish, rank=RANKS["map"])
            self.worker.submit(task)
        except (BertjaxError, Busy) as error:
            return _error_of(error)
        return StreamingResponse(_stream(lines, task), media_type="application/x-ndjson")

    def warm_up(self) -> None:
        """Compile the programs for the first texts in the background."""
        texts = self.kind.first_texts()

        def compute(task: Task) -> None:
            query = read_query(self.kind, Question(texts=texts))
            target = self.kind.first_target(compute_answer(self.kind, query, task.check)["base"])
            for mode in ("uniform", "zero"):
                self._compile(replace(query, mode=mode), target, task)

        self._submit_background(compute)

    def _compile_later(self, query: Query, target: Target) -> None:
        """Compile programs that the next requests may need, in the background."""
        self._submit_background(lambda task: self._compile(query, target, task))

    def _compile(self, query: Query, target: Target, task: Task) -> None:
        """Compile the programs for other sets of ablated heads, and for texts of this bucket and the next one."""
        for one in (query, in_next_bucket(self.kind, query)):
            if one is not None and self._bucket_of(one) not in self._compiled:
                compile_query(self.kind, one, target, task.check)
                self._compiled.add(self._bucket_of(one))

    def _bucket_of(self, query: Query) -> tuple[int, str]:
        return self.kind.row_length(query.encodings), query.mode

    def _submit_background(self, compute: Callable[[Task], None]) -> None:
        """Submit a task that any request cancels, unless the queue is full."""
        with contextlib.suppress(Busy):
            self.worker.submit(
                Task("", "background", compute, lambda result, error: None, rank=len(RANKS), background=True)
            )


async def _stream(lines: "asyncio.Queue[Mapping[str, Any] | None]", task: Task) -> AsyncIterator[str]:
    try:
        while (line := await lines.get()) is not None:
            yield json.dumps(line) + "\n"
    finally:
        task.cancel()


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[], Any]) -> None:
    """Call a function in the thread of a loop, unless the loop has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function)


def page_data(kind: Kind) -> dict[str, Any]:
    """The data of the page: the model, its task and its first texts."""
    from bertjax import __version__

    subject = kind.subject
    config = subject.model.config
    mask = kind.tokenizer.mask_token if kind.name == "words" else None
    model = {
        "name": subject.name,
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "removed": removed_heads(config),
        "kind": kind.name,
        "labels": kind.labels,
        "mask": mask,
        "texts": kind.texts,
        "modes": subject.modes,
        "max_tokens": subject.longest,
    }
    count = 0 if subject.examples is None else len(subject.examples)
    example = {"texts": kind.first_texts()}
    return {"model": model, "task": subject.task, "examples": count, "example": example, "version": __version__}


def removed_heads(config: BertConfig) -> list[str]:
    """The names of the heads that a checkpoint lacks."""
    heads = range(config.num_attention_heads)
    layers = range(config.num_hidden_layers)
    return [f"{layer}.{head}" for layer in layers for head in heads if head not in config.heads_of(layer)]


def list_examples(kind: Kind, message: ExamplesRequest) -> dict[str, Any]:
    """The examples that match a request, and their total number."""
    examples, part = kind.subject.examples, message.search.strip().casefold()
    if examples is None:
        return {"total": 0, "examples": []}
    rows: Sequence[int] = range(len(examples))
    if part:
        texts = [examples.first, *([] if examples.second is None else [examples.second])]
        rows = [row for row in rows if any(part in column[row].casefold() for column in texts)]
    listed = []
    for row in rows[message.offset : message.offset + message.count]:
        shown, label = kind.example(row)
        listed.append({"id": str(examples.ids[row]), "texts": shown, "label": label})
    return {"total": len(rows), "examples": listed}


def _error(status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status_code=status)


def _error_of(error: BaseException) -> Response:
    if isinstance(error, Cancelled):
        return _error(409, "a newer request has replaced this one")
    if isinstance(error, Busy):
        return _error(503, "too many requests wait: try again later")
    return _error(400 if isinstance(error, BertjaxError) else 500, explain(error))


async def _not_found(request: Request, error: Exception) -> Response:
    return _error(404, "there is nothing at this address")


async def _internal_error(request: Request, error: Exception) -> Response:
    return _error(500, explain(error))
