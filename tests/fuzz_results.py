"""Damage to directories of results, drawn with a seed, and what the commands that read them make of it.

`cases(seed, count)` draws, `outcome(case)` does one. A directory is damaged as it lies there ("as written"), or its
hashes are made anew after that, as whoever forges results would do ("forged"), or it is of the version that had no
hashes ("without hashes"). Of the last two nobody can say that a number is not the one that was written.
"""

import io
import json
import random
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rich.console import Console

from bertjax.formatting import finite
from bertjax.plots.canvas import save_page
from bertjax.results.comparison import agreeing, align, label_results, share_examples
from bertjax.results.directory import UnsealedWarning, read_results
from bertjax.results.page import page_data
from bertjax.results.summary import describe_files, seal
from bertjax.results.terminal import show_table, show_text
from tests import fuzz_utilities
from tests.damage_results import DAMAGES, EXAMPLES, damages_of
from tests.fuzz_utilities import REFUSED, attempt, scratch
from tests.result_factories import make_results

OUTCOMES = ("accepted and equal", REFUSED, "accepted, no hash could tell")
BROKEN = ("silently wrong", *fuzz_utilities.BROKEN)
FILES = ("summary.json", "results.parquet", "outputs.npz", "examples.jsonl", "attention.npz")
LEVELS = ("as written", "forged", "without hashes")
PLOTTED = 10  # one of so many cases is drawn too, which takes longer
BASES = {
    "mrpc": {},
    "stsb": {"task": "stsb", "seed": 1},
    "layers": {"ablate": "layers", "helpful": "0", "harmful": "2"},
}


@dataclass(frozen=True)
class Case:
    """One damage.

    Args:
        base: which results, of `BASES`.
        level: of `LEVELS`.
        file: the file that is damaged.
        damage: a name of `DAMAGES`.
        seed: of what is drawn in it.
    """

    base: str
    level: str
    file: str
    damage: str
    seed: int


def cases(seed: int, count: int) -> list[Case]:
    """So many cases; the same for the same seed, and the first of a larger count are those of a smaller one."""
    rng = random.Random(seed)
    drawn = []
    while len(drawn) < count:
        file = rng.choice(FILES)
        damage = rng.choice(damages_of(file))
        level = "as written" if damage == "swap" else rng.choice(LEVELS)
        drawn.append(Case(rng.choice(list(BASES)), level, file, damage, rng.randrange(2**32)))
    return drawn


def outcome(case: Case) -> str:
    """What `read_results`, `show`, `compare`, `report` and `plot` make of it: one of `OUTCOMES` or `BROKEN`."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "results"
        _copy(_base(case.base), directory, case.level)
        DAMAGES[case.damage](directory / case.file, random.Random(case.seed))
        if case.level == "forged":
            reseal(directory)
        found = _read(directory, case.base, plots=case.seed % PLOTTED == 0)
        wrong = [name for name, text in found.items() if text not in (REFUSED, _shown(case.base, case.level)[name])]
    if broken := [text for text in found.values() if text.startswith(fuzz_utilities.BROKEN)]:
        return broken[0]
    if wrong:
        return "silently wrong" if case.level == "as written" else "accepted, no hash could tell"
    return REFUSED if REFUSED in found.values() else "accepted and equal"


# ---- what is read --------------------------------------------------------------------------------------------------
def _show(directory: Path) -> str:
    saved = read_results(directory)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(show_table(saved))
    return console.export_text() + show_text(saved, "csv") + show_text(saved, "md")


def _page(directory: Path) -> str:
    return json.dumps(finite(page_data(read_results(directory))), allow_nan=False)


def _compare(directory: Path, other: Path) -> str:
    """All that `compare` shows but the rank correlation, whose interval takes most of its time."""
    several = [read_results(directory), read_results(other)]
    names, tables = align(several)
    effects = [[row.difference for row in rows] for rows in tables]
    found = [names, effects, agreeing(several), share_examples(several), len(label_results(several))]
    return json.dumps(finite(found), allow_nan=False)


def _plot(directory: Path) -> str:
    """Pictures; that they are the same is not looked at, as they are of the numbers that `show` shows."""
    saved = read_results(directory)
    for figure in ("auto", "ranking", "change"):
        save_page(saved.plot(figure), directory / f"{figure}.svg")
    return "drawn"


def _read(directory: Path, base: str, plots: bool = True) -> dict[str, str]:
    """What each command makes of a directory."""
    return {
        "show": attempt(lambda: _show(directory), UnsealedWarning),
        "page": attempt(lambda: _page(directory), UnsealedWarning),
        "compare": attempt(lambda: _compare(directory, _base(base)), UnsealedWarning),
    } | ({"plot": attempt(lambda: _plot(directory), UnsealedWarning)} if plots else {})


# ---- the results that are damaged -----------------------------------------------------------------------------------
@cache
def _base(name: str) -> Path:
    return make_results(scratch() / name, examples=EXAMPLES, **BASES[name])


@cache
def _shown(base: str, level: str) -> dict[str, str]:
    directory = scratch() / f"{base} {level}"
    _copy(_base(base), directory, level)
    return _read(directory, base)


def _copy(base: Path, directory: Path, level: str) -> None:
    directory.mkdir()
    for name in FILES:
        (directory / name).write_bytes((base / name).read_bytes())
    if level == "without hashes":
        unseal(directory)


def unseal(directory: Path) -> None:
    """Make results of version 1 of those of version 2."""
    path = directory / "summary.json"
    summary = json.loads(path.read_text())
    for name in ("files", "sha256", "positive_label"):
        del summary[name]
    path.write_text(json.dumps(summary | {"schema": 1}))


def reseal(directory: Path) -> None:
    """Hashes anew, where there is still a summary to put them into."""
    path = directory / "summary.json"
    if not path.is_file():
        return
    try:
        summary = json.loads(path.read_text())
        names = {name: directory / name for name in FILES[1:] if (directory / name).is_file()}
        files = (
            {**summary["files"], **describe_files(names)} if isinstance(summary["files"], dict) else summary["files"]
        )
        path.write_text(json.dumps(seal({**summary, "files": files})))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return
