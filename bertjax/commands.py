"""What the commands do once their options are read; each returns the exit code."""

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
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
from bertjax.progress import ProgressBar

if TYPE_CHECKING:
    from bertjax.results import Results
    from bertjax.study import Settings


T = TypeVar("T")
SHOWN_EFFECTS = 20  # at the end of a command


def run_ablate(options: argparse.Namespace) -> int:
    """`bertjax ablate`."""
    from bertjax.study import check_settings, run_job

    _choose_cache(options)
    settings = _settings(options)
    check_settings(settings)
    if settings.resume:
        _say_if_nothing_to_resume(settings)
    results = _with_bar("ablating", partial(run_job, settings))
    if _is_shard(results):
        return 0
    _show_scores(results.summary)
    say(results.sentence, wrap=True)
    say(f"results in {settings.directory}, picture in {settings.directory / results.picture}")
    say(f"a page to look at: bertjax report {shlex.quote(str(settings.directory))}")
    return 0


def _is_shard(results: "Results") -> bool:
    """Whether results are those of a shard; if so, say what follows."""
    if "shard" in results.summary:
        say(f"{results.summary['sentence']}; this one is in {results.directory}")
    return "shard" in results.summary


def run_merge(options: argparse.Namespace) -> int:
    """`bertjax merge`."""
    from bertjax.study import run_merge

    _choose_cache(options)
    run = partial(run_merge, options.directories, options.output, options.metric, options.overwrite)
    results = _with_bar("merging", run)
    say(results.sentence, wrap=True)
    say(f"results in {results.directory}, picture in {Path(options.output) / results.picture}")
    return 0


def _say_if_nothing_to_resume(settings: "Settings") -> None:
    from bertjax.engine import is_unfinished

    if not is_unfinished(settings.journal) and not (settings.directory / "summary.json").exists():
        say(f"nothing to resume in {settings.directory}: from the beginning")


def run_plan(options: argparse.Namespace) -> int:
    """`bertjax plan`."""
    from bertjax.study import estimate_job, plan_table

    _choose_cache(options)
    say(plan_table(estimate_job(_settings(options))), wrap=True)
    return 0


def run_importance(options: argparse.Namespace) -> int:
    """`bertjax importance`."""
    from bertjax.results import read_results
    from bertjax.study import importance_table, run_importance, trust_in, trust_table

    _choose_cache(options)
    exact = None if options.against is None else read_results(options.against)
    settings = _settings_ending_in(options, "importance")
    results = _with_bar("gradients", partial(run_importance, settings, options.steps, against=exact))
    say(importance_table(results), wrap=True)
    if exact is not None:
        say(trust_table(trust_in(results, exact), exact), wrap=True)
    say(f"results in {settings.directory}, picture in {settings.directory / results.picture}")
    return 0


def run_interactions(options: argparse.Namespace) -> int:
    """`bertjax interactions`."""
    from bertjax.study import run_interactions

    _choose_cache(options)
    settings = _settings_ending_in(options, "interactions")
    results = _with_bar("ablating", partial(run_interactions, settings))
    if not _is_shard(results):
        _show_effects(settings, results)
    return 0


def run_roles(options: argparse.Namespace) -> int:
    """`bertjax roles`."""
    from bertjax.study import kinds_lines, roles_table, run_roles

    _choose_cache(options)
    settings = _settings_ending_in(options, "roles")
    results = _with_bar("reading", partial(run_roles, settings))
    say(roles_table(results), wrap=True)
    for line in kinds_lines(results):
        say(line, wrap=True)
    say(f"results in {settings.directory}, picture in {settings.directory / results.picture}")
    return 0


def run_patch(options: argparse.Namespace) -> int:
    """`bertjax patch`."""
    from bertjax.study import contrasts_of_template, patching_table

    _choose_cache(options)
    columns = {name: getattr(options, name) for name in ("good", "bad", "second")}
    rows = contrasts_of_template(options.template, options.words, columns)
    if options.contrasts is not None and rows is not None:
        raise InputError("give a file (--data) or a template with words, not both")
    settings, run = _settings(options), _patches_of(options)
    results = _with_bar("patching", partial(run, replace(settings, data=options.contrasts), contrasts=rows))
    say(patching_table(results), wrap=True)
    assert results.directory is not None
    say(f"results in {results.directory}, picture in {results.directory / results.picture}")
    say(f"a page to look at: bertjax report {shlex.quote(str(results.directory))}")
    return 0


