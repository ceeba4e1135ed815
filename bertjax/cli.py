"""The `bertjax` command. User mistakes end in one line and exit code 2, never in a traceback."""

import argparse
import reprlib
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, get_args, get_origin

from bertjax.arguments import LARGEST_INTEGER
from bertjax.commands import (
    run_ablate,
    run_compare,
    run_importance,
    run_interactions,
    run_merge,
    run_parity,
    run_patch,
    run_plan,
    run_plot,
    run_prepare,
    run_prune,
    run_remove_heads,
    run_report,
    run_roles,
    run_shapley,
    run_show,
)
from bertjax.programs import Parser, guarded

__all__ = ["Parser", "guarded", "main", "positive"]

LONGEST_NUMBER = 100  # digits
# Those of `results.FIGURES`, which importing would delay every command.
FIGURES: tuple[str, ...] = ("auto", "map", "ranking", "layers", "pairs", "curves")
FIGURES += ("roles", "distances", "patches", "attention", "change")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns: 0; 1 where a comparison failed; 2 for an error; 130 when interrupted.
    """
    return guarded("bertjax", lambda: _run(arguments), arguments)


def _run(arguments: Sequence[str] | None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = _parser(next((word for word in given if not word.startswith("-")), "")).parse_args(given)
    options.debug = "--debug" in given
    return int(options.run(options))


def _parser(command: str | None = None) -> Parser:
    """The parser of the command line.

    Args:
        command: the one whose options are needed, None for all. The options of a job name what only rooms with JAX
            know, and importing JAX would delay the commands that read saved results.
    """
    from bertjax import __version__

    parser = Parser(
        prog="bertjax", description="BERT and its relatives in JAX/Flax, for people who study what attention heads do."
    )
    parser.add_argument("--version", action="version", version=f"bertjax {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for analysis in ANALYSES:
        _add_analysis(commands, analysis, command in (analysis.name, None))
    _add_remove_heads(commands)
    _add_saved(commands)
    _add_merge(commands)
    _add_parity(commands)
    _add_data(commands)
    return parser


def _add_command(
    commands: "argparse._SubParsersAction[Parser]", name: str, run: Callable[..., int], help: str, text: str
) -> Parser:
    """A command of its own parser.

    Args:
        run: does what it is for; takes the options, and returns the exit code.
        help: in a list of commands.
        text: above its own options.
    """
    parser: Parser = commands.add_parser(name, help=help, description=text)
    parser.set_defaults(run=run)
    return parser


@dataclass(frozen=True)
class Analysis:
    """A command that runs an analysis.

    Args:
        name: of the command.
        run: does what it is for; takes the options, and returns the exit code.
        help: in a list of commands.
        text: above its options.
        example: below them.
    """

    name: str
    run: Callable[[argparse.Namespace], int]
    help: str
    text: str
    example: str


ANALYSES = (
    Analysis(
        "ablate",
        run_ablate,
        "ablate heads on a task, and test what each does",
        "Ablate every head (or other sets of heads) of a model in turn, score it on a task, and write the results. On "
        "two CPU cores the default takes about three minutes, all 1,500 pairs of STS-B six; `bertjax plan` with the "
        "same options says how long another job takes.",
        "bertjax ablate --model bert-base-uncased --task mrpc --data glue/MRPC --mode zero --output mrpc-zero",
    ),
    Analysis(
        "plan",
        run_plan,
        "estimate the cost of a sweep",
        "What `bertjax ablate` with the same options would cost: work, memory and time on this device. The "
        "time does not include loading, compilation and statistics.",
        "bertjax plan --ablate pairs --limit 100",
    ),
    Analysis(
        "importance",
        run_importance,
        "estimate by gradients what each head does",
        "What gradients say of each head, from one pass back through the model: how the task's loss would change "
        "without it, and the importance of Michel et al. 2019. The results are read by show, plot, report and compare. "
        "Gradients are estimates: --against names results of `bertjax ablate` that say how good they are.",
        "bertjax importance --task mrpc --data glue/MRPC --against mrpc-zero",
    ),
    Analysis(
        "interactions",
        run_interactions,
        "which heads matter together, pair by pair",
        "Which heads matter together: for each pair the effect of ablating both, less the sum of the effects of "
        "ablating each. All pairs of 144 heads are 10,296 runs: --heads takes some. The cost is printed before it "
        "runs, an interrupted run resumes, and the results are read by show, plot, report and compare.",
        "bertjax interactions --heads 3.0 3.1 5.7 --limit 200",
    ),
    Analysis(
        "shapley",
        run_shapley,
        "what each head adds, over random orders of removal",
        "The Shapley value of each head: what it adds to the score, on average over orders in which heads are removed "
        "one after another. Orders are drawn in pairs, each with its reverse; where every set of the heads costs no "
        "more, all are run. The cost is printed before it runs, and an interrupted run resumes.",
        "bertjax shapley --heads 3.0 3.1 5.7 --permutations 40",
    ),
    Analysis(
        "prune",
        run_prune,
        "how many heads can go, and in which order",
        "How many heads can be removed: orders chosen on half of the examples (by gradients, the size of weights, at "
        "random, and backwards; when named, by exact losses that are computed again as heads go, and learned gates), "
        "and the score at points of each on the other half. The total time is printed first; an interrupted run "
        "resumes.",
        "bertjax prune --task mrpc --data glue/MRPC --orders gradient magnitude random",
    ),
    Analysis(
        "roles",
        run_roles,
        "what kind of head each is, by where it looks",
        "What kind of head each is: how much of its attention goes to the previous and next token, [CLS], [SEP], "
        "punctuation, the same word elsewhere, the other text of a pair, by weights and by the norms of what is added "
        "up; how spread it is; each compared with uniform attention. Any model and any texts: no labels, no task head.",
        "bertjax roles --model bert-base-uncased --task mlm --data texts.txt",
    ),
    Analysis(
        "patch",
        run_patch,
        "where in text and model a contrast acts",
        "Where in text and model a contrast acts: clean and corrupted texts are run, then each cell of a grid (a layer "
        "or a head, at a span of tokens) with the activations of the other text, all in one sweep. The score is how "
        "much more likely a masked-word model finds the good word than the bad one, a classifier the clean text's "
        "label than the corrupted one's, or the similarity with a second text; the results are shares of the "
        "difference between the two texts' scores. An interrupted run resumes.",
        "bertjax patch --template 'the {} near the door [MASK] old' --words keys/key --good are --bad is",
    ),
)


def _add_analysis(commands: "argparse._SubParsersAction[Parser]", analysis: Analysis, with_options: bool) -> None:
    parser = _add_command(commands, analysis.name, analysis.run, analysis.help, analysis.text)
    parser.epilog = f"example: {analysis.example}"
    if not with_options:
        return
    from bertjax.study import (
        OPTIONS,
        READS,
        ComputeOptions,
        DataOptions,
        ModelOptions,
        OutputOptions,
        PathsOptions,
        TaskOptions,
        names,
    )

    options, reads = OPTIONS[analysis.name], READS[analysis.name]
    _add_options(parser, ModelOptions, reads)
    _add_options(parser, options, names(options) - names(OutputOptions))
    if analysis.name == "importance":
        text = "results of bertjax ablate on the same model, to compare the order of heads"
        parser.add_argument("--against", metavar="DIR", help=text)
    if analysis.name == "patch":
        _add_template(parser)
        _add_options(parser, PathsOptions, names(PathsOptions) - names(options))
    for part in (DataOptions, TaskOptions, ComputeOptions):
        _add_options(parser, part, reads)
    _add_options(parser, OutputOptions, names(OutputOptions))
    parser.add_argument("--no-compile-cache", action="store_true", help="do not cache compiled code")


def _add_template(parser: Parser) -> None:
    """Options that make contrasts without a file."""
    add = parser.add_argument_group("in place of a file").add_argument
    add("--template", metavar="T", help="a text with {} where the words are exchanged")
    add("--words", nargs="+", metavar="CLEAN/CORRUPTED", help="for the template: pairs such as keys/key")
    add("--good", metavar="W", help="the word that fits the [MASK] of the clean text")
    add("--bad", metavar="W", help="the word that fits the [MASK] of the corrupted one")
    add("--second", metavar="T", help="the second text")


def _add_options(parser: Parser, options: Any, chosen: Set[str]) -> None:
    """Add a group of options: those of a class's fields that are chosen and on the command line."""
    from bertjax.study import descriptions, kinds, title_of

    found = [one for one in fields(options) if one.name in chosen and one.metadata.get("on_command_line", True)]
    if not found:
        return
    group = parser.add_argument_group(title_of(options))
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
    """How argparse reads a value of a type."""
    from bertjax.study import Choices, base_of

    base, notes = base_of(kind)
    if base is bool:
        return {"action": "store_true"}
    form: dict[str, Any] = {"metavar": metadata["metavar"]} if metadata.get("metavar") else {}
    if notes and isinstance(notes[0], Choices):
        return {"choices": list(notes[0])}
    item = get_args(base)[0] if get_origin(base) is tuple else base
    if item is not base or (base is Any and "=" in metadata["metavar"]):
        form["nargs"] = metadata["nargs"]
    if item is int:
        form["type"] = partial(_number, least=notes[0])
    if item is float:
        form["type"] = float
    return form


