"""The journal of a sweep: finished parts on disk, from which an interrupted sweep resumes.

    journal.json   all that the outputs depend on (`facts`), the sizes of the sweep, and the user's options
    part-00000     outputs of a finished part: SHA-256 (32 bytes) of `journal.json`, index and content; then the name
                   of the dtype in a line, and a NumPy array
    .lock          locked while a process uses the journal

Every file is written completely or not at all. A part whose digest does not match is computed again. A resumed sweep
takes its sizes from the journal, not from the free memory: the same steps have outputs of the same bytes.
"""

import contextlib
import hashlib
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import IO, Any

import jax
import ml_dtypes  # noqa: F401  (registers names such as bfloat16 with NumPy)
import numpy as np

from bertjax.atomic_files import atomic_write, write_json
from bertjax.checkpoints import hash_weights
from bertjax.engine.sweep_input import SweepInput, Texts
from bertjax.errors import InputError, OutputError, reading, some_of
from bertjax.interventions import hash_layers
from bertjax.json_files import parse_json
from bertjax.machine import package_version
from bertjax.models import PretrainedModel
from bertjax.paths import hash_file, is_directory, is_there, listing, read_text

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PACKAGES = ("bertjax", "jax", "jaxlib", "numpy")
DIGEST_BYTES = 32
# Names of a journal's files. Only these are ever removed.
FACTS, PART, LOCK = "journal.json", r"part-\d{5,}", r"\.lock"
TEMPORARY = r"\.[0-9a-f]{8}-(journal\.json|part-\d{5,})"
DIGEST = r"\b([0-9a-f]{16}|[0-9a-f]{64})\b"
OURS = rf"{re.escape(FACTS)}|{PART}|{LOCK}|{TEMPORARY}"


class Journal:
    """The finished parts of one sweep, locked by this process until closed: `with open_journal(...) as journal`.

    Args:
        directory: directory of the journal; it holds nothing else.
        sizes: sizes of the sweep.
        lock: the open lock file; None for a journal that is only read.

    Attributes:
        finished: the number of finished parts when the journal was opened.
    """

    def __init__(self, directory: Path, sizes: Mapping[str, int], lock: IO[Any] | None = None):
        self.directory, self.sizes, self._lock = directory, dict(sizes), lock
        self.finished = count_parts(directory)
        self._seal = bytes.fromhex(hash_file(directory / FACTS, OutputError))

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *error: Any) -> None:
        if self._lock is not None:
            self._lock.close()

    def read(self, index: int) -> np.ndarray | None:
        """The outputs of a part; None if it is missing or damaged."""
        path = self._path(index)
        with contextlib.suppress(OutputError), reading(path, OutputError):
            content = path.read_bytes()
            if self._digest(index, content[DIGEST_BYTES:]) != content[:DIGEST_BYTES]:
                return None
            stream = io.BytesIO(content[DIGEST_BYTES:])
            dtype = np.dtype(stream.readline().decode().strip())
            return np.load(stream, allow_pickle=False).view(dtype)
        return None

    def write(self, index: int, outputs: np.ndarray) -> None:
        """Save the outputs of a part.

        Raises:
            OutputError: it cannot be written; earlier parts are not affected.
        """
        stream = io.BytesIO()
        stream.write(f"{outputs.dtype.name}\n".encode())
        np.save(stream, outputs, allow_pickle=False)
        content = stream.getvalue()
        atomic_write(self._path(index), self._digest(index, content) + content)

    def _path(self, index: int) -> Path:
        return self.directory / f"part-{index:05d}"

    def _digest(self, index: int, content: bytes) -> bytes:
        """The digest of a part. It differs for a renamed part and for a part of another sweep."""
        return hashlib.sha256(self._seal + index.to_bytes(8, "big") + content).digest()


def open_journal(
    directory: Path,
    facts: Mapping[str, str],
    sizes: Mapping[str, int],
    *,
    settings: Mapping[str, Any] | None = None,
    replace: bool = False,
) -> Journal:
    """Open the journal in a directory, or create it.

    Args:
        directory: directory of the journal; it must hold nothing else.
        facts: all that the outputs depend on, by names for error messages.
        sizes: sizes of the sweep, for a new journal.
        settings: the user's options, by name. They are only used in errors about the journal of another sweep, which
            list the options that differ, since facts may be digests.
        replace: discard the journal of another sweep.

    Raises:
        OutputError: it is of another sweep, or damaged, and `replace` is false; another process uses it; the directory
            holds other files; or it cannot be written.
    """
    with contextlib.ExitStack() as opened:
        lock = opened.enter_context(_claim(directory))
        texts = describe_settings(settings or {})
        if not _holds(directory, facts, texts, replace):
            _remove(directory, (re.escape(FACTS), PART, TEMPORARY))
            content = {"facts": dict(facts), "sizes": dict(sizes), "settings": texts}
            write_json(directory / FACTS, {**content, "sha256": _hash(content)})
        journal = Journal(directory, _read(directory / FACTS)["sizes"], lock)
        opened.pop_all()  # from here on, the journal closes the lock
        return journal


