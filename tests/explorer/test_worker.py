"""The queue of computations: order, replacement, its bound, and its end."""

import threading

import pytest

from bertjax.explorer.worker import Busy, Task, Worker


class Log:
    """What became of each task, in order."""

    def __init__(self):
        self.found = []
        self.ended = threading.Condition()

    def task(self, client, endpoint="map", compute=lambda task: None, **options):
        def finish(result, error):
            with self.ended:
                self.found.append((client, type(error).__name__ if error else result))
                self.ended.notify_all()

        return Task(client, endpoint, compute, finish, **options)

    def wait_for(self, count):
        with self.ended:
            assert self.ended.wait_for(lambda: len(self.found) >= count, 20)
        return self.found


@pytest.fixture
def worker():
    started = Worker(most_waiting=3)
    yield started
    assert started.close(5)


@pytest.fixture
def held(worker):
    """A task that runs until the event is set."""
    begun, event = threading.Event(), threading.Event()

    def compute(task):
        begun.set()
        while not event.wait(0.01):
            task.check()
        return "held"

    log = Log()
    worker.submit(log.task("held", compute=compute, rank=2))
    assert begun.wait(20)
    yield log, event
    event.set()


def test_tasks_of_lower_rank_run_between_the_steps_of_others(worker, held):
    log, event = held
    worker.submit(log.task("b", "answer", lambda task: 1, rank=1))
    assert log.wait_for(1) == [("b", 1)]
    worker.submit(log.task("c", "map", lambda task: 2, rank=2))
    worker.submit(log.task("d", "answer", lambda task: 3, rank=0))
    assert log.wait_for(2)[-1] == ("d", 3)
    event.set()
    assert log.wait_for(4)[-2:] == [("held", "held"), ("c", 2)]


def test_a_newer_task_replaces_waiting_and_running_ones(worker, held):
    log, _ = held
    for _ in range(9):
        worker.submit(log.task("b", rank=2))  # each replaces the one before, so that the queue is never full
    assert log.wait_for(8) == [("b", "Cancelled")] * 8
    worker.submit(log.task("held", compute=lambda task: "newer", rank=2))
    assert sorted(log.wait_for(11)[8:]) == [("b", None), ("held", "Cancelled"), ("held", "newer")]


def test_the_queue_is_bounded(worker, held):
    log, _ = held
    for client in "bcd":
        worker.submit(log.task(client, rank=2))
    with pytest.raises(Busy):
        worker.submit(log.task("e", rank=2))
    worker.submit(log.task("d", rank=2))  # which replaces one


def test_background_tasks_give_way(worker):
    log, begun = Log(), threading.Event()

    def forever(task):
        begun.set()
        while True:
            task.check()

    worker.submit(log.task("background", compute=forever, rank=9, background=True))
    assert begun.wait(20)
    worker.submit(log.task("a", compute=lambda task: 1, rank=9))
    assert log.wait_for(2) == [("background", "Cancelled"), ("a", 1)]


def test_errors_are_passed_on(worker):
    log = Log()

    def fail(task):
        raise ZeroDivisionError

    worker.submit(log.task("a", compute=fail))
    worker.submit(log.task("b", compute=lambda task: 1))
    assert log.wait_for(2) == [("a", "ZeroDivisionError"), ("b", 1)]


def test_closing_cancels_everything():
    worker, log, begun = Worker(), Log(), threading.Event()

    def forever(task):
        begun.set()
        while True:
            task.check()

    worker.submit(log.task("a", compute=forever))
    assert begun.wait(20)
    worker.submit(log.task("b"))
    assert worker.close(20)
    assert sorted(log.found) == [("a", "Cancelled"), ("b", "Cancelled")]
    with pytest.raises(Busy):
        worker.submit(log.task("c"))
