"""A thread that runs all computations, with a bounded queue. A newer request of a page replaces an older one."""

import threading
from collections.abc import Callable
from typing import Any

MOST_WAITING = 8


class Busy(Exception):
    """The queue is full."""


class Cancelled(Exception):
    """The task was cancelled: a newer task replaced it, its page was closed, or the program ends."""


class Task:
    """A computation for a page.

    Args:
        client: the name of the page.
        endpoint: the name of the request. A newer task with the same client and endpoint replaces an older one.
        compute: the computation. It calls `task.check()` between its steps.
        finish: a function that the worker's thread calls with the result and None, or with None and the exception.
        rank: the priority. Tasks with a lower rank run first, also between two steps of a task with a higher rank.
        background: whether a new task of any page cancels this one.
    """

    def __init__(
        self,
        client: str,
        endpoint: str,
        compute: "Callable[[Task], Any]",
        finish: Callable[[Any, BaseException | None], None],
        *,
        rank: int = 0,
        background: bool = False,
    ):
        self.key, self.compute, self.finish, self.rank, self.background = (
            (client, endpoint),
            compute,
            finish,
            rank,
            background,
        )
        self._cancelled = threading.Event()
        self.worker: Worker | None = None

    def cancel(self) -> None:
        """Make the next `check` of the computation raise `Cancelled`."""
        self._cancelled.set()

    def check(self) -> None:
        """Run waiting tasks of lower rank. Raises `Cancelled` if this task was cancelled."""
        if self._cancelled.is_set():
            raise Cancelled
        if self.worker is not None:
            self.worker.run_below(self.rank)
        if self._cancelled.is_set():
            raise Cancelled

    def run(self) -> None:
        """Run the computation, and pass its result or exception to `finish`."""
        try:
            self.check()
            result = self.compute(self)
        except BaseException as error:
            self.finish(None, error)
        else:
            self.finish(result, None)


class Worker:
    """The thread and its queue.

    Args:
        most_waiting: the largest number of waiting tasks.
    """

    def __init__(self, most_waiting: int = MOST_WAITING):
        self.most_waiting = most_waiting
        self._waiting: list[Task] = []
        self._running: list[Task] = []  # the last one runs, the others wait for it between two of their steps
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="bertjax explorer: computations", daemon=True)
        self._thread.start()

    def submit(self, task: Task) -> None:
        """Add a task to the queue, and cancel the tasks that it replaces.

        Raises:
            Busy: the queue is full, or the worker is closed.
        """
        with self._changed:
            replaced = [one for one in self._waiting if one.key == task.key or one.background]
            kept = [one for one in self._waiting if one not in replaced]
            if self._closed or len(kept) >= self.most_waiting:
                raise Busy
            task.worker = self
            self._waiting = [*kept, task]
            for one in self._running:
                if one.key == task.key or one.background:
                    one.cancel()
            self._changed.notify()
        for one in replaced:
            one.finish(None, Cancelled())

    def close(self, seconds: int | float) -> bool:
        """Cancel all tasks, wait up to some seconds for the thread, and return whether it has ended."""
        with self._changed:
            waiting, self._waiting, self._closed = self._waiting, [], True
            for task in self._running:
                task.cancel()
            self._changed.notify()
        for task in waiting:
            task.finish(None, Cancelled())
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    @property
    def idle(self) -> bool:
        """Whether no task runs or waits."""
        with self._changed:
            return not self._running and not self._waiting

    def run_below(self, rank: int) -> None:
        """Run the waiting tasks of lower rank."""
        while (task := self._take(rank)) is not None:
            self._run(task)

    def _take(self, below: int | float) -> Task | None:
        with self._changed:
            fitting = [task for task in self._waiting if task.rank < below]
            if not fitting:
                return None
            task = min(fitting, key=lambda one: one.rank)  # the oldest of the lowest rank
            self._waiting.remove(task)
            self._running.append(task)
            return task

    def _run(self, task: Task) -> None:
        try:
            task.run()
        finally:
            with self._changed:
                self._running.remove(task)

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
            task = self._take(float("inf"))
            if task is not None:
                self._run(task)
