"""Options, model and files of all scripts.

numbers.json          script, settings, command, model, versions, seconds, and the results
values.npz            the values behind the results, for each example
figure.png and .pdf   the figure; further figures are named after what they show
"""

import argparse
import json
import math
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import bertjax
from bertjax.data import draw
from bertjax.errors import BertjaxError, ConfigError, InputError
from bertjax.tasks import label_order, task_named

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
PROBE = "13 Lazy dogs didn't jump over the naïve fox-terrier's (old) fence?"
PACKAGES = ("bertjax", "jax", "flax", "numpy", "scipy", "tokenizers")

Numbers = Mapping[str, Any]
Runs = Mapping[str, Numbers]  # the `numbers.json` of runs, by name
Figures = Mapping[str, Callable[[Path], None]]
Found = tuple[dict[str, Any], Mapping[str, Any]]  # results for numbers.json, and arrays for values.npz


@dataclass(frozen=True)
class Run:
    """The options of a script and the model that they name."""

    options: Namespace
    model: Any

    @property
    def tokenizer(self) -> bertjax.Tokenizer:
        """The model's tokenizer."""
        tokenizer: bertjax.Tokenizer = self.model.tokenizer
        return tokenizer

    def load_tuned(self, name: str, task: str = "") -> Any:
        """A fine-tuned form of the model.

        Args:
            name: directory or hub id.
            task: the task that it must be fine-tuned on, if any.

        Raises:
            InputError: it is fine-tuned on another task, or its tokenizer gives other tokens than the model's, so that
                their maps cannot be compared.
        """
        tuned = bertjax.load(name)
        if task:
            check_task(tuned, name, task)
        both = self.tokenizer, tuned.tokenizer or self.tokenizer
        ids, others = (tokenizer.encode([PROBE])[0].input_ids for tokenizer in both)
        if ids != others:
            raise InputError(f"{name} has another tokenizer than {self.options.model}: give a fine-tuned form of it")
        return tuned

    @property
    def norms(self) -> bool:
        """Whether maps are shares of norms, in place of weights."""
        return bool(getattr(self.options, "norms", False))


def check_task(tuned: Any, name: str, task: str) -> None:
    """Raise `InputError` if a model is fine-tuned on another task, by the `result.json` of its run or by its labels."""
    record = Path(name).parent / "result.json"
    trained_on = json.loads(record.read_text())["task"] if record.exists() else task
    advice = "--tuned takes one model for each task, in the order of --task"
    if trained_on != task:
        raise InputError(f"{name} is fine-tuned on {trained_on}, not on {task}: {advice}")
    if isinstance(tuned, bertjax.BertForSequenceClassification):
        try:
            label_order(tuned.config.id2label, task_named(task))
        except ConfigError as error:
            raise InputError(f"{name} is not fine-tuned on {task}: {error}; {advice}") from None


def make_parser(document: str | None, *, published: bool = False, norms: bool = False) -> argparse.ArgumentParser:
    """A parser with the options of all scripts that read a model.

    Args:
        document: the text of `--help`.
        published: whether the script can also compute what the authors' code does.
        norms: whether it can take norms in place of weights.
    """
    parser = make_reader(document)
    parser.add_argument("--model", default=MODEL, help="directory, hub id, or package:NAME")
    parser.add_argument(
        "--limit", type=int, metavar="N", help="use N examples, drawn with the seed (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of all random draws (default 0)")
    if published:
        parser.add_argument("--as-published", action="store_true", help="also compute what the authors' code does")
    if norms:
        text = "shares of the norms of what heads add up (Kobayashi et al. 2020), in place of weights"
        parser.add_argument("--norms", action="store_true", help=text)
    return parser


