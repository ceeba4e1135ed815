"""The server: who may talk to it, what it answers to wrong requests, bursts, newer requests and pages that go."""

import http.client
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import numpy as np
import pytest

from bertjax.errors import InputError
from bertjax.explorer import Explorer, server
from bertjax.explorer.messages import LONGEST_TEXT
from bertjax.explorer.security import LARGEST_BODY
from tests.explorer.subjects import KINDS, SENTENCES, subject_named

TEXTS = ["the cat ran"]
HOSTILE = ["</script><script>window.hacked = 1</script>\u0000\u202e{{7*7}}"]


@pytest.fixture(scope="module")
def explorer():
    with Explorer(subject_named("classes")) as started:
        yield started


def connect(explorer):
    return http.client.HTTPConnection("127.0.0.1", urlsplit(explorer.url).port, timeout=60)


def token_of(explorer):
    return urlsplit(explorer.url).query.removeprefix("token=")


def request(explorer, method, path, body=None, **headers):
    """Status, headers and body of a response; headers with `None` are left out."""
    connection = connect(explorer)
    sent = {"Authorization": f"Bearer {token_of(explorer)}", **{name: text for name, text in headers.items() if text}}
    connection.request(method, path, body, {name: text for name, text in sent.items() if name not in _without(headers)})
    response = connection.getresponse()
    found = response.status, dict(response.getheaders()), response.read().decode()
    connection.close()
    return found


def _without(headers):
    return {name for name, text in headers.items() if text is None}


def ask(explorer, name, message, **headers):
    """Status and JSON of a response."""
    status, _, text = request(explorer, "POST", f"/api/{name}", json.dumps(message).encode(), **headers)
    return status, json.loads(text)


def lines_of(explorer, message):
    status, headers, text = request(explorer, "POST", "/api/map", json.dumps(message).encode())
    assert status == 200, text
    assert headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in text.splitlines()]


def test_the_page_needs_its_token(explorer):
    status, headers, text = request(explorer, "GET", urlsplit(explorer.url)._replace(scheme="", netloc="").geturl())
    assert status == 200
    assert headers["content-type"].startswith("text/html")
    assert headers["Referrer-Policy".lower()] == "no-referrer"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "http" not in policy
    assert token_of(explorer) not in text
    again = request(explorer, "GET", f"/?token={token_of(explorer)}")[1]["content-security-policy"]
    assert again != policy  # another nonce
    for path in ("/", "/?token=", "/?token=x", f"/?token={token_of(explorer)}x", "/?start=", "/?token=%ff%00"):
        status, headers, text = request(explorer, "GET", path)
        assert status == 403
        assert headers["content-type"].startswith("text/plain")
        assert text.count("\n") == 1
        assert "address" in text


def test_a_browser_is_started_with_an_address_that_works_once(explorer):
    opened = explorer._guard.address_to_open("")
    assert token_of(explorer) not in opened
    status, headers, _ = request(explorer, "GET", opened)
    assert (status, headers["location"]) == (303, f"/?token={token_of(explorer)}")
    assert request(explorer, "GET", opened)[0] == 403


@pytest.mark.parametrize("authorization", [None, "Bearer x", "Bearer", "Basic {}", "{}", "Bearer {}x", "Bearer \xff"])
def test_a_wrong_token_is_refused(explorer, authorization):
    header = authorization and authorization.format(token_of(explorer))
    status, answer = ask(explorer, "answer", {"texts": TEXTS}, Authorization=header)
    assert status == 401
    assert "token" in answer["error"]


def test_other_hosts_and_origins_are_refused(explorer):
    port = urlsplit(explorer.url).port
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1",
        f"127.0.0.1:{port + 1}",
        "",
        f"127.0.0.1:{port}.",
    ):
        assert ask(explorer, "answer", {"texts": TEXTS}, Host=host or " ")[0] in (400, 403)
        assert request(explorer, "GET", f"/?token={token_of(explorer)}", Host=host or " ")[0] in (400, 403)
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{port}", f"http://127.0.0.1:{port}.evil.example"):
        status, answer = ask(explorer, "answer", {"texts": TEXTS}, Origin=origin)
        assert (status, answer) == (403, {"error": "the request comes from another page"})
    for name in ("127.0.0.1", "localhost"):
        assert (
            ask(explorer, "answer", {"texts": TEXTS}, Host=f"{name}:{port}", Origin=f"http://{name}:{port}")[0] == 200
        )


