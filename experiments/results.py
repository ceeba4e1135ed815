"""Regenerate the tables and figures of RESULTS.md from the recorded numbers.

Each directory NAME of `recorded/` holds the `numbers.json` of a run. Its program draws figures and tables from that
file alone: figures that `RESULTS.md` shows are written to `figures/NAME.png` and `figures/NAME_WHICH.png`, and
everything in it between these two lines is replaced by the run's tables (NAME:2 means only the second table; several
names mean the program's overview of these runs):

    <!-- numbers: NAME [NAME ...] -->
    <!-- end -->

    python -m experiments.results                     20 s on one CPU core
    python -m experiments.results --check             writes nothing; exit code 1 where a table differs
    python -m experiments.results --keep DIR NAME     records the numbers of the run in DIR as NAME

Only runs whose numbers name no absolute path are recorded: run from a directory where data and models have short names.
"""

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from bertjax.atomic_files import atomic_write
from bertjax.cli import Parser, guarded
from bertjax.console import say
from bertjax.errors import DataError
from bertjax.formatting import to_json
from bertjax.json_files import read_json

PLACE = Path(__file__).parent
BLOCK = re.compile(r"(<!-- numbers: ([\w.: -]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
ABSOLUTE = re.compile(r"(?<![\w.~*])(/[\w.-]+){2,}")
LARGEST = 1_000_000  # bytes of a recorded file

Numbers = Mapping[str, Any]


def read_recorded() -> dict[str, Numbers]:
    """The numbers of all recorded runs, by name. Raises `DataError` for a file that cannot be read."""
    return {path.parent.name: read_numbers(path) for path in sorted(PLACE.glob("recorded/*/numbers.json"))}


def read_numbers(path: Path) -> Numbers:
    """A run's `numbers.json`. Raises `DataError` where it cannot be read, or does not say which program made it."""
    numbers: Numbers = read_json(path)
    if not {"program", "settings", "results"} <= numbers.keys():
        raise DataError(f"{path}: is not what an experiment writes (program, settings, results)")
    return numbers


def program_of(numbers: Numbers) -> ModuleType:
    """The program that made the numbers: a module with `figures` and `tables`. Raises `DataError`."""
    name = numbers["program"]
    if not (isinstance(name, str) and name.isidentifier() and (PLACE / f"{name}.py").is_file()):
        raise DataError(f"there is no program {name!r} in experiments")
    return importlib.import_module(f"experiments.{name}")


def tables_of(runs: Mapping[str, Numbers]) -> str:
    """The tables of one run, or of several runs side by side, in Markdown."""
    programs = {numbers["program"] for numbers in runs.values()}
    if len(programs) > 1:
        raise DataError(f"{', '.join(runs)}: runs of several programs have no table in common")
    numbers = next(iter(runs.values()))
    program = program_of(numbers)
    return str(program.tables(numbers) if len(runs) == 1 else program.overview(runs)).strip()


def fill_in(text: str, recorded: Mapping[str, Numbers]) -> str:
    """The text with every block replaced by the tables of the runs it names.

    Raises:
        DataError: a block names a run that is not recorded.
    """

    def replacement(block: re.Match[str]) -> str:
        names, _, number = block[2].partition(":")
        if missing := [name for name in names.split() if name not in recorded]:
            raise DataError(f"RESULTS.md names {missing[0]}, which is not in recorded/")
        tables = tables_of({name: recorded[name] for name in names.split()})
        if number:
            parts = tables.split("\n\n")
            if not (number.isdecimal() and 1 <= int(number) <= len(parts)):
                raise DataError(f"RESULTS.md names {block[2]}, but there are {len(parts)} tables")
            tables = parts[int(number) - 1]
        return f"{block[1]}{tables}\n{block[3]}"

    return BLOCK.sub(replacement, text)


def figures_of(name: str, numbers: Numbers) -> dict[str, Callable[[Path], None]]:
    """The function that draws each figure of a recorded run, by file name.

    >>> def draw(path): ...
    >>> from unittest.mock import patch
    >>> with patch("experiments.results.program_of") as program:
    ...     program.return_value.figures.return_value = {"figure": draw, "layers": draw}
    ...     list(figures_of("run", {}))
    ['run.png', 'run_layers.png']
    """
    drawings = program_of(numbers).figures(numbers)
    return {f"{name}.png" if figure == "figure" else f"{name}_{figure}.png": draw for figure, draw in drawings.items()}


def keep(directory: Path, name: str) -> Path:
    """Record a run's numbers, without the indentation, which is most of a long file.

    Raises:
        DataError: the numbers cannot be read, are too large, or name an absolute path.
    """
    path = directory / "numbers.json"
    text = to_json(read_numbers(path), separators=(",", ":")) + "\n"
    if len(text) > LARGEST:
        raise DataError(f"{path}: {len(text):,} bytes, more than {LARGEST:,}: not what is kept for good")
    if match := ABSOLUTE.search(text):
        hint = "run again from a directory where data and models have short names"
        raise DataError(f"{path}: names a place of this machine ({match[0]}): {hint}")
    target = PLACE / "recorded" / name / "numbers.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(target, text.encode())
    return target


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
