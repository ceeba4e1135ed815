"""The `bertjax` command. User mistakes end in one line and exit code 2, never in a traceback."""

import argparse
import reprlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from functools import partial
from typing import Any

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

__all__ = ["Parser", "guarded", "main", "positive", "whole"]

LONGEST_NUMBER = 100  # digits
SHARD = (
    "compute only shard K of N, for `bertjax merge`; auto: the one that Slurm, Open MPI, Kubernetes or a TPU pod says"
)
NEW_HEAD = "score a task although its head is not in the checkpoint, so that it is random"
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
    _add_ablate(commands, command in ("ablate", None))
    _add_plan(commands, command in ("plan", None))
    _add_importance(commands, command in ("importance", None))
    _add_interactions(commands, command in ("interactions", None))
    _add_shapley(commands, command in ("shapley", None))
    _add_prune(commands, command in ("prune", None))
    _add_remove_heads(commands)
    _add_roles(commands, command in ("roles", None))
    _add_patch(commands, command in ("patch", None))
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


def _add_ablate(commands: "argparse._SubParsersAction[Parser]", with_settings: bool) -> None:
    text = (
        "Ablate every head (or other sets of heads) of a model in turn, score it on a task, and write the results. On "
        "two CPU cores the default takes about three minutes, all 1,500 pairs of STS-B six; `bertjax plan` with the "
        "same options says how long another job takes."
    )
    parser = _add_command(commands, "ablate", run_ablate, "ablate heads on a task, and test what each does", text)
    if with_settings:
        _add_settings(parser)


def _add_plan(commands: "argparse._SubParsersAction[Parser]", with_settings: bool) -> None:
    text = (
        "What `bertjax ablate` with the same options would cost: work, memory and time on this device. The "
        "time does not include loading, compilation and statistics."
    )
    parser = _add_command(commands, "plan", run_plan, "estimate the cost of a sweep", text)
    if with_settings:
        _add_settings(parser)


def _add_importance(commands: "argparse._SubParsersAction[Parser]", with_settings: bool) -> None:
    text = (
        "What gradients say of each head, from one pass back through the model: how the task's loss would change "
        "without it, and the importance of Michel et al. 2019. The results are read by show, plot, report and compare. "
        "Gradients are estimates: --against names results of `bertjax ablate` that say how good they are."
    )
    parser = _add_command(commands, "importance", run_importance, "estimate by gradients what each head does", text)
    if not with_settings:
        return
    adder = _adder(parser, mode="zero")
    _add_model(adder("model and task"))
    _add_source(adder("examples"))
    group = parser.add_argument_group("gradients")
    text = "mean of gradients at N places on the way to all heads replaced; 1 for the model as it is (default 1)"
    group.add_argument("--steps", type=positive, default=1, metavar="N", help=text)
    group.add_argument(
        "--against", metavar="DIR", help="results of bertjax ablate on the same model, to compare the order of heads"
    )
    _add_place(adder("results"), parser, "importance")


def _add_interactions(commands: "argparse._SubParsersAction[Parser]", with_settings: bool) -> None:
    text = (
        "Which heads matter together: for each pair the effect of ablating both, less the sum of the effects of "
        "ablating each. All pairs of 144 heads are 10,296 runs: --heads takes some. What it costs is said before it "
        "runs, an interrupted run resumes, and the results are read by show, plot, report and compare."
    )
    parser = _add_command(commands, "interactions", run_interactions, "which heads matter together, pair by pair", text)
    if with_settings:
        adder = _adder(parser, ablate="pairs")
        _add_derived(adder)
        _add_place(adder("results"), parser, "interactions")


def _add_shapley(commands: "argparse._SubParsersAction[Parser]", with_settings: bool) -> None:
    text = (
        "What each head adds to the score, whatever else is gone: its Shapley value, the mean over orders in which "
        "heads are taken away one after another. Orders are drawn in pairs, each with its reverse; where every set of "
        "the heads costs no more, all are run. What it costs is said before it runs, and an interrupted run resumes."
    )
    parser = _add_command(commands, "shapley", run_shapley, "what each head adds, whatever else is gone", text)
    if with_settings:
        adder = _adder(parser)
        _add_derived(adder)
        group = parser.add_argument_group("orders")
        text = "orders to draw at most, an even number (default 100)"
        group.add_argument("--orders", type=positive, default=100, metavar="N", help=text)
        text = "stop as soon as every value is known to this, as the score is printed, such as 0.5 (points)"
        group.add_argument("--within", type=float, metavar="W", help=text)
        _add_place(adder("results"), parser, "shapley")