def test_large_bodies_are_refused(explorer):
    large = b" " * (LARGEST_BODY + 1)
    assert request(explorer, "POST", "/api/answer", large)[0] == 413
    assert request(explorer, "POST", "/api/answer", iter([large[:-9], large[:9]]))[0] == 413  # in chunks
    assert request(explorer, "POST", "/api/answer", b"", **{"Content-Length": "x"})[0] in (400, 413)
    padded = json.dumps({"texts": TEXTS}).encode()
    assert request(explorer, "POST", "/api/answer", padded.ljust(LARGEST_BODY))[0] == 200


@pytest.mark.parametrize(
    ("name", "body", "problem"),
    [
        ("answer", b"", "cannot be read"),
        ("answer", b"{", "cannot be read"),
        ("answer", b"\xff\xfe", "cannot be read"),
        ("answer", b"[" * 5000, "cannot be read"),
        ("answer", b"[]", "cannot be read"),
        ("answer", b"{}", "texts"),
        ("answer", b'{"texts": []}', "texts"),
        ("answer", b'{"texts": ["a", "a", "a"]}', "texts"),
        ("answer", b'{"texts": "a"}', "texts"),
        ("answer", b'{"texts": [1]}', "texts"),
        ("answer", b'{"texts": [""]}', "empty"),
        ("answer", b'{"texts": [" \\n"]}', "empty"),
        ("answer", b'{"texts": ["a"], "other": 1}', "other"),
        ("answer", b'{"texts": ["a"], "off": ["0.9"]}', "0.9"),
        ("answer", b'{"texts": ["a"], "off": ["-1.0"]}', "-1.0"),
        ("answer", b'{"texts": ["a"], "off": ["cat"]}', "cat"),
        ("answer", b'{"texts": ["a"], "mode": "patched"}', "mode"),
        ("map", b'{"texts": ["a"], "target": {"class": 9}}', "classes"),
        ("map", b'{"texts": ["a"], "target": {"class": -1}}', "class"),
        ("map", b'{"texts": ["a"], "target": {"class": 1e400}}', "class"),
        ("attention", b'{"texts": ["a"], "weights": "none"}', "weights"),
        ("examples", b'{"client": "a", "count": 101}', "count"),
        ("examples", b'{"client": "a", "offset": -1}', "offset"),
        ("python", b'{"texts": ["a"]}', "classes"),
    ],
)
def test_wrong_requests_are_errors(explorer, name, body, problem):
    status, _, text = request(explorer, "POST", f"/api/{name}", body)
    answer = json.loads(text)
    assert status == 400
    assert list(answer) == ["error"]
    assert problem in answer["error"]
    assert "\n" not in answer["error"]
    assert "Traceback" not in answer["error"]


def test_other_addresses_and_methods_are_refused(explorer):
    assert request(explorer, "POST", "/api/other", b"{}")[0] == 404
    assert request(explorer, "POST", "/", b"{}")[0] in (404, 405)
    for method in ("GET", "PUT", "DELETE", "OPTIONS"):
        assert request(explorer, method, "/api/answer")[0] == 405


