"""What a sweep's outputs depend on, as short texts: two sweeps with the same give the same outputs."""

import hashlib
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np

from bertjax.checkpoints import hash_weights
from bertjax.engine.sweep_input import SweepInput, Texts
from bertjax.errors import InputError
from bertjax.machine import package_version
from bertjax.model import PretrainedModel

PACKAGES = ("bertjax", "jax", "jaxlib", "numpy")


def facts_of(sweep_input: SweepInput, examples: str | None = None) -> dict[str, str]:
    """All that a sweep's outputs depend on, by names that tell a user what differs.

    Args:
        examples: what tells the examples from others, where the input does not hold them.

    Raises:
        InputError: the readout or the combination is something that cannot be distinguished from another.
    """
    model, plan, means = sweep_input.model, sweep_input.plan, sweep_input.means
    parameters = {name: np.asarray(value) for name, value in model.parameters().items()}
    # What sets are called changes no output.
    changes = [
        [
            (change.layer, change.head, change.place, change.at, change.replacement, change.replaced)
            for change in ablation.changes
        ]
        for ablation in plan.ablations
    ]
    modes = "/".join(sorted(plan.modes())) or "base"
    facts = {
        "model": f"{model.class_name} {_options(model)}".strip(),
        "config": _digest(repr(model.config.to_dict())),
        "weights": hash_weights(parameters)[:16],
        "examples": examples or f"{len(sweep_input.texts)}, {_tokens(sweep_input.texts)}",
        "ablations": f"{len(plan.ablations)} sets, {modes}, {_digest(repr(changes))}",
        "means": "none" if means is None else _digest(np.ascontiguousarray(means).tobytes()),
        "donors": "none" if sweep_input.donors is None else _tokens(sweep_input.donors),
        "readout": _describe(sweep_input.readout),
        **({} if sweep_input.targets is None else {"targets": _digest(repr(_content(sweep_input.targets, "", [])))}),
        **({} if sweep_input.spans is None else {"spans": _digest(repr([*map(_listed, sweep_input.spans)]))}),
        "positions": "all" if sweep_input.positions is None else _digest(repr(sweep_input.positions.tolist())),
        "combination": _describe(sweep_input.combine),
        "attention": sweep_input.attention,
        "precision": f"{model.numerics.dtype}, {model.numerics.precision}",
        "device": jax.devices()[0].device_kind,
    }
    return facts | {name: package_version(name) for name in PACKAGES}


def _listed(spans: tuple[np.ndarray, ...]) -> list[list[int]]:
    return [own.tolist() for own in spans]


def _tokens(texts: Texts) -> str:
    """A digest of what the model reads."""
    return _digest(repr([[(text.input_ids, text.token_type_ids) for text in several] for several in texts]))


def _digest(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:16]


def _options(model: PretrainedModel) -> str:
    """What a model was made with besides its config: pooling, normalisation ..."""
    simple = {name: value for name, value in vars(model).items() if isinstance(value, str | int | float | tuple | None)}
    return ", ".join(f"{name} {value}" for name, value in sorted(simple.items()) if not name.startswith("_"))


def _describe(function: Any) -> str:
    """A function's name, and a digest of what it does: its code, not where it stands, and the values that it uses."""
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{name}, {_digest(repr(_content(function, _package(function), [])))}"


def _content(value: Any, package: str, seen: list[Any]) -> Any:
    """A value as something whose `repr` is the same wherever and whenever it is made.

    Functions of other packages than the one in question stand for themselves by their names.

    Raises:
        InputError: it is not a function, array or plain value.
    """
    if value is None or isinstance(value, str | bytes | int | float | complex | np.dtype | type | ModuleType):
        return repr(value) if not isinstance(value, ModuleType) else value.__name__
    if any(value is item for item in seen):
        return "itself"
    inside = partial(_content, package=package, seen=[*seen, value])
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        return "array", array.dtype.name, array.shape, _digest(np.ascontiguousarray(array).tobytes())
    if isinstance(value, tuple | list):
        return type(value).__name__, [inside(item) for item in value]
    if isinstance(value, set | frozenset):
        return type(value).__name__, sorted(repr(inside(item)) for item in value)
    if isinstance(value, dict):
        return "dict", [(inside(key), inside(item)) for key, item in value.items()]
    if isinstance(value, partial):
        return "partial", inside(value.func), inside(value.args), inside(value.keywords)
    if isinstance(value, MethodType):
        return "method", inside(value.__func__), inside(value.__self__)
    if isinstance(value, FunctionType):
        return _function(value, inside) if not seen or _package(value) == package else _name(value)
    if hasattr(value, "__wrapped__"):  # what jax.jit gives
        return "compiled", inside(value.__wrapped__)
    if isinstance(value, BuiltinFunctionType | np.ufunc):
        return _name(value)
    if is_dataclass(value):
        return _name(type(value)), [(field.name, inside(getattr(value, field.name))) for field in fields(value)]
    if type(value).__module__.split(".")[0] in ("jax", "jaxlib", "numpy"):
        return _name(value)
    raise InputError(
        f"a journal cannot tell one {type(value).__name__} from another: write the readout (or combination) as a "
        "function of plain values and arrays, or leave the journal out"
    )


def _function(function: FunctionType, inside: Callable[[Any], Any]) -> Any:
    """What a function does: its code, and what it takes from closures, defaults and its module."""
    if hasattr(function, "__wrapped__"):
        return "wrapped", _code(function.__code__), inside(function.__wrapped__)
    code, held = function.__code__, [cell.cell_contents for cell in function.__closure__ or ()]
    held += [function.__defaults__, function.__kwdefaults__]
    names = sorted(_names(code) & set(function.__globals__))
    return _code(code), inside(held), [(name, inside(function.__globals__[name])) for name in names]


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', getattr(value, '__name__', ''))}"


def _package(function: Any) -> str:
    return str(getattr(function, "__module__", "") or "").split(".")[0]


def _names(code: CodeType) -> set[str]:
    """Names that a function's code and the functions in it may look up in their module."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def _code(code: CodeType) -> tuple[Any, ...]:
    constants = tuple(
        _code(constant) if isinstance(constant, CodeType) else repr(constant) for constant in code.co_consts
    )
    return code.co_code, code.co_names, constants
