"""Commands that read tables, run many times on a busy machine: `python -m tests.repeated_exits --count 200`.

Each must end with its exit code. Arrow's threads may still release what they read when Python exits, and abort the
process if that belongs to Python: in a few runs of a hundred.
"""

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.result_factories import make_results

READ_RESULTS = "import sys, bertjax; bertjax.read_results(sys.argv[1])"
READ_FRAME = "import sys, bertjax; bertjax.read_results(sys.argv[1]).frame"
READ_DATA = """
import sys
from bertjax.tasks import load_examples
load_examples("custom", data=sys.argv[1])
"""
SPIN = "while True: pass"


def commands_in(directory: Path) -> dict[str, tuple[list[str], int]]:
    """Commands on results and data that are written into a directory: arguments of Python, and the exit code of each.

    Args:
        directory: is there, and empty.
    """
    results, other = (str(make_results(directory / f"results {seed}", examples=40, seed=seed)) for seed in (0, 1))
    data = directory / "data.parquet"
    pq.write_table(pa.table({"text": ["a cat", "two dogs"] * 400, "label": [0, 1] * 400}), data)
    bertjax = ["-m", "bertjax"]
    removing = [*bertjax, "remove-heads", "--from", results, "--run", "nope", "--output", str(directory / "model")]
    return {
        "remove-heads": (removing, 2),
        "read_results": (["-c", READ_RESULTS, results], 0),
        "frame": (["-c", READ_FRAME, results], 0),
        "show": ([*bertjax, "show", results], 0),
        "compare": ([*bertjax, "compare", results, other], 0),
        "report": ([*bertjax, "report", results, "--output", str(directory / "page.html")], 0),
        "plot": ([*bertjax, "plot", results, "--output", str(directory / "plot.png")], 0),
        "data": (["-c", READ_DATA, str(data)], 0),
    }


def exit_codes(command: Sequence[str], count: int, at_once: int = 1) -> Counter[int]:
    """How often a command of Python ended with each exit code.

    Args:
        at_once: how many of its processes run at the same time.
    """

    def code(_: int) -> int:
        return subprocess.run([sys.executable, *command], capture_output=True).returncode

    with ThreadPool(at_once) as pool:
        return Counter(pool.map(code, range(count)))


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Processes that keep cores busy."""
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def main() -> int:
    """Print the exit codes of each command as a table in Markdown. Returns 1 if a command ended with another one."""
    parser = argparse.ArgumentParser(description="How commands that read tables end.", allow_abbrev=False)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these commands (default all)")
    parser.add_argument("--count", type=int, default=200, help="runs of each")
    parser.add_argument("--busy", type=int, default=2, help="processes that keep cores busy meanwhile")
    parser.add_argument("--at-once", type=int, default=2, help="runs at the same time")
    options, failed = parser.parse_args(), False
    print("| command | runs | exit codes |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, busy(options.busy):
        for name, (command, expected) in commands_in(Path(folder)).items():
            if name in (options.only or [name]):
                codes = exit_codes(command, options.count, options.at_once)
                failed |= set(codes) != {expected}
                print(f"| {name} | {options.count} | {dict(codes)} |", flush=True)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
