"""What does a person see in attention maps drawn at random? (Kovaleva et al. 2019, section 4.1: maps labelled by eye)

Draws maps of a model and puts them on numbered sheets to be labelled by eye, then labelled again to measure agreement.

    python -m experiments.label_maps export MAPS --task qnli-sample rte --data GLUE    maps of random heads and examples
    python -m experiments.label_maps sheets MAPS                                       pictures, 30 maps on each
    python -m experiments.label_maps label MAPS                                        asks for a label of each map
    python -m experiments.label_maps agreement MAPS                                    how far two rounds agree

MAPS stands for two files, MAPS.npz and MAPS.tsv (`patterns/maps.py`); `export` also writes MAPS.json, which records how
they were made. The sheets show the maps in random order, without task, layer and head, so that only the picture informs
the label. `label` takes one letter for each map, or a line of them; it writes after each line, and resumes where you
stopped. --again makes sheets of 120 maps in a new order for a second round, whose labels are kept beside the first ones
and never shown. Exporting 90 maps takes 17 seconds on two busy CPU cores.

Our own labels are in `data/patterns.tsv`; the guide they follow is `data/patterns.md`. Of 540 random maps, 265 are
vertical, 202 vertical+diagonal, 49 heterogeneous, 13 diagonal, 11 block. 120 of them, labelled twice by the same
labeller, agree with Cohen's kappa 0.93 (95 % interval 0.87 to 0.99). A network trained on them finds 91 % of the labels
of examples that it never saw (`patterns/training.py`).
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import bertjax
from bertjax.atomic_files import write_json
from bertjax.checkpoints import DEFAULT_MODEL, locate
from bertjax.cli import Parser, guarded, positive
from bertjax.console import say
from bertjax.data import draw
from bertjax.errors import DataError, OutputError, OverrideError
from bertjax.paths import is_there, user_path
from bertjax.plots import INK, add_axes, save_page
from bertjax.progress import ProgressBar
from bertjax.jobs import where_from
from bertjax.tasks import SAMPLE, load_examples, task_named
from experiments.patterns.maps import (
    CLASSES,
    MapRow,
    MapSet,
    draw_heads,
    export_maps,
    read_maps,
    with_label,
    write_labels,
    write_maps,
)
from experiments.patterns.scores import score_agreement
from experiments.shared.program import whole
from experiments.shared.samples import split_named_task

COLUMNS, ROWS = 6, 5  # of a sheet
SECOND_ROUND = 120
LONGEST = 128  # tokens
COLOURS = "viridis"  # perceptually uniform


def run_export(options: argparse.Namespace) -> int:
    """Maps of random heads of random examples of some tasks."""
    path = user_path(options.maps)
    for suffix in (".tsv", ".npz", ".json"):
        if is_there(path.with_suffix(suffix), OutputError):
            raise OutputError(f"{path.with_suffix(suffix)} is there already, perhaps of labels; choose another name")
    checkpoint = locate(options.model)
    model, tokenizer = bertjax.load(checkpoint), bertjax.Tokenizer.from_pretrained(checkpoint)
    rows: list[MapRow] = []
    maps: list[np.ndarray] = []
    data: list[dict[str, Any]] = []
    candidates = heads_among(model.config, options)
    for number, task_name in enumerate(options.task):
        named = split_named_task(argparse.Namespace(task=task_name, split=options.split))
        task, paths = named.task, {"data": options.data, "data_dir": options.data_dir}
        location = {} if task_named(task).name == SAMPLE else paths
        examples = load_examples(task, split=named.split, **location)
        texts = tokenizer.encode(examples.first, examples.second)
        short = [place for place, text in enumerate(texts) if len(text) <= LONGEST]
        places = [short[place] for place in draw(len(short), options.limit, options.seed)]
        heads = draw_heads(len(places), candidates, options.heads, options.seed + number)
        ids = [str(examples.ids[place]) for place in places]
        with ProgressBar(task_name) as report:
            exported = export_maps(model, task_name, ids, [texts[place] for place in places], heads, report)
        rows, maps = [*rows, *exported.rows], [*maps, *exported.maps]
        data.append({"task": task, "split": examples.split, "examples": len(places), "sha256": examples.sha256})
    write_maps(path, MapSet(tuple(rows), tuple(maps)))
    choices = {"seed": options.seed, "heads_of_each": options.heads, "only": options.only, "longest": LONGEST}
    facts = {**where_from(model, checkpoint, options.model), "data": data, **choices, "crop": "real tokens only"}
    write_json(path.with_suffix(".json"), {**facts, "maps": len(rows)})
    say(f"{len(rows)} maps in {path.with_suffix('.npz')}")
    return 0


def heads_among(config: Any, options: argparse.Namespace) -> list[tuple[int, ...]]:
    """The heads to draw among: those named, or all.

    Raises:
        OverrideError: the model has no such head.
    """
    all_heads = list(np.ndindex(config.num_hidden_layers, config.num_attention_heads))
    among: list[tuple[int, ...]] = options.only or all_heads
    if missing := sorted(set(among) - set(all_heads)):
        layer, head = missing[0]
        raise OverrideError(
            f"{options.model} has no head {layer}.{head}; its last is {all_heads[-1][0]}.{all_heads[-1][1]}"
        )
    return among


def label_order(count: int, again: bool, seed: int) -> list[int]:
    """The maps in the order of the sheets: all in random order, or some in another order for the second round.

    >>> sorted(label_order(5, again=False, seed=0)), label_order(5, False, 0) == label_order(5, True, 0)
    ([0, 1, 2, 3, 4], False)
    """
    order = np.random.default_rng((seed, int(again))).permutation(count)
    return [int(place) for place in (order[:SECOND_ROUND] if again else order)]


def run_sheets(options: argparse.Namespace) -> int:
    """Numbered maps, 30 on a picture."""
    path = user_path(options.maps)
    map_set = read_maps(path)
    order = label_order(len(map_set), options.again, options.seed)
    directory = path.parent if options.output is None else user_path(options.output, OutputError)
    name = f"{path.name}-{'again' if options.again else 'sheet'}"
    size = ROWS * COLUMNS
    for start in range(0, len(order), size):
        sheet = directory / f"{name}-{start // size + 1:02d}.png"
        draw_sheet(sheet, map_set, order[start : start + size], start + 1)
    say(f"{len(order)} maps on {-(-len(order) // size)} sheets in {directory}")
    return 0


def draw_sheet(path: Path, map_set: MapSet, places: Sequence[int], first: int) -> None:
    """One sheet: the maps at `places`, numbered from `first`. Colours show the square root of the weight; ticks mark
    [CLS] and each [SEP], a white line the border between the two texts."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.style import context

    side, gap = 2.35, 0.3  # inches
    with context("default"):
        figure = Figure(figsize=(COLUMNS * (side + gap), ROWS * (side + gap)), dpi=100, facecolor="white")
        FigureCanvasAgg(figure)
        for number, place in enumerate(places):
            row, column = divmod(number, COLUMNS)
            bottom = (ROWS - 1 - row) * (side + gap) + 0.05
            axes = add_axes(figure, column * (side + gap) + gap / 2, bottom, side, side)
            entry, image = map_set.rows[place], map_set.maps[place]
            axes.imshow(image, cmap=COLOURS, vmin=0, vmax=255, interpolation="nearest", aspect="auto")
            marks = [0, entry.first - 1, *([entry.tokens - 1] if entry.second else [])]
            axes.set_xticks(marks, [""] * len(marks))
            axes.set_yticks(marks, [""] * len(marks))
            axes.tick_params(length=4, top=True, right=True, width=1, colors=INK)
            if entry.second:
                axes.axhline(entry.first - 0.5, color="white", linewidth=0.5, alpha=0.6)
                axes.axvline(entry.first - 0.5, color="white", linewidth=0.5, alpha=0.6)
            axes.set_title(str(first + number), fontsize=10, pad=4, color=INK)
        save_page(figure, path)