def _add_prune(commands: "argparse._SubParsersAction[Parser]", with_settings: bool) -> None:
    text = (
        "How many heads can go: orders chosen on half of the examples (by gradients, the size of weights, at random, "
        "and backwards; when named, by exact losses that are taken anew as heads go, and learned gates), and the score "
        "at points of each on the other half. The total time is printed first; an interrupted run resumes."
    )
    parser = _add_command(commands, "prune", run_prune, "how many heads can go, and in which order", text)
    if not with_settings:
        return
    from bertjax.study import ORDERS, Pruning

    adder, given = _adder(parser, mode="zero"), Pruning()
    _add_derived(adder, heads=False)
    add = parser.add_argument_group("orders").add_argument
    text = (
        f"which (default {' '.join(given.orders)}); 'reversed' is the first of the first three backwards; greedy and "
    )
    text += "gates take minutes, and run only when named"
    orders: dict[str, Any] = {"choices": ORDERS, "default": given.orders, "metavar": "ORDER"}
    add("--orders", nargs="+", **orders, help=f"{', '.join(ORDERS)}: {text}")
    for name, what in (("gradient", "gradients"), ("greedy", "exact losses")):
        share = getattr(given, f"{name}_share")
        text = f"share of all heads that goes before {what} are taken anew (default {share})"
        add(f"--{name}-share", type=float, default=share, metavar="S", help=text)
    text = f"orders at random (default {given.draws})"
    add("--draws", type=positive, default=given.draws, metavar="N", help=text)
    text = f"points of each order that are scored (default {given.points})"
    add("--points", type=positive, default=given.points, metavar="N", help=text)
    shown = " ".join(f"{strength:g}" for strength in given.strengths)
    text = f"prices of gates: of all together, in losses of the whole model (default {shown})"
    add("--strengths", nargs="+", type=float, default=given.strengths, metavar="P", help=text)
    text = f"steps in which gates are learned at each price (default {given.learning.steps})"
    add("--gate-steps", type=positive, default=given.learning.steps, metavar="N", help=text)
    _add_place(adder("results"), parser, "pruning")


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


def _add_roles(commands: "argparse._SubParsersAction[Parser]", with_settings: bool) -> None:
    text = (
        "What kind of head each is: how much of its attention goes to the previous and next token, [CLS], [SEP], "
        "punctuation, the same word elsewhere, the other text of a pair, by weights and by the norms of what is added "
        "up; how spread it is; each beside uniform attention. Any model and any texts: no labels, no task head."
    )
    parser = _add_command(commands, "roles", run_roles, "what kind of head each is, by where it looks", text)
    if with_settings:
        adder = _adder(parser)
        add = adder("model and texts")
        add("model", "directory, hub id, or package:NAME", metavar="M")
        add("task", "whose texts are read, pairs together; mlm reads lines of any text", metavar="T")
        _add_texts(adder("examples"))
        _add_place(adder("results"), parser, "roles")


def _add_patch(commands: "argparse._SubParsersAction[Parser]", with_settings: bool) -> None:
    text = (
        "Where in text and model a contrast acts: clean and corrupted texts are run, then each place of each layer, or "
        "each head, at each span of tokens with what the other text has there; all in one sweep. The score is how much "
        "likelier a masked-word model finds the good word than the bad one, a classifier the clean text's label than "
        "the corrupted one's, or the similarity with a second text; what is shown is the share of the way from one "
        "text's score to the other's. An interrupted run resumes."
    )
    parser = _add_command(commands, "patch", run_patch, "where in text and model a contrast acts", text)
    if not with_settings:
        return
    adder = _adder(parser)
    add = adder("model and texts")
    add("model", "directory, hub id, or package:NAME", metavar="M")
    add("data", "file with columns clean and corrupted; good and bad for masked places; second, a text beside them")
    add("limit", "use at most N contrasts, drawn with the seed", type=positive, metavar="N")
    add("seed", "seed for drawing contrasts, and for the statistics", type=whole, metavar="S")
    add("max_length", "cut texts after N tokens (default 128)", type=positive, metavar="N")
    own = parser.add_argument_group("in place of a file").add_argument
    own("--template", metavar="T", help="a text with a place {} for the words that are exchanged")
    own("--words", nargs="+", metavar="CLEAN/CORRUPTED", help="for the template: pairs such as keys/key")
    own("--good", metavar="W", help="the word that fits the masked place of the clean text")
    own("--bad", metavar="W", help="the word that fits that of the corrupted one")
    own("--second", metavar="T", help="the second text")
    _add_grid(parser.add_argument_group("what is patched").add_argument)
    add = adder("heads and computation")
    add("heads", "with places of heads, and of paths the senders: only these", nargs="+", metavar="L.H")
    add("memory", "stay within so much, such as 8GB (default most of what is free)", metavar="SIZE")
    add("allow_new_head", NEW_HEAD, action="store_true")
    add("attention", "explicit, fused, pallas or auto", metavar="FORM")
    _add_place(adder("results"), parser, "patching")


