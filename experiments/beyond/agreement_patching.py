"""Which tokens and heads carry agreement in a masked language model? (Vig et al. 2020; Finlayson et al. 2021)

Contrasts: a template with a noun and a masked verb, "the {} near the river [MASK] built in the city .". The clean text
has one number of the noun, the corrupted text the other, in turn; the score is the log-odds of the verb forms for the
clean noun's number. Nouns come from a CoNLL-U file: those that occur in both numbers with one piece each. For each
template: grids of the residual stream, attention and feed-forward outputs by tokens, and of all heads by regions that
templates have in common (`bertjax patch`).

Control: contrasts of two nouns of the same number. The mean absolute effect of a patch on the score is reported for
both kinds of contrasts.

    python -m experiments.beyond.agreement_patching --model DIR --nouns FILE --limit 60
"""

import gzip
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import conllu
import numpy as np

import bertjax
from experiments.shared.patches import describe_grid, draw_grid, format_share, moved_by, name_cell
from experiments.shared.run import Figures, Found, Numbers, Run, Runs, draw_sample, make_parser, run_script, short_name
from experiments.shared.tables import make_table

TEMPLATES = (
    "the {} near the river [MASK] built in the city .",
    "the {} [MASK] very large .",
    "the {} of the islands [MASK] found in the north .",
)
VERBS = ("was", "were")  # of a singular noun, of a plural one
BEST = 6  # heads in the table


def read_nouns(path: Path, tokenizer: bertjax.Tokenizer) -> list[tuple[str, str]]:
    """Nouns as singular and plural, in alphabetical order, both in the file and of one piece."""
    forms: dict[str, dict[str, str]] = defaultdict(dict)
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        for sentence in conllu.parse_incr(file):
            for token in sentence:
                number = (token["feats"] or {}).get("Number")
                if token["upos"] == "NOUN" and number in ("Sing", "Plur") and token["form"].isalpha():
                    forms[token["lemma"].lower()].setdefault(number, token["form"].lower())
    pairs = sorted({(noun["Sing"], noun["Plur"]) for noun in forms.values() if len(noun) == 2})
    return [pair for pair in pairs if pair[0] != pair[1] and all(_is_whole(word, tokenizer) for word in pair)]


def _is_whole(word: str, tokenizer: bertjax.Tokenizer) -> bool:
    return len(tokenizer.encode([word])[0].input_ids) == 3


def contrasts_of(template: str, nouns: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """Each noun once, so that contrasts are independent: singular and plural are clean in turn."""
    return [_contrast(template, noun, noun[place % 2], 1 - place % 2) for place, noun in enumerate(nouns)]


def controls_of(template: str, nouns: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """Each noun and the next, in one number, which is singular and plural in turn."""
    pairs = enumerate(pairwise(nouns))
    return [_contrast(template, noun, other[1 - place % 2], 1 - place % 2) for place, (noun, other) in pairs]


def _contrast(template: str, noun: tuple[str, str], corrupted: str, number: int) -> dict[str, str]:
    words = {"clean": noun[number], "corrupted": corrupted, "good": VERBS[number], "bad": VERBS[1 - number]}
    return {"template": template, **words}


def compute(run: Run) -> Found:
    """The grids of all templates."""
    nouns = read_nouns(run.options.nouns, run.tokenizer)
    nouns = [nouns[number] for number in draw_sample(len(nouns), run.options)]
    found, values = [], dict[str, np.ndarray]()
    for number, template in enumerate(TEMPLATES):
        patch = partial(bertjax.patch, run.model, seed=run.options.seed)
        heads = partial(patch, sites=["head_outputs"], spans="regions")
        rows = contrasts_of(template, nouns)
        streams, of_heads = patch(rows, spans="tokens"), heads(rows)
        moved = [moved_by(results) for results in (of_heads, heads(controls_of(template, nouns)))]
        found.append({"template": template, "streams": describe_grid(streams), "heads": describe_grid(of_heads)})
        found[-1] |= {"moved": moved[0].tolist(), "moved_by_nouns": moved[1].tolist()}
        values[f"template_{number}"] = np.asarray(of_heads.outputs["outputs"][..., 0])
    model = run.model.config
    results = {"nouns": nouns, "layers": model.num_hidden_layers, "templates": found}
    return results, values


def tables(runs: Runs) -> str:
    """Heads at regions that restore most in the mean of all templates of each run."""
    return "\n\n".join(_table_of_heads(numbers["results"]["templates"]) for numbers in runs.values())


def _table_of_heads(templates: Sequence[Mapping[str, Any]]) -> str:
    heads = [one["heads"] for one in templates]
    cells = [{name_cell(grid, number): number for number in range(len(grid["cells"]))} for grid in heads]
    shared = [key for key in cells[0] if all(key in of_grid for of_grid in cells)]

    def mean(key: str) -> float:
        return float(np.mean([grid["score"][of_grid[key]] for grid, of_grid in zip(heads, cells, strict=True)]))

    rows = []
    for key in sorted(shared, key=lambda key: -mean(key))[:BEST]:
        row = [key]
        for one, of_grid in zip(templates, cells, strict=True):
            index = of_grid[key]
            row.append(
                f"{format_share(one['heads'], index)}; {one['moved'][index]:.2f}, {one['moved_by_nouns'][index]:.2f}"
            )
        rows.append(row)
    return make_table(["head", *(one["template"] for one in templates)], rows)


def figures(numbers: Numbers) -> Figures:
    """A figure for each template, from a run's `numbers.json`."""
    names = ["figure", *(f"template_{number}" for number in range(2, 1 + len(TEMPLATES)))]
    return {name: partial(_draw, numbers, number) for number, name in enumerate(names)}


def _draw(numbers: Mapping[str, Any], number: int, path: Path) -> None:
    one = numbers["results"]["templates"][number]
    grid = one["streams"]
    subtitle = f"{short_name(numbers['settings']['model'])}: {one['template']}, {grid['contrasts']} contrasts"
    draw_grid(grid, "Where agreement is", subtitle, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--nouns", type=Path, required=True, metavar="FILE", help="CoNLL-U, also gzipped")
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
