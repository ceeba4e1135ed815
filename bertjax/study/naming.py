"""Where results go by default: different jobs into different directories, and the same job into its own again."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

# What a name says in words; all other choices that are not the defaults make a few digits at its end.
IN_WORDS = ("task", "split", "mode", "limit", "seed", "engine", "precision", "readout", "metric")
LONGEST = 30  # bytes of a word: together they stay far below the 255 of a file's name
DIGITS = 6


def name_directory(chosen: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """A name for the results of a job.

    Args:
        chosen: the job's settings that results depend on, by name; files' contents by digests of their own.
        defaults: of these settings.

    >>> defaults = {"task": "qnli-sample", "mode": "uniform", "ablate": "heads", "limit": None, "model": "a/b"}
    >>> name_directory(defaults, defaults)
    'bertjax-qnli-sample-uniform-heads'
    >>> name_directory({**defaults, "mode": "zero", "limit": 100}, defaults)
    'bertjax-qnli-sample-zero-heads-100-examples'
    >>> name_directory({**defaults, "model": "models/tuned", "task": "mrpc"}, defaults)
    'bertjax-tuned-mrpc-uniform-heads-909904'
    """
    own = {name: value for name, value in chosen.items() if value != defaults.get(name)}
    words = [_last(own.get("model", "")), str(chosen["task"]), _last(own.get("data") or ""), own.get("split", "")]
    words += [str(chosen["mode"]), _last(chosen["ablate"])]
    words += [f"{own['limit']}-examples" if "limit" in own else "", f"seed-{own['seed']}" if "seed" in own else ""]
    words += [str(own.get(name, "")) for name in ("engine", "precision", "readout", "metric")]
    # A file of sets is the same under another name, and so are its sets.
    more = {name: value for name, value in own.items() if name not in (*IN_WORDS, "ablate")}
    if more:
        words.append(hashlib.sha256(json.dumps(more, sort_keys=True).encode()).hexdigest()[:DIGITS])
    return "-".join(["bertjax", *filter(None, map(_word, words))])


def _last(name: str) -> str:
    """The last part of a path, hub id or package's name, without the suffix of a file."""
    last = re.split(r"[/\\:]", name.rstrip("/\\"))[-1]
    return re.sub(r"(\.gz|\.tsv|\.csv|\.jsonl|\.parquet|\.txt)+$", "", last)


def _word(text: str) -> str:
    """A text as a part of a file's name on any system."""
    kept = re.sub(r"[^\w.]+", "-", text).strip("-.")
    return kept.encode()[:LONGEST].decode(errors="ignore")