def test_long_texts_are_truncated_or_refused(explorer):
    status, answer = ask(explorer, "answer", {"texts": ["cat " * (LONGEST_TEXT // 4)]})
    assert status == 200
    assert answer["truncated"]
    assert len(answer["tokens"][0]) == 40
    status, answer = ask(explorer, "answer", {"texts": ["c" * (LONGEST_TEXT + 1)]})
    assert status == 400
    assert "texts" in answer["error"]


def test_hostile_texts_are_data(explorer):
    status, answer = ask(explorer, "answer", {"texts": HOSTILE, "off": ["0.0"]})
    assert status == 200
    assert np.isclose(sum(one["probability"] for one in answer["base"]["classes"]), 1)
    code = ask(explorer, "python", {"texts": HOSTILE, "target": {"class": 0}})[1]["code"]
    assert repr(HOSTILE[0]) in code


def test_maps_stream(explorer):
    first, *layers, last = lines_of(explorer, {"texts": TEXTS, "target": {"class": 1}, "off": ["1.1"]})
    assert first["quantity"] == "log-probability"
    assert {line["layer"]: [value is None for value in line["values"]] for line in layers} == {
        0: [False] * 3,
        1: [False, True, False],
    }
    assert last["done"]


def test_examples(explorer):
    status, found = ask(explorer, "examples", {"client": "a", "offset": 1, "count": 2})
    assert status == 200
    assert found["total"] == len(SENTENCES)
    assert [one["texts"] for one in found["examples"]] == [[SENTENCES[1]], [SENTENCES[2]]]
    assert ask(explorer, "examples", {"client": "a", "search": "CAT"})[1]["total"] == 3
    assert ask(explorer, "examples", {"client": "a", "search": "zebra"})[1] == {"total": 0, "examples": []}


def test_a_burst_of_requests(explorer):
    def one(index):
        kind = ("answer", "map", "attention")[index % 3]
        message = {"client": str(index), "texts": TEXTS, **({"target": {"class": 0}} if kind == "map" else {})}
        return request(explorer, "POST", f"/api/{kind}", json.dumps(message).encode())[::2]

    with ThreadPoolExecutor(50) as pool:
        found = list(pool.map(one, range(200)))
    assert {status for status, _ in found} == {200, 503}
    for status, text in found:
        answers = [json.loads(line) for line in text.splitlines()]
        assert "error" in answers[0] if status == 503 else "error" not in answers[-1]
    assert ask(explorer, "answer", {"texts": TEXTS})[0] == 200


@pytest.fixture
def slow_maps(monkeypatch):
    """Maps that take until they are cancelled, and the number of those that ended."""
    ended = []

    def compute_map(kind, query, target, send, check):
        send({"base": 1.0, "quantity": "log-probability"})
        try:
            for _ in range(6000):
                check()
                time.sleep(0.01)
        finally:
            ended.append(query.texts)

    monkeypatch.setattr(server, "compute_map", compute_map)
    return ended


def test_a_newer_request_cancels_an_older_one_of_its_page(explorer, slow_maps):
    connection = connect(explorer)
    headers = {"Authorization": f"Bearer {token_of(explorer)}"}
    message = {"client": "page", "texts": TEXTS, "target": {"class": 0}}
    connection.request("POST", "/api/map", json.dumps(message), headers)
    response = connection.getresponse()
    assert json.loads(response.readline())["base"] == 1.0
    # Another endpoint, another page: nothing is cancelled, and a short task runs between the steps of the map.
    assert ask(explorer, "answer", {"client": "page", "texts": TEXTS})[0] == 200
    assert slow_maps == []
    second = threading.Thread(
        target=request, args=(explorer, "POST", "/api/map", json.dumps(message | {"texts": ["b"]}))
    )
    second.start()
    assert [json.loads(line) for line in response.read().splitlines()] == [{"cancelled": True}]
    connection.close()
    wait_until(lambda: slow_maps == [TEXTS])
    assert lines_of_cancelled(explorer, message)[-1] == {"cancelled": True}
    second.join()


def lines_of_cancelled(explorer, message):
    """The lines of a map that a third request cancels."""
    with ThreadPoolExecutor(1) as pool:
        lines = pool.submit(lines_of, explorer, message)
        time.sleep(0.3)
        explorer.worker._running[0].cancel()
        return lines.result()


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_page_that_goes_cancels_its_map(explorer, slow_maps):
    connection = connect(explorer)
    message = {"client": "gone", "texts": TEXTS, "target": {"class": 0}}
    connection.request("POST", "/api/map", json.dumps(message), {"Authorization": f"Bearer {token_of(explorer)}"})
    connection.getresponse().readline()
    connection.sock.close()
    connection.close()
    wait_until(lambda: slow_maps == [TEXTS])


def test_closing_ends_streams_and_threads(slow_maps):
    explorer = Explorer(subject_named("classes"))
    connection = connect(explorer)
    message = {"client": "a", "texts": TEXTS, "target": {"class": 0}}
    connection.request("POST", "/api/map", json.dumps(message), {"Authorization": f"Bearer {token_of(explorer)}"})
    response = connection.getresponse()
    response.readline()
    started = time.monotonic()
    explorer.close()
    explorer.wait()
    assert time.monotonic() - started < 2
    with pytest.raises(OSError, match="refused"):
        connect(explorer).request("GET", "/")
    connection.close()


def test_a_port_in_use_is_an_error(explorer):
    with pytest.raises(InputError, match="cannot listen on 127"):
        Explorer(subject_named("classes"), port=urlsplit(explorer.url).port)
    with pytest.raises(InputError, match="more than 65535"):
        Explorer(subject_named("classes"), port=70000)
    with pytest.raises(InputError, match="cannot listen"):
        Explorer(subject_named("classes"), host="999.1.1.1")


def test_the_data_of_the_page():
    for name, (_, changes, texts, _) in KINDS.items():
        kind = server.kind_of(subject_named(name))
        data = server.page_data(kind)
        model = data["model"]
        assert (model["name"], model["layers"], model["heads"]) == (name, 2, 3)
        assert model["modes"] == ["uniform", "zero", "mean"]
        assert model["max_tokens"] == 40
        assert (model["mask"] is not None) == (model["kind"] == "words")
        assert model["labels"] == [*changes.get("id2label", {}).values()] or model["kind"] in ("score", "classes")
        assert len(data["example"]["texts"]) == len(texts)
        assert data["examples"] == (7 if len(texts) == 1 else 6)
