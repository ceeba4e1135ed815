"""Command lines drawn by seed: options with sensible and with odd values, on models, data and results made once.

`line(kind, rng, fixtures)` draws one. What it may name lies in `CommandFixtures`, which no command may change; it
runs in a directory of its own, where its results go.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.command_fixtures import LONG, NAMES, CommandFixtures

# Numbers that are too small, too large, no number, or digits of another alphabet.
NUMBERS = (
    *("1", "2", "7", "-1", "0", "1000000", "1000000000", LONG, "9" * 5000, "1e999", "1e3", "nan", "inf", "-inf", ""),
    *(" ", "٣", "²", "１２", "0x10", "1_000", "+3", "3.0", "-0", "1\n2", "\udcff", "one", "0" * 300, "½"),
)
MEMORY = (
    *("8GB", "100MB", "1kB", "0", "-1GB", "1e400GB", "nan", "", "GB", "1 GB", "٣GB", "99999999TB", "1B", "∞GB"),
    *("9" * 5000, "9" * 400 + "GB", "1.5.5GB", "8GB\n", "[red]8GB"),
)
HEADS = (
    *("0.0", "0.1", "1.0", "1.1", "2.0", "0.2", "9.9", "-1.0", "0", "0.", ".0", "0.0.0", "", " ", "a.b", "٠.١"),
    *("0.1=zero", "0.1 1.1", "1e0.1", f"{LONG}.0", f"0.{LONG}", "9" * 5000 + ".0", "[/x]", "\x1b[31m", "\udcff", "²."),
)
METRICS = ("accuracy", "f1", "matthews", "pearson", "spearman", "roc_auc", "average_precision", "bleu")
TASKS = ("mrpc", "qqp", "stsb", "sst2", "rte", "qnli", "mnli", "mnli-mm", "cola", "qnli-sample", "custom", "MRPC")
FORMATS = ("table", "csv", "json", "md")


@dataclass
class Line:
    """A command line.

    Args:
        arguments: of `bertjax`.
        labels: names or numbers that the examples have, in the order of the file; None where nobody looks.
        sets: names of the ablations.
    """

    arguments: list[str]
    labels: Sequence[object] | None = None
    sets: list[str] = field(default_factory=list)


Draw = Callable[[random.Random, CommandFixtures], list[str]]


def _one(fitting: Sequence[str], odd: Sequence[str] = NAMES) -> Draw:
    """One value, as often one that fits as an odd one."""
    return lambda rng, fixtures: [rng.choice(rng.choice((fitting, odd)))]


def _some(fitting: Sequence[str], odd: Sequence[str] = NAMES) -> Draw:
    """Up to three values."""
    return lambda rng, fixtures: rng.choices(rng.choice((fitting, (*fitting, *odd))), k=rng.choice((0, 1, 1, 2, 2, 3)))


def _switch(rng: random.Random, fixtures: CommandFixtures) -> list[str]:
    """Nothing, as an option that has no value."""
    return []


def _path(rng: random.Random, fixtures: CommandFixtures) -> list[str]:
    there = [str(fixtures.root / name) for name in ("pairs.tsv", "glue", "glue/MRPC", "classifier/config.json")]
    return [rng.choice((*fixtures.odd, *there, *(path for path, _ in fixtures.own.values())))]


def _place(rng: random.Random, fixtures: CommandFixtures) -> list[str]:
    """A name for results: nowhere outside of the command's own directory."""
    below = [f"new/{'n' * 300}", "new/x\0", "taken", "file", "file/x", "fifo", "link", "~/own", "new/[/x]", "./x/../y"]
    return [rng.choice((*below, *(name for name in fixtures.odd if not name.startswith(("/", "..")))))]


def _model(rng: random.Random, fixtures: CommandFixtures) -> list[str]:
    return [rng.choice((*fixtures.models.values(), *fixtures.odd, str(fixtures.root / "pairs.tsv")))]


def _what(rng: random.Random, fixtures: CommandFixtures) -> list[str]:
    files = [path for path, _ in fixtures.sets.values()]
    return [
        rng.choice(
            ("heads", "layers", "pairs", "all-but-one", "one-of-layer", "cumulative", "subsets", *files, *fixtures.odd)
        )
    ]


