"""What a sweep's outputs depend on, as short texts: two sweeps with the same give the same outputs."""

import hashlib
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from types import CodeType, FunctionType
from typing import Any

import jax
import numpy as np

from bertjax.files import hash_weights
from bertjax.job import Job, Texts

PACKAGES = ("bertjax", "jax", "jaxlib", "numpy")


def facts_of(job: Job) -> dict[str, str]:
    """All that a sweep's outputs depend on, by names that tell a user what differs."""
    model, plan, means = job.model, job.plan, job.means
    parameters = {name: np.asarray(value) for name, value in model.parameters().items()}
    modes = "/".join(sorted(plan.modes())) or "base"
    facts = {
        "model": f"{type(model).__name__} {model.config.to_dict()}",
        "weights": hash_weights(parameters)[:16],
        "examples": f"{len(job.texts)}, {_tokens(job.texts)}",
        "ablations": f"{len(plan.ablations)} sets, {modes}, {_digest(repr(plan.ablations))}",
        "means": "none" if means is None else _digest(np.ascontiguousarray(means).tobytes()),
        "donors": "none" if job.donors is None else _tokens(job.donors),
        "readout": _describe(job.readout),
        "positions": "all" if job.positions is None else _digest(repr(job.positions.tolist())),
        "combination": _describe(job.combine),
        "precision": f"{model.numerics.dtype}, {model.numerics.precision}",
        "device": f"{jax.devices()[0].device_kind}, {jax.process_count()} process",
    }
    return facts | {name: package_version(name) for name in PACKAGES}


def package_version(name: str) -> str:
    """Version of an installed package."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _tokens(texts: Texts) -> str:
    """A digest of what the model reads."""
    return _digest(repr([[(text.input_ids, text.token_type_ids) for text in several] for several in texts]))


def _digest(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:16]


def _describe(function: Any) -> str:
    """A function's name and what it does: its code, not where it stands, and the values that it holds."""
    if isinstance(function, partial):
        return f"partial of {_describe(function.func)}, {_digest(repr((function.args, function.keywords)))}"
    if not isinstance(function, FunctionType):
        return repr(function)
    inside = [cell.cell_contents for cell in function.__closure__ or ()]
    held = [_describe(one) for one in (*inside, *(function.__defaults__ or ()))]
    return f"{function.__qualname__}, {_digest(repr((_code(function.__code__), held)))}"


def _code(code: CodeType) -> tuple[Any, ...]:
    constants = tuple(_code(one) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.co_code, code.co_names, constants