def _add_grid(grid: Callable[..., Any]) -> None:
    """Which places are patched, at which tokens, in which direction."""
    from bertjax.study import Direction, Grid

    text = "hidden_states (the residual stream), attention_outputs, feed_forward_outputs, of each layer; head_outputs, "
    text += f"queries, keys, values, of each head (default {' '.join(Grid().places)})"
    grid("--places", nargs="+", default=Grid().places, metavar="PLACE", help=text)
    text = "tokens, where all texts have as many; regions (before, changed, after, ...); all, one span; auto, tokens "
    text += "where all texts have as many and at most 48, else regions"
    grid("--spans", default=Grid().spans, metavar="KIND", help=text)
    text = "the text that is run with the other's values: corrupted (what brings its score back) or clean"
    grid("--into", default=Direction().into, metavar="TEXT", help=text)
    text = "leave out contrasts whose clean text does not score above the corrupted one"
    grid("--only-right", action="store_true", help=text)
    text = "in place of a grid: what receives, such as queries=3.7 values=3.7,2.1; a row for each head before these"
    grid("--paths-to", nargs="+", metavar="PLACE=L.H", help=text)
    grid("--freeze-feed-forward", action="store_true", help="of paths: feed-forward layers on the way too")


def _add_derived(adder: Callable[[str], Callable[..., None]], heads: bool = True) -> None:
    """The options of a job whose results are made of a sweep's.

    Args:
        heads: whether it can be of some heads.
    """
    add = adder("model, task and heads")
    _add_model(add)
    if heads:
        add("heads", "only these heads, as LAYER.HEAD or L3H10; the others stay", nargs="+", metavar="L.H")
    _add_metric(add)
    _add_source(adder("examples"))
    add = adder("computation")
    _add_precision(add)


def _add_place(add: Callable[..., None], parser: Parser, ending: str) -> None:
    """Where results go that end in a word of their own."""
    add("output", f"directory for the results (default named after the job, ending in {ending})", metavar="DIR")
    add("overwrite", "replace the results in DIR", action="store_true")
    add("shard", SHARD, metavar="K/N")
    parser.add_argument("--no-compile-cache", action="store_true", help="do not cache compiled code")


def _adder(parser: Parser, **other: Any) -> Callable[[str], Callable[..., None]]:
    """What adds options to a group of a title, each with the default of its field of `Settings`.

    Args:
        other: defaults that are others.
    """
    from bertjax.study import Settings

    defaults = {field.name: field.default for field in fields(Settings) if field.default is not MISSING} | other
    parser.set_defaults(**defaults)

    def adder(title: str) -> Callable[..., None]:
        group = parser.add_argument_group(title)

        def add(name: str, help: str, **more: Any) -> None:
            default = defaults[name]
            shown = "" if default in (None, False) else f" (default {default})"
            if "action" not in more and isinstance(default, int) and not isinstance(default, bool):
                more = {"type": int, **more}
            group.add_argument("--" + name.replace("_", "-"), help=help + shown, default=default, **more)

        return add

    return adder


def _add_settings(parser: Parser) -> None:
    """The options of a job: one for each field of `Settings`."""
    adder = _adder(parser)
    _add_what(adder("model, task and heads"))
    _add_source(adder("examples"))
    _add_how(adder("computation"))
    _add_output(adder("results"))
    parser.add_argument("--no-compile-cache", action="store_true", help="do not cache compiled code")


def _add_model(add: Callable[..., None]) -> None:
    from bertjax.study import available_modes

    glue = "mrpc, stsb, sst2, qqp, rte, qnli, mnli, mnli-mm, cola"
    add("model", "directory (also of an adapter of peft), hub id, or package:NAME", metavar="M")
    add(
        "task",
        f"task of GLUE ({glue}), qnli-sample, mlm (masked words), minimal-pairs, agreement, token-classification, "
        "question-answering, multiple-choice, multi-label, ranking, or custom (needs --data)",
        metavar="T",
    )
    add("mode", "what takes the head's place", choices=available_modes())
    add("readout", "auto, or similarity: any encoder as a sentence embedder", choices=["auto", "similarity"])
    add("allow_new_head", NEW_HEAD, action="store_true")


