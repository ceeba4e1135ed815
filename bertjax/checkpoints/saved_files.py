"""Saving into a directory: `bertjax.json` lists the files that bertjax wrote; only these are ever replaced.

    bertjax.json   {"files": {"model": ["config.json", "model.safetensors"], "tokenizer": [...]}}

The model and its tokenizer are two parts of one directory, saved in either order. Saving a part again removes its
earlier files that it no longer has, such as those of a sentence embedder.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from bertjax.atomic_files import remove_leftovers, write_json
from bertjax.errors import BertjaxError, OutputError, library_errors, some_of
from bertjax.json_files import read_json
from bertjax.paths import is_directory, is_there, listing

MANIFEST = "bertjax.json"
# The part that `save_pretrained` of a model writes.
MODEL = "model"
# The part that `save_pretrained` of a tokenizer writes.
TOKENIZER = "tokenizer"
# Files that every saved model has.
MODEL_FILES = ("config.json", "model.safetensors")
# Files of a saved tokenizer.
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
# Other files that loaders may read instead of those of a part.
_OTHERS = {
    MODEL: r"(tf_model|flax_model|pytorch_model|model)(-\d+-of-\d+)?\.(safetensors|bin|msgpack|h5)(\.index\.json)?",
    TOKENIZER: r"vocab\.(txt|json)|merges\.txt|.*\.model|special_tokens_map\.json|added_tokens\.json|tokenizer\.json",
}


def check_saving(directory: Path, part: str, names: Sequence[str]) -> dict[str, list[str]]:
    """Check that a part of a checkpoint may be saved in a directory.

    Args:
        directory: directory to save in; it need not exist.
        part: 'model' or 'tokenizer'.
        names: paths of its files, relative to the directory.

    Returns: the files of each part in the directory.

    Raises:
        OutputError: the directory is neither empty nor a checkpoint that bertjax saved, or holds other files that would
            be replaced, or read instead of the new ones.
    """
    found = listing(directory, OutputError) if is_directory(directory, OutputError) else []
    there = [path.name for path in found if not path.name.startswith(".")]
    parts = _read(directory)
    if parts is None:
        if there:
            raise OutputError(
                f"{directory} is not empty, and is not a checkpoint that bertjax saved ({some_of(there)}): use another "
                "directory, or move these files"
            )
        return {}
    known = {name for listed in parts.values() for name in listed}
    kinds = {_OTHERS[MODEL], _OTHERS.get(part, _OTHERS[MODEL])}
    others = [name for name in there if any(re.fullmatch(kind, name) for kind in kinds)]
    others += [name for name in names if name not in others and is_there(directory / name, OutputError)]
    foreign = [name for name in others if name not in known]
    if foreign:
        raise OutputError(
            f"{directory} has {some_of(foreign)}, which bertjax did not save: use another directory, or move it"
        )
    return parts


@contextlib.contextmanager
def saving(directory: Path, part: str, names: Sequence[str]) -> Iterator[None]:
    """Context in which the files of a part are written; they are listed first.

    Args:
        directory: the directory of the checkpoint.
        part: 'model' or 'tokenizer'.
        names: the names of the files of the part.

    Raises:
        OutputError: as `check_saving`, or the directory cannot be written.
    """
    existed = is_directory(directory, OutputError)
    if existed:
        remove_leftovers(directory, (MANIFEST, *(Path(name).name for name in names)))
    parts = check_saving(directory, part, names)
    before = parts.get(part, [])
    _write(directory, {**parts, part: [*dict.fromkeys((*before, *names))]})
    try:
        yield
    except BaseException:
        if not any(is_there(directory / name, OutputError) for name in names if name not in before):
            _restore(directory, parts, existed)
        raise
    for name in before:
        if name not in names:
            _remove(directory, directory / name)
    _write(directory, {**(_read(directory) or {}), part: [*names]})


def _read(directory: Path) -> dict[str, list[str]] | None:
    """The files of each part; None without a valid list."""
    try:
        files = read_json(directory / MANIFEST)["files"]
    except (BertjaxError, KeyError):
        return None
    listed = isinstance(files, dict) and all(isinstance(names, list) for names in files.values())
    return {part: [name for name in names if _is_inside(name)] for part, names in files.items()} if listed else None


def _is_inside(name: object) -> bool:
    """Whether a path is that of a file in the directory or in a module's subdirectory."""
    return isinstance(name, str) and re.fullmatch(r"(\d+_\w+/)?[\w.-]+", name) is not None and ".." not in name


def _write(directory: Path, parts: dict[str, list[str]]) -> None:
    write_json(directory / MANIFEST, {"files": parts})


def _restore(directory: Path, parts: dict[str, list[str]], existed: bool) -> None:
    """Undo the list of files if nothing was written."""
    with contextlib.suppress(OSError, OutputError):
        if parts:
            _write(directory, parts)
            return
        (directory / MANIFEST).unlink(missing_ok=True)
        if not existed:
            directory.rmdir()


def _remove(directory: Path, path: Path) -> None:
    with library_errors(f"cannot remove {path}", OutputError):
        path.unlink(missing_ok=True)
    if path.parent != directory:
        with contextlib.suppress(OSError):
            path.parent.rmdir()