def read_journal(directory: Path, facts: Mapping[str, str]) -> Journal:
    """Open the journal of a sweep to read it, perhaps on another device than it was written on.

    Raises:
        OutputError: it is missing or damaged, or of a sweep with other facts.
    """
    recorded = _read(directory / FACTS)
    differing = find_differences({**recorded["facts"], "device": facts["device"]}, facts)
    if differing:
        raise OutputError(
            f"{directory.parent} already has a sweep with other options: {list_differences([], differing)}"
        )
    return Journal(directory, recorded["sizes"])


def _holds(directory: Path, facts: Mapping[str, str], settings: Mapping[str, str], replace: bool) -> bool:
    """Whether the directory has a journal of these facts. Raises `OutputError` for another, unless `replace`."""
    if not is_unfinished(directory):
        return False
    try:
        recorded = _read(directory / FACTS)
        differing = find_differences(recorded["facts"], facts)
        if differing and not count_parts(directory):
            return False  # no finished part would be lost
        if differing:
            options = [pair for pair in find_differences(recorded["settings"], settings) if pair[0] in settings]
            raise OutputError(
                f"{directory.parent} already has an unfinished sweep with other settings: "
                f"{list_differences(options, differing)}. "
                "Give those to resume, another --output, or --overwrite to discard it"
            )
    except OutputError:
        if not replace:
            raise
        return False
    return True


def _claim(directory: Path) -> IO[Any]:
    """Create the directory if needed, and lock it. The system unlocks it when the process ends in any way."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        other = [path.name for path in directory.iterdir() if not re.fullmatch(OURS, path.name)]
        if other and not is_unfinished(directory):
            raise OutputError(f"{directory} has other files ({some_of(other)}): a journal needs an empty directory")
        lock = (directory / ".lock").open("a")
    except OSError as error:
        raise OutputError(f"cannot write a journal in {directory}: {error.strerror or error}") from error
    try:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise OutputError(f"another process is running the sweep in {directory.parent}") from error
    return lock


def count_parts(directory: Path) -> int:
    """The number of finished parts of an unfinished sweep."""
    if not is_unfinished(directory):
        return 0
    return sum(re.fullmatch(PART, path.name) is not None for path in listing(directory, OutputError))


def is_unfinished(directory: Path) -> bool:
    """Whether a directory holds the journal of a sweep. Raises `OutputError` if it cannot be read."""
    return is_there(directory / FACTS, OutputError)


def discard_journal(directory: Path) -> None:
    """Remove a journal, if there is one, and nothing else.

    Raises:
        OutputError: it cannot be removed.
    """
    if is_directory(directory, OutputError):
        _remove(directory, (re.escape(FACTS), PART, TEMPORARY, LOCK))
        with contextlib.suppress(OSError):
            directory.rmdir()  # unless it holds other files


def _remove(directory: Path, patterns: tuple[str, ...]) -> None:
    """Remove the files that match, pattern by pattern: without `journal.json`, the parts are not a journal."""
    try:
        names = [path.name for path in directory.iterdir()]
        for pattern in patterns:
            for name in names:
                if re.fullmatch(pattern, name):
                    (directory / name).unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"cannot remove the files in {directory}: {error.strerror or error}") from error


def _read(path: Path) -> dict[str, dict]:
    """The content of `journal.json`, checked by its digest."""
    advice = "--overwrite discards the finished parts"
    try:
        parsed = parse_json(read_text(path, OutputError))
        content = {name: dict(parsed[name]) for name in ("facts", "sizes", "settings")}
        if parsed["sha256"] != _hash(content):
            raise ValueError("its digest does not match")
        return content
    except OutputError as error:
        raise OutputError(f"{error}: {advice}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise OutputError(f"{path} is damaged, or of another version of bertjax: {advice}") from error


def _hash(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def describe_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings as str: 'default' for None.

    >>> describe_settings({"limit": None, "seed": 3})
    {'limit': 'default', 'seed': '3'}
    """
    return {name: "default" if value is None else str(value) for name, value in settings.items()}


