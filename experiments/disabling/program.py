"""Disabling heads or whole layers one at a time: what `head_ablation.py` and `layer_ablation.py` share."""

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.ablations import Ablation
from bertjax.cli import Parser, positive
from bertjax.conclusion import conclude
from bertjax.config import BertConfig
from bertjax.data import Examples
from bertjax.encoded import encode_examples
from bertjax.errors import DataError
from bertjax.locate import locate
from bertjax.metrics import UNLABELLED
from bertjax.page import format_change
from bertjax.plain import Swept
from bertjax.results import NOT_COMPARED, check_directory, finite
from bertjax.settings import Settings, for_this_device
from bertjax.task_outputs import mean_outputs, metrics_of, positive_label, sweep_examples
from experiments.disabling.effects import Effects, describe, measure, rank_correlation, summarise
from experiments.disabling.strips import draw_strips
from experiments.shared.program import Outcome, Run, tell_settings
from experiments.shared.samples import add_task_options, read_examples, read_published_examples, split_named_task

MODES = ("uniform", "zero", "mean")  # the paper's first
ROWS_AT_ONCE = 16


@dataclass(frozen=True)
class Kind:
    """What is disabled one at a time.

    Args:
        name: of one of them.
        list: all of a model in one mode.
        draw: the picture of their scores: path, scores, base, title, subtitle, metric.
    """

    name: str
    list: Callable[[BertConfig, str], list[Ablation]]
    draw: Callable[..., None]


@dataclass(frozen=True)
class Reading:
    """A task's examples as somebody reads them, and what the model said of each.

    Args:
        swept: outputs `[examples ...]` of the base, `[modes * places, examples ...]` of what was disabled.
        effects: by metric, the main one first.
        yes: the label that counts as yes, where a metric singles one out.
    """

    examples: Examples
    swept: Swept
    effects: dict[str, Effects]
    yes: str = ""

    @property
    def main(self) -> Effects:
        """By the main metric."""
        return next(iter(self.effects.values()))


def add_disabling_options(parser: Parser) -> None:
    """The options that both programs have beside those of all."""
    add_task_options(parser, limit="all", max_length=None)
    text = "draws of examples for the intervals (default 200)"
    parser.add_argument("--resamples", type=positive, default=200, metavar="N", help=text)


def compute_disabling(run: Run, kind: Kind) -> Outcome:
    """Disable everything of a kind in all modes, score it, and compare the modes and the readings.

    Raises:
        DataError: the examples cannot be read, or have no labels.
        ConfigError: the model has no outputs that the task's metrics could read.
    """
    started = time.time()
    for mode in MODES:
        check_directory(_place(run, mode), overwrite=True)
    corrected = _labelled(read_examples(run.options))
    published = _labelled(read_published_examples(run.options)) if run.options.as_published else None
    every, places = (corrected, []) if published is None else join(corrected, published)
    encoded = encode_examples(run.model, run.tokenizer, every, run.options.max_length)
    ablations = [one for mode in MODES for one in kind.list(run.model.config, mode)]
    means = mean_outputs(run.model, encoded, ROWS_AT_ONCE, len(corrected))
    options: dict[str, Any] = {"journal": run.journal, "replace_journal": run.options.overwrite}
    settings = tell_settings(run.options).items()
    options["settings"] = {name: value for name, value in settings if name not in NOT_COMPARED}
    swept = sweep_examples(run.model, encoded, ablations, means=means, progress=run.report, **options)
    readings = [_read(run, encoded.kind, corrected, swept, range(len(corrected)))]
    if published is not None:
        readings.append(_read(run, encoded.kind, published, swept, places))
    _write_results(run, kind, readings[0], means, time.time() - started)
    return _outcome(run, kind, [one.name for one in kind.list(run.model.config, MODES[0])], readings)


def _write_results(run: Run, kind: Kind, reading: Reading, means: Any, seconds: float) -> None:
    """Write what disabling gave in each mode as `bertjax ablate` does, for `bertjax report`, `show` and `compare`."""
    run.begin_to_write()
    base = reading.swept.base
    for mode, outputs in zip(MODES, reading.swept.outputs.reshape(len(MODES), -1, *base.shape), strict=True):
        _conclude(run, kind, mode, reading.examples, Swept(base, outputs), means, seconds)