def make_reader(document: str | None) -> argparse.ArgumentParser:
    """A parser for scripts that read only results of other commands."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=document, formatter_class=formatter, allow_abbrev=False)
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="directory for the results (default: experiment-SCRIPT)"
    )
    return parser


def run_script(
    parser: argparse.ArgumentParser,
    compute: Callable[[Run], Found],
    show: tuple[Callable[[Numbers], Figures], Callable[[Runs], str]],
    arguments: Sequence[str] | None = None,
) -> int:
    """Parse, load the model if there is one, compute, write, and print the tables.

    Args:
        compute: returns the results and the arrays behind them.
        show: functions that return the figures of a `numbers.json`, and the tables of several side by side.
    """
    started, options = time.monotonic(), parser.parse_args(arguments)
    script = Path(compute.__code__.co_filename)
    name, command = script.stem, ["python", "-m", _module(script), *(sys.argv[1:] if arguments is None else arguments)]
    options.output = options.output or Path(f"experiment-{name}")
    bertjax.use_compile_cache()
    try:
        run = Run(options, bertjax.load(options.model) if hasattr(options, "model") else None)
        results, values = compute(run)
    except BertjaxError as error:
        raise SystemExit(f"{parser.prog}: {error}") from error
    settings = {key: value for key, value in vars(options).items() if key != "output"}
    numbers: dict[str, Any] = {"program": name, "settings": settings, "command": " ".join(command)}
    if run.model is not None:
        config = run.model.config
        sizes = {"layers": config.num_hidden_layers, "heads": config.num_attention_heads}
        numbers["model"] = {"name": options.model, "class": type(run.model).__name__, **sizes}
    numbers |= {"versions": {package: version(package) for package in PACKAGES}}
    numbers |= {"seconds": round(time.monotonic() - started, 1), "results": finite(results)}
    write(options.output, numbers, values, show[0](numbers))
    print(f"{show[1]({name: numbers}).strip()}\n\nresults in {options.output}")
    return 0


def _module(script: Path) -> str:
    """The name of a script's module.

    >>> _module(Path("experiments/beyond/syntax.py")), _module(Path("experiments/anchors.py"))
    ('experiments.beyond.syntax', 'experiments.anchors')
    """
    parts = script.with_suffix("").parts
    return ".".join(parts[parts.index("experiments") :] if "experiments" in parts else parts[-1:])


def write(directory: Path, numbers: Numbers, values: Mapping[str, Any], figures: Figures) -> None:
    """Write the files of a run, `numbers.json` last."""
    directory.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(directory / "values.npz", **values)
    for name, draw_figure in figures.items():
        for suffix in ("png", "pdf"):
            draw_figure(directory / f"{name}.{suffix}")
    (directory / "numbers.json").write_text(json.dumps(numbers, default=str))


def finite(value: Any) -> Any:
    """The value with None in place of NaN and infinity, which JSON does not have.

    >>> finite({"p": [0.5, float("nan")]})
    {'p': [0.5, None]}
    """
    if isinstance(value, Mapping):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def rounded(value: Any, digits: int = 4) -> float | None:
    """A number rounded to some decimals; None if undefined."""
    return round(float(value), digits) if np.isfinite(value) else None


def short(value: float | None, digits: int = 4) -> float | None:
    """A number rounded to some significant digits; None if undefined."""
    return float(f"{value:.{digits}g}") if value is not None and np.isfinite(value) else None


def array(values: Any) -> Any:
    """A number, or nested lists of them, as an array; NaN for None."""
    return np.array(values, np.float64)


def draw_sample(count: int, options: Namespace) -> list[int]:
    """Indices of the examples to use out of `count`: all, or `--limit` of them drawn with `--seed`, in order."""
    return draw(count, options.limit or count, options.seed)


def short_name(model: str) -> str:
    """A model's name without the directories before it; for a fine-tuned model the name of its run.

    >>> short_name("sentence-transformers/all-MiniLM-L6-v2"), short_name("DIR/runs/mrpc-pretrained-0/last")
    ('all-MiniLM-L6-v2', 'mrpc-pretrained-0')
    """
    path = Path(model)
    return path.parent.name if path.name == "last" and path.parent.name else path.name


def name_maps(settings: Numbers) -> str:
    """The addition to a subtitle if maps are not of weights."""
    return ", norms in place of weights" if settings.get("norms") else ""
