"""What the command lines of all experiments share: options, errors, and the files that a run writes.

    numbers.json            program, settings, command, model, versions, device, seconds, peak memory, and the results
    values.npz              the values behind the results, for each example
    figure.png, figure.pdf  the figure
    uniform/, zero/ ...     if heads or layers are disabled: results as `bertjax ablate` writes them

`numbers.json` is written last: if it exists, the rest is complete.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

import bertjax
from bertjax.atomic_files import atomic_write, encode_json, remove_leftovers, staged
from bertjax.checkpoints import DEFAULT_MODEL, locate
from bertjax.cli import Parser, guarded, positive
from bertjax.console import say
from bertjax.data import draw
from bertjax.engine import discard_journal, is_unfinished, peak_memory
from bertjax.errors import OutputError
from bertjax.formatting import format_bytes
from bertjax.machine import package_version, use_compile_cache
from bertjax.paths import refuse_inputs_in, user_path
from bertjax.progress import ProgressBar, Report
from bertjax.results import WRITING, check_directory
from bertjax.jobs import command_line, versions, where_from

# Packages used by some of the programs, in addition to those that bertjax lists in its own results.
PACKAGES = ("optax", "safetensors", "matplotlib", "conllu", "nltk", "spacy")
# Options that name what is read.
INPUTS = ("model", "data", "data_dir", "conllu", "classifier", "patterns", "frames", "pruned", "nouns")
FILES = ("values.npz", "figure.png", "figure.pdf", "numbers.json")


@dataclass(frozen=True)
class Outcome:
    """The results of an experiment.

    Args:
        numbers: for `numbers.json`.
        values: for `values.npz`.
        draw: draws the figure in the format given by the suffix of the path.
        lines: lines and tables to print.
        more: additional figures by name; each is written as PNG and as PDF.
    """

    numbers: Mapping[str, Any]
    values: Mapping[str, np.ndarray]
    draw: Callable[[Path], None]
    lines: Sequence[str | Table]
    more: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """The inputs of an experiment.

    `directory` is the directory for its results.
    """

    options: argparse.Namespace
    model: Any
    tokenizer: bertjax.Tokenizer
    report: Report
    directory: Path | None = None

    @property
    def norms(self) -> bool:
        """Whether maps are shares of norms, in place of weights."""
        return bool(getattr(self.options, "norms", False))

    @property
    def journal(self) -> Path | None:
        """A directory where a sweep may save finished parts; it is removed once the results are written."""
        return None if self.directory is None else self.directory / "journal"

    def begin_to_write(self) -> None:
        """Mark the contents of the directory as incomplete."""
        if self.directory is not None and (self.directory / FILES[-1]).exists():
            atomic_write(self.directory / WRITING, b"")
            (self.directory / FILES[-1]).unlink()


def make_parser(name: str, document: str, *, published: bool = True, norms: bool = False) -> Parser:
    """A parser with the options of all experiments; `document` is the text of `--help`.

    Args:
        published: whether the program can show what the authors' code computes instead of the corrected form.
        norms: whether it can take norms in place of weights.
    """
    formatter = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog=f"python -m experiments.{name}", description=document, formatter_class=formatter)
    parser.add_argument("--model", default=DEFAULT_MODEL, metavar="M", help="directory, hub id, or package:NAME")
    parser.add_argument("--output", metavar="DIR", help=f"directory for the results (default experiment-{name})")
    parser.add_argument("--overwrite", action="store_true", help="replace results that are in DIR")
    limit_text = "only N examples, drawn with the seed, or 'all' (default %(default)s)"
    parser.add_argument("--limit", type=count_or_all, default="all", metavar="N", help=limit_text)
    parser.add_argument("--seed", type=whole, default=0, metavar="S", help="of everything that is drawn (default 0)")
    # (argparse of Python 3.11 cannot print the help of a group without members.)
    forms = parser.add_mutually_exclusive_group() if published or norms else parser
    if published:
        forms.add_argument("--as-published", action="store_true", help="show what the authors' code computes")
    if norms:
        text = "of each query the keys' shares of the norms of what is added up (Kobayashi et al. 2020), not of weights"
        forms.add_argument("--norms", action="store_true", help=text)
    parser.set_defaults(name=name)
    return parser


def run_program(
    parser: Parser,
    compute: Callable[[Run], Outcome],
    arguments: Sequence[str] | None = None,
    *,
    extends: bool = False,
) -> int:
    """Parse, load the model, compute, write, print. Returns the exit code: 2 for a user error.

    Args:
        extends: the program continues existing results, so `--overwrite` is not needed.
    """

    def program() -> int:
        options = parser.parse_args(arguments)
        started = time.monotonic()
        use_compile_cache()
        directory = user_path(options.output or f"experiment-{options.name}", OutputError)
        _check_output(directory, options, extends)
        model_directory = locate(options.model)
        model, tokenizer = bertjax.load(model_directory), bertjax.Tokenizer.from_pretrained(model_directory)
        with ProgressBar(options.name) as report:
            outcome = compute(Run(options, model, tokenizer, report, directory))
        peak = peak_memory()
        facts = {
            "program": options.name,
            "settings": describe_settings(options),
            **where_from(model, model_directory, options.model),
            "peak_memory_bytes": peak,
        }
        facts["versions"] |= {name: package_version(name) for name in PACKAGES}
        facts["seconds"] = round(time.monotonic() - started, 1)
        write_outcome(directory, outcome, facts)
        if _sweeps(options):
            discard_journal(directory / "journal")
        memory_lines = [f"{format_bytes(size)} of {location} memory at most" for location, size in peak.items() if size]
        for line in [*outcome.lines, *memory_lines, f"results in {directory}"]:
            say(line)
        return 0

    return guarded(parser.prog, program)


def _check_output(directory: Path, options: argparse.Namespace, extends: bool) -> None:
    """Refuse a directory where an input, other files or an unfinished sweep would be lost."""
    inputs = [getattr(options, name, None) for name in INPUTS]
    refuse_inputs_in(directory, [*getattr(options, "directories", ()), *(name for name in inputs if name)])
    if not _sweeps(options) and is_unfinished(directory / "journal"):
        raise OutputError(f"{directory} holds an unfinished sweep: give another --output, or finish the sweep first")
    check_directory(directory, options.overwrite or extends, FILES[-1], FILES)


def _sweeps(options: argparse.Namespace) -> bool:
    """Whether the program keeps a journal: those that disable heads or layers do."""
    return hasattr(options, "modes")


def whole(text: str) -> int:
    """An option type: a whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def count_or_all(text: str) -> int | None:
    """An option type: a whole number of at least 1, or None for `all`."""
    return None if text == "all" else positive(text)


