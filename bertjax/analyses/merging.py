"""Merge the shards of a job: `bertjax merge`."""

from collections.abc import Iterable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from bertjax import arguments
from bertjax.analyses.ablate import Ablate
from bertjax.analyses.interactions import Interactions
from bertjax.analyses.restore import Restore
from bertjax.errors import InputError, OutputError
from bertjax.jobs import STUDY, Say, Settings, run_analysis
from bertjax.paths import user_path
from bertjax.progress import Progress, shown
from bertjax.results import Results, read_shards
from bertjax.statistics import METRICS
from bertjax.tasks import Chosen

SHARDED = {cls.name: cls for cls in (Ablate, Interactions, Restore)}


def merge(
    directories: Iterable[str | Path],
    *,
    output: str | Path,
    metric: Chosen | None = None,
    overwrite: bool = False,
    progress: Progress | bool = True,
    say: Say = lambda line: None,
) -> Results:
    """Merge all shards of a run, and write the results of a single run.

    Args:
        directories: the directories of all shards, in any order.
        output: the directory for the results.
        metric: the main metric; by default that of the shards. Required if the shards used a custom metric, because a
            shard cannot name code to run.
        overwrite: replace existing results.
        progress: shows or reports progress, as in `ablate`.
        say: called with a line at each step.

    Returns: the results, as `bertjax.read_results` returns them.

    Raises:
        InputError: a directory has no complete shard or one of another run, or shards are missing or repeated.
        BertjaxError: as in `ablate`.

    >>> bertjax.merge(["heads-1", "heads-2", "heads-3"], output="heads")  # doctest: +SKIP
    """
    names = arguments.check_sequence(directories, "directories", "a list of directories")
    paths = [user_path(directory, InputError) for directory in names]
    if user_path(output, OutputError).resolve() in [path.resolve() for path in paths]:
        raise OutputError(f"{output} is one of the shards: give another --output")
    shards = read_shards(paths)
    content = shards[0].content
    cls = SHARDED.get(content["analysis"]["name"])
    if cls is None:
        raise InputError(f"{shards[0].directory} is a shard of {content['analysis']['name']}, which has no shards")
    recorded = content["settings"]
    chosen: dict[str, Any] = {one.name: recorded[one.name] for one in fields(cls) if one.name in recorded}
    if metric is None and (content["own_metric"] or chosen["metric"] not in (None, *METRICS)):
        raise InputError(f"the shards used a custom metric ({chosen['metric']}): give it as --metric")
    chosen |= {"output": str(output), "overwrite": overwrite} | ({} if metric is None else {"metric": metric})
    study = {name: value for name, value in recorded.items() if name in STUDY}
    settings = Settings(**study, analysis=cls(**chosen))
    with shown(progress, "merging") as report:
        of_statistics = partial(report, note="statistics")
        return run_analysis(settings, say=say, progress=report, statistics_progress=of_statistics, shards=shards)