def _conclude(run: Run, kind: Kind, mode: str, examples: Examples, swept: Swept, means: Any, seconds: float) -> None:
    """The same of one mode."""
    options = split_named_task(run.options)
    shared = {name: getattr(options, name) for name in ("model", "task", "split", "data", "data_dir", "limit", "seed")}
    how: dict[str, Any] = {"mode": mode, "ablate": f"{kind.name}s", "max_length": options.max_length}
    settings = for_this_device(Settings(**shared, **how, precision="float32", output=str(_place(run, mode))))
    encoded = encode_examples(run.model, run.tokenizer, examples, options.max_length)
    weighing = partial(run.report, note=f"weighing {mode}")
    ablations, directory = kind.list(run.model.config, mode), locate(options.model)
    conclude(settings, run.model, directory, examples, encoded, ablations, means, swept, seconds, weighing=weighing)


def _place(run: Run, mode: str) -> Path:
    """Where the results of a mode go."""
    return (run.directory or Path()) / mode


def join(first: Examples, second: Examples) -> tuple[Examples, list[int]]:
    """All examples of the first, then those texts of the second that are new; and where each of the second is."""
    texts = list(zip(first.first, first.second or first.first, strict=True))
    others = list(zip(second.first, second.second or second.first, strict=True))
    known = {text: place for place, text in reversed(list(enumerate(texts)))}
    new = [number for number, text in enumerate(others) if text not in known]
    known |= {others[number]: len(texts) + place for place, number in reversed(list(enumerate(new)))}
    more = second.take(new)
    both = replace(
        first,
        ids=(*first.ids, *more.ids),
        first=first.first + more.first,
        second=None if first.second is None else first.second + (more.second or ()),
        labels=np.concatenate([first.labels, more.labels]),
    )
    return both, [known[text] for text in others]


def _labelled(examples: Examples) -> Examples:
    """Those with a label. Raises `DataError` where there are none."""
    labels = examples.labels
    there = np.flatnonzero(~np.isnan(labels) if labels.dtype.kind == "f" else labels != UNLABELLED)
    if not there.size:
        raise DataError(
            f"none of the {len(examples)} examples has a label: give a split with labels ({examples.source})"
        )
    return examples if there.size == len(examples) else examples.take(there.tolist())


def _read(run: Run, output: str, examples: Examples, swept: Swept, places: Sequence[int]) -> Reading:
    """Scores of one reading. Accuracy is the main metric where a task has it, as in the paper's figure 8."""
    mine = Swept(swept.base[list(places)], swept.outputs[:, list(places)])
    names = sorted(metrics_of(output, examples.task), key=lambda name: name != "accuracy")
    every, positive = np.concatenate([mine.base[None], mine.outputs]), positive_label(output, examples.task)
    draws, even = np.random.default_rng(run.options.seed), np.full(len(examples), 1 / len(examples))
    counts = draws.multinomial(len(examples), even, run.options.resamples)
    effects = {name: measure(name, every, examples.labels, positive, len(MODES), counts) for name in names}
    singled = {"f1", "roc_auc", "average_precision"} & set(names)
    labels = examples.task.label_names or ()
    return Reading(examples, mine, effects, labels[positive] if singled and positive < len(labels) else "")


def _outcome(run: Run, kind: Kind, names: list[str], readings: list[Reading]) -> Outcome:
    corrected, shown = readings[0], readings[-1]
    numbers: dict[str, Any] = {"names": names, **_numbers(corrected, names)}
    scores = corrected.main.scores
    numbers["rank_correlation"] = {
        f"{MODES[one]}-{MODES[other]}": rank_correlation(scores[one], scores[other], run.options.seed)
        for one, other in combinations(range(len(MODES)), 2)
    }
    lines = _lines(corrected, numbers, kind, names)
    between = [f"{name} {_between(found)}" for name, found in numbers["rank_correlation"].items()]
    lines.append("rank correlation of the modes: " + "; ".join(between))
    several = [shlex.quote(str(_place(run, mode))) for mode in MODES]
    lines.append(f"a page to look at: bertjax report {several[0]}")
    lines.append(f"side by side: bertjax compare {' '.join(several)}")
    values = {"names": np.array(names), "modes": np.array(MODES), **_values(corrected, "")}
    if len(readings) > 1:
        numbers["published"] = _numbers(shown, names)
        apart = compare(corrected, shown, run.options.seed)
        numbers["published_against_corrected"] = apart
        lines += ["as published:", *_lines(shown, numbers["published"], kind, names)]
        lines.append(
            f"as published against corrected: base {format_change(apart['base'])} points, largest difference of a "
            f"change {apart['largest_difference']:.2f}, rank correlation {_between(apart['rank_correlation'])}"
        )
        values |= _values(shown, "published_")
    return Outcome(numbers, values, *_pictures(run, kind, names, shown, lines))


