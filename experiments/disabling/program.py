"""Disable the parts of a model one at a time: shared by `head_ablation`, `layer_ablation` and `layer_sets`."""

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

from bertjax.checkpoints import BertConfig
from bertjax.cli import Parser, positive
from bertjax.data import Examples, Tokenizer
from bertjax.engine import SweepResult
from bertjax.errors import DataError
from bertjax.evidence import RESAMPLES, UNLABELLED
from bertjax.formatting import finite
from bertjax.interventions import Ablation
from bertjax.results import NOT_COMPARED, Results, check_directory
from bertjax.jobs import Settings, for_this_device, mean_outputs, sweep_examples
from bertjax.study import Job, conclude
from bertjax.tasks import EncodedDataset, encode_examples, positive_label
from experiments.disabling.effects import Effects, correlate_places, draw_changes, draw_means, make_effects
from experiments.disabling.summary_lines import single_lines
from experiments.shared.program import Outcome, Run, describe_settings
from experiments.shared.samples import add_task_options, read_examples, split_named_task

MODES = ("uniform", "zero", "mean")  # the paper's mode first
ROWS_AT_ONCE = 16
TRAINING_LENGTH = 128  # tokens to which the authors' fine-tuning program, which also disables, truncates texts
SAME_AS_PUBLISHED = (
    "the authors' program reads all rows without quote handling, as this one does, puts weights 1/n over the tokens "
    f"that are not padding after the softmax, and cuts after {TRAINING_LENGTH} tokens: only the fine-tuned model is "
    "another one"
)


@dataclass(frozen=True)
class Kind:
    """The kind of part to disable.

    Args:
        name: singular; an s is appended for the plural.
        ablations: gives all ablations of a model in one mode.
        figures: gives the figures of a `numbers.json` by name, 'figure' among them.
        report_lines: gives its results as lines.
        measure: gives additional numbers by name, from the results so far, a mode, its outputs (the base first), the
            labels, and the options of the command line.
    """

    name: str
    ablations: Callable[[BertConfig, str], list[Ablation]]
    figures: Callable[[Mapping[str, Any]], dict[str, Callable[[Path], None]]]
    report_lines: Callable[[Mapping[str, Any]], list[str]] = single_lines
    measure: Callable[..., dict[str, Any]] = lambda *arguments: {}


def add_disabling_options(parser: Parser, modes: Sequence[str] = MODES) -> None:
    """Add the options of these programs to those that all experiments have.

    Args:
        modes: the default of `--modes`.
    """
    add_task_options(parser, limit="all", max_length=None)
    text = f"what takes the place of attention, the shown one first (default {' '.join(modes)})"
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(modes), metavar="MODE", help=text)
    text = "draws of examples for the interval of the mean (default %(default)s)"
    parser.add_argument("--resamples", type=positive, default=RESAMPLES, metavar="N", help=text)


@dataclass(frozen=True)
class Disabling:
    """What to disable, in which model and on which examples."""

    run: Run
    kind: Kind
    examples: Examples
    encoded: EncodedDataset

    def place(self, mode: str) -> Path:
        """The directory for the results of a mode."""
        return _place(self.run, mode)

    @property
    def positive(self) -> int:
        """The label that counts as yes."""
        return positive_label(self.encoded.form, self.examples.task)


def compute_disabling(run: Run, kind: Kind) -> Outcome:
    """Disable each part of a kind in every mode, score and test the effects, and compare the modes.

    Raises:
        DataError: the examples cannot be read or have no labels, or a mode is named twice.
        ConfigError: the metrics of the task cannot read the outputs of the model.
    """
    started, modes = time.time(), run.options.modes
    if len(set(modes)) < len(modes):
        raise DataError(f"--modes names one twice: {' '.join(modes)}")
    for mode in modes:
        check_directory(_place(run, mode), overwrite=True)
    if run.options.as_published and run.options.max_length is None:
        length = min(TRAINING_LENGTH, run.model.config.max_tokens)
        run = replace(run, options=Namespace(**vars(run.options) | {"max_length": length}))
    examples = labelled(read_examples(run.options))
    job = Disabling(run, kind, examples, encode_examples(run.model, run.tokenizer, examples, run.options.max_length))
    ablations = {mode: kind.ablations(run.model.config, mode) for mode in modes}
    means = mean_outputs(run.model, job.encoded, ROWS_AT_ONCE) if "mean" in modes else None
    options: dict[str, Any] = {"journal": run.journal, "replace_journal": run.options.overwrite}
    settings = describe_settings(run.options).items()
    options["settings"] = {name: value for name, value in settings if name not in NOT_COMPARED}
    sequence = [ablation for mode in modes for ablation in ablations[mode]]
    swept = sweep_examples(run.model, job.encoded, sequence, means=means, progress=run.report, **options)
    run.begin_to_write()
    outputs = swept.outputs.reshape(len(modes), -1, *swept.base.shape)
    effects_by_mode = {}
    for mode, mode_outputs in zip(modes, outputs, strict=True):
        mode_sweep = SweepResult(swept.base, mode_outputs)
        effects_by_mode[mode] = _weigh(
            job, _conclude(job, ablations[mode], means, mode_sweep, time.time() - started), mode_sweep
        )
    return _outcome(job, [ablation.name for ablation in ablations[modes[0]]], swept, effects_by_mode)


