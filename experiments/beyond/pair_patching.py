"""Where does a classifier of pairs notice that a word of one text does not occur in the other?

Contrasts: pairs that a task labels as similar (paraphrases, entailment, a score of at least 4 of 5), with one word in
both texts. The clean text is the pair; in the corrupted text another word replaces that word in the first text. The
word has one piece, occurs once in each text and is rare (in at most 2 % of all texts); its replacement is such a word
of another pair, drawn with the seed. The score is the logit of the clean pair's label minus that of the other label, or
the output of a model with one. Grids: the residual stream, attention and feed-forward outputs by regions of the pair,
and all heads by regions (`bertjax patch`).

Control: contrasts whose replaced word does not occur in the second text, so that no match is lost. The mean absolute
effect of a patch on the score is reported for both kinds of contrasts.

    python -m experiments.beyond.pair_patching --task mrpc --data GLUE --model DIR/runs/mrpc-pretrained-0/last
"""

import re
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import bertjax
from bertjax.data import Examples
from experiments.shared.data import add_task_options, read_examples
from experiments.shared.patches import describe_grid, draw_grid, format_share, moved_by, name_cell
from experiments.shared.run import Figures, Found, Numbers, Run, Runs, draw_sample, make_parser, run_script, short_name
from experiments.shared.tables import make_table

WORD = re.compile(r"\w+")
LEAST_LETTERS, RARE, ALIKE = 4, 0.02, 4.0
BEST = 4  # heads in the table


def words_of(text: str) -> Counter[str]:
    """How often each word of letters alone, as long as `LEAST_LETTERS`, occurs in a text."""
    return Counter(word for word in WORD.findall(text) if word.isalpha() and len(word) >= LEAST_LETTERS)


def rare_words(texts: Sequence[str], tokenizer: bertjax.Tokenizer) -> list[str]:
    """Words of one piece that are in a few of the texts alone, in the order of the alphabet."""
    counts = Counter(word for text in texts for word in {*words_of(text)})
    most = max(1.0, RARE * len(texts))
    words = sorted(word for word, count in counts.items() if count <= most)
    encodings = tokenizer.encode(words) if words else []
    return [word for word, encoding in zip(words, encodings, strict=True) if len(encoding.input_ids) == 3]


def contrasts_of(
    examples: Examples, rare: Sequence[str], rng: np.random.Generator, *, shared: bool
) -> list[dict[str, str]]:
    """A contrast for each pair that has such a word, drawn where it has several.

    Args:
        rare: words that may be exchanged, and put in.
        shared: whether the word that is exchanged is in the second text too, or is not.
    """
    assert examples.second is not None
    known, rows = {*rare}, []
    for first, second in zip(examples.first, examples.second, strict=True):
        words, other = words_of(first), words_of(second)
        lower = {word.lower() for word in WORD.findall(second)}
        there = sorted(
            word
            for word, count in words.items()
            if word in known and count == 1 and (other[word] == 1 if shared else word.lower() not in lower)
        )
        taken = {word.lower() for word in WORD.findall(first)} | lower
        put_in = [word for word in rare if word.lower() not in taken]
        if not there or not put_in:
            continue
        word = there[int(rng.integers(len(there)))]
        like = [one for one in put_in if one[0].isupper() == word[0].isupper()] or put_in
        instead = like[int(rng.integers(len(like)))]
        changed = re.sub(rf"\b{word}\b", instead, first, count=1)
        rows.append({"clean": first, "corrupted": changed, "second": second})
    return rows


def similar_pairs(examples: Examples) -> Examples:
    """The pairs that the task labels as similar."""
    names = examples.task.label_names
    if names:
        label = next(name for name in names if name in ("equivalent", "entailment", "duplicate"))
        return examples.take(np.flatnonzero(examples.labels == names.index(label)).tolist())
    return examples.take(np.flatnonzero(examples.labels >= ALIKE).tolist())


def compute(run: Run) -> Found:
    """The grids of both kinds of contrasts."""
    options = run.options
    chosen = similar_pairs(read_examples(Namespace(**vars(options) | {"limit": None})))
    assert chosen.second is not None
    rare = rare_words([*chosen.first, *chosen.second], run.tokenizer)
    patch = partial(bertjax.patch, run.model, spans="regions", seed=options.seed, max_length=options.max_length)
    found, grids = [], list[bertjax.Results]()
    for number, shared in enumerate((True, False)):
        rng = np.random.default_rng([options.seed, number])
        rows = contrasts_of(chosen, rare, rng, shared=shared)
        rows = [rows[place] for place in draw_sample(len(rows), options)]
        of_heads = patch(rows, sites=["head_outputs"])
        grids.append(of_heads)
        grids_of_row = {"streams": describe_grid(patch(rows)), "heads": describe_grid(of_heads)}
        found.append(
            {"shared": shared, **grids_of_row, "moved": moved_by(of_heads).tolist(), "changed": _changed(of_heads)}
        )
    results = {"task": chosen.task.name, "layers": run.model.config.num_hidden_layers, "contrasts": found}
    values = {name: grid.outputs["outputs"][..., 0] for name, grid in zip(("shared", "alone"), grids, strict=True)}
    return results, values


def _changed(results: bertjax.Results) -> float:
    """By how much the other word changes the score of a contrast, the mean size."""
    outputs = np.asarray(results.outputs["outputs"][0], np.float64)
    return float(np.abs(outputs[:, 2] - outputs[:, 1]).mean().round(5))


def tables(runs: Runs) -> str:
    """Heads at regions that restore most, and by how much they move the score, with the control."""
    rows = []
    for results in (numbers["results"] for numbers in runs.values()):
        both, control = results["contrasts"]
        grid, others = both["heads"], control["heads"]
        cells = {name_cell(others, number): number for number in range(len(others["cells"]))}
        for number in sorted(range(len(grid["cells"])), key=lambda n: -grid["score"][n])[:BEST]:
            name = name_cell(grid, number)
            moved = _moved(control, cells[name]) if name in cells else ""
            rows.append([results["task"], name, format_share(grid, number), _moved(both, number), moved])
    headings = ["task", "head", "share restored (CI)", "moves the score by (of the whole change)"]
    return make_table([*headings, "where the word is in the first text only"], rows)


def _moved(one: Mapping[str, Any], number: int) -> str:
    """By how much a cell moves the score, and which part that is of what the other word changes."""
    return f"{one['moved'][number]:.3f} ({100 * one['moved'][number] / one['changed']:.0f} %)"


def figures(numbers: Numbers) -> Figures:
    """The figure, from a run's `numbers.json`: the grid of a word in both texts."""
    return {"figure": partial(_draw, numbers)}


def _draw(numbers: Mapping[str, Any], path: Path) -> None:
    results = numbers["results"]
    grid = results["contrasts"][0]["streams"]
    subtitle = f"{short_name(numbers['settings']['model'])}, {results['task']}: {grid['contrasts']} contrasts"
    draw_grid(grid, "A word of both texts, replaced in one", subtitle, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser(__doc__)
    add_task_options(parser)
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
