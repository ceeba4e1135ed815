"""Finding a model: directories, installed packages, the Hub's cache, a local Hub server."""

import importlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from bertjax.checkpoints import location as module
from bertjax.checkpoints.location import DEFAULT_MODEL, locate
from bertjax.errors import CheckpointError

COMMIT, REPOSITORY = "0123456789abcdef0123456789abcdef01234567", "some-lab/tiny-bert"
SMALL_FILES = {"config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json", "modules.json"} | {
    *("vocab.json", "merges.txt", "spiece.model", "spm.model", "sentencepiece.bpe.model"),
    "special_tokens_map.json",
    "sentence_bert_config.json",
    "sentence_xlm-roberta_config.json",
    "1_Pooling/config.json",
    "2_Dense/config.json",
    "2_Dense/model.safetensors",
}
UNWANTED = {
    "README.md",
    ".gitattributes",
    "tf_model.h5",
    "onnx/model.onnx",
    "onnx/config.json",
    "model.fp16.safetensors",
    "2_Dense/pytorch_model.bin",
}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tests do not use the network: the Hub is a closed port."""
    use_hub(monkeypatch, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "default cache"))


def use_hub(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


def refusal(name: str | Path, **options: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        locate(name, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert str(name).removeprefix("package:") in message
    return message


def make_files(directory: Path, names: set[str]) -> Path:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    return directory


def make_cache(root: Path, names: set[str], revision: str = "main") -> Path:
    """The cache of huggingface_hub after a download."""
    storage = root / f"models--{REPOSITORY.replace('/', '--')}"
    reference = storage / "refs" / revision
    reference.parent.mkdir(parents=True)
    reference.write_text(COMMIT)
    return make_files(storage / "snapshots" / COMMIT, names)


def make_package(root: Path, name: str, names: set[str], distribution: str | None = None) -> None:
    make_files(root / name, names)
    (root / name / "__init__.py").write_text("raise RuntimeError('imported')")
    if distribution is not None:
        info = root / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "top_level.txt").write_text(f"{name}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on Python's path to install packages in."""
    root = tmp_path / "site"
    root.mkdir()
    monkeypatch.syspath_prepend(str(root))
    importlib.invalidate_caches()
    return root


class Hub(ThreadingHTTPServer):
    """A server with the routes that a download requests."""

    daemon_threads = True
    files: frozenset[str] = frozenset()
    status, code = 200, ""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.downloads: list[str] = []
        self.tokens: set[str | None] = set()


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if REPOSITORY not in path:  # a request that huggingface_hub itself sends once in a process
            self.answer(b"", 404)
            return
        self.server.tokens.add(self.headers.get("Authorization"))
        if self.server.status != 200:
            self.answer(b"", self.server.status, {"X-Error-Code": self.server.code})
        elif "/tree/" in path:
            listing = [{"type": "file", "path": name, "size": 2, "oid": name} for name in self.server.files]
            self.answer(json.dumps(listing).encode())
        elif path.startswith("/api/models/"):
            siblings = [{"rfilename": name} for name in self.server.files]
            self.answer(json.dumps({"id": REPOSITORY, "sha": COMMIT, "siblings": siblings}).encode())
        else:
            name = path.split(f"/resolve/{COMMIT}/")[1]
            if self.command == "GET":
                self.server.downloads.append(name)
            self.answer(b"{}", headers={"ETag": f'"{name}"', "X-Repo-Commit": COMMIT})

    do_HEAD = do_GET

    def answer(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        use_hub(monkeypatch, f"http://127.0.0.1:{server.server_port}")
        yield server
        server.shutdown()
        thread.join()


def test_a_directory_takes_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some-lab" / "tiny-bert").mkdir(parents=True)
    assert locate(REPOSITORY) == Path(REPOSITORY)
    assert locate(tmp_path) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert locate("~/some-lab") == tmp_path / "some-lab"


@pytest.mark.parametrize("name", ["./nope", "/abs/nope", "~/nope", "a/b/c", "nope/", "two words"])
def test_invalid_hub_ids_are_missing_directories(name: str) -> None:
    assert "no such directory" in refusal(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("x" * 300, "cannot be read (File name too long)"),
        ("/tmp/" + "x" * 300, "cannot be read (File name too long)"),
        ("~nosuchuser/bert", "Could not determine home directory"),
        ("", "a path is empty"),
    ],
)
def test_invalid_paths_are_refused_with_the_reason(name: str, says: str) -> None:
    assert says in refusal(name)


