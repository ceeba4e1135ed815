"""Disabling parts of a model one after another: what `head_ablation`, `layer_ablation` and `layer_sets` share."""

import shlex
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.checkpoints import BertConfig, locate
from bertjax.cli import Parser, positive
from bertjax.data import Examples
from bertjax.engine import SweepResult
from bertjax.errors import DataError
from bertjax.evidence import RESAMPLES, UNLABELLED
from bertjax.formatting import finite
from bertjax.interventions import Ablation
from bertjax.results import NOT_COMPARED, Results, check_directory
from bertjax.study import (
    Encoded,
    Job,
    Settings,
    conclude,
    encode_examples,
    for_this_device,
    mean_outputs,
    positive_label,
    sweep_examples,
)
from experiments.disabling.effects import Effects, correlate_places, draw_changes, draw_means, make_effects
from experiments.disabling.said import say_single
from experiments.shared.program import Outcome, Run, tell_settings
from experiments.shared.samples import add_task_options, read_examples, split_named_task

MODES = ("uniform", "zero", "mean")  # the paper's first
ROWS_AT_ONCE = 16
TRAINING_LENGTH = 128  # tokens after which the authors' fine-tuning program, which disables too, cuts its texts
SAME_AS_PUBLISHED = (
    "the authors' program reads all rows without quote handling, as this one does, puts weights 1/n over the tokens "
    f"that are not padding after the softmax, and cuts after {TRAINING_LENGTH} tokens: only the fine-tuned model is "
    "another one"
)


@dataclass(frozen=True)
class Kind:
    """What is disabled.

    Args:
        name: of one of them; with an s, of several.
        ablations: all of a model in one mode.
        figures: pictures of `numbers.json`, by name; 'figure' among them.
        say: its results in lines.
        measure: more numbers by name, from the results so far, a mode, its outputs (the base first), the labels, and
            the command line's options.
    """

    name: str
    ablations: Callable[[BertConfig, str], list[Ablation]]
    figures: Callable[[Mapping[str, Any]], dict[str, Callable[[Path], None]]]
    say: Callable[[Mapping[str, Any]], list[str]] = say_single
    measure: Callable[..., dict[str, Any]] = lambda *given: {}


def add_disabling_options(parser: Parser, modes: Sequence[str] = MODES) -> None:
    """The options that these programs have beside those of all.

    Args:
        modes: the default.
    """
    add_task_options(parser, limit="all", max_length=None)
    text = f"what takes the place of attention, the shown one first (default {' '.join(modes)})"
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(modes), metavar="MODE", help=text)
    text = "draws of examples for the interval of the mean (default %(default)s)"
    parser.add_argument("--resamples", type=positive, default=RESAMPLES, metavar="N", help=text)


@dataclass(frozen=True)
class Disabling:
    """What is disabled in which model on which examples."""

    run: Run
    kind: Kind
    examples: Examples
    encoded: Encoded

    def place(self, mode: str) -> Path:
        """Where the results of a mode go."""
        return _place(self.run, mode)

    @property
    def positive(self) -> int:
        """The label that counts as yes."""
        return positive_label(self.encoded.kind, self.examples.task)


def compute_disabling(run: Run, kind: Kind) -> Outcome:
    """Disable everything of a kind in all modes, score it, weigh it, and compare the modes.

    Raises:
        DataError: the examples cannot be read, have no labels, or a mode is named twice.
        ConfigError: the model has no outputs that the task's metrics could read.
    """
    started, modes = time.time(), run.options.modes
    if len(set(modes)) < len(modes):
        raise DataError(f"--modes names one twice: {' '.join(modes)}")
    for mode in modes:
        check_directory(_place(run, mode), overwrite=True)
    if run.options.as_published and run.options.max_length is None:
        length = min(TRAINING_LENGTH, run.model.config.max_position_embeddings)
        run = replace(run, options=Namespace(**vars(run.options) | {"max_length": length}))
    examples = labelled(read_examples(run.options))
    job = Disabling(run, kind, examples, encode_examples(run.model, run.tokenizer, examples, run.options.max_length))
    several = {mode: kind.ablations(run.model.config, mode) for mode in modes}
    means = mean_outputs(run.model, job.encoded, ROWS_AT_ONCE) if "mean" in modes else None
    options: dict[str, Any] = {"journal": run.journal, "replace_journal": run.options.overwrite}
    settings = tell_settings(run.options).items()
    options["settings"] = {name: value for name, value in settings if name not in NOT_COMPARED}
    every = [one for mode in modes for one in several[mode]]
    swept = sweep_examples(run.model, job.encoded, every, means=means, progress=run.report, **options)
    run.begin_to_write()
    outputs = swept.outputs.reshape(len(modes), -1, *swept.base.shape)
    weighed = {}
    for mode, some in zip(modes, outputs, strict=True):
        found = SweepResult(swept.base, some)
        weighed[mode] = _weigh(job, _conclude(job, several[mode], means, found, time.time() - started), found)
    return _outcome(job, [one.name for one in several[modes[0]]], swept, weighed)


