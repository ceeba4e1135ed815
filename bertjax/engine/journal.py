"""The journal of a sweep: what is finished stays, whatever happens to the process.

    journal.json   what the sweep is of (`facts`), the sizes of its pieces, and what the user chose
    part-00000     outputs of a finished part: sha256 (32 bytes) of `journal.json`, number and content; the name of
                   their dtype in a line; a NumPy array
    .lock          is locked while a process works here

Every file appears whole or not at all. A part whose digest does not match is computed again. The sizes come from the
journal when a sweep resumes, not from the memory that happens to be free: the same steps give the same bytes.
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
import ml_dtypes  # noqa: F401  (names like bfloat16 mean something to NumPy only then)
import numpy as np

from bertjax.atomic_files import atomic_write, write_json
from bertjax.checkpoints import hash_weights
from bertjax.engine.sweep_input import SweepInput, Texts
from bertjax.errors import InputError, OutputError, reading, some_of
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
# Names of a journal's files: only these are ever removed.
FACTS, PART, LOCK = "journal.json", r"part-\d{5,}", r"\.lock"
TEMPORARY = r"\.[0-9a-f]{8}-(journal\.json|part-\d{5,})"
DIGEST = r"\b([0-9a-f]{16}|[0-9a-f]{64})\b"
OURS = rf"{re.escape(FACTS)}|{PART}|{LOCK}|{TEMPORARY}"


class Journal:
    """The finished parts of one sweep, held by this process until it is closed: `with open_journal(...) as journal`.

    Args:
        directory: of the journal alone.
        sizes: of the sweep's pieces.
        lock: the open lock file; None to read only.

    `finished` is how many finished parts were there when it was opened.
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

    def read(self, number: int) -> np.ndarray | None:
        """The outputs of a part; None where it is not there or damaged."""
        path = self._path(number)
        with contextlib.suppress(OutputError), reading(path, OutputError):
            content = path.read_bytes()
            if self._digest(number, content[DIGEST_BYTES:]) != content[:DIGEST_BYTES]:
                return None
            stream = io.BytesIO(content[DIGEST_BYTES:])
            dtype = np.dtype(stream.readline().decode().strip())
            return np.load(stream, allow_pickle=False).view(dtype)
        return None

    def write(self, number: int, outputs: np.ndarray) -> None:
        """Keep the outputs of a part.

        Raises:
            OutputError: it cannot be written; what was finished before stays.
        """
        stream = io.BytesIO()
        stream.write(f"{outputs.dtype.name}\n".encode())
        np.save(stream, outputs, allow_pickle=False)
        content = stream.getvalue()
        atomic_write(self._path(number), self._digest(number, content) + content)

    def discard(self) -> None:
        """Remove what is there: of a sweep that cannot be finished, it would be in the way. Raises `OutputError`."""
        discard_journal(self.directory)

    def _path(self, number: int) -> Path:
        return self.directory / f"part-{number:05d}"

    def _digest(self, number: int, content: bytes) -> bytes:
        """The key of a part: a part under another number, or of another sweep, does not match it."""
        return hashlib.sha256(self._seal + number.to_bytes(8, "big") + content).digest()


def open_journal(
    directory: Path,
    facts: Mapping[str, str],
    sizes: Mapping[str, int],
    *,
    settings: Mapping[str, Any] | None = None,
    replace: bool = False,
) -> Journal:
    """The journal in a directory: the one that is there, or a new one.

    Args:
        directory: of the journal alone.
        facts: all that the outputs depend on, by names that tell a user what differs.
        sizes: of the pieces, for a new journal.
        settings: what a user chose, by name. They decide nothing, but an error about another sweep's journal names
            those that differ, which say more than digests.
        replace: discard a journal of another sweep.

    Raises:
        OutputError: it is of another sweep, or damaged, and `replace` is false; another process works there; the
            directory holds other files; or it cannot be written.
    """
    with contextlib.ExitStack() as opened:
        lock = opened.enter_context(_claim(directory))
        texts = describe_settings(settings or {})
        if not _holds(directory, facts, texts, replace):
            _remove(directory, (re.escape(FACTS), PART, TEMPORARY))
            content = {"facts": dict(facts), "sizes": dict(sizes), "settings": texts}
            write_json(directory / FACTS, {**content, "sha256": _hash(content)})
        journal = Journal(directory, _read(directory / FACTS)["sizes"], lock)
        opened.pop_all()  # from here on the journal closes the lock
        return journal


def read_journal(directory: Path, facts: Mapping[str, str]) -> Journal:
    """The journal of a sweep, to be read, perhaps on another device than it was written on.

    Raises:
        OutputError: it is missing or damaged, or of a sweep with other facts.
    """
    recorded = _read(directory / FACTS)
    differing = find_differences({**recorded["facts"], "device": facts["device"]}, facts)
    if differing:
        raise OutputError(
            f"{directory.parent} holds another sweep than these options: {list_differences([], differing)}"
        )
    return Journal(directory, recorded["sizes"])


