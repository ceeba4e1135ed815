"""Default directories of results: each job has its own directory, and the same job has the same one.

`check_output` checks a directory before anything is loaded.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from bertjax.engine import discard_journal, is_unfinished
from bertjax.errors import BertjaxError, OutputError
from bertjax.json_files import read_json
from bertjax.paths import refuse_inputs_in, user_path
from bertjax.results import check_directory, read_recorded

# Options that a name contains as words; a hash of other options that are not the defaults follows.
IN_WORDS = ("task", "split", "mode", "limit", "seed", "engine", "precision", "readout", "metric")
LONGEST = 30  # bytes of a word; names of files have at most 255
DIGITS = 6


def name_directory(chosen: Mapping[str, Any], defaults: Mapping[str, Any], word: str = "") -> str:
    """A name for the results of a job.

    Args:
        chosen: the settings that results depend on, with digests of files.
        defaults: the defaults of these settings.
        word: the word for the analysis.

    >>> defaults = {"task": "qnli-sample", "mode": "uniform", "ablate": "heads", "limit": None, "model": "a/b"}
    >>> name_directory(defaults, defaults)
    'bertjax-qnli-sample-uniform-heads'
    >>> name_directory({**defaults, "mode": "zero", "limit": 100}, defaults)
    'bertjax-qnli-sample-zero-heads-100-examples'
    >>> name_directory({**defaults, "model": "models/tuned", "task": "mrpc"}, defaults)
    'bertjax-tuned-mrpc-uniform-heads-909904'
    """
    changed = {name: value for name, value in chosen.items() if value != defaults.get(name)}
    data = changed.get("data") or changed.get("contrasts") or ""
    words = [_last(changed.get("model", "")), str(chosen.get("task", "")), _last(data), changed.get("split", "")]
    words += [str(chosen.get("mode", "")), _last(chosen.get("ablate", "")), word]
    words += [f"{changed['limit']}-examples"] if "limit" in changed else []
    words += [f"seed-{changed['seed']}"] if "seed" in changed else []
    words += [str(changed.get(name, "")) for name in ("engine", "precision", "readout", "metric")]
    # A file of sets is identified by its hash, not by its path.
    more = {name: value for name, value in changed.items() if name not in (*IN_WORDS, "ablate")}
    if more:
        words.append(hashlib.sha256(json.dumps(more, sort_keys=True).encode()).hexdigest()[:DIGITS])
    return "-".join(["bertjax", *filter(None, map(_word, words))])


def _last(name: str) -> str:
    """The last part of a path, hub id or package name, without the suffix of a file."""
    last = re.split(r"[/\\:]", name.rstrip("/\\"))[-1]
    return re.sub(r"(\.gz|\.tsv|\.csv|\.jsonl|\.parquet|\.txt)+$", "", last)


def _word(text: str) -> str:
    """Convert a text to a part of a file name that is valid on all systems."""
    kept = re.sub(r"[^\w.]+", "-", text).strip("-.")
    return kept.encode()[:LONGEST].decode(errors="ignore")


def check_output(directory: Path, journals: str | None, overwrite: bool, inputs: Iterable[str | Path]) -> None:
    """Check that an analysis can write its results, before anything is computed.

    Args:
        journals: the pattern of the names of the analysis's journals; None if it keeps none.
        overwrite: replace existing results, and discard unfinished runs.
        inputs: files and directories that the analysis reads.

    Raises:
        OutputError: the directory contains an input, files that bertjax did not write, results, or an unfinished run
            of another analysis; or it cannot be written.
    """
    refuse_inputs_in(directory, [path for checkpoint in inputs for path in (checkpoint, *_adapter_base(checkpoint))])
    begun = {path.name for path in directory.glob("*") if is_unfinished(path) and _is_journal(path)}
    matching = {name for name in begun if journals is not None and fnmatch(name, journals)}
    if begun - matching and not overwrite:
        raise OutputError(
            f"{directory} already has an unfinished run of another analysis: give another --output, finish that run, "
            "or --overwrite to discard it"
        )
    check_directory(directory, overwrite or bool(matching))


def discard_journals(directory: Path) -> None:
    """Remove all journals of a directory, once its results are written."""
    for path in sorted(directory.glob("*")):
        if _is_journal(path):
            discard_journal(path)


def is_begun(directory: Path, pattern: str) -> bool:
    """Whether a directory holds a journal whose name matches a pattern."""
    return any(is_unfinished(path) and _is_journal(path) for path in directory.glob(pattern))


def _is_journal(path: Path) -> bool:
    return read_recorded(path / "journal.json") is not None


def _adapter_base(directory_name: str | Path) -> list[str]:
    """The base checkpoint of an adapter, if `directory_name` is the directory of one."""
    with suppress(BertjaxError):  # a damaged adapter is an error where it is loaded
        directory = user_path(directory_name, OutputError)
        base = read_json(directory / "adapter_config.json").get("base_model_name_or_path")
        return [base, str(directory / base)] if isinstance(base, str) and base else []
    return []
