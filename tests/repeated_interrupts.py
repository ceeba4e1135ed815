"""Jobs that get Ctrl-C at a random moment: `python -m tests.repeated_interrupts --count 100`.

Each stops soon with exit code 130, or was finished before; run again, it ends with the results of an undisturbed one.
"""

import argparse
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzz_kills import WAITING, command_of, differing, undisturbed

JOBS = ("heads", "mean", "plain")
STARTING = 0.35  # share of a run in which Python only imports, where a traceback is all that Ctrl-C can give
SOON = 20.0  # seconds until a job that was interrupted has ended, on a busy machine


def outcome(job: str, rng: random.Random) -> str:
    """The end of a job that was interrupted at a random moment: 'stopped', 'finished before', or the error."""
    whole, lasted = undisturbed(job)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "out"
        command = command_of(job, output)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            time.sleep(rng.uniform(STARTING, 1.0) * lasted)
            process.send_signal(signal.SIGINT)
            sent = time.monotonic()
            _, complaint = process.communicate(timeout=WAITING)
        if process.returncode == 0:
            return "finished before" if not differing(output, whole) else "exit code 0 without results"
        at_start = process.returncode == -signal.SIGINT and not complaint  # before Python had a handler
        if (process.returncode != 130 and not at_start) or "Exception ignored" in complaint:
            return f"exit code {process.returncode}: {complaint[-300:]}"
        if time.monotonic() - sent > SOON:
            return "went on"
        again = subprocess.run(command, capture_output=True, text=True, timeout=WAITING)
        if again.returncode != 0:
            return f"exit code {again.returncode} the second time: {again.stderr[-300:]}"
        return differing(output, whole) or "stopped"


def main() -> int:
    """Print the outcomes. Returns 1 if a job did not stop."""
    parser = argparse.ArgumentParser(description="How jobs end that get Ctrl-C.", allow_abbrev=False)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100, help="rounds")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what runs in the background ignore it
    rng, counts = random.Random(options.seed), Counter[str]()
    for number in range(options.count):
        counts[outcome(JOBS[number % len(JOBS)], rng)] += 1
        print(number + 1, dict(counts), flush=True)
    return int(not set(counts) <= {"stopped", "finished before"})


if __name__ == "__main__":
    raise SystemExit(main())
