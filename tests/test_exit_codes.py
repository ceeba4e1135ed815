"""Processes that read tables end with their exit code."""

import io
import threading

import pytest

from bertjax.results.table import read_parquet
from tests.repeated_exits import busy, commands_in, exit_codes
from tests.result_factories import make_results


class Watched(io.BufferedReader):
    """A file that records which threads read it."""

    def __init__(self, path):
        super().__init__(path.open("rb", buffering=0))
        self.threads = set()

    def read(self, *arguments):
        self.threads.add(threading.get_ident())
        return super().read(*arguments)

    def readinto(self, buffer):
        self.threads.add(threading.get_ident())
        return super().readinto(buffer)


def test_no_thread_of_arrow_holds_a_python_file(tmp_path):
    # A thread that read it may release what it read when Python exits, which aborts the process.
    path = make_results(tmp_path / "results", examples=12) / "results.parquet"
    with Watched(path) as file:
        assert len(read_parquet(file)) == 24
    assert file.threads == {threading.get_ident()}


@pytest.mark.slow
def test_commands_that_read_tables_never_abort(tmp_path):
    with busy(2):
        for name, (command, expected) in commands_in(tmp_path).items():
            assert (name, dict(exit_codes(command, 40, 2))) == (name, {expected: 40})