def _place(run: Run, mode: str) -> Path:
    return (run.directory or Path()) / mode


def _conclude(job: Disabling, ablations: list[Ablation], means: Any, swept: SweepResult, seconds: float) -> Results:
    """Write what disabling gave in a mode as `bertjax ablate` does, for `bertjax report`, `show` and `compare`."""
    options, mode = split_named_task(job.run.options), ablations[0].changes[0].mode
    shared = {name: getattr(options, name) for name in ("model", "task", "split", "data", "data_dir", "limit", "seed")}
    how: dict[str, Any] = {"mode": mode, "ablate": f"{job.kind.name}s", "max_length": options.max_length}
    settings = for_this_device(Settings(**shared, **how, precision="float32", output=str(job.place(mode))))
    weighing, directory = partial(job.run.report, note=f"weighing {mode}"), locate(options.model)
    one_mode = Job(settings, job.run.model, directory, ablations, job.examples, job.encoded)
    return conclude(one_mode, means, swept, seconds, weighing=weighing)


def _weigh(job: Disabling, results: Results, swept: SweepResult) -> dict[str, Effects]:
    """Effects by metric. Accuracy is the main one where a task has it, as in the paper's figure 8."""
    every, options, effects = np.concatenate([swept.base[None], swept.outputs]), job.run.options, {}
    for name in sorted(results.summary["statistics"], key=lambda name: name != "accuracy"):
        drawn = draw_changes(name, every, job.examples.labels, job.positive, options.resamples, options.seed)
        effects[name] = make_effects(results.rows_of(name), draw_means(drawn), results.least_p(name))
    return effects


def labelled(examples: Examples) -> Examples:
    """Those with a label. Raises `DataError` where there are fewer than two."""
    labels = examples.labels
    there = np.flatnonzero(~np.isnan(labels) if labels.dtype.kind == "f" else labels != UNLABELLED)
    if there.size < 2:
        count = "one alone" if there.size else "none"
        raise DataError(
            f"{count} of the {len(examples)} examples has a label: give a split with labels ({examples.source})"
        )
    return examples if there.size == len(examples) else examples.take(there.tolist())


def _outcome(job: Disabling, names: list[str], swept: SweepResult, weighed: dict[str, dict[str, Effects]]) -> Outcome:
    """The run's numbers, and what is said and drawn of them; swept are the places in one mode after another."""
    numbers, examples = _numbers(job, names, weighed), job.examples
    by_mode = swept.outputs.reshape(len(weighed), -1, *swept.base.shape)
    for mode, outputs in zip(weighed, by_mode, strict=True):
        every = np.concatenate([swept.base[None], outputs])
        more = job.kind.measure(numbers, mode, every, examples.labels, job.run.options)
        numbers |= {name: {**numbers.get(name, {}), mode: found} for name, found in more.items()}
    values = {"names": np.array(names), "modes": np.array(list(weighed)), "ids": np.array(examples.ids)}
    values |= {"labels": examples.labels, "base": swept.base, "outputs": by_mode}
    lines = job.kind.say(numbers)
    several = [shlex.quote(str(job.place(mode))) for mode in weighed]
    lines.append(f"a page to look at: bertjax report {several[0]}")
    if len(several) > 1:
        lines.append(f"side by side: bertjax compare {' '.join(several)}")
    pictures = job.kind.figures({"results": numbers})
    return Outcome(numbers, values, pictures.pop("figure"), lines, pictures)


def _numbers(job: Disabling, names: list[str], weighed: dict[str, dict[str, Effects]]) -> dict[str, Any]:
    """Everything that is said or drawn: per place, by metric and mode."""
    task, labels, options = job.examples.task, job.examples.task.label_names or (), job.run.options
    first = next(iter(weighed.values()))
    metrics, config = list(first), job.run.model.config
    singled = {"f1", "roc_auc", "average_precision"} & set(metrics)
    main = {mode: effects[metrics[0]] for mode, effects in weighed.items()}
    return {
        "kind": job.kind.name,
        "model": options.model,
        "task": task.name,
        "split": job.examples.split,
        "examples": len(job.examples),
        "source": job.examples.source,
        "sha256": job.examples.sha256,
        "truncated": job.encoded.truncated,
        "outputs": job.encoded.kind,
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "names": names,
        "metric": metrics[0],
        "positive": job.positive,
        "yes": labels[job.positive] if singled and job.positive < len(labels) else None,
        "resamples": options.resamples,
        "as_published": SAME_AS_PUBLISHED if options.as_published else None,
        "base": {name: finite(first[name].base) for name in metrics},
        "effects": {name: {mode: effects[name].to_dict() for mode, effects in weighed.items()} for name in metrics},
        "rank_correlation": {
            f"{one}-{other}": correlate_places(main[one].change, main[other].change, options.seed)
            for one, other in combinations(main, 2)
        },
    }