NUMBER = _one(("1", "2", "3", "7", "12"), NUMBERS)
METRIC = _one(METRICS)
OPTIONS: dict[str, Draw] = {
    "--model": _model,
    "--task": _one(TASKS),
    "--mode": _one(("uniform", "zero", "mean")),
    "--ablate": _what,
    "--heads": _some(("0.0", "0.1", "1.0", "1.1"), HEADS),
    "--subset-size": NUMBER,
    "--subset-count": NUMBER,
    "--readout": _one(("auto", "similarity")),
    "--metric": METRIC,
    "--split": _one(("validation", "dev", "train", "test")),
    "--data": _path,
    "--data-dir": _path,
    "--text-columns": _some(("first", "second"), ("label", "id", *NAMES)),
    "--label-column": _one(("label", "first", "id")),
    "--label-names": _some(("no", "yes", "0", "1")),
    "--limit": NUMBER,
    "--seed": NUMBER,
    "--max-length": _one(("2", "3", "8", "40", "41"), NUMBERS),
    "--precision": _one(("auto", "float32", "bfloat16")),
    "--engine": _one(("fast", "plain")),
    "--attention": _one(("auto", "explicit", "fused", "pallas")),
    "--memory": _one(("8GB", "4 GB", "100000MB"), MEMORY),
    "--batch-size": NUMBER,
    "--chunk-size": NUMBER,
    "--overwrite": _switch,
    "--resume": _switch,
    "--shard": _one(("auto", "0/3", "3/2", "three")),
}
ABLATE: dict[str, Draw] = {
    **OPTIONS,
    "--output": _place,
}
PLOT: dict[str, Draw] = {
    "--figure": _one(("auto", "map", "ranking", "layers", "attention", "change")),
    "--metric": METRIC,
    "--head": _one(("0.3", "2.3", "0.0"), HEADS),
    "--example": _one(("0", "7", "1"), (*NUMBERS, *NAMES)),
    "--text": NUMBER,
    "--run": _one(("0.1", "2.3", "base")),
}


def _join(options: dict[str, list[str]]) -> list[str]:
    return [word for name, values in options.items() for word in (name, *values)]


def _change(
    rng: random.Random, fixtures: CommandFixtures, options: dict[str, list[str]], drawn: dict[str, Draw]
) -> list[str]:
    """The command line of these options after one to three of them were drawn anew, and rarely one was left out."""
    for name in rng.sample(list(drawn), k=min(len(drawn), rng.choice((1, 1, 1, 2, 3)))):
        options = {**options, name: drawn[name](rng, fixtures)}
    if rng.random() < 0.05:  # never the model, as the default one takes seconds
        options.pop(rng.choice([name for name in options if name != "--model"]), None)
    words = _join(options)
    if rng.random() < 0.03:
        words.insert(rng.randrange(len(words) + 1), rng.choice((*NAMES, "--nosuch", "-h", "--")))
    return words


def _job(fixtures: CommandFixtures) -> dict[str, list[str]]:
    pairs = str(fixtures.root / "pairs.tsv")
    return {"--model": [fixtures.models["classifier"]], "--task": ["mrpc"], "--data": [pairs]}


def _ablate(rng: random.Random, fixtures: CommandFixtures) -> Line:
    """Options with values that mostly cannot be."""
    options = _job(fixtures) | {"--output": ["out"]}
    if rng.random() < 0.3:
        options |= _own_job(rng, fixtures)[0]
    return Line(["ablate", *_change(rng, fixtures, options, ABLATE)])


def _own_job(rng: random.Random, fixtures: CommandFixtures) -> tuple[dict[str, list[str]], Sequence[object]]:
    """A file of one's own, with a model that may fit."""
    name = rng.choice(list(fixtures.own))
    path, labels = fixtures.own[name]
    options = {"--task": ["custom"], "--data": [path], "--text-columns": ["first", "second"]}
    model = {"odd": "three", "ratings": "rater", "whole": "rater", "huge": "rater"}.get(name, "classifier")
    return options | {"--model": [fixtures.models[rng.choice((model, model, "embedder"))]]}, labels