def _add_what(add: Callable[..., None]) -> None:
    from bertjax.study import COLLECTIONS

    _add_model(add)
    add("ablate", f"{', '.join(COLLECTIONS)}, or a file with a set of heads in each line", metavar="WHAT")
    add("heads", "only these heads, as LAYER.HEAD or L3H10; for 'cumulative' in this order", nargs="+", metavar="L.H")
    text = "run only the N that gradients say change the loss most, and a few others to see what is missed"
    add("screen", text, type=positive, metavar="N")
    add("subset_size", "for 'subsets': heads of each (default 2)", type=positive, metavar="K")
    add("subset_count", "for 'subsets': how many (default 100)", type=positive, metavar="N")
    _add_metric(add)


def _add_metric(add: Callable[..., None]) -> None:
    from bertjax.evidence import METRICS

    groups: dict[str, list[str]] = {}
    for metric in METRICS.values():
        kind = "specific tasks" if metric.reads == "outputs" else "predicted classes"
        if metric.reads == "values":
            kind = "similarities and scores of pairs" if metric.targets == "classes" else "ratings"
        groups.setdefault(kind, []).append(metric.name)
    shown = "; ".join(f"for {kind}: {', '.join(names)}" for kind, names in groups.items())
    text = f"the main metric (the default depends on the task); {shown}; or module:function"
    add("metric", text, metavar="M")


def _add_texts(add: Callable[..., None]) -> None:
    add("split", "part of the data", metavar="NAME")
    add(
        "data",
        "GLUE directory, .tsv, .csv, .jsonl or .parquet file (for mlm also .txt), or directory saved by datasets, in "
        "place of TensorFlow Datasets",
        metavar="PATH",
    )
    add("data_dir", "directory of TensorFlow Datasets", metavar="DIR")
    texts = "one or two columns of your file that hold the texts (default for custom those with usual names, if clear)"
    add("text_columns", texts, nargs="+", metavar="COLUMN")
    label = "the column of your file that holds the labels (default for custom the one with a usual name, if clear)"
    add("label_column", label, metavar="COLUMN")
    names = "your labels in the order of their numbers; without values labels are ratings (a regression)"
    add("label_names", names, nargs="*", metavar="NAME")
    add("limit", "use at most N examples, drawn with the seed", type=positive, metavar="N")
    add("seed", "seed for drawing examples and subsets, and for the statistics", type=whole, metavar="S")
    length = "cut texts after N tokens (default the model's own, or 128)"
    add("max_length", length, type=positive, metavar="N")


def _add_source(add: Callable[..., None]) -> None:
    from bertjax.tasks import PLL

    _add_texts(add)
    prompts = (
        "put before first and second texts: names of the model's prompts, or texts with a space, such as 'query: '"
    )
    add("prompts", prompts, nargs="+", metavar="PROMPT")
    add("every_word", "with --task mlm: mask each word by itself, in place of 15 %% together", action="store_true")
    text = "where words are masked by themselves: mask the word's later pieces too (within-word), or not"
    add("pll", text, choices=PLL)
    add("stride", "with question-answering: tokens that windows on a long text share", type=whole, metavar="N")
    text = "with ranking: leave out the candidate that has the query's id, its own document (ArguAna, Quora)"
    add("exclude_self", text, action="store_true")


def _add_how(add: Callable[..., None]) -> None:
    add("engine", "fast shares work between ablations; plain is one vmapped run for each", choices=["fast", "plain"])
    _add_precision(add)
    add("batch_size", "with --engine plain: texts computed together (default by device)", type=positive, metavar="N")
    add("chunk_size", "with --engine plain: ablations computed together", type=positive, metavar="N")


def _add_precision(add: Callable[..., None]) -> None:
    text = "number format; auto is bfloat16 on a TPU, float32 elsewhere"
    add("precision", text, choices=["auto", "float32", "bfloat16"])
    text = "attention implementation of --engine fast; auto is the fastest on this device (README)"
    add("attention", text, choices=["auto", "explicit", "fused", "pallas"])
    add("memory", "memory to stay within, e.g. 8GB (default most of what is free)", metavar="SIZE")


def _add_output(add: Callable[..., None]) -> None:
    text = "directory for the results (default named after the job, such as bertjax-qnli-sample-uniform-heads)"
    add("output", text, metavar="DIR")
    add("overwrite", "replace the results in DIR", action="store_true")
    add("resume", "resume an unfinished sweep in DIR; the same command alone does so too", action="store_true")
    add("shard", SHARD, metavar="K/N")


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


def whole(text: str) -> int:
    """A whole number of at least 0, as the type of an option."""
    return _number(text, 0)


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
