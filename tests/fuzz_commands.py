"""Whole command lines with odd values, by seed, in this process; and what bertjax makes of them.

`cases(seed, count)` gives the same cases for the same seed, `outcome(case)` what came of one. Of most jobs that would
sweep, all is done but the sweep; one in so many cases sweeps too, and its results are held against the plain model's.
"""

import contextlib
import hashlib
import io
import os
import random
import re
import shutil
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np

import bertjax
from bertjax import BertForSentenceEmbedding, Tokenizer, collate, read_results
from bertjax.cli import main
from bertjax.errors import BertjaxError
from bertjax.formatting import HIDDEN
from bertjax.machine import peak_resident, resident_memory
from tests.command_fixtures import CommandFixtures, make_command_fixtures
from tests.command_lines import KINDS, Line
from tests.fuzz_utilities import time_limit

OUTCOMES = ("done", "refused in one line", "stopped at the sweep")
BROKEN = (
    *("traceback", "another exit code", "a message of more than a line", "control characters", "hang"),
    *("memory", "given files changed", "half-written", "silently wrong"),
)
SWEEPS = 40  # one of so many cases
SECONDS, COMPILING = 10, 60  # of computing; of what compiles
WAITING = 90  # seconds of a clock on the wall, on a machine that has other work too
LONGEST, MEMORY = 3_000, 600_000_000  # letters, bytes
CLOSE = 2e-5  # outputs of a sweep against those of the plain model, in float32
TEMPORARY = re.compile(r"\.[0-9a-f]{8}-.*|\.bertjax-\d+|.*\.incomplete.*")


@dataclass(frozen=True)
class Case:
    """One case: `kind` is a key of `KINDS`, `number` the seed of all that is random in it."""

    kind: str
    number: int


@dataclass(frozen=True)
class Ran:
    """How a command ended, and what it printed."""

    code: Any
    out: str
    err: str


class Stopped(BaseException):
    """In place of a sweep."""


def cases(seed: int, count: int) -> Iterator[Case]:
    """So many cases of all kinds in turn, the two with most options more often."""
    kinds = [kind for kind in KINDS if kind != "sweep"]
    turn = [*kinds, "ablate", "plan", "ablate"]
    for number in range(count):
        kind = "sweep" if number % SWEEPS == SWEEPS - 1 else turn[number % len(turn)]
        yield Case(kind, seed * 1_000_003 + number)


def line_of(case: Case) -> Line:
    """The command line of a case."""
    return KINDS[case.kind](random.Random(case.number), make_command_fixtures())


def outcome(case: Case) -> str:
    """What comes of a case: one of `OUTCOMES` or, with what is wrong behind a colon, of `BROKEN`."""
    fixtures, line, rng = make_command_fixtures(), line_of(case), random.Random(-case.number)
    if case.kind == "sweep":
        _warm()
    with tempfile.TemporaryDirectory() as folder, place(fixtures, Path(folder)) as work:
        given, before = snapshot(fixtures.root), snapshot(work)
        memory, started = _begin_measuring(), time.process_time()
        try:
            with time_limit(WAITING):
                ran = run(line.arguments, rng.choice(("utf-8", "utf-8", "ascii", "latin-1")), case.kind == "sweep")
        except TimeoutError:
            return f"hang: {line.arguments}"
        except BaseException as error:  # whatever comes is what is looked for
            if isinstance(error, KeyboardInterrupt):
                raise
            return f"traceback: {type(error).__name__}: {str(error)[:200]} of {line.arguments}"
        spent, taken = time.process_time() - started, (peak_resident() or 0) - memory
        wrong = (
            f"hang: {spent:.0f} s" * (spent > (COMPILING if case.kind in ("sweep", "plan") else SECONDS))
            or f"memory: {taken:,} bytes" * (taken > MEMORY)
            or "given files changed" * (snapshot(fixtures.root) != given)
            or judge(ran)
            or left(work, before, ran, case.kind)
        )
        if not wrong and case.kind == "sweep" and ran.code == 0:
            wrong = check_sweep(line, work, fixtures)
        return f"{wrong} of {line.arguments}"[:3000] if wrong else OUTCOMES[{0: 0, 2: 1}.get(ran.code, 2)]


