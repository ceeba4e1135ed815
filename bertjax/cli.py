"""The `bertjax` command. A user mistake prints one line and exits with code 2, without a traceback."""

import argparse
import reprlib
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any, get_args, get_origin

from bertjax.arguments import LARGEST_INTEGER
from bertjax.commands import (
    run_analysis,
    run_compare,
    run_explore,
    run_merge,
    run_parity,
    run_plan,
    run_plot,
    run_prepare,
    run_remove_heads,
    run_report,
    run_show,
)
from bertjax.programs import Parser, guarded

__all__ = ["Parser", "guarded", "main", "positive"]

LONGEST_NUMBER = 100  # digits
# The same as `results.FIGURES`, whose import would delay every command.
FIGURES: tuple[str, ...] = ("auto", "map", "ranking", "layers", "pairs", "curves")
FIGURES += ("roles", "distances", "patches", "mix", "attention", "change")


# Help of the commands that run an analysis. `summary_of` gives the same text, but imports JAX.
ANALYSES = {
    "ablate": "ablate heads on a task, and test what each does",
    "plan": "estimate the cost of a sweep",
    "importance": "estimate by gradients what each head does",
    "interactions": "which heads matter together, pair by pair",
    "shapley": "what each head adds, over random orders of removal",
    "prune": "how many heads can go, and in which order",
    "roles": "what kind of head each is, by where it looks",
    "probe": "what each layer or head knows about the tags of words (linear probes)",
    "structure": "which layer has dependency trees in its geometry (structural probes)",
    "languages": "how far the sentence vectors of each layer depend on the language",
    "senses": "how far each layer separates the senses of a word (WiC)",
    "geometry": "how words lie in each layer: anisotropy, and similarities beyond it",
    "compare-layers": "how alike two layers are, or a layer in two checkpoints",
    "restore": "what the parameters that fine-tuning changed do, layer by layer",
    "probe-edges": "what each layer knows about the labels of spans and pairs of words (edge probes)",
    "patch": "where in text and model a contrast acts",
}
PLAN = (
    "What `bertjax ablate` with the same options would cost: work, memory and time on this device. The time does not "
    "include loading, compilation and statistics."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns: 0; 1 where a comparison failed; 2 for an error; 130 when interrupted.
    """
    return guarded("bertjax", lambda: _run(arguments), arguments)


def _run(arguments: Sequence[str] | None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    options = _parser(next((word for word in words if not word.startswith("-")), "")).parse_args(words)
    options.debug = "--debug" in words
    return int(options.run(options))


def _parser(command: str | None = None) -> Parser:
    """The parser of the command line.

    Args:
        command: the command whose options are needed; None for all. The options of analyses import JAX, which would
            delay the commands that read saved results.
    """
    from bertjax import __version__

    parser = Parser(
        prog="bertjax", description="BERT and its relatives in JAX/Flax, for people who study what attention heads do."
    )
    parser.add_argument("--version", action="version", version=f"bertjax {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for name, help in ANALYSES.items():
        _add_analysis(commands, name, help, command in (name, None))
    _add_explore(commands, command in ("explore", None))
    _add_remove_heads(commands)
    _add_saved(commands)
    _add_merge(commands)
    _add_parity(commands)
    _add_data(commands)
    return parser


def _add_command(
    commands: "argparse._SubParsersAction[Parser]", name: str, run: Callable[..., int], help: str, text: str
) -> Parser:
    """Add a command with its parser.

    Args:
        run: runs the command: takes the options and returns the exit code.
        help: the description in the list of commands.
        text: description above the options.
    """
    parser: Parser = commands.add_parser(name, help=help, description=text)
    parser.set_defaults(run=run)
    return parser


def _add_analysis(commands: "argparse._SubParsersAction[Parser]", name: str, help: str, with_options: bool) -> None:
    """Add the command of an analysis.

    Args:
        name: the name of the command; that of the method of `Study` has `_` in place of `-`.
        help: the description in the list of commands.
        with_options: whether to add the options, whose classes import JAX.
    """
    run = run_plan if name == "plan" else run_analysis
    parser = _add_command(commands, name, run, help, "")
    if not with_options:
        return
    from bertjax.analyses import ANALYSES, Ablate, PatchPaths
    from bertjax.jobs import ComputeOptions, DataOptions, ModelOptions, OutputOptions, TaskOptions, names, summary_of

    options = ANALYSES.get(name.replace("-", "_"), Ablate)
    parser.description = PLAN if name == "plan" else summary_of(options)[1]
    parser.epilog = f"example: {'bertjax plan --ablate pairs --limit 100' if name == 'plan' else options.example}"
    _add_options(parser, ModelOptions, options.reads)
    _add_options(parser, options, names(options) - names(OutputOptions), name)
    if name == "patch":
        _add_template(parser)
        _add_options(parser, PatchPaths, names(PatchPaths) - names(options), "paths")
    for part in (DataOptions, TaskOptions, ComputeOptions):
        _add_options(parser, part, options.reads)
    _add_options(parser, OutputOptions, names(OutputOptions))
    parser.add_argument("--no-compile-cache", action="store_true", help="do not cache compiled code")
    if "shard" not in names(options):
        parser.add_argument("--shard", action=_NoShards, nargs="?", help=argparse.SUPPRESS)


class _NoShards(argparse.Action):
    """An option that refuses to split an analysis into shards."""

    def __call__(self, parser: argparse.ArgumentParser, *arguments: Any) -> None:
        parser.error(
            "--shard splits the sweeps of ablate, interactions and restore only; this analysis cannot be sharded"
        )


def _add_template(parser: Parser) -> None:
    """Add options that define contrasts without a file."""
    add = parser.add_argument_group("in place of a file").add_argument
    add("--template", metavar="T", help="a text with {} where the words are exchanged")
    add("--words", nargs="+", metavar="CLEAN/CORRUPTED", help="for the template: pairs such as keys/key")
    add("--good", metavar="W", help="the word that fits the [MASK] of the clean text")
    add("--bad", metavar="W", help="the word that fits the [MASK] of the corrupted one")
    add("--second", metavar="T", help="the second text")


def _add_options(parser: Parser, options: Any, chosen: Set[str], title: str = "") -> None:
    """Add a group of options from the fields of a class.

    Args:
        options: the class.
        chosen: names of the fields to add, unless they are for Python only.
        title: title of the group; by default the summary of the class.
    """
    from bertjax.jobs import descriptions, in_order, kinds, summary_of

    found = [one for one in in_order(options) if one.name in chosen and one.metadata.get("on_command_line", True)]
    if not found:
        return
    group = parser.add_argument_group(title or summary_of(options)[0].lower())
    texts, types = descriptions(options), kinds(options)
    for one in found:
        default: Any = one.default
        flags = ["--" + one.name.replace("_", "-"), *filter(None, [one.metadata.get("flag")])]
        listed = isinstance(default, tuple)
        shown = " ".join(map(str, default)) if listed else str(default)
        unsaid = default in (None, False, "") or isinstance(default, Mapping)
        text = texts[one.name].partition(" In Python ")[0].replace("`", "").replace("%", "%%").removesuffix(".")
        help = text if unsaid else f"{text} (default {shown})"
        group.add_argument(*flags, dest=one.name, default=default, help=help, **_form(types[one.name], one.metadata))


def _form(kind: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `add_argument` for an option of a type."""
    from bertjax.jobs import base_of, choices_of

    base, notes = base_of(kind)
    if base is bool:
        return {"action": "store_true"}
    form: dict[str, Any] = {"metavar": metadata["metavar"]} if metadata.get("metavar") else {}
    choices = choices_of(kind)
    if choices is not None:
        return {"choices": choices}
    item = get_args(base)[0] if get_origin(base) is tuple else base
    if item is not base or (base is Any and ("=" in metadata["metavar"] or metadata["nargs"] == "*")):
        form["nargs"] = metadata["nargs"]
    if item is int:
        form = {"metavar": "N", **form, "type": partial(_number, least=notes[0])}
    if item is float:
        form["type"] = float
    return form


def _add_explore(commands: "argparse._SubParsersAction[Parser]", with_options: bool) -> None:
    """Add the command `explore`.

    Args:
        with_options: whether to add the options, whose classes import JAX.
    """
    text = (
        "Open a page in the browser that shows what each head does to the model's answer to a text: the exact change "
        "when each head is ablated, and attention. With --task, examples of the task can be chosen. The server is "
        "reachable from this machine only, unless --host says otherwise, and only with the token in the address that "
        "is printed. Ctrl-C ends it. Needs the extra `explore`."
    )
    parser = _add_command(commands, "explore", run_explore, "see what each head does, in the browser", text)
    if not with_options:
        return
    from bertjax.jobs import ComputeOptions, DataOptions, ModelOptions, names

    parser.epilog = "example: bertjax explore --model bert-base-uncased"
    for part in (ModelOptions, DataOptions, ComputeOptions):
        _add_options(parser, part, names(part) - {"attention", "memory"})
    add = parser.add_argument_group("server").add_argument
    add("--host", default="127.0.0.1", metavar="H", help="address to listen on (default 127.0.0.1)")
    add("--port", default=0, type=_port, metavar="N", help="port to listen on (default any free one)")
    add("--no-browser", dest="browser", action="store_false", help="do not open the page in a browser")
    add("--no-compile-cache", action="store_true", help="do not cache compiled code")


def _port(text: str) -> int:
    """A port, or 0 for any free one."""
    return 0 if text == "0" else _number(text, 1)


def _add_remove_heads(commands: "argparse._SubParsersAction[Parser]") -> None:
    text = (
        "Write a checkpoint in which some heads output exactly zero: the heads that are named, or the heads that a run "
        "of bertjax prune or ablate set to zero. Its shapes are unchanged, and transformers reads it. With --smaller "
        "the weights of these heads are left out: a smaller and faster checkpoint, readable only by bertjax."
    )
    parser = _add_command(commands, "remove-heads", run_remove_heads, "save a checkpoint without some heads", text)
    add = parser.add_argument
    text = "directory, hub id, or package:NAME (default that of the results)"
    add("--model", metavar="M", help=text)
    add("--heads", nargs="+", metavar="L.H", help="heads to remove")
    add("--from", dest="results", metavar="DIR", help="in place of --heads: results of bertjax prune or ablate")
    add("--run", dest="run_name", metavar="NAME", help="with --from: which run, such as 'greedy 36'")
    add(
        "--smaller",
        action="store_true",
        help="leave out the weights of the heads: smaller and faster, readable only by bertjax",
    )
    add("--output", required=True, metavar="DIR", help="directory of the checkpoint")
    add("--overwrite", action="store_true", help="replace the checkpoint in DIR")


def _add_saved(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the commands that read a directory of results, without the model."""

    command = partial(_add_command, commands)
    text = "Write an HTML file: effects of heads with intervals and tests, attention, and changes by example."
    report = command("report", run_report, "write an HTML report", text)
    report.add_argument("directory", metavar="DIR", help="results of bertjax ablate")
    report.add_argument("-o", "--output", metavar="FILE", help="(default DIR/report.html)")

    text = "Print all ablations sorted by effect, with intervals and tests, as a table, CSV, JSON or Markdown."
    show = command("show", run_show, "print the numbers of saved results", text)
    show.add_argument("directory", metavar="DIR", help="results of bertjax ablate")
    show.add_argument("--format", default="table", choices=["table", "csv", "json", "md"], help="(default table)")
    show.add_argument("--metric", metavar="M", help="(default the main one; for csv and json all)")
    show.add_argument("--top", type=positive, metavar="N", help="only the N largest effects")

    text = "Do several results agree on which heads matter? Rank correlation of effects and overlap of findings."
    compare = command("compare", run_compare, "compare several saved results", text)
    compare.add_argument("directories", nargs="+", metavar="DIR", help="results of bertjax ablate, two or more")
    compare.add_argument("--metric", metavar="M", help="(default each directory's main one)")
    compare.add_argument("--format", default="table", choices=["table", "json"], help="(default table)")

    text = (
        "Draw results: a map of heads, all effects with intervals, layers, pairs, pruning curves, roles, distances, "
        "patches, or the attention of a head."
    )
    plot = command("plot", run_plot, "draw a picture of saved results", text)
    plot.add_argument("directory", metavar="DIR", help="results of bertjax ablate")
    plot.add_argument("--figure", default="auto", choices=FIGURES)
    plot.add_argument("-o", "--output", required=True, metavar="FILE", help="ends in .png, .pdf or .svg")
    plot.add_argument("--metric", metavar="M", help="(default the main one)")
    plot.add_argument("--head", metavar="L.H", help="of 'attention' and 'change' (default the largest effect)")
    plot.add_argument("--example", metavar="ID", help="of 'attention' and 'change' (default the first kept one)")
    plot.add_argument("--text", type=int, metavar="N", help="of 'attention' and 'change': 2 for the second of a pair")
    plot.add_argument("--run", dest="run_name", metavar="NAME", help="of 'change': the ablation (default the largest)")


def _add_merge(commands: "argparse._SubParsersAction[Parser]") -> None:
    text = "Join the shards of a run (--shard), and write the results that a single run writes."
    merge = _add_command(commands, "merge", run_merge, "join the shards of a run", text)
    merge.add_argument("directories", nargs="+", metavar="DIR", help="all shards, in any order")
    merge.add_argument("--output", required=True, metavar="DIR", help="directory for the results")
    merge.add_argument("--metric", metavar="M", help="in place of the shards' main metric; needed for module:function")
    merge.add_argument("--overwrite", action="store_true", help="replace the results in DIR")
    merge.add_argument("--no-compile-cache", action="store_true", help="do not cache compiled code")


def _add_parity(commands: "argparse._SubParsersAction[Parser]") -> None:
    from bertjax.checkpoints import DEFAULT_MODEL

    text = "Compare a checkpoint with PyTorch, component by component; exit code 1 if any difference is too large."
    parser = _add_command(commands, "parity", run_parity, "compare with PyTorch", text)
    parser.add_argument("--model", default=DEFAULT_MODEL, metavar="M", help="directory, hub id, or package:NAME")
    parser.add_argument("--precision", default="float32", choices=["float32", "float64"], help="(default float32)")
    parser.add_argument("--examples", type=positive, default=8, metavar="N", help="real sentence pairs (default 8)")


def _add_data(commands: "argparse._SubParsersAction[Parser]") -> None:
    parser = commands.add_parser("data", help="prepare data sets", description="Prepare data sets.")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=Parser)
    text = "Build the TensorFlow Datasets copy of GLUE tasks from GLUE's own TSV files, without network."
    prepare = actions.add_parser("prepare", help="build a TFDS copy from local files", description=text)
    prepare.set_defaults(run=run_prepare)
    prepare.add_argument("--from", dest="source", required=True, metavar="GLUE_DIR", help="with MRPC/dev.tsv and so on")
    prepare.add_argument("--data-dir", metavar="DIR", help="TFDS directory (default TFDS's own)")
    prepare.add_argument("--tasks", nargs="+", metavar="T", help="only these tasks")
    prepare.add_argument("--overwrite", action="store_true", help="build again what is there")


def positive(text: str) -> int:
    """An integer of at least 1, as the type of an option."""
    return _number(text, 1)


def _number(text: str, least: int) -> int:
    if len(text) < LONGEST_NUMBER and text.isdecimal() and least <= int(text) <= LARGEST_INTEGER:
        return int(text)
    most = f" and at most {LARGEST_INTEGER}" * (text.isdecimal() and text.strip("0") != "")
    raise argparse.ArgumentTypeError(f"{reprlib.repr(text)} is not an integer of at least {least}{most}")


if __name__ == "__main__":
    sys.exit(main())