def _holds(directory: Path, facts: Mapping[str, str], settings: Mapping[str, str], replace: bool) -> bool:
    """Whether the journal of these facts is there. Raises `OutputError` for another, unless it may be replaced."""
    if not is_unfinished(directory):
        return False
    try:
        recorded = _read(directory / FACTS)
        differing = find_differences(recorded["facts"], facts)
        if differing and not count_parts(directory):
            return False  # nothing was finished: there is nothing to lose
        if differing:
            chosen = [
                difference
                for difference in find_differences(recorded["settings"], settings)
                if difference[0] in settings
            ]
            descriptions = list_differences(chosen, differing)
            raise OutputError(
                f"{directory.parent} holds an unfinished sweep with other settings: {descriptions}. "
                "Give those to resume, another --output, or --overwrite to discard it"
            )
    except OutputError:
        if not replace:
            raise
        return False
    return True


def _claim(directory: Path) -> IO[Any]:
    """Make the directory if it is not there, and lock it; the system unlocks it when the process ends, however."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        other = [path.name for path in directory.iterdir() if not re.fullmatch(OURS, path.name)]
        if other and not is_unfinished(directory):
            raise OutputError(
                f"{directory} holds other files ({some_of(other)}): a journal needs a directory of its own"
            )
        lock = (directory / ".lock").open("a")
    except OSError as error:
        raise OutputError(f"cannot write a journal in {directory}: {error.strerror or error}") from error
    try:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise OutputError(f"another process is at work on the sweep in {directory.parent}") from error
    return lock


def count_parts(directory: Path) -> int:
    """How many parts of an unfinished sweep are there."""
    if not is_unfinished(directory):
        return 0
    return sum(re.fullmatch(PART, path.name) is not None for path in listing(directory, OutputError))


def is_unfinished(directory: Path) -> bool:
    """Whether a directory holds the journal of a sweep. Raises `OutputError` if it may not be read."""
    return is_there(directory / FACTS, OutputError)


def discard_journal(directory: Path) -> None:
    """Remove a journal, if there is one, and nothing else.

    Raises:
        OutputError: it cannot be removed.
    """
    if is_directory(directory, OutputError):
        _remove(directory, (re.escape(FACTS), PART, TEMPORARY, LOCK))
        with contextlib.suppress(OSError):
            directory.rmdir()  # unless something of the user's is in it


def _remove(directory: Path, patterns: tuple[str, ...]) -> None:
    """Remove files whose whole names match; those of the first pattern first: parts without facts are not a journal."""
    try:
        names = [path.name for path in directory.iterdir()]
        for pattern in patterns:
            for name in names:
                if re.fullmatch(pattern, name):
                    (directory / name).unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"cannot remove what is in {directory}: {error.strerror or error}") from error


def _read(path: Path) -> dict[str, dict]:
    """What `journal.json` says. Its own digest reveals damage, so that no damaged size is used."""
    advice = "--overwrite discards what was finished"
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
    """Settings as texts: `default` for None.

    >>> describe_settings({"limit": None, "seed": 3})
    {'limit': 'default', 'seed': '3'}
    """
    return {name: "default" if value is None else str(value) for name, value in settings.items()}


def find_differences(recorded: Mapping[str, str], current: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Name, there, here, of all that is not the same."""
    pairs = [(name, recorded.get(name, "none"), current.get(name, "none")) for name in {**recorded, **current}]
    return [pair for pair in pairs if pair[1] != pair[2]]


def list_differences(chosen: Sequence[tuple[str, str, str]], differing: Sequence[tuple[str, str, str]]) -> str:
    """What the user chose otherwise, then the facts that differ: where a choice explains a digest, by name alone."""
    descriptions = [f"{name} ({recorded} there, {current} here)" for name, recorded, current in chosen]
    for name, recorded, current in differing:
        if (name, recorded, current) in chosen:  # a setting that is a fact as well
            continue
        hidden = bool(chosen) and re.search(DIGEST, f"{recorded} {current}") is not None
        descriptions.append(name if hidden else f"{name} ({recorded} there, {current} here)")
    return "; ".join(descriptions)


def model_facts(model: PretrainedModel) -> dict[str, str]:
    """What a model's outputs depend on besides its parameters: class, options, config and precision."""
    return {
        "model": f"{model.class_name} {_options(model)}".strip(),
        "config": _digest(repr(model.config.to_dict())),
        "precision": f"{model.numerics.dtype}, {model.numerics.precision}",
    }


def facts_of(sweep_input: SweepInput, shard: str | None = None) -> dict[str, str]:
    """All that a sweep's outputs depend on, by names that tell a user what differs.

    Args:
        shard: the shard that the journal is of, such as '3/16'; None for the whole sweep.

    Raises:
        InputError: the readout or the combination is something that cannot be distinguished from another.
    """
    model, plan, means = sweep_input.model, sweep_input.plan, sweep_input.means
    parameters = {name: np.asarray(value) for name, value in model.parameters().items()}
    # What sets are called changes no output.
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
        "readout": _describe(sweep_input.readout),
        **({} if sweep_input.targets is None else {"targets": _digest(repr(_content(sweep_input.targets, "", [])))}),
        **({} if sweep_input.spans is None else {"spans": _digest(repr([*map(_listed, sweep_input.spans)]))}),
        "positions": "all" if sweep_input.positions is None else _digest(repr(sweep_input.positions.tolist())),
        "combination": _describe(sweep_input.combine),
        "attention": sweep_input.attention,
        "device": jax.devices()[0].device_kind,
        **({} if shard is None else {"shard": shard}),
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
