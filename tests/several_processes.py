"""One command run by several processes on this machine, of which some fail."""

import os
import socket
import subprocess
import sys

from tests.tiny_models import FAST_COMPILATION, arrays_of

# Shares of three examples (six heads and the base run). A process that "dies" does so when the outputs of its third
# round are to come together: the fourth time that `shared_sweep` gathers (before the rounds, who is on which machine).
COMMAND_WITH_FAULTS = """
import os, signal, sys, time
from bertjax.engine.distributed import one_machine, processes, shared_sweep
from bertjax.study import outputs as task_outputs
shared_sweep.RUNS_OF_SHARE = {"cpu": 21, "other": 21}
task_outputs.EXAMPLES_OF_BLOCK = 8  # the means are of seven blocks
if sys.argv[1] in ("dies", "freezes"):
    gather, calls = shared_sweep.gather, []
    def dying(values):
        calls.append(1)
        if len(calls) == 4:
            os.kill(os.getpid(), signal.SIGSTOP if sys.argv[1] == "freezes" else signal.SIGKILL)
        return gather(values)
    shared_sweep.gather = dying
if sys.argv[1] == "late":
    start = processes.start
    def late(*given):
        watch = start(*given)
        time.sleep(35)
        return watch
    processes.start = late
if sys.argv[1] == "counts":
    from bertjax.data.tokenizer import Tokenizer
    encode, tokenised = Tokenizer.encode, []
    def counting(self, first, *given, **named):
        tokenised.append(len(first))
        return encode(self, first, *given, **named)
    Tokenizer.encode = counting
from bertjax.cli import main
code = main(sys.argv[2:])
if sys.argv[1] == "counts":
    print("tokenised", sum(tokenised), file=sys.stderr)
sys.exit(code)
"""


def run_processes(settings, count, kinds=(), more=(), wait=None):
    """Run the command in so many processes; gives how each ended and what it said.

    Args:
        kinds: what single processes do, by number.
        more: options that single ones are given besides.
        wait: only for the first so many of them; the others are ended then.
    """
    kinds, more = dict(kinds), dict(more)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = ["ablate", "--model", settings.model, "--task", settings.task, "--data", settings.data]
    command += ["--mode", settings.mode]
    command += ["--output", settings.output, "--distributed", "--coordinator", f"localhost:{port}"]
    command += ["--processes", str(count)]
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    environment["XLA_FLAGS"] = FAST_COMPILATION
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    several = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                COMMAND_WITH_FAULTS,
                kinds.get(one, ""),
                *command,
                "--process",
                str(one),
                *more.get(one, []),
            ],
            **pipes,
        )
        for one in range(count)
    ]
    try:
        said = [process.communicate(timeout=300) for process in several[:wait]]
    finally:
        for process in several:
            process.kill()
        for process in several if wait is None else several[wait:]:
            process.stdout.close()
            process.stderr.close()
            process.wait()
    return [process.returncode for process in several], said


def saved_outputs(settings):
    return arrays_of(settings.directory / "outputs.npz")