# ---- a command that runs --------------------------------------------------------------------------------------------
@contextlib.contextmanager
def place(fixtures: CommandFixtures, folder: Path) -> Iterator[Path]:
    """A directory to run in, with results, a file and a pipe of names that `Line`s may take for new ones."""
    work = folder / "in" / "here"
    work.mkdir(parents=True)
    shutil.copytree(fixtures.results["mrpc"], work / "taken")
    (work / "file").write_text("a file\n")
    os.mkfifo(work / "fifo")
    (work / "link").symlink_to("taken")
    with contextlib.chdir(work), mock.patch.dict(os.environ, {"HOME": str(work / "home"), "COLUMNS": "100"}):
        yield work


def run(arguments: Sequence[str], encoding: str = "utf-8", sweeps: bool = True) -> Ran:
    """Run a command line; all that it changes in this process is as before afterwards."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2)]
    environment, wide = dict(os.environ), jax.config.read("jax_enable_x64")
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("default")
            stack.enter_context(contextlib.redirect_stdout(streams[0]))
            stack.enter_context(contextlib.redirect_stderr(streams[1]))
            for name in () if sweeps else ("sweep_examples", "sweep_plainly"):
                stack.enter_context(mock.patch(f"bertjax.study.run.{name}", _stop))
            try:
                code = main(arguments)
                if code == 2 and "internal error" in _text(streams[1]):
                    raise AssertionError(_text(streams[1]))
            except SystemExit as end:
                code = end.code
            except Stopped:
                code = "stopped"
    finally:
        jax.config.update("jax_enable_x64", wide)
        os.environ.clear()
        os.environ.update(environment)
    out, err = (_text(stream) for stream in streams)
    return Ran(code, out, err)


def _stop(*_: Any, **__: Any) -> None:
    raise Stopped


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode(stream.encoding)  # type: ignore[attr-defined]


def _begin_measuring() -> int:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return resident_memory()


@cache
def _warm() -> None:
    """Compile what most sweeps share, which no case is to wait for."""
    fixtures = make_command_fixtures()
    with tempfile.TemporaryDirectory() as folder, place(fixtures, Path(folder)):
        job = ["--model", fixtures.models["classifier"], "--task", "mrpc", "--data", str(fixtures.root / "pairs.tsv")]
        assert run(["ablate", *job]).code == 0


# ---- what must hold -------------------------------------------------------------------------------------------------
def judge(ran: Ran) -> str:
    """What is wrong with how a command ended and what it printed; nothing where all is well."""
    if ran.code not in (0, 2, "stopped"):
        return f"another exit code: {ran.code} ({ran.err[-500:]!r})"
    for text in (ran.out.replace("\r\n", "\n"), ran.err):
        if found := HIDDEN.search(text.replace("\n", "").replace("?", "")):
            return f"control characters: {found[0]!r} in {text[:500]!r}"
    if ran.code == 2:
        lines = [line for line in ran.err.splitlines() if not line.startswith("bertjax: warning: ")]
        if len(lines) != 1 or not lines[0].startswith("bertjax") or len(lines[0]) > LONGEST:
            return f"a message of more than a line: {ran.err[:2000]!r}"
    return ""


def snapshot(root: Path) -> dict[str, tuple[Any, ...]]:
    """Kind, size, time and content of all that is below a directory."""
    found = {}
    for directory, names, files in os.walk(root):
        for name in (*names, *files):
            path = os.path.join(directory, name)
            status = os.lstat(path)
            whole = stat.S_ISREG(status.st_mode)
            facts = (status.st_mtime_ns, hashlib.sha256(Path(path).read_bytes()).digest()) if whole else ()
            found[os.path.relpath(path, root)] = (status.st_mode, *facts)
    return found


def left(work: Path, before: dict[str, tuple[Any, ...]], ran: Ran, kind: str) -> str:
    """What is wrong with what a command left; nothing where all is well."""
    after = snapshot(work)
    if partial := [name for name in after if TEMPORARY.fullmatch(os.path.basename(name))]:
        return f"half-written: {partial} is left"
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    if changed and ran.code != 0 and kind != "prepare":  # of several tasks, those that can be prepared are
        return f"half-written: exit code {ran.code}, but {sorted(changed)[:9]} changed"
    if kind in ("show", "compare", "plan", "parity") and changed:
        return f"half-written: {kind} changed {sorted(changed)[:9]}"
    try:
        for directory in {path.parent for path in work.rglob("summary.json")}:
            read_results(directory)
    except BertjaxError as error:
        return f"half-written: {error}"
    alone = [path for path in work.rglob("outputs.npz") if not path.with_name("summary.json").exists()]
    return f"half-written: {alone}" * bool(alone)


def check_sweep(line: Line, work: Path, fixtures: CommandFixtures) -> str:
    """What is wrong with the results of a sweep; nothing where all is well."""
    (directory,) = {path.parent for path in work.rglob("summary.json")} - {work / "taken"}
    saved = read_results(directory)
    if line.sets and saved.names != line.sets:
        return f"silently wrong: the sets are {saved.names}, not {line.sets}"
    return _check_labels(line, saved) or _check_base(line, saved) or _check_again(line, directory)


def _check_labels(line: Line, saved: Any) -> str:
    if line.labels is None:
        return ""
    names = saved.summary["data"]["label_names"]
    found = [names[one["label"]] if names else one["label"] for one in saved.examples]
    given = [str(label) if names else float(label) for label in line.labels]  # type: ignore[arg-type]
    return f"silently wrong: the labels are {found}, not {given}" * (found != given)


def _check_base(line: Line, saved: Any) -> str:
    """The base's outputs are those of the plain model on the texts of the results."""
    model, tokenizer = _model(line.arguments[line.arguments.index("--model") + 1])
    first, second = ([one[name] for one in saved.examples] for name in ("first", "second"))
    if isinstance(model, BertForSentenceEmbedding):
        vectors = (np.asarray(model(collate(tokenizer.encode(texts))).sentence_embedding) for texts in (first, second))
        a, b = (some / np.linalg.norm(some, axis=-1, keepdims=True) for some in vectors)
        expected = (a * b).sum(-1)
    else:
        expected = np.asarray(model(collate(tokenizer.encode(first, second))).logits)
    found = saved.outputs["base"]
    apart = np.abs(found.reshape(expected.shape) - expected).max()
    return f"silently wrong: the base is {apart} from the plain model's" * bool(not apart < CLOSE)


@cache
def _model(directory: str) -> tuple[Any, Tokenizer]:
    return bertjax.load(directory), Tokenizer.from_pretrained(directory)


def _check_again(line: Line, directory: Path) -> str:
    """The same command again says what is there, and loses nothing of it."""
    before, outputs = snapshot(directory), (directory / "outputs.npz").read_bytes()
    ran = run(line.arguments)
    if "--overwrite" in line.arguments:
        same = ran.code == 0 and (directory / "outputs.npz").read_bytes() == outputs
        return f"silently wrong: other outputs the second time ({ran.err[:500]})" * (not same)
    said = " ".join(f"{ran.out} {ran.err}".split())
    if ran.code != 0 or "is complete already" not in said:
        return f"silently wrong: the same command again gives {ran.code} and {said[-500:]!r}"
    return "silently wrong: the same command again changed results" * (snapshot(directory) != before)


if __name__ == "__main__":
    number = Case(sys.argv[1], int(sys.argv[2]))
    print(line_of(number), outcome(number), sep="\n")