def test_a_file_is_refused_as_one(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    assert "is a file; give the directory" in refusal(tmp_path / "model.safetensors")


def test_a_revision_of_a_local_model_is_refused(tmp_path: Path) -> None:
    assert "has no revisions" in refusal(tmp_path, revision="main")


@pytest.mark.parametrize("name", ["tiny_weights", "tiny-weights", "Tiny.Weights"])
def test_a_packages_shallowest_model_is_found_without_import(site: Path, name: str) -> None:
    make_package(
        site,
        "tiny_weights",
        {"data/model/config.json", "data/model/1_Pooling/config.json", "x/y/z/config.json"},
    )
    assert locate(f"package:{name}") == site / "tiny_weights" / "data" / "model"
    assert "tiny_weights" not in sys.modules


def test_a_package_is_found_by_pips_name_for_it(site: Path) -> None:
    make_package(site, "weights_inside", {"config.json"}, distribution="Other-Name")
    assert locate("package:other_name") == site / "weights_inside"


def test_a_package_without_exactly_one_model_is_refused(site: Path) -> None:
    make_package(site, "no_model", {"readme.txt"})
    make_package(site, "two_models", {"a/config.json", "b/config.json"})
    assert "holds no model" in refusal("package:no_model")
    assert "holds several models" in refusal("package:two_models")
    for name in ("nowhere_installed", "os.path", "", "../x"):
        assert "no installed package" in refusal(f"package:{name}")


def test_the_default_model_is_from_the_package_or_the_hub(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DEFAULT_PACKAGE", "stand-in")
    assert "cannot be reached" in refusal(DEFAULT_MODEL)
    make_package(site, "stand_in", {"model/config.json"})
    importlib.invalidate_caches()
    assert locate(DEFAULT_MODEL) == site / "stand_in" / "model"
    assert "cannot be reached" in refusal(DEFAULT_MODEL, revision="main")


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ({"model.safetensors", "pytorch_model.bin", "flax_model.msgpack"}, {"model.safetensors"}),
        ({"pytorch_model.bin", "flax_model.msgpack"}, {"pytorch_model.bin"}),
        ({"flax_model.msgpack"}, {"flax_model.msgpack"}),
        (
            {
                "model.safetensors.index.json",
                "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors",
            },
            {
                "model.safetensors.index.json",
                "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors",
            },
        ),
    ],
)
def test_only_the_files_needed_are_downloaded(hub: Hub, tmp_path: Path, held: set[str], expected: set[str]) -> None:
    hub.files = frozenset(held | SMALL_FILES | UNWANTED)
    found = locate(REPOSITORY, cache_dir=tmp_path, token="hf_secret")
    assert {str(path.relative_to(found)) for path in found.rglob("*") if path.is_file()} == expected | SMALL_FILES
    assert sorted(hub.downloads) == sorted(expected | SMALL_FILES)
    assert hub.tokens == {"Bearer hf_secret"}


def test_an_adapter_needs_no_model_in_its_directory(hub: Hub, tmp_path: Path) -> None:
    hub.files = frozenset({"adapter_config.json", "adapter_model.safetensors"} | UNWANTED)
    found = locate(REPOSITORY, cache_dir=tmp_path)
    assert {path.name for path in found.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    assert locate(REPOSITORY, cache_dir=tmp_path, local_files_only=True) == found


def test_downloads_are_found_without_network(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.files = frozenset({"model.safetensors", "pytorch_model.bin"} | SMALL_FILES)
    found = locate(REPOSITORY, cache_dir=tmp_path)
    assert locate(REPOSITORY, cache_dir=tmp_path, local_files_only=True) == found
    assert locate(REPOSITORY, cache_dir=tmp_path, revision=COMMIT, local_files_only=True) == found
    hub.status = 503
    assert locate(REPOSITORY, cache_dir=tmp_path) == found
    use_hub(monkeypatch, "http://127.0.0.1:9")
    assert locate(REPOSITORY, cache_dir=tmp_path) == found
    assert len(hub.downloads) == len(SMALL_FILES) + 1


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (401, "RepoNotFound", "no such repository"),
        (404, "RepoNotFound", "no such repository"),
        (403, "GatedRepo", "gated"),
        (404, "RevisionNotFound", "has no revision 'v9'"),
        (403, "", "refused access (403)"),
        (500, "", "status 500"),
        (203, "", "cannot be reached"),  # a portal that answers for the Hub, with no JSON
    ],
)
def test_refusals_of_the_hub_are_one_line(hub: Hub, status: int, code: str, says: str) -> None:
    hub.status, hub.code = status, code
    assert says in refusal(REPOSITORY, revision="v9")


def test_a_repository_without_a_bert_is_not_downloaded(hub: Hub) -> None:
    for files in ({"config.json"} | UNWANTED, {"model.safetensors"}):
        hub.files = frozenset(files)
        assert "holds no model for bertjax" in refusal(REPOSITORY)
    assert hub.downloads == []


def test_no_network_and_no_cache_fail_at_once() -> None:
    start = time.perf_counter()
    message = refusal(REPOSITORY)
    assert "not in the cache" in message
    assert "check the network" in message
    assert time.perf_counter() - start < 5


def test_a_hub_that_does_not_answer_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        use_hub(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert "cannot be reached" in refusal(REPOSITORY)


def test_a_cache_is_used_at_its_revision_only(tmp_path: Path) -> None:
    snapshot = make_cache(tmp_path, {"config.json", "flax_model.msgpack"}, revision="v2")
    assert locate(REPOSITORY, cache_dir=tmp_path, revision="v2", local_files_only=True) == snapshot
    assert locate(REPOSITORY, cache_dir=tmp_path, revision="v2") == snapshot
    assert "local_files_only is set" in refusal(REPOSITORY, cache_dir=tmp_path, local_files_only=True)
    assert "'v3'" in refusal(REPOSITORY, cache_dir=tmp_path, revision="v3")


@pytest.mark.parametrize(
    "names",
    [{"config.json", "vocab.txt"}, {"model.safetensors"}, {"config.json", "model.safetensors", "2_Dense/config.json"}],
)
def test_an_incomplete_cache_is_refused(tmp_path: Path, names: set[str]) -> None:
    make_cache(tmp_path, names)
    assert "the cache holds only a part of it" in refusal(REPOSITORY, cache_dir=tmp_path)


@pytest.mark.integration
def test_hf_hub_offline_is_honoured(tmp_path: Path) -> None:
    snapshot = make_cache(tmp_path, {"config.json", "model.safetensors"})
    code = (
        "import sys; from bertjax.checkpoints.location import locate\n"
        f"assert str(locate({REPOSITORY!r})) == sys.argv[1]\n"
        "try: locate('some-lab/absent')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", code, str(snapshot)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert result.stdout.startswith("CheckpointError some-lab/absent: ")
    assert "HF_HUB_OFFLINE is set" in result.stdout