def _add_remove_heads(commands: "argparse._SubParsersAction[Parser]") -> None:
    text = (
        "Write a checkpoint of the same shape, which transformers reads too, in which some heads give exactly nothing: "
        "those that are named, or those that a run of bertjax prune or ablate set to zero. With --smaller their "
        "weights are left out, which saves their work, and which bertjax alone reads."
    )
    parser = _add_command(commands, "remove-heads", run_remove_heads, "save a checkpoint without some heads", text)
    add = parser.add_argument
    text = "directory, hub id, or package:NAME (default that of the results)"
    add("--model", metavar="M", help=text)
    add("--heads", nargs="+", metavar="L.H", help="to remove")
    add("--from", dest="results", metavar="DIR", help="in place of --heads: results of bertjax prune or ablate")
    add("--run", dest="run_name", metavar="NAME", help="with --from: which run, such as 'greedy 36'")
    add("--smaller", action="store_true", help="leave the heads' weights out: smaller and faster, for bertjax alone")
    add("--output", required=True, metavar="DIR", help="directory of the checkpoint")
    add("--overwrite", action="store_true", help="replace the checkpoint in DIR")


def _add_saved(commands: "argparse._SubParsersAction[Parser]") -> None:
    """The commands that read a directory of results, without the model."""

    command = partial(_add_command, commands)
    text = "Write one HTML file: which heads matter, how certain that is, what they attend to, and what changes."
    report = command("report", run_report, "write an HTML report", text)
    report.add_argument("directory", metavar="DIR", help="results of bertjax ablate")
    report.add_argument("-o", "--output", metavar="FILE", help="(default DIR/report.html)")

    text = "All ablations sorted by effect, with intervals and tests, as a table or for other programs."
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
        "Draw results: the map of heads, all effects with intervals, layers, or what a head attends to. Shares of "
        "pattern classes and what [CLS] attends to are drawn by the programs in experiments/."
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
    """A whole number of at least 1, as the type of an option."""
    return _number(text, 1)


def _number(text: str, least: int) -> int:
    if len(text) < LONGEST_NUMBER and text.isdecimal() and least <= int(text) <= LARGEST_INTEGER:
        return int(text)
    most = f" and at most {LARGEST_INTEGER}" * (text.isdecimal() and text.strip("0") != "")
    raise argparse.ArgumentTypeError(f"{reprlib.repr(text)} is not a whole number of at least {least}{most}")


if __name__ == "__main__":
    sys.exit(main())