def run_label(options: argparse.Namespace) -> int:
    """Ask for labels until all maps have one, or the input ends."""
    path = user_path(options.maps)
    map_set = read_maps(path)
    rows = list(map_set.rows)
    order = label_order(len(map_set), options.again, options.seed)
    print("one letter for each map: " + ", ".join(f"{key} {name}" for key, name in CLASSES.items()))
    print("u takes the last label back; an empty line or Ctrl-D ends; what is labelled is kept")
    while pending := [number for number, place in enumerate(order) if not _label(rows[place], options.again)]:
        print(f"sheet {pending[0] // (ROWS * COLUMNS) + 1}, map {pending[0] + 1} of {len(order)}: ", end="", flush=True)
        line = sys.stdin.readline().replace(" ", "").strip().lower()
        if not line:
            break
        take_letters(rows, order, line, options.again)
        write_labels(path, rows)
    print(f"\n{len(order) - len(pending)} of {len(order)} maps are labelled")
    return 0


def take_letters(rows: list[MapRow], order: Sequence[int], letters: str, again: bool) -> None:
    """Label the next maps in order; stop at an unknown letter and say so."""
    for letter in letters:
        pending = [place for place in order if not _label(rows[place], again)]
        done = [place for place in order if _label(rows[place], again)]
        if letter == "u" and done:
            rows[done[-1]] = with_label(rows[done[-1]], "", again)
        elif letter in CLASSES and pending:
            rows[pending[0]] = with_label(rows[pending[0]], CLASSES[letter], again)
        else:
            print(f"{letter!r} is left out, with what follows it")
            return


