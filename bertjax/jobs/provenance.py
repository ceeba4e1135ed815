"""Provenance of results: the information to reproduce them."""

import hashlib
import json
import platform
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from bertjax.checkpoints import name_base
from bertjax.data import Examples
from bertjax.engine import model_facts
from bertjax.errors import InputError, OutputError
from bertjax.interventions import hash_layers
from bertjax.jobs.analysis import Outcome
from bertjax.jobs.job import Job, hash_of_files, hash_parameters, new_parameters
from bertjax.jobs.naming import is_begun
from bertjax.jobs.options import Say
from bertjax.jobs.scoring import LabelledMetric
from bertjax.jobs.settings import AnalysisOptions, Settings
from bertjax.machine import package_version
from bertjax.models import PretrainedModel
from bertjax.results import Results, read_complete, read_results
from bertjax.statistics import BUILT_IN, as_metric
from bertjax.tasks import EncodedDataset


def describe_analysis(analysis: AnalysisOptions, job: Job | None = None) -> dict[str, Any]:
    """Name and options of an analysis for JSON, and hashes of examples and inputs.

    Args:
        job: the loaded job; None leaves the hashes out.
    """
    described = {
        "name": analysis.name,
        "options": json.loads(json.dumps(analysis.recorded(), default=lambda value: value.tolist())),
    }
    if job is None:
        return described
    return {**described, "examples_sha256": job.examples.sha256, "inputs_sha256": hash_of_inputs(job)}


def hash_of_inputs(job: Job) -> str:
    """SHA-256 of the tokenizer, the label names and the properties of the model that outputs depend on, and of a base.

    Args:
        job: the model and the encoded examples.
    """
    facts: list[Any] = [job.tokenizer.digest, job.examples.task.label_names, model_facts(job.model)]
    facts += [] if job.source_model is None else [hash_layers(job.source_model)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def find_finished(settings: Settings, load: Callable[[Settings, Say], Job], say: Say) -> Results | None:
    """Find the results of the same analysis with the same settings; None if there are none.

    Model and data are loaded, and compared with the record in the results.

    Args:
        settings: the settings for this device.
        load: loads the job of the settings.
        say: called with a line if there are results.

    Raises:
        OutputError: there are results of another analysis, an earlier version, other settings, weights or examples, or
            of a custom metric or analysis, which may have changed.
        BertjaxError: there are results, and model or data cannot be loaded.
    """
    analysis = settings.analysis
    if analysis.overwrite or (analysis.journals is not None and is_begun(settings.directory, analysis.journals)):
        return None
    summary = read_complete(settings.directory, settings.describe(), describe_analysis(analysis))
    if summary is None:
        return None
    where, advice = f"{settings.directory} already has results", "give another --output, or --overwrite"
    if not type(analysis).__module__.startswith("bertjax."):
        raise OutputError(f"{where}, of a custom analysis ({analysis.name}), which may have changed: {advice}")
    chosen = None if analysis.metric is None else as_metric(analysis.metric)
    if chosen is not None and BUILT_IN.get(chosen.name) is not chosen:
        raise OutputError(f"{where}, with a custom metric ({chosen.name}), which may have changed: {advice}")
    job = load(settings, lambda line: None)
    if hash_of_weights(job) != summary["model"]["weights_sha256"]:
        raise OutputError(f"{where}, of other weights of {settings.model}: {advice}")
    if job.examples.sha256 != summary["analysis"]["examples_sha256"]:
        raise OutputError(f"{where}, of other examples: {advice}")
    if summary["analysis"].get("inputs_sha256") not in (None, hash_of_inputs(job)):
        raise OutputError(f"{where}, of another tokenizer, other label names or another model: {advice}")
    try:
        results = read_results(settings.directory)
    except InputError as error:
        raise OutputError(f"{error}, or {advice}") from error
    say(f"{settings.directory} is already complete: nothing is computed (--overwrite computes it again)")
    return results


def provenance(
    outcome: Outcome, examples: Examples, labelled_metrics: Sequence[LabelledMetric], positive: int
) -> dict[str, Any]:
    """Command, model, data, outputs, versions and device, for `summary.json`.

    Args:
        examples: the examples of the outputs.
        labelled_metrics: the metrics with their labels.
        positive: the label that counts as yes.
    """
    job, form, metrics = outcome.job, outcome.form, [each.metric for each in labelled_metrics]
    encoded = job.encoded
    custom = {metric.name: metric.describe() for metric in metrics if BUILT_IN.get(metric.name) is not metric}
    where = describe_model(job.model, job.settings.model, hash_of_weights(job), job.directory)
    new = new_parameters(job.model) if job.settings.allow_new_head else []
    return {
        **where,
        "model": where["model"] | ({"new_parameters": new} if new else {}),
        "data": {
            "task": examples.task.name,
            "label_names": list(examples.task.label_names or ()),
            "split": examples.split,
            "source": examples.source,
            "examples": len(examples),
            "truncated": _count_truncated(encoded, outcome.kept),
            "sha256": examples.sha256,
            **({"scale": list(examples.scale)} if examples.scale else {}),
        },
        "outputs": form.name,
        **({"numbers": list(encoded.numbers if form is encoded.form else form.numbers)} if form.numbers else {}),
        **encoded.metadata,
        "metrics": [metric.name for metric in metrics],
        "positive": positive,
        "metric": {"name": metrics[0].name, "label": metrics[0].label},
        **({"own_metrics": custom} if custom else {}),
    }


def _count_truncated(encoded: EncodedDataset, kept: Sequence[int] | None) -> int:
    """The number of truncated examples.

    Args:
        kept: only these examples; None for all.
    """
    if kept is None:
        return encoded.truncated
    return sum(any(encoded.encodings[text].truncated for text in encoded.numbers_of(example)) for example in kept)


def hash_of_weights(job: Job) -> str:
    """SHA-256 of all weights in the checkpoint of a job's model.

    For a model in memory, and for a loaded model that was changed, it is the hash of the parameters.

    Args:
        job: the model and the encoded examples.
    """
    model, sources = job.model, job.settings.sources
    if sources.model is None:
        return hash_of_files(job.settings, model)
    digest, as_loaded = hash_parameters(model), sources.loaded("as loaded")
    return as_loaded.of_files if as_loaded is not None and as_loaded.of_parameters == digest else digest


def describe_model(model: PretrainedModel, name: str, sha256: str, directory: Path | None) -> dict[str, Any]:
    """Command, model, versions and device.

    Args:
        name: the name of the model in the command or call.
        sha256: the hash of the weights.
        directory: the directory of the checkpoint; None for a model in memory.
    """
    base = None if directory is None else name_base(directory)
    return {
        "command": command_line(),
        "model": {
            "name": name,
            **({} if base is None else {"base": base}),
            "class": model.class_name,
            "layers": model.config.num_hidden_layers,
            "heads": model.config.num_attention_heads,
            "weights_sha256": sha256,
        },
        "versions": versions(),
        "device": {"platform": jax.default_backend(), "kind": jax.devices()[0].device_kind},
    }


def command_line() -> str:
    """The command line, without the directory of the program."""
    program = getattr(sys.modules["__main__"], "__spec__", None)
    name = Path(sys.argv[0]).name if program is None else f"python -m {program.name.removesuffix('.__main__')}"
    return f"{name} {shlex.join(sys.argv[1:])}".rstrip()


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that results depend on."""
    names = ("bertjax", "jax", "jaxlib", "flax", "numpy", "transformers", "tokenizers", "scikit-learn", "scipy")
    return {"python": platform.python_version(), **{name: package_version(name) for name in names}}
