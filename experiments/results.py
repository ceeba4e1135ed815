"""Make the tables and figures of RESULTS.md again from the recorded numbers.

Each directory NAME of `recorded/` holds the `numbers.json` of a run. Its program draws figures and tables from that
file alone: figures that `RESULTS.md` shows are written to `figures/NAME.png` and `figures/NAME_WHICH.png`, and in it
everything between these two lines is replaced by the run's tables (NAME:2 is the second of them alone, several names
are the program's overview of these runs):

    <!-- numbers: NAME [NAME ...] -->
    <!-- end -->

    python -m experiments.results                     20 s on one CPU core
    python -m experiments.results --check             writes nothing; exit code 1 where a table differs
    python -m experiments.results --keep DIR NAME     takes the numbers of a run in DIR over as NAME

Only runs are taken over whose numbers name no absolute path: run from a directory where data and models have short
names.
"""

import importlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from bertjax.atomic_files import atomic_write
from bertjax.cli import Parser, guarded
from bertjax.errors import DataError
from bertjax.formatting import to_json
from bertjax.progress import say

PLACE = Path(__file__).parent
BLOCK = re.compile(r"(<!-- numbers: ([\w.: -]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
ABSOLUTE = re.compile(r"(?<![\w.~*])(/[\w.-]+){2,}")
LARGEST = 1_000_000  # bytes of a recorded file

Numbers = Mapping[str, Any]


def read_recorded() -> dict[str, Numbers]:
    """The numbers of all recorded runs by name. Raises `DataError` for a file that cannot be read."""
    return {path.parent.name: read_numbers(path) for path in sorted(PLACE.glob("recorded/*/numbers.json"))}


def read_numbers(path: Path) -> Numbers:
    """A run's `numbers.json`. Raises `DataError` where it cannot be read, or does not say which program made it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    if not isinstance(found, dict) or not {"program", "settings", "results"} <= found.keys():
        raise DataError(f"{path}: is not what an experiment writes (program, settings, results)")
    return found


def program_of(numbers: Numbers) -> ModuleType:
    """The program that made the numbers: a module with `figures` and `tables`. Raises `DataError`."""
    name = numbers["program"]
    if not (isinstance(name, str) and name.isidentifier() and (PLACE / f"{name}.py").is_file()):
        raise DataError(f"there is no program {name!r} in experiments")
    return importlib.import_module(f"experiments.{name}")


def tables_of(several: Mapping[str, Numbers]) -> str:
    """The tables of one run, or of several side by side, in Markdown."""
    programs = {numbers["program"] for numbers in several.values()}
    if len(programs) > 1:
        raise DataError(f"{', '.join(several)}: runs of several programs have no table in common")
    numbers = next(iter(several.values()))
    program = program_of(numbers)
    return str(program.tables(numbers) if len(several) == 1 else program.overview(several)).strip()


def fill_in(text: str, recorded: Mapping[str, Numbers]) -> str:
    """The text with every block replaced by the tables of the runs that it names.

    Raises:
        DataError: a block names a run that is not recorded.
    """

    def replaced(block: re.Match[str]) -> str:
        names, _, number = block[2].partition(":")
        if missing := [name for name in names.split() if name not in recorded]:
            raise DataError(f"RESULTS.md names {missing[0]}, which is not in recorded/")
        tables = tables_of({name: recorded[name] for name in names.split()})
        if number:
            several = tables.split("\n\n")
            if not (number.isdecimal() and 1 <= int(number) <= len(several)):
                raise DataError(f"RESULTS.md names {block[2]}, but there are {len(several)} tables")
            tables = several[int(number) - 1]
        return f"{block[1]}{tables}\n{block[3]}"

    return BLOCK.sub(replaced, text)


def figures_of(name: str, numbers: Numbers) -> dict[str, Callable[[Path], None]]:
    """What draws each figure of a recorded run, by file name.

    >>> def draw(path): ...
    >>> from unittest.mock import patch
    >>> with patch("experiments.results.program_of") as program:
    ...     program.return_value.figures.return_value = {"figure": draw, "layers": draw}
    ...     list(figures_of("run", {}))
    ['run.png', 'run_layers.png']
    """
    drawn = program_of(numbers).figures(numbers)
    return {f"{name}.png" if which == "figure" else f"{name}_{which}.png": draw for which, draw in drawn.items()}


def keep(directory: Path, name: str) -> Path:
    """Take a run's numbers over, without the indentation, which is most of a long file.

    Raises:
        DataError: they cannot be read, are too large, or name an absolute path.
    """
    path = directory / "numbers.json"
    text = to_json(read_numbers(path), separators=(",", ":")) + "\n"
    if len(text) > LARGEST:
        raise DataError(f"{path}: {len(text):,} bytes, more than {LARGEST:,}: not what is kept for good")
    if found := ABSOLUTE.search(text):
        hint = "run again from a directory where data and models have short names"
        raise DataError(f"{path}: names a place of this machine ({found[0]}): {hint}")
    kept = PLACE / "recorded" / name / "numbers.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(kept, text.encode())
    return kept


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = Parser(prog="python -m experiments.results", description=__doc__.split("\n\n")[0])
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--check", action="store_true", help="write nothing; exit code 1 where a table differs")
    only.add_argument("--keep", nargs=2, metavar=("DIR", "NAME"), help="take over the numbers of a run in DIR as NAME")

    def program() -> int:
        options = parser.parse_args(arguments)
        if options.keep:
            say(f"kept as {keep(Path(options.keep[0]).expanduser(), options.keep[1])}")
            return 0
        recorded, results = read_recorded(), PLACE / "RESULTS.md"
        text = results.read_text(encoding="utf-8")
        filled = fill_in(text, recorded)
        if options.check:
            say("RESULTS.md has the tables of the recorded numbers" if filled == text else "RESULTS.md differs")
            return int(filled != text)
        for name, numbers in recorded.items():
            for file, draw in figures_of(name, numbers).items():
                if f"(figures/{file})" in text:
                    draw(PLACE / "figures" / file)
        atomic_write(results, filled.encode())
        say(f"{len(recorded)} recorded runs: tables in {results.name}, pictures in figures/")
        return 0

    return guarded(parser.prog, program)


if __name__ == "__main__":
    raise SystemExit(main())
