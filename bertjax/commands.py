"""The functions that run the commands; each returns the exit code."""

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bertjax.arguments import plain_head_name
from bertjax.console import say
from bertjax.errors import (
    EXIT_FAILED,
    BertjaxError,
    InputError,
    OutputError,
)
from bertjax.formatting import count_of, to_json
from bertjax.programs import end_at_once
from bertjax.progress import ProgressBar

if TYPE_CHECKING:
    from bertjax.explorer import Subject
    from bertjax.jobs import Analysis, Settings
    from bertjax.study import Study


T = TypeVar("T")


def run_analysis(options: argparse.Namespace) -> int:
    """The commands of analyses: `bertjax ablate` and its siblings."""
    from bertjax.analyses import ANALYSES
    from bertjax.jobs import run_analysis

    _choose_cache(options)
    name = options.command.replace("-", "_")
    analysis = _patches_of(options) if name == "patch" else _options(ANALYSES[name], options)
    settings = _study(options).settings(analysis)
    if analysis.resume:
        _say_if_nothing_to_resume(settings)
    with ProgressBar(analysis.progress_text) as advance:
        statistics_progress = partial(advance, note="statistics")
        results = run_analysis(settings, say=say, progress=advance, statistics_progress=statistics_progress)
    directory = results.directory
    if "shard" in results.summary:
        say(f"{results.summary['sentence']}; this one is in {directory}")
        return 0
    assert directory is not None
    for part in analysis.show(results):
        say(part, wrap=True)
    say(f"results in {directory}, picture in {directory / results.picture}")
    say(f"a page to look at: bertjax report {shlex.quote(str(directory))}")
    return 0


def run_plan(options: argparse.Namespace) -> int:
    """`bertjax plan`."""
    from bertjax.analyses import Ablate, plan_table

    _choose_cache(options)
    analysis = _options(Ablate, options)
    say(plan_table(analysis.estimate(_study(options).settings(analysis))), wrap=True)
    return 0


def run_explore(options: argparse.Namespace) -> int:
    """`bertjax explore`."""
    from bertjax.study import require_explorer

    require_explorer()
    from bertjax.explorer import Explorer

    _choose_cache(options)
    subject = _subject(options)
    try:
        explorer = Explorer(subject, options.host, options.port)
        say(f"explorer of {explorer.name}; Ctrl-C ends it")
        say(f"open {explorer.url}")
        sys.stdout.flush()  # also if another program reads the address
        if options.browser:
            explorer.open()
        explorer.wait()
    except KeyboardInterrupt:
        end_at_once("bertjax")  # Python would wait for a program that is being compiled
    raise OutputError("the explorer's server has ended")


def _subject(options: argparse.Namespace) -> "Subject":
    """What `bertjax explore` shows: a model by itself, or with the examples of a task."""
    from bertjax.checkpoints import DEFAULT_MODEL
    from bertjax.explorer import subject_of_model
    from bertjax.models import load

    has_task = bool(options.task) or options.data is not None
    alone = not has_task and options.prompts is None and options.max_length is None and options.readout == "auto"
    if alone and options.model != DEFAULT_MODEL:
        return subject_of_model(load(options.model), f"bertjax.load({options.model!r})")
    return _study(options).explorer_subject()


def run_merge(options: argparse.Namespace) -> int:
    """`bertjax merge`."""
    from bertjax.analyses import merge

    _choose_cache(options)
    choices: dict[str, Any] = {"output": options.output, "metric": options.metric, "overwrite": options.overwrite}
    results = merge(options.directories, **choices, say=say)
    say(results.sentence, wrap=True)
    say(f"results in {results.directory}, picture in {Path(options.output) / results.picture}")
    return 0


def _say_if_nothing_to_resume(settings: "Settings") -> None:
    from bertjax.engine import is_unfinished

    if not is_unfinished(settings.directory / "journal") and not (settings.directory / "summary.json").exists():
        say(f"nothing to resume in {settings.directory}: starting from the beginning")


def _patches_of(options: argparse.Namespace) -> "Analysis":
    """The patches of the options: a grid, or paths."""
    from bertjax.analyses import Patch, PatchPaths, contrasts_of_template, parse_receivers

    columns = {name: getattr(options, name) for name in ("good", "bad", "second")}
    rows = contrasts_of_template(options.template, options.words, columns)
    if options.contrasts is not None and rows is not None:
        raise InputError("give a file (--data) or a template with words, not both")
    options.contrasts = options.contrasts if rows is None else rows
    if not options.receivers:
        if options.freeze_feed_forward:
            raise InputError("--freeze-feed-forward is of paths: give --paths-to, or leave it out")
        return _options(Patch, options)
    if (tuple(options.sites), options.spans) != (Patch.sites, Patch.spans):
        raise InputError("--sites and --spans are of grids: leave them out with --paths-to")
    if options.memory is not None or options.attention != "auto":
        raise InputError("--memory and --attention are of grids: leave them out with --paths-to")
    options.receivers = parse_receivers(options.receivers)
    return _options(PatchPaths, options)