def _numbers(reading: Reading, names: list[str]) -> dict[str, Any]:
    """A reading's scores, and what they say of each mode, by metric."""
    effects = reading.effects.values()
    return {
        "examples": len(reading.examples),
        "source": reading.examples.source,
        "metric": reading.main.metric,
        "base": {one.metric: finite(one.base) for one in effects},
        "scores": {
            one.metric: {mode: [finite(value) for value in row] for mode, row in zip(MODES, one.scores, strict=True)}
            for one in effects
        },
        "modes": {
            one.metric: {mode: summarise(one, number, names) for number, mode in enumerate(MODES)} for one in effects
        },
    }


def compare(corrected: Reading, published: Reading, seed: int) -> dict[str, Any]:
    """How far two readings are apart in the paper's mode by the main metric, in points."""
    ours, theirs = corrected.main, published.main
    apart = np.abs(ours.changes[0] - theirs.changes[0])
    return {
        "examples": [len(corrected.examples), len(published.examples)],
        "base": finite(100 * (theirs.base - ours.base)),
        "largest_difference": finite(float(np.nanmax(apart))),
        "rank_correlation": rank_correlation(ours.scores[0], theirs.scores[0], seed),
    }


def _between(found: dict[str, Any]) -> str:
    if found["spearman"] is None:
        return "undefined"
    low, high = found["interval"]
    return f"{found['spearman']:.2f}" + ("" if low is None else f" ({low:.2f} to {high:.2f})")


def _lines(reading: Reading, numbers: dict[str, Any], kind: Kind, names: list[str]) -> list[str]:
    bases = ", ".join(f"{one.label} {100 * one.base:.2f}" for one in reading.effects.values())
    found = numbers["modes"][reading.main.metric]
    yes = f" ({reading.yes} is yes)" if reading.yes else ""
    return [
        f"{len(reading.examples)} examples ({reading.examples.source}); nothing disabled: {bases}{yes}",
        *(describe(found[mode], mode, kind.name, len(names)) for mode in MODES),
    ]


def _values(reading: Reading, prefix: str) -> dict[str, np.ndarray]:
    found = {
        "ids": np.array(reading.examples.ids),
        "labels": reading.examples.labels,
        "base": reading.swept.base,
        "outputs": reading.swept.outputs.reshape(len(MODES), -1, *reading.swept.base.shape),
    }
    for name, one in reading.effects.items():
        found |= {f"scores_{name}": one.scores, f"intervals_{name}": one.intervals}
    return {prefix + name: array for name, array in found.items()}


def _pictures(run: Run, kind: Kind, names: list[str], shown: Reading, lines: list[str]) -> tuple[Any, ...]:
    """The paper's picture of its mode, the printed lines, and beside them a picture of all modes."""
    main, config = shown.main, run.model.config
    shape = (config.num_hidden_layers, -1)[: 1 + (kind.name == "head")]
    task, label = shown.examples.task.name, main.label
    reading = ""
    if run.options.as_published:
        reading = ", as published"
        reading += "" if main.metric == "accuracy" else f' ({label.split()[0]} is "accuracy" there)'
    subtitle = f"{run.options.model}, {task} {shown.examples.split}{reading}, {len(shown.examples):,} examples"
    title = f"Disabling one {kind.name} at a time"
    texts = (f"{title}, in three modes", subtitle, label, kind.name)

    def draw(path: Path) -> None:
        scores = main.scores[0].reshape(shape)
        kind.draw(path, scores, main.base, f"{title} (uniform attention in its place)", subtitle, label)

    def draw_modes(path: Path) -> None:
        draw_strips(path, main.changes, main.mean_intervals, MODES, names, main.base, texts)

    return draw, lines, {"modes": draw_modes}
