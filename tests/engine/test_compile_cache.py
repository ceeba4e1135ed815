"""Compiled steps are kept for the next process, unless the user does not want it."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

CHILD = """
import sys
import jax
import jax.numpy as jnp
jnp.ones(3) + 1  # something was compiled before bertjax chose a cache
from bertjax.machine import use_compile_cache
if "given" in sys.argv:
    jax.config.update("jax_compilation_cache_dir", sys.argv[-1])
hits = []
jax.monitoring.register_event_listener(lambda event, **rest: hits.append(event) if "cache_hits" in event else None)
directory = use_compile_cache(*sys.argv[2:] if "chosen" in sys.argv else ())
jax.jit(lambda x: jnp.sin(x) * 3)(jnp.arange(7.0)).block_until_ready()
print(directory, len(hits) > 0)
"""


@pytest.fixture
def run(tmp_path):
    def child(*arguments, **environment):
        variables = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), **environment}
        variables = {name: value for name, value in variables.items() if not name.startswith("JAX_")}
        command = [sys.executable, "-c", CHILD, *arguments]
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=True)

    return child


def test_what_was_compiled_is_there_for_the_next_process(run, tmp_path):
    first, second = run(), run()
    directory = str(next((tmp_path / "bertjax" / "compiled").iterdir()))
    assert first.stdout.split() == [directory, "False"]
    assert second.stdout.split() == [directory, "True"]
    assert second.stderr == ""


def test_a_half_written_cache_entry_is_compiled_again(run, tmp_path):
    run()
    directory = next((tmp_path / "bertjax" / "compiled").iterdir())
    entries = list(directory.glob("*-cache"))
    assert len(entries) == len(list(directory.glob("*-atime"))) > 1
    for entry in entries:
        entry.write_bytes(entry.read_bytes()[:300])
        entry.with_name(entry.name.replace("-cache", "-atime")).unlink()
    found = run()
    assert found.stdout.split() == [str(directory), "False"]
    assert found.stderr == ""
    assert {entry.name for entry in directory.glob("*-cache")} == {entry.name for entry in entries}
    assert run().stdout.split() == [str(directory), "True"]


def test_the_user_decides(run, tmp_path):
    assert run("given", str(tmp_path / "mine")).stdout.split()[0] == str(tmp_path / "mine")
    assert run("chosen", str(tmp_path / "there")).stdout.startswith(str(tmp_path / "there"))
    (tmp_path / "file").write_text("")
    assert run(XDG_CACHE_HOME=str(tmp_path / "file")).stdout.split() == ["None", "False"]


def test_a_process_without_a_home_has_no_cache(run, monkeypatch):
    code = "import pathlib\npathlib.Path.home = lambda: (_ for _ in ()).throw(RuntimeError('no home'))\n"
    monkeypatch.setattr(sys.modules[__name__], "CHILD", code + CHILD)
    assert run(XDG_CACHE_HOME="").stdout.split() == ["None", "False"]


def test_a_name_that_is_no_utf8_is_no_cache(run, tmp_path):
    name = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")
    assert run("chosen", name).stdout.split() == ["None", "False"]
