"""Tasks of GLUE by name: from a copy of TensorFlow Datasets, or from the Hugging Face hub with `datasets`."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, is_offline_mode

from bertjax.data import tfds_glue
from bertjax.data.examples import DatasetSpec, Examples
from bertjax.data.local_files import read_examples
from bertjax.data.memory import table_of
from bertjax.errors import DataError, MissingDependencyError, library_errors

REPOSITORY = "nyu-mll/glue"
TIMEOUT = 5.0  # seconds


def read_by_name(task: DatasetSpec, split: str, data_dir: str | Path | None) -> Examples:
    """Load examples of a task of GLUE, in their original order.

    They come from the copy of TensorFlow Datasets, or else from the hub or the cache of `datasets`.

    Args:
        task: a task of GLUE.
        split: the full name of the split, such as `validation` or `validation_matched`.
        data_dir: the directory of TensorFlow Datasets; then the hub is not used.

    Raises:
        DataError: the examples are not found, or cannot be read.
        MissingDependencyError: there is no copy, and `datasets` is not installed.
    """
    if data_dir is not None or tfds_glue.is_prepared(task):
        return tfds_glue.read(task, split, data_dir)
    try:
        import datasets
    except ImportError as error:
        raise MissingDependencyError(_three_ways(task, "pip install 'bertjax[datasets]', then no argument")) from error
    if not (is_offline_mode() or _is_reachable() or _is_cached(datasets, task)):
        raise DataError(_three_ways(task, "it cannot be reached: connect to a network"))
    with library_errors(_three_ways(task, f"it failed to load {REPOSITORY}"), DataError):
        found = datasets.load_dataset(REPOSITORY, task.config, split=split)
    table, _ = table_of(found, task, split)
    examples = read_examples(table, task, split)
    # On the hub, ids of MRPC run over all splits; only the index in the split is the same in all sources.
    ids = tuple(range(len(examples))) if task.name == "mrpc" else examples.ids
    return replace(examples, ids=ids, source=f"{REPOSITORY} {task.config} {split} of datasets ({len(examples)} rows)")


def _three_ways(task: DatasetSpec, hub: str) -> str:
    return (
        f"{task.name}: no copy found; three ways: GLUE's own files (data='GLUE_DIR', --data GLUE_DIR), a copy "
        "of TensorFlow Datasets (bertjax data prepare --from GLUE_DIR --data-dir DIR, then data_dir='DIR', --data-dir "
        f"DIR), or the Hugging Face hub through datasets: {hub}"
    )


def _is_reachable() -> bool:
    """Whether the hub answers. Without this, `load_dataset` would try for 23 seconds."""
    with suppress(Exception):
        HfApi().dataset_info(REPOSITORY, timeout=TIMEOUT)
        return True
    return False


def _is_cached(datasets: Any, task: DatasetSpec) -> bool:
    """Whether the cache of `datasets` contains the task."""
    cache = Path(datasets.config.HF_DATASETS_CACHE) / REPOSITORY.replace("/", "___") / task.config
    return any(cache.glob("*/*"))
