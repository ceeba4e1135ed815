"""What the command lines of all experiments share: options, errors, and the files that a run leaves.

    numbers.json            settings, command, model, versions, device, and what came out
    values.npz              what it was made of, for each example
    figure.png, figure.pdf  the picture

`numbers.json` is written last: where it is, the rest is complete.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import bertjax
from bertjax.atomic import encode_json, staged
from bertjax.cli import Parser, guarded, positive
from bertjax.data import draw
from bertjax.locate import DEFAULT_MODEL, locate
from bertjax.progress import ProgressBar, Report
from bertjax.provenance import where_from
from bertjax.results import check_directory

FILES = ("values.npz", "figure.png", "figure.pdf", "numbers.json")


@dataclass(frozen=True)
class Outcome:
    """What an experiment found.

    Args:
        numbers: for `numbers.json`.
        values: for `values.npz`.
        draw: draws the figure; the path's suffix says what kind of file.
        lines: what is printed.
    """

    numbers: Mapping[str, Any]
    values: Mapping[str, np.ndarray]
    draw: Callable[[Path], None]
    lines: Sequence[str]


@dataclass(frozen=True)
class Run:
    """What an experiment works with."""

    options: argparse.Namespace
    model: Any
    tokenizer: bertjax.Tokenizer
    report: Report


def make_parser(name: str, document: str) -> Parser:
    """A parser with the options that all experiments have; the docstring is what `--help` says."""
    look = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog=f"python -m experiments.{name}", description=document, formatter_class=look)
    parser.add_argument("--model", default=DEFAULT_MODEL, metavar="M", help="directory, hub id, or package:NAME")
    parser.add_argument("--output", metavar="DIR", help=f"directory for the results (default experiment-{name})")
    parser.add_argument("--overwrite", action="store_true", help="replace results that are in DIR")
    parser.add_argument("--limit", type=positive, metavar="N", help="only N examples, drawn with the seed")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of everything that is random")
    parser.add_argument("--as-published", action="store_true", help="show what the authors' code computes")
    parser.set_defaults(name=name)
    return parser


def run_program(parser: Parser, compute: Callable[[Run], Outcome], arguments: Sequence[str] | None = None) -> int:
    """Parse, load the model, compute, write, print. Returns the exit code: 2 for a user's mistake."""

    def program() -> int:
        options = parser.parse_args(arguments)
        directory = Path(options.output or f"experiment-{options.name}").expanduser()
        check_directory(directory, options.overwrite, FILES[-1])
        found = locate(options.model)
        model, tokenizer = bertjax.load(found), bertjax.Tokenizer.from_pretrained(found)
        with ProgressBar(options.name) as report:
            outcome = compute(Run(options, model, tokenizer, report))
        _write(directory, outcome, {"settings": _settings(options), **where_from(model, found, options.model)})
        for line in [*outcome.lines, f"results in {directory}"]:
            Console().print(line, highlight=False, soft_wrap=True)
        return 0

    return guarded(parser.prog, program)


def draw_sample(count: int, options: argparse.Namespace) -> list[int]:
    """Which of `count` examples are looked at: all, or `--limit` of them drawn with `--seed`, in their order."""
    return draw(count, options.limit or count, options.seed)


def _write(directory: Path, outcome: Outcome, facts: Mapping[str, Any]) -> None:
    with staged(*(directory / name for name in FILES)) as (values, *figures, numbers):
        np.savez_compressed(values, **outcome.values)  # type: ignore[arg-type]
        for figure in figures:
            outcome.draw(figure)
        numbers.write_bytes(encode_json({**facts, "results": dict(outcome.numbers)}))


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(options).items() if name not in ("name", "overwrite")}