def _label(row: MapRow, again: bool) -> str:
    return row.again if again else row.label


def run_agreement(options: argparse.Namespace) -> int:
    """Cohen's kappa of the two rounds."""
    rows = [row for row in read_maps(user_path(options.maps)).rows if row.label and row.again]
    if not rows:
        raise DataError(f"{options.maps}: no map has two labels; use label --again")
    if len({row.label for row in rows} | {row.again for row in rows}) == 1:
        raise DataError(f"{options.maps}: all {len(rows)} maps labelled twice are of one class, so kappa is undefined")
    result = score_agreement([row.label for row in rows], [row.again for row in rows], _examples(rows))
    low, high = result["interval"]
    print(
        f"{len(rows)} maps labelled twice: Cohen's kappa {result['kappa']:.2f}, 95 % interval {low:.2f} to {high:.2f}"
    )
    return 0


def _examples(rows: Sequence[MapRow]) -> list[str]:
    return [f"{row.task} {row.example}" for row in rows]


def _head(text: str) -> tuple[int, int]:
    layer, dot, head = text.partition(".")
    if not (dot and layer.isdecimal() and head.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is no head; write LAYER.HEAD")
    return int(layer), int(head)


def make_parser() -> Parser:
    """The command line's parser."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="python -m experiments.label_maps", description=__doc__, formatter_class=formatter)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=Parser)
    for name, run in (
        ("export", run_export),
        ("sheets", run_sheets),
        ("label", run_label),
        ("agreement", run_agreement),
    ):
        action = actions.add_parser(name, help=(run.__doc__ or "").splitlines()[0])
        action.set_defaults(run=run)
        action.add_argument("maps", metavar="MAPS", help="name of the files, without suffix")
        action.add_argument("--seed", type=whole, default=0, metavar="S", help="of everything that is random")
        if name in ("sheets", "label"):
            action.add_argument("--again", action="store_true", help="the second round")
    add = actions.choices["export"].add_argument
    add("--model", default=DEFAULT_MODEL, metavar="M", help="directory, hub id, or package:NAME")
    add("--task", nargs="+", required=True, metavar="T", help="tasks of GLUE, qnli-sample, or TASK:SPLIT")
    add("--split", default="validation", metavar="NAME", help="part of the data (default validation)")
    add("--data", metavar="PATH", help="GLUE directory, in place of TensorFlow Datasets")
    add("--data-dir", metavar="DIR", help="directory of TensorFlow Datasets")
    add("--limit", type=positive, default=15, metavar="N", help="examples of each task (default 15)")
    add("--heads", type=positive, default=6, metavar="N", help="of each example (default 6)")
    add("--only", type=_head, nargs="+", metavar="L.H", help="draw among these heads, to see more of a rare class")
    actions.choices["sheets"].add_argument("--output", metavar="DIR", help="of the pictures (default beside MAPS)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser()

    def program() -> int:
        options = parser.parse_args(arguments)
        return int(options.run(options))

    return guarded(parser.prog, program)


if __name__ == "__main__":
    raise SystemExit(main())