def _place(run: Run, mode: str) -> Path:
    return (run.directory or Path()) / mode


def _conclude(job: Disabling, ablations: list[Ablation], means: Any, swept: SweepResult, seconds: float) -> Results:
    """Write the results of a mode as `bertjax ablate` does, for `bertjax report`, `show` and `compare`."""
    options, mode = split_named_task(job.run.options), ablations[0].changes[0].mode
    shared = {name: getattr(options, name) for name in ("model", "task", "split", "data", "data_dir", "limit", "seed")}
    details: dict[str, Any] = {"mode": mode, "ablate": f"{job.kind.name}s", "max_length": options.max_length}
    settings = for_this_device(Settings(**shared, **details, precision="float32", output=str(job.place(mode))))
    weighing, tokenizer = partial(job.run.report, note=f"weighing {mode}"), Tokenizer.from_pretrained(options.model)
    one_mode = Job(settings, job.run.model, tokenizer, ablations, job.examples, job.encoded)
    return conclude(one_mode, means, swept, seconds, weighing=weighing)


def _weigh(job: Disabling, results: Results, swept: SweepResult) -> dict[str, Effects]:
    """Effects by metric. Accuracy, if the task has it, comes first as the main one, as in the paper's figure 8."""
    with_base, options, effects = np.concatenate([swept.base[None], swept.outputs]), job.run.options, {}
    for name in sorted(results.summary["statistics"], key=lambda name: name != "accuracy"):
        drawn = draw_changes(name, with_base, job.examples.labels, job.positive, options.resamples, options.seed)
        effects[name] = make_effects(results.rows_of(name), draw_means(drawn), results.least_p(name))
    return effects


def labelled(examples: Examples) -> Examples:
    """The examples that have a label. Raises `DataError` if there are fewer than two."""
    labels = examples.labels
    defined = np.flatnonzero(~np.isnan(labels) if labels.dtype.kind == "f" else labels != UNLABELLED)
    if defined.size < 2:
        count = "one alone" if defined.size else "none"
        raise DataError(
            f"{count} of the {len(examples)} examples has a label: give a split with labels ({examples.source})"
        )
    return examples if defined.size == len(examples) else examples.take(defined.tolist())


def _outcome(
    job: Disabling, names: list[str], swept: SweepResult, effects_by_mode: dict[str, dict[str, Effects]]
) -> Outcome:
    """The numbers of the run with their lines and figures; `swept` holds the places mode by mode."""
    numbers, examples = _numbers(job, names, effects_by_mode), job.examples
    by_mode = swept.outputs.reshape(len(effects_by_mode), -1, *swept.base.shape)
    for mode, outputs in zip(effects_by_mode, by_mode, strict=True):
        with_base = np.concatenate([swept.base[None], outputs])
        measures = job.kind.measure(numbers, mode, with_base, examples.labels, job.run.options)
        numbers |= {name: {**numbers.get(name, {}), mode: measure} for name, measure in measures.items()}
    values = {"names": np.array(names), "modes": np.array(list(effects_by_mode)), "ids": np.array(examples.ids)}
    values |= {"labels": examples.labels, "base": swept.base, "outputs": by_mode}
    lines = job.kind.report_lines(numbers)
    directories = [shlex.quote(str(job.place(mode))) for mode in effects_by_mode]
    lines.append(f"a page to look at: bertjax report {directories[0]}")
    if len(directories) > 1:
        lines.append(f"side by side: bertjax compare {' '.join(directories)}")
    pictures = job.kind.figures({"results": numbers})
    return Outcome(numbers, values, pictures.pop("figure"), lines, pictures)


def _numbers(job: Disabling, names: list[str], effects_by_mode: dict[str, dict[str, Effects]]) -> dict[str, Any]:
    """All numbers to report or draw: per place, by metric and mode."""
    task, labels, options = job.examples.task, job.examples.task.label_names or (), job.run.options
    first = next(iter(effects_by_mode.values()))
    metrics, config = list(first), job.run.model.config
    class_metrics = {"f1", "roc_auc", "average_precision"} & set(metrics)
    main = {mode: effects[metrics[0]] for mode, effects in effects_by_mode.items()}
    return {
        "kind": job.kind.name,
        "model": options.model,
        "task": task.name,
        "split": job.examples.split,
        "examples": len(job.examples),
        "source": job.examples.source,
        "sha256": job.examples.sha256,
        "truncated": job.encoded.truncated,
        "outputs": job.encoded.form.name,
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "names": names,
        "metric": metrics[0],
        "positive": job.positive,
        "yes": labels[job.positive] if class_metrics and job.positive < len(labels) else None,
        "resamples": options.resamples,
        "as_published": SAME_AS_PUBLISHED if options.as_published else None,
        "base": {name: finite(first[name].base) for name in metrics},
        "effects": {
            name: {mode: effects[name].to_dict() for mode, effects in effects_by_mode.items()} for name in metrics
        },
        "rank_correlation": {
            f"{first_mode}-{second_mode}": correlate_places(
                main[first_mode].change, main[second_mode].change, options.seed
            )
            for first_mode, second_mode in combinations(main, 2)
        },
    }
