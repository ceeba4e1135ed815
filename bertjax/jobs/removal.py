"""A checkpoint without some heads: `bertjax remove-heads`."""

from collections.abc import Sequence
from pathlib import Path

from bertjax.checkpoints import MODEL, MODEL_FILES, TOKENIZER, TOKENIZER_FILES, check_saving, locate
from bertjax.data import Tokenizer
from bertjax.errors import InputError, OutputError
from bertjax.formatting import plain_name
from bertjax.interventions import Head, parse_head, remove_heads
from bertjax.jobs.job import hash_files
from bertjax.models import load
from bertjax.paths import is_there, refuse_inputs_in, user_path
from bertjax.results import Results


def heads_gone_in(results: Results, run: str) -> tuple[str, ...]:
    """The heads that are set to zero in a run of saved results.

    Args:
        results: saved results of pruning.
        run: the name of the run, such as 'greedy 36'.

    Raises:
        InputError: there is no such run, or its mode is not 'zero'.
    """
    rows = {row.name: row for row in results.rows_of()}
    run = run if run in rows else plain_name(run)
    if run not in rows:
        raise InputError(f"{results.source} has no run {run!r}: bertjax show {results.source} lists them")
    if "sets_sha256" in results.summary["settings"]:
        raise InputError(f"{results.source} has sets from a file, which may have any mode: give their heads by --heads")
    if results.summary["mode"]["name"] != "zero" or any("=" in head for head in rows[run].heads):
        mode = results.summary["mode"]["name"]
        raise InputError(
            f"{results.source} replaces heads by mode {mode!r}: only mode 'zero' can be applied to weights"
        )
    return tuple(rows[run].heads)


def save_without_heads(
    model: str | Path,
    heads: Sequence[Head],
    output: str | Path,
    *,
    smaller: bool = False,
    overwrite: bool = False,
    results: Results | None = None,
) -> Path:
    """Write a checkpoint without some heads, and its tokenizer.

    Args:
        model: a directory, hub id or 'package:NAME'.
        heads: the heads to remove, such as ["3.0", "2.7"].
        output: the directory of the new checkpoint.
        smaller: leave the weights out: a smaller checkpoint, readable only by bertjax. False sets them to zero, in a
            checkpoint that transformers can read, too.
        overwrite: replace an existing checkpoint.
        results: the results that the heads come from, which must be those of this model.

    Raises:
        OutputError: the directory has a checkpoint or other files, or cannot be written.
        BertjaxError: an error in model or heads.
    """
    directory, place = user_path(output, OutputError), locate(model)
    if directory.resolve() == place.resolve():
        raise OutputError(f"{directory} is the model itself: give another --output")
    refuse_inputs_in(directory, [model, *([] if results is None or results.directory is None else [results.directory])])
    check_saving(directory, MODEL, MODEL_FILES)
    check_saving(directory, TOKENIZER, TOKENIZER_FILES)
    if is_there(directory / "config.json", OutputError) and not overwrite:
        raise OutputError(f"{directory} already has a checkpoint: give another --output, or --overwrite to replace it")
    loaded = load(place)
    if results is not None and hash_files(loaded, place) != results.summary["model"]["weights_sha256"]:
        raise InputError(f"{results.source} is of another model than {model}: give one with --model")
    parsed = [parse_head(head, loaded.config) for head in heads]
    if not smaller:
        remove_heads(loaded, parsed)
    loaded.save_pretrained(directory, Tokenizer.from_pretrained(place), without=parsed if smaller else ())
    return directory