def run_remove_heads(options: argparse.Namespace) -> int:
    """`bertjax remove-heads`."""
    from bertjax.checkpoints import DEFAULT_MODEL
    from bertjax.jobs import heads_gone_in, save_without_heads
    from bertjax.results import read_results

    if (options.heads is None) == (options.results is None) or (options.results is None) != (options.run_name is None):
        raise InputError("give either --heads, or --from DIR and --run NAME")
    results = None if options.results is None else read_results(options.results)
    with _fitting(options.results):
        heads = options.heads if results is None else heads_gone_in(results, options.run_name)
    model = options.model or (DEFAULT_MODEL if results is None else results.summary["model"]["name"])
    directory = save_without_heads(
        model,
        heads,
        options.output,
        smaller=options.smaller,
        overwrite=options.overwrite,
        results=results,
    )
    say(f"{model} without {count_of(len({*map(plain_head_name, heads)}), 'head')} in {directory}")
    return 0


def _choose_cache(options: argparse.Namespace) -> None:
    from bertjax.machine import use_compile_cache

    if not options.no_compile_cache:
        use_compile_cache()


def _study(options: argparse.Namespace) -> "Study":
    """The `Study` of a command's options."""
    from bertjax.study import Study, StudyOptions

    return Study(**vars(_options(StudyOptions, options)))


def _options(cls: Callable[..., T], options: argparse.Namespace) -> T:
    """The options of a class among those of a command."""
    from bertjax.jobs import names

    known: Any = cls
    return cls(**{name: value for name, value in vars(options).items() if name in names(known)})


def run_parity(options: argparse.Namespace) -> int:
    """`bertjax parity`."""
    import jax

    if options.precision == "float64":
        jax.config.update("jax_enable_x64", True)
    from bertjax.jobs import check_model, parity_table

    with ProgressBar("comparing") as advance:
        rows = check_model(options.model, options.precision, options.examples, advance)
    say(parity_table(rows), wrap=True)
    failed = [row.component for row in rows if not row.passed]
    say(f"{len(failed)} of {len(rows)} components differ too much" if failed else f"all {len(rows)} components agree")
    return EXIT_FAILED if failed else 0


@contextmanager
def _fitting(source: str | None) -> Iterator[None]:
    """Convert exceptions caused by inconsistent results into an `InputError`.

    Args:
        source: the directory of the results.
    """
    try:
        yield
    except BertjaxError:
        raise
    except (LookupError, TypeError, ValueError) as problem:
        what = "entries of these results contradict each other; run the ablation again"
        raise InputError(f"{source}: {what} ({type(problem).__name__}: {problem})") from problem


def run_show(options: argparse.Namespace) -> int:
    """`bertjax show`."""
    from bertjax.results import read_results, show_table, show_text

    saved, chosen = read_results(options.directory), (options.metric, options.top)
    with _fitting(options.directory):
        shown = show_table(saved, *chosen) if options.format == "table" else show_text(saved, options.format, *chosen)
    if isinstance(shown, str):
        print(shown, end="")
    else:
        say(shown, wrap=True)
    return 0


def run_compare(options: argparse.Namespace) -> int:
    """`bertjax compare`."""
    from bertjax.formatting import finite
    from bertjax.results import compare_data, compare_table, read_results

    several = [read_results(directory) for directory in options.directories]
    with _fitting(", ".join(options.directories)):
        if options.format == "json":
            compared: Any = to_json(finite(compare_data(several, options.metric)), indent=1)
        else:
            compared = compare_table(several, options.metric)
    if options.format == "json":
        print(compared)
    else:
        say(compared, wrap=True)
    return 0


def run_plot(options: argparse.Namespace) -> int:
    """`bertjax plot`."""
    from bertjax.paths import user_path
    from bertjax.plots import save_page
    from bertjax.results import check_replaceable, make_figure, read_results

    check_replaceable(user_path(options.output, OutputError))
    saved = read_results(options.directory)
    with _fitting(options.directory):
        figure = make_figure(
            saved,
            options.figure,
            metric=options.metric,
            head=options.head,
            example=options.example,
            text=options.text,
            run=options.run_name,
        )
    save_page(figure, options.output)
    say(f"picture in {options.output}")
    return 0


def run_report(options: argparse.Namespace) -> int:
    """`bertjax report`."""
    from bertjax.results import read_results, write_page

    saved = read_results(options.directory)
    with _fitting(options.directory):
        path = write_page(saved, options.output)
    say(f"open {path.absolute().as_uri()}")
    return 0


def run_prepare(options: argparse.Namespace) -> int:
    """`bertjax data prepare`."""
    from bertjax.data import prepare

    for row in prepare(options.source, options.data_dir, options.tasks, overwrite=options.overwrite):
        say(f"{row.task} {row.split}: {count_of(row.rows, 'row')}{row.note and f' ({row.note})'}")
    return 0