def find_differences(recorded: Mapping[str, str], current: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Name, recorded value and current value of each entry that differs."""
    rows = [(name, recorded.get(name, "none"), current.get(name, "none")) for name in {**recorded, **current}]
    return [row for row in rows if row[1] != row[2]]


def list_differences(options: Sequence[tuple[str, str, str]], facts: Sequence[tuple[str, str, str]]) -> str:
    """Describe the options and facts that differ. If options differ, they explain digests, which are left out."""
    descriptions = [f"{name} ({recorded} there, {current} here)" for name, recorded, current in options]
    for name, recorded, current in facts:
        if (name, recorded, current) in options:  # an option that is a fact too
            continue
        hidden = bool(options) and re.search(DIGEST, f"{recorded} {current}") is not None
        descriptions.append(name if hidden else f"{name} ({recorded} there, {current} here)")
    return "; ".join(descriptions)


def model_facts(model: PretrainedModel) -> dict[str, str]:
    """All that a model's outputs depend on besides its parameters: class, options, config and precision."""
    return {
        "model": f"{model.class_name} {_options(model)}".strip(),
        "config": _digest(repr(model.config.to_dict())),
        "precision": f"{model.numerics.dtype}, {model.numerics.precision}",
    }


def facts_of(sweep_input: SweepInput, shard: str | None = None) -> dict[str, str]:
    """All that a sweep's outputs depend on, by names for error messages.

    Args:
        shard: the shard of the journal, such as '3/16'; None for the whole sweep.

    Raises:
        InputError: the readout or `combine` is an object without a digest.
    """
    model, plan, means = sweep_input.model, sweep_input.plan, sweep_input.means
    source = sweep_input.source_model
    parameters = {name: np.asarray(value) for name, value in model.parameters().items()}
    # (Without the names of ablations, which change no output.)
    changes = [
        [
            (change.layer, change.head, change.site, change.at, change.replacement, change.replaced)
            for change in ablation.changes
        ]
        for ablation in plan.ablations
    ]
    modes = "/".join(sorted(plan.modes())) or "base"
    facts = {
        **model_facts(model),
        "weights": hash_weights(parameters)[:16],
        "examples": f"{len(sweep_input.texts)}, {_tokens(sweep_input.texts)}",
        "ablations": f"{len(plan.ablations)} sets, {modes}, {_digest(repr(changes))}",
        "means": "none" if means is None else _digest(np.ascontiguousarray(means).tobytes()),
        "sources": "none" if sweep_input.sources is None else _tokens(sweep_input.sources),
        **({} if source is None else {"source model": hash_layers(source)[:16]}),
        "readout": _describe(sweep_input.readout),
        **({} if sweep_input.targets is None else {"targets": _digest(repr(_content(sweep_input.targets, "", [])))}),
        **({} if sweep_input.spans is None else {"spans": _digest(repr(_content(sweep_input.spans, "", [])))}),
        "positions": "all" if sweep_input.positions is None else _digest(repr(sweep_input.positions.tolist())),
        "combination": _describe(sweep_input.combine),
        "attention": sweep_input.attention,
        "device": jax.devices()[0].device_kind,
        **({} if shard is None else {"shard": shard}),
    }
    return facts | {name: package_version(name) for name in PACKAGES}


def _tokens(texts: Texts) -> str:
    """A digest of the model's inputs."""
    return _digest(repr([[(text.input_ids, text.token_type_ids) for text in row] for row in texts]))


def _digest(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:16]


def _options(model: PretrainedModel) -> str:
    """A model's options that are not in its config, such as pooling and normalisation."""
    simple = {name: value for name, value in vars(model).items() if isinstance(value, str | int | float | tuple | None)}
    return ", ".join(f"{name} {value}" for name, value in sorted(simple.items()) if not name.startswith("_"))


def _describe(function: Any) -> str:
    """A function's name, and a digest of its code and of the values that it uses."""
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{name}, {_digest(repr(_content(function, _package(function), [])))}"


def _content(value: Any, package: str, seen: list[Any]) -> Any:
    """A nested structure whose `repr` is equal for equal values in all processes.

    Functions of other packages than `package` are represented by their names.

    Raises:
        InputError: it is not a function, an array or a built-in value.
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
    if hasattr(value, "__wrapped__"):  # a result of jax.jit
        return "compiled", inside(value.__wrapped__)
    if isinstance(value, BuiltinFunctionType | np.ufunc):
        return _name(value)
    if is_dataclass(value):
        return _name(type(value)), [(field.name, inside(getattr(value, field.name))) for field in fields(value)]
    if type(value).__module__.split(".")[0] in ("jax", "jaxlib", "numpy"):
        return _name(value)
    raise InputError(
        f"a journal cannot distinguish one {type(value).__name__} from another: write the readout (or combine=) as a "
        "function of built-in values and arrays, or leave out the journal"
    )


def _function(function: FunctionType, inside: Callable[[Any], Any]) -> Any:
    """A function's code, and its values from closures, defaults and its module."""
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
    """The names that a function's code, and the functions inside it, may look up in their module."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def _code(code: CodeType) -> tuple[Any, ...]:
    constants = tuple(
        _code(constant) if isinstance(constant, CodeType) else repr(constant) for constant in code.co_consts
    )
    return code.co_code, code.co_names, constants
