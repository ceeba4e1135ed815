"""Where results come from: enough to make them again."""

import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bertjax.checkpoints import hash_weights, read_dense_weights, read_merged_weights, texts_directory
from bertjax.evidence import BUILT_IN
from bertjax.machine import package_version
from bertjax.model import BertForSentenceEmbedding, PretrainedModel
from bertjax.study.job import Job


def provenance(job: Job) -> dict[str, Any]:
    """Command, model, data, outputs, versions and device, for `summary.json`."""
    examples, encoded, metrics = job.examples, job.encoded, [judge.metric for judge in job.judges]
    own = {metric.name: metric.describe() for metric in metrics if BUILT_IN.get(metric.name) is not metric}
    return {
        **where_from(job.model, job.directory, job.settings.model),
        "data": {
            "task": examples.task.name,
            "label_names": list(examples.task.label_names or ()),
            "split": examples.split,
            "source": examples.source,
            "examples": len(examples),
            "truncated": encoded.truncated,
            "sha256": examples.sha256,
            **({"scale": list(examples.scale)} if examples.scale else {}),
        },
        "outputs": encoded.kind,
        **({"numbers": list(encoded.form.numbers_of(examples.task))} if encoded.form.numbers else {}),
        **({"tags": list(encoded.tags)} if encoded.tags else {}),
        "metrics": [metric.name for metric in metrics],
        "positive": job.positive,
        "metric": {"name": metrics[0].name, "label": metrics[0].label},
        **({"own_metrics": own} if own else {}),
    }


def where_from(model: PretrainedModel, directory: Path, name: str) -> dict[str, Any]:
    """Command, model, versions and device.

    Args:
        directory: the model's; the hash is of all weights in its files.
        name: what the user called the model.
    """
    family = model.config.family
    weights = read_merged_weights(directory, family) | _dense_weights(model, directory)
    return {
        "command": command_line(),
        "model": {
            "name": name,
            "class": model.class_name,
            "layers": model.config.num_hidden_layers,
            "heads": model.config.num_attention_heads,
            "weights_sha256": hash_weights(weights, family),
        },
        "versions": versions(),
        "device": {"platform": jax.default_backend(), "kind": jax.devices()[0].device_kind},
    }


def _dense_weights(model: PretrainedModel, directory: Path) -> dict[str, np.ndarray]:
    """Those of a sentence embedder's dense layers, which lie in files of their own."""
    return (
        read_dense_weights(texts_directory(directory), model.plans)
        if isinstance(model, BertForSentenceEmbedding)
        else {}
    )


def command_line() -> str:
    """What was typed, without the place where the program is installed: it says nothing, and is of one machine."""
    program = getattr(sys.modules["__main__"], "__spec__", None)
    name = Path(sys.argv[0]).name if program is None else f"python -m {program.name.removesuffix('.__main__')}"
    return f"{name} {shlex.join(sys.argv[1:])}".rstrip()


def versions() -> dict[str, str]:
    """Of Python and of the packages that results depend on."""
    names = ("bertjax", "jax", "jaxlib", "flax", "numpy", "tokenizers", "scikit-learn", "scipy")
    return {"python": platform.python_version(), **{name: package_version(name) for name in names}}
