"""Ctrl-C ends a job within a step, wherever it arrives."""

import contextlib
import gc
import os
import random
import signal
import sys
import time
from collections import Counter

import pytest

from bertjax import BertForSequenceClassification, engine, interrupts
from bertjax.cli import guarded, main
from bertjax.errors import EXIT_INTERRUPTED
from bertjax.interventions import ablations, readouts
from tests import repeated_interrupts
from tests.factories import make_classifier, write_pairs
from tests.repeated_interrupts import JOBS
from tests.tiny_models import encodings, random_model


@pytest.fixture(autouse=True)
def ctrl_c_raises():
    """As in a terminal: a shell lets what it starts in the background ignore Ctrl-C, and then these tests too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press():
    """Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.001)  # Python calls the handler before it continues


def press_in_collector(phase, info):
    """A callback of the garbage collector, where Python drops the exception."""
    if press_in_collector in gc.callbacks:
        gc.callbacks.remove(press_in_collector)
        press()


def collect_with_press():
    gc.callbacks.append(press_in_collector)
    gc.collect()


class Deleted:
    """An object whose destructor is interrupted."""

    def __del__(self):
        press()


def work(seconds=10.0):
    """Steps that take as long."""
    for _ in range(int(seconds / 0.01)):
        time.sleep(0.01)


@pytest.mark.parametrize("interrupt", [press, collect_with_press, Deleted], ids=["code", "collector", "destructor"])
def test_an_interruption_that_python_drops_is_raised(interrupt, capsys):
    started = time.monotonic()

    def program():
        interrupt()
        work()
        return 0

    assert guarded("bertjax", program) == EXIT_INTERRUPTED
    assert time.monotonic() - started < 5
    assert capsys.readouterr().err == "bertjax: interrupted; no unfinished file was left\n"


def test_an_interrupt_caught_by_a_library_stops_the_next_step():
    def program():
        with contextlib.suppress(KeyboardInterrupt):
            press()
        for _ in range(3):
            interrupts.check()
        return 0

    assert guarded("bertjax", program) == EXIT_INTERRUPTED


def test_an_interrupt_turned_into_an_error_is_an_interrupt(capsys):
    def program():
        try:
            press()
        except KeyboardInterrupt:
            raise RuntimeError("INTERNAL: CpuCallback error: KeyboardInterrupt") from None

    assert guarded("bertjax", program) == EXIT_INTERRUPTED
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.integration
def test_a_sweep_of_the_api_stops(small, rng):
    model, texts = random_model(BertForSequenceClassification, small), encodings(small, rng, [5] * 40)
    seen = []

    def progress(done, total):
        seen.append(done)
        if len(seen) == 3:
            collect_with_press()
        elif len(seen) > 3:
            time.sleep(0.05)

    before, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook
    with pytest.raises(KeyboardInterrupt):
        engine.sweep(model, texts, ablations.single_heads(small), readouts.logits, tokens_at_once=20, progress=progress)
    assert len(seen) <= 4
    assert (signal.getsignal(signal.SIGINT), sys.unraisablehook) == (before, hook)


def test_a_handler_of_the_user_stays():
    caught = []
    before = signal.signal(signal.SIGINT, lambda *_: caught.append(1))
    try:
        with interrupts.heeded():
            press()
    finally:
        signal.signal(signal.SIGINT, before)
    assert caught == [1]


@pytest.mark.integration
def test_an_interrupted_command_keeps_its_parts(tmp_path, monkeypatch, capsys):
    model, data = make_classifier(tmp_path / "model"), write_pairs(tmp_path / "pairs.tsv", 12)
    arguments = ["ablate", "--model", str(model), "--task", "mrpc", "--data", str(data)]
    arguments += ["--output", str(tmp_path / "out")]
    advance, seen = interrupts.check, []

    def check():
        seen.append(1)
        if len(seen) == 4:
            collect_with_press()
            time.sleep(0.1)
        advance()

    monkeypatch.setattr(interrupts, "check", check)
    assert main(arguments) == EXIT_INTERRUPTED
    assert "parts are saved: the same command resumes there" in capsys.readouterr().err
    monkeypatch.undo()
    assert main(arguments) == 0


@pytest.mark.slow
def test_a_job_stops_wherever_it_is_interrupted():
    rng = random.Random(0)
    found = Counter(repeated_interrupts.outcome(JOBS[number % len(JOBS)], rng) for number in range(100))
    assert set(found) <= {"stopped", "finished before"}
    assert found["stopped"] > 50