def _patches_of(options: argparse.Namespace) -> Callable[..., "Results"]:
    """What runs the patches of the options: a grid, or paths."""
    from bertjax.study import PatchOptions, PathsOptions, parse_receivers, run_patching, run_paths

    if not options.receivers:
        if options.freeze_feed_forward:
            raise InputError("--freeze-feed-forward is of paths: give --paths-to, or leave it out")
        return partial(run_patching, grid=_options(PatchOptions, options))
    usual = PatchOptions()
    if (tuple(options.places), options.spans) != (usual.places, usual.spans):
        raise InputError("--places and --spans are of grids: leave them out with --paths-to")
    options.receivers = parse_receivers(options.receivers)
    return partial(run_paths, paths=_options(PathsOptions, options))


def run_shapley(options: argparse.Namespace) -> int:
    """`bertjax shapley`."""
    from bertjax.study import ShapleyOptions, run_shapley, shapley_line

    _choose_cache(options)
    settings = _settings_ending_in(options, "shapley")
    results = _with_bar("ablating", partial(run_shapley, settings, _options(ShapleyOptions, options)))
    _show_effects(settings, results)
    say(shapley_line(results), wrap=True)
    return 0


def run_prune(options: argparse.Namespace) -> int:
    """`bertjax prune`."""
    from bertjax.study import PruneOptions, gates_table, pruning_table, run_pruning

    _choose_cache(options)
    settings = _settings_ending_in(options, "pruning")
    results = _with_bar("pruning", partial(run_pruning, settings, _options(PruneOptions, options)))
    say(pruning_table(results), wrap=True)
    if "gates" in results.summary["pruning"] and results.summary["pruning"]["orders"]:
        say(gates_table(results), wrap=True)
    say(f"results in {settings.directory}, picture in {settings.directory / results.picture}")
    return 0


def run_remove_heads(options: argparse.Namespace) -> int:
    """`bertjax remove-heads`."""
    from bertjax.checkpoints import DEFAULT_MODEL
    from bertjax.results import read_results
    from bertjax.study import heads_gone_in, save_without_heads

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


def _with_bar(text: str, run: Callable[..., T]) -> T:
    """Run a job that says its lines, and has a bar for its work and then for the statistics."""
    with ProgressBar(text) as advance:
        return run(say=say, progress=advance, weighing=partial(advance, note="weighing"))


def _settings_ending_in(options: argparse.Namespace, ending: str) -> "Settings":
    """The `Settings` of the options, whose directory ends in a word of the command's own unless it was given."""
    settings = _settings(options)
    return replace(settings, output=settings.output or f"{settings.directory}-{ending}")


def _show_effects(settings: "Settings", results: "Results") -> None:
    """Print the largest effects, and where all of them are."""
    from bertjax.results import show_table

    say(show_table(results, top=SHOWN_EFFECTS), wrap=True)
    say(f"results in {settings.directory}, picture in {settings.directory / results.picture}")
    say(f"a page to look at: bertjax report {shlex.quote(str(settings.directory))}")


def _choose_cache(options: argparse.Namespace) -> None:
    from bertjax.machine import use_compile_cache

    if not options.no_compile_cache:
        use_compile_cache()


def _settings(options: argparse.Namespace) -> "Settings":
    """The `Settings` of a command's options."""
    from bertjax.study import DEFAULTS, Settings

    fixed: dict[str, Any] = {"ablate": "pairs"} if options.command == "interactions" else {}
    return Settings(**{name: value for name, value in vars(options).items() if name in DEFAULTS}, **fixed)


def _options(cls: Callable[..., T], options: argparse.Namespace) -> T:
    """The options of an analysis among those of a command."""
    from bertjax.study import names

    known: Any = cls
    return cls(**{name: value for name, value in vars(options).items() if name in names(known)})


def _show_scores(summary: Mapping[str, Any]) -> None:
    from bertjax.results import ablation_table, measure_of

    measure = measure_of(summary, summary["metric"]["name"])
    say(ablation_table(summary["ablations"], summary["base"]["score"], measure), wrap=True)


def run_parity(options: argparse.Namespace) -> int:
    """`bertjax parity`."""
    import jax

    if options.precision == "float64":
        jax.config.update("jax_enable_x64", True)
    from bertjax.study import check_model, parity_table

    with ProgressBar("comparing") as advance:
        rows = check_model(options.model, options.precision, options.examples, advance)
    say(parity_table(rows), wrap=True)
    failed = [row.component for row in rows if not row.passed]
    say(f"{len(failed)} of {len(rows)} components differ too much" if failed else f"all {len(rows)} components agree")
    return EXIT_FAILED if failed else 0


@contextmanager
def _fitting(source: str | None) -> Iterator[None]:
    """Turn what is raised by entries of results that contradict each other into an `InputError`.

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
