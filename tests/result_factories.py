"""Directories of results without a model: outputs, texts and attention made up, written as `bertjax ablate` does."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bertjax import BertConfig
from bertjax.data import Examples
from bertjax.engine.reference import SweepResult
from bertjax.interventions import find_mode, name_layer_head
from bertjax.interventions.ablations import single_heads, whole_layers
from bertjax.jobs.provenance import versions
from bertjax.jobs.scoring import label_metrics, score_ablations, statistics_of_outputs
from bertjax.results import InMemory, describe_examples, output_arrays, write_outputs, write_results
from bertjax.results import make_results as results_of
from bertjax.statistics.metrics import METRICS, UNLABELLED, Metric
from bertjax.tasks import TASKS, form_named, metrics_of
from tests.job_factories import settings_of

HEADS, LAYERS = 4, 3
CONFIG = BertConfig(
    vocab_size=9, hidden_size=16, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=4
)
# What a page must show as it stands, in texts and in tokens.
EVIL = "<script>window.hacked = true</script> <b>bold</b> & a < b"
EVIL_TOKENS = ("[CLS]", "<script>", "<b>", "&amp;", "=1+1", "[SEP]")


def make_results(
    directory: Path,
    task: str = "mrpc",
    *,
    examples: int = 120,
    seed: int = 0,
    mode: str = "uniform",
    ablate: str = "heads",
    helpful: str = "0.1",
    harmful: str = "2.3",
    labelled: int | None = None,
    metrics: Sequence[Metric] = (),
) -> Path:
    """Results in which one head (or layer) costs a lot when disabled, one gains, and the rest changes little.

    Args:
        helpful, harmful: which these are.
        labelled: how many examples have a label; all by default.
        metrics: what judges the outputs; by default the task's own.
    """
    rng = np.random.default_rng(seed)
    labels = make_labels(rng, task, examples)
    ablations = whole_layers(CONFIG, mode) if ablate == "layers" else single_heads(CONFIG, mode)
    swept = make_outputs(rng, labels, [one.name for one in ablations], helpful, harmful)
    if labelled is not None:
        labels[labelled:] = UNLABELLED if labels.dtype == np.int32 else np.nan
    texts = [f"{EVIL} first {number}" for number in range(examples)]
    found = Examples(TASKS[task], tuple(range(examples)), tuple(texts), tuple(texts[::-1]), labels, "made up", "test")
    settings = settings_of(model="made-up", task=task, output=str(directory), mode=mode, ablate=ablate, seed=seed)
    places = [name_layer_head(one, CONFIG, mode) for one in ablations]
    metrics = tuple(metrics) or metrics_of(form_named("logits"), found.task)
    bound_metrics = label_metrics(metrics, labels)
    entries, scores = score_ablations(bound_metrics, 1, swept, ablations, places)
    statistics = statistics_of_outputs(bound_metrics, 1, swept, seed=seed, resamples=500)
    largest = sorted(entries, key=lambda entry: -entry.effect)[:2]
    summary = make_provenance(settings, found, scores, metrics)
    attention = make_attention(rng, [entry.name for entry in largest])
    arrays = output_arrays(swept.base, swept.outputs, found, places)
    stored = InMemory(arrays, attention, describe_examples(found, arrays))
    write_outputs(directory, stored.outputs, stored.examples)
    write_results(directory, results_of(summary, entries, statistics, stored))
    return directory


def make_labels(rng, task, examples):
    if TASKS[task].kind == "regression":
        return rng.uniform(0, 5, examples).astype(np.float32)
    return rng.integers(0, 2, examples).astype(np.int32)


def make_outputs(rng, labels, names, helpful, harmful):
    """Logits (or a value, where labels are numbers) that are right more often than not, and those of ablations."""
    target = np.eye(2)[labels] if labels.dtype == np.int32 else labels[:, None]
    base = (target + 0.8 * rng.normal(size=target.shape)).astype(np.float32)
    outputs = base + 0.05 * rng.normal(size=(len(names), *base.shape))
    if helpful in names:
        outputs[names.index(helpful)] = base + 0.8 * rng.normal(size=base.shape)
    if harmful in names:
        outputs[names.index(harmful)] = base + 0.6 * (target - base)
    return SweepResult(base, outputs.astype(np.float32))


def make_provenance(settings, found, scores, metrics):
    """What a summary says besides results."""
    task = found.task
    custom = {metric.name: metric.describe() for metric in metrics if metric.name not in METRICS}
    return ({"own_metrics": custom} if custom else {}) | {
        "command": "bertjax ablate",
        "model": {"name": "made-up", "class": "BertForSequenceClassification", "layers": LAYERS, "heads": HEADS}
        | {"weights_sha256": "0" * 64},
        "versions": versions(),
        "device": {"platform": "cpu", "kind": "cpu"},
        "data": {"task": task.name, "label_names": list(task.label_names or ()), "split": "test"}
        | {"source": "made up", "examples": len(found), "truncated": 0, "sha256": found.sha256},
        "outputs": "logits",
        "metrics": list(scores),
        "positive": 1,
        "metric": {"name": next(iter(scores)), "label": next(iter(scores)).upper()},
        "settings": settings.describe(),
        "mode": {
            "name": settings.analysis.mode,
            "definition": find_mode(settings.analysis.mode).definition,
            "title": find_mode(settings.analysis.mode).title,
        },
        "seconds": 1.0,
        "without_effect": [],
        "base": scores,
    }


def make_attention(rng, names, samples=(0, 7)):
    """Tokens and weights: of the base, and of runs that differ from their layer on."""
    arrays = {"examples": np.array(samples), "runs": np.array(["base", *names])}
    for sample in range(len(samples)):
        tokens = EVIL_TOKENS[: len(EVIL_TOKENS) - sample]
        weights = rng.dirichlet(np.ones(len(tokens)), (1 + len(names), LAYERS, HEADS, len(tokens)))
        for run, name in enumerate(names, 1):
            layer = int(name.split(".")[0])
            weights[run, :layer] = weights[0, :layer]
        arrays[f"tokens_{sample}_0"] = np.array(tokens)
        arrays[f"weights_{sample}_0"] = weights.astype(np.float32)
    return arrays
