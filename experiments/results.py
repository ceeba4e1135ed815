"""Regenerate the tables and figures of RESULTS.md from the recorded numbers.

Each directory NAME of `recorded/` holds the `numbers.json` of a run, whose script draws figures and tables from that
file alone. Figures that RESULTS.md shows are written to `figures/NAME.png` and `figures/NAME_WHICH.png`. Text between
these two lines is replaced by the run's tables (NAME:1,3: only the first and third; several names: their
common tables):

    <!-- numbers: NAME [NAME ...] -->
    <!-- end -->

    python -m experiments.results                     20 s on one CPU core
    python -m experiments.results --check             writes nothing; exit code 1 if a table differs
    python -m experiments.results --commands          prints the command of each recorded run
    python -m experiments.results --keep DIR NAME     records the numbers of the run in DIR as NAME
"""

import argparse
import importlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from experiments.shared.run import Numbers

HERE = Path(__file__).parent
BLOCK = re.compile(r"(<!-- numbers: ([\w.:, -]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
ABSOLUTE = re.compile(r"(?<![\w.~*])(/[\w.-]+){2,}")  # a path of one machine
# Scripts by the names that they had when the numbers were recorded.
RENAMED = {
    "head_ablation": "fig8_heads",
    "layer_ablation": "fig9_layers",
    "attention_change": "fig5_change",
    "attention_patterns": "fig2_patterns",
    "frame_semantics": "fig3_frames",
    "linguistic_features": "fig6_features",
    "token_to_token": "fig7_cls",
    "finetune": "table1_finetuning",
    "several_tasks": "tasks_and_modes",
    "head_kinds": "head_roles",
}


def read_recorded() -> dict[str, Numbers]:
    """The numbers of all recorded runs, by name."""
    return {path.parent.name: json.loads(path.read_text()) for path in sorted(HERE.glob("recorded/*/numbers.json"))}


def script_of(numbers: Numbers) -> ModuleType:
    """The script that computed the numbers: a module with `figures` and `tables`."""
    name = RENAMED.get(numbers["program"], numbers["program"])
    package = "experiments" if (HERE / f"{name}.py").exists() else "experiments.beyond"
    return importlib.import_module(f"{package}.{name}")


def tables_of(runs: Mapping[str, Numbers]) -> str:
    """The tables of one run, or of several runs of one script side by side."""
    return str(script_of(next(iter(runs.values()))).tables(runs)).strip()


def fill_in(text: str, recorded: Mapping[str, Numbers]) -> str:
    """The text with each block replaced by the tables of its runs."""

    def replacement(block: re.Match[str]) -> str:
        names, _, numbers = block[2].partition(":")
        tables = tables_of({name: recorded[name] for name in names.split()}).split("\n\n")
        chosen = [tables[int(number) - 1] for number in numbers.split(",")] if numbers else tables
        return "".join([block[1], "\n\n".join(chosen), "\n", block[3]])

    return BLOCK.sub(replacement, text)


def command_of(numbers: Numbers) -> str:
    """The command of a recorded run, with the present name of its script."""
    name = script_of(numbers).__name__
    return re.sub(r"python -m experiments[\w.]+", f"python -m {name}", numbers["command"]).replace(" --overwrite", "")


def figures_of(name: str, numbers: Numbers) -> dict[str, Callable[[Path], None]]:
    """The function that draws each figure of a recorded run, by file name."""
    figures = script_of(numbers).figures(numbers)
    return {f"{name}.png" if which == "figure" else f"{name}_{which}.png": draw for which, draw in figures.items()}


def keep(directory: Path, name: str) -> Path:
    """Record the numbers of a run. They must not contain absolute paths, which mean nothing on other machines."""
    text = json.dumps(json.loads((directory / "numbers.json").read_text()), separators=(",", ":"))
    if match := ABSOLUTE.search(text):
        raise SystemExit(f"{directory}: the numbers contain the path {match[0]}; run again with relative paths")
    target = HERE / "recorded" / name / "numbers.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f"{text}\n")
    return target


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter, allow_abbrev=False)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a table differs")
    parser.add_argument("--commands", action="store_true", help="print the command of each recorded run")
    parser.add_argument("--keep", nargs=2, metavar=("DIR", "NAME"), help="record the numbers of the run in DIR as NAME")
    options = parser.parse_args(arguments)
    if options.keep:
        print(f"recorded as {keep(Path(options.keep[0]), options.keep[1])}")
        return 0
    recorded, path = read_recorded(), HERE / "RESULTS.md"
    if options.commands:
        print(*(f"{name}: {command_of(numbers)}" for name, numbers in recorded.items()), sep="\n")
        return 0
    text = path.read_text()
    filled = fill_in(text, recorded)
    if options.check:
        print("RESULTS.md matches the recorded numbers" if filled == text else "RESULTS.md differs")
        return int(filled != text)
    for name, numbers in recorded.items():
        for file, draw in figures_of(name, numbers).items():
            if f"(figures/{file})" in text:
                draw(HERE / "figures" / file)
    path.write_text(filled)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
