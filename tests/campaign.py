"""What bertjax makes of damaged input, counted: `python -m tests.campaign --count 5000`.

Each fuzzer is a module of `tests` with `cases(seed, count)` (the same for the same seed), `outcome(case)` (a text that
begins with one of its `OUTCOMES`, or of its `BROKEN`, which must not come), and these two tuples.
"""

import argparse
import importlib
import os
from collections import Counter
from types import ModuleType

FUZZERS = ("checkpoints", "inputs", "commands", "python", "kills")


def fuzzer(name: str) -> ModuleType:
    """The module of a fuzzer."""
    return importlib.import_module(f"tests.fuzz_{name}")


def run(name: str, seed: int, count: int) -> tuple[Counter[str], list[str]]:
    """How often each outcome came, and the cases that ended as none should."""
    module, counts, broken = fuzzer(name), Counter[str](), []
    for case in module.cases(seed, count):
        found = module.outcome(case)
        kind = found.split(":")[0]
        counts[kind] += 1
        if kind not in module.OUTCOMES:
            broken.append(f"{case}: {found}")
    return counts, broken


def main() -> int:
    """Count outcomes of all fuzzers, as a table in Markdown. Gives 1 where a case ended as none should."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # odd names of models are looked for on this machine alone
    parser = argparse.ArgumentParser(description="What bertjax makes of damaged input, counted.", allow_abbrev=False)
    parser.add_argument("--only", choices=FUZZERS, nargs="+", default=FUZZERS, help="these fuzzers (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000, help="cases of each")
    options, failures = parser.parse_args(), []
    print("| what is damaged | outcome | cases |\n|---|---|---|")
    for name in options.only:
        counts, broken = run(name, options.seed, options.count)
        module = fuzzer(name)
        for kind in (*module.OUTCOMES, *module.BROKEN):
            print(f"| {name} | {kind} | {counts[kind]} |", flush=True)
        failures += broken
    print("\n".join(["", *failures]))
    return int(bool(failures))


if __name__ == "__main__":
    raise SystemExit(main())
