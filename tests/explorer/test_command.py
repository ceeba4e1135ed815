"""`bertjax explore` in a process of its own, and the explorer of a study."""

import http.client
import json
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, closing, contextmanager
from urllib.parse import urlsplit

import pytest

import bertjax
from bertjax import study as studies
from bertjax.cli import main
from bertjax.errors import EXIT_INTERRUPTED, EXIT_MISTAKE, InputError, MissingDependencyError
from tests.explorer.subjects import SENTENCES, subject_named
from tests.factories import make_classifier, make_encoder, make_masked, write_pairs
from tests.tiny_models import comparable_environment


def start(*arguments):
    """The process, and the address that it printed."""
    command = [sys.executable, "-m", "bertjax", "explore", "--no-browser", *map(str, arguments)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=comparable_environment()
    )
    lines = [process.stdout.readline() for _ in range(2)]
    return process, lines[1].removeprefix("open ").strip()


@contextmanager
def sending(url, name, message):
    """A response that is not read yet."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    headers = {"Authorization": f"Bearer {parts.query.removeprefix('token=')}"}
    connection.request("POST", f"/api/{name}", json.dumps(message), headers)
    with closing(connection), connection.getresponse() as response:
        yield response


def post(url, name, message):
    """Status and JSON of a response."""
    with sending(url, name, message) as response:
        return response.status, json.loads(response.read())


@pytest.mark.integration
@pytest.mark.parametrize("after", ["answer", "start", "map"])
def test_ctrl_c_ends_the_command_at_once(tmp_path, after):
    directory = make_masked(tmp_path)
    process, url = start("--model", directory)
    with process:
        if after != "start":
            assert post(url, "answer", {"texts": ["the [MASK] ran"]})[0] == 200
        with ExitStack() as stack:
            if after == "map":
                text = "the cat sat on the [MASK] near a red door and slept on the mat"
                message = {"texts": [text], "target": {"mask": 0, "word": "mat"}}
                stack.enter_context(sending(url, "map", message))  # whose programs are being compiled
            process.send_signal(signal.SIGINT)
        pressed = time.monotonic()
        code = process.wait(20)
        assert time.monotonic() - pressed < 2
        assert code == EXIT_INTERRUPTED
        assert process.stderr.read() == "bertjax: interrupted; no unfinished file was left\n"


@pytest.mark.integration
def test_a_killed_server_frees_its_port(tmp_path):
    directory = make_masked(tmp_path)
    process, url = start("--model", directory)
    with process:
        process.kill()
    again, other = start("--model", directory, "--port", urlsplit(url).port)
    with again:
        assert urlsplit(other).port == urlsplit(url).port
        assert urlsplit(other).query != urlsplit(url).query  # another token
        assert post(url, "answer", {"texts": ["the [MASK] ran"]})[0] == 401
        assert post(other, "answer", {"texts": ["the [MASK] ran"]})[0] == 200
        again.send_signal(signal.SIGINT)
        assert again.wait(20) == EXIT_INTERRUPTED


@pytest.mark.integration
def test_the_command_shows_the_examples_of_a_task(tmp_path):
    (tmp_path / "model").mkdir()
    data = write_pairs(tmp_path / "msr_paraphrase_test.tsv", 9)
    process, url = start("--model", make_classifier(tmp_path / "model"), "--task", "mrpc", "--data", data)
    with process:
        _, found = post(url, "examples", {"client": "a"})
        assert found["total"] == 9
        assert found["examples"][0]["label"] in ("equivalent", "not_equivalent")
        assert post(url, "answer", {"texts": found["examples"][0]["texts"], "mode": "mean"})[0] == 200
        process.send_signal(signal.SIGINT)
        process.wait(20)


def test_a_study_has_an_explorer():
    model = subject_named("words").model
    with bertjax.Study(model, "mlm", texts=list(SENTENCES)).explore(browser=False) as explorer:
        found = post(explorer.url, "examples", {"client": "a"})[1]["examples"]
        assert [one["id"] for one in found] == [*map(str, range(len(SENTENCES)))]
        for one, sentence in zip(found, SENTENCES, strict=True):
            assert one["texts"][0].replace("[MASK]", one["label"]) == sentence
        assert explorer.url in repr(explorer)
        assert f'href="{explorer.url}"' in explorer._repr_html_()


def test_models_without_an_answer_are_an_error(tmp_path, capsys):
    assert main(["explore", "--model", str(make_encoder(tmp_path)), "--no-browser"]) == EXIT_MISTAKE
    assert "BertModel has no answer to show" in capsys.readouterr().err
    with pytest.raises(InputError, match="more than 65535"):
        bertjax.Study(subject_named("words").model, "mlm", texts=["a cat"]).explore(port=65536, browser=False)


def test_a_missing_package_is_an_error(monkeypatch):
    def refuse(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(studies, "import_module", refuse)
    with pytest.raises(MissingDependencyError, match=r"pip install 'bertjax\[explore\]'"):
        studies.require_explorer()


def test_the_help_of_the_command(capsys):
    with pytest.raises(SystemExit):
        main(["explore", "--help"])
    shown = capsys.readouterr().out
    for option in ("--model", "--task", "--data", "--host", "--port", "--no-browser"):
        assert option in shown