def _sweep(rng: random.Random, fixtures: CommandFixtures) -> Line:
    """What is mostly accepted, and swept."""
    options, labels, names = _job(fixtures), None, []
    options["--output"] = [rng.choice(("out", "new/out", "[red]out", "~/own", "$x^$"))]
    if rng.random() < 0.6:
        own, labels = _own_job(rng, fixtures)
        options |= own
    if rng.random() < 0.5:
        path, names = fixtures.sets[rng.choice(("good", "odd", "alike", "a head's", "means", "named long"))]
        options["--ablate"] = [path]
    elif rng.random() < 0.3:
        options["--ablate"] = [rng.choice(("layers", "pairs", "all-but-one", "subsets"))]
    if rng.random() < 0.3:
        options["--mode"] = [rng.choice(("zero", "mean"))]
    if rng.random() < 0.3:
        options["--seed"] = [rng.choice(("7", "٣", "1" + "0" * 30, LONG))]
    if rng.random() < 0.2:
        options["--metric"] = [rng.choice(METRICS)]
    if rng.random() < 0.2:
        options[rng.choice(("--overwrite", "--resume"))] = []
    return Line(["ablate", *_join(options)], labels, list(names))


def _plan(rng: random.Random, fixtures: CommandFixtures) -> Line:
    return Line(["plan", *_change(rng, fixtures, _job(fixtures), OPTIONS)])


def _directory(rng: random.Random, fixtures: CommandFixtures) -> str:
    """Results, or what is none."""
    odd = (*fixtures.odd, fixtures.models["classifier"])
    return rng.choice(rng.choice((odd, *[[*fixtures.results.values()]] * 3)))


def _show(rng: random.Random, fixtures: CommandFixtures) -> Line:
    options = {"--format": _one(FORMATS), "--metric": METRIC, "--top": NUMBER}
    return Line(["show", *_change(rng, fixtures, {}, options), *_ended(rng, _directory(rng, fixtures))])


def _ended(rng: random.Random, name: str) -> list[str]:
    """A name after the sign that options end, as one types it where it begins with a dash."""
    return ["--", name] if rng.random() < 0.2 else [name]


def _compare(rng: random.Random, fixtures: CommandFixtures) -> Line:
    options = {"--format": _one(("table", "json")), "--metric": METRIC}
    several = [_directory(rng, fixtures) for _ in range(rng.choice((1, 2, 2, 2, 3)))]
    return Line(["compare", *several, *_change(rng, fixtures, {}, options)])


def _written(rng: random.Random, fixtures: CommandFixtures, *ends: str) -> str:
    """A name for a file."""
    fitting, odd = f"out{rng.choice(ends)}", f"{_place(rng, fixtures)[0]}{rng.choice((*ends, '', '.exe'))}"
    return rng.choice((fitting, fitting, odd))


def _report(rng: random.Random, fixtures: CommandFixtures) -> Line:
    return Line(["report", "-o", _written(rng, fixtures, ".html", ".htm"), *_ended(rng, _directory(rng, fixtures))])


def _plot(rng: random.Random, fixtures: CommandFixtures) -> Line:
    to = _written(rng, fixtures, ".svg", ".svg", ".svg", ".png", ".pdf")
    return Line(["plot", *_change(rng, fixtures, {"-o": [to]}, PLOT), *_ended(rng, _directory(rng, fixtures))])


def _prepare(rng: random.Random, fixtures: CommandFixtures) -> Line:
    options = {"--from": [str(fixtures.root / "glue")], "--data-dir": ["tfds"], "--tasks": ["mrpc"]}
    drawn: dict[str, Draw] = {
        "--from": _path,
        "--data-dir": _place,
        "--tasks": _some(("mrpc", "MRPC"), (*TASKS, *NAMES)),
    }
    return Line(["data", "prepare", *_change(rng, fixtures, options, {**drawn, "--overwrite": _switch})])


def _parity(rng: random.Random, fixtures: CommandFixtures) -> Line:
    """What ends before it compares: a comparison takes seconds."""
    options = {"--model": _model(rng, fixtures), "--examples": [rng.choice(("0", "-1", "nan", "", "²", "1.5"))]}
    if options["--model"][0] not in fixtures.models.values():
        options["--examples"] = ["1"]
    return Line(["parity", *_join(options), "--precision", rng.choice(("float32", "float64", "float32", *NAMES))])


def _rubbish(rng: random.Random, fixtures: CommandFixtures) -> Line:
    """Words in any order."""
    words = ("ablate", "show", "data", "prepare", "--version", "--help", *NAMES, *fixtures.odd, *ABLATE)
    return Line(rng.choices(words, k=rng.randint(0, 4)))


KINDS: dict[str, Callable[[random.Random, CommandFixtures], Line]] = {
    "ablate": _ablate,
    "plan": _plan,
    "show": _show,
    "compare": _compare,
    "report": _report,
    "plot": _plot,
    "prepare": _prepare,
    "parity": _parity,
    "rubbish": _rubbish,
    "sweep": _sweep,
}