def above_zero(text: str) -> float:
    """An option type: a finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < np.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def fraction(text: str) -> float:
    """An option type: a number from 0 up to but not including 1."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to below 1")
    return number


def draw_sample(count: int, options: argparse.Namespace) -> list[int]:
    """Indices of the examples to use out of `count`: all, or `--limit` of them drawn with `--seed`, in order."""
    return draw(count, options.limit or count, options.seed)


def make_joining_parser(name: str, text: str | None, directories: str) -> Parser:
    """The parser of a program that joins what others left.

    Args:
        name: of the program.
        text: what it does.
        directories: what lies in those that it reads.
    """
    formatter = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog=f"python -m experiments.{name}", description=text, formatter_class=formatter)
    add = parser.add_argument
    add("directories", nargs="+", metavar="DIR", help=directories)
    add("--output", metavar="DIR", default=f"experiment-{name}", help="for the results (default %(default)s)")
    add("--overwrite", action="store_true", help="replace results that are in DIR")
    return parser


def run_joining(
    parser: Parser,
    name: str,
    compute: Callable[[argparse.Namespace], Outcome],
    arguments: Sequence[str] | None = None,
) -> int:
    """`run_program` of a program that joins what others left, without a model."""

    def program() -> int:
        started = time.monotonic()
        options = parser.parse_args(arguments)
        directory = user_path(options.output, OutputError)
        _check_output(directory, options, extends=False)
        outcome = compute(options)
        facts: dict[str, Any] = {"program": name, "settings": describe_settings(options), "command": command_line()}
        facts |= {"versions": versions(), "seconds": round(time.monotonic() - started, 1)}
        write_outcome(directory, outcome, facts)
        for line in [*outcome.lines, f"results in {directory}"]:
            say(line)
        return 0

    return guarded(parser.prog, program)


def write_outcome(directory: Path, outcome: Outcome, facts: Mapping[str, Any]) -> None:
    """Write the files of a run, `numbers.json` last."""
    pictures = {f"{name}.{kind}": draw for name, draw in outcome.more.items() for kind in ("png", "pdf")}
    names = [*FILES[:-1], *pictures, FILES[-1]]
    remove_leftovers(directory, names)
    with staged(*(directory / name for name in names)) as (values, *figures, numbers):
        np.savez_compressed(values, **outcome.values)  # type: ignore[arg-type]
        for figure, draw_figure in zip(figures, [outcome.draw, outcome.draw, *pictures.values()], strict=True):
            draw_figure(figure)
        numbers.write_bytes(encode_json({**facts, "results": dict(outcome.numbers)}))
    (directory / WRITING).unlink(missing_ok=True)


def short_name(model: str) -> str:
    """A model's name without the directories before it; of a fine-tuned one that of its run.

    >>> short_name("sentence-transformers/all-MiniLM-L6-v2"), short_name("DIR/runs/mrpc-pretrained-0/last")
    ('all-MiniLM-L6-v2', 'mrpc-pretrained-0')
    """
    path = Path(model)
    return path.parent.name if path.name == "last" and path.parent.name else path.name


def name_maps(settings: Mapping[str, Any]) -> str:
    """What is said in a figure's subtitle where maps are not of weights; empty where they are."""
    return ", norms in place of weights" if settings.get("norms") else ""


def describe_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The settings from the command line, by name."""
    return {name: value for name, value in vars(options).items() if name not in ("name", "overwrite")}
