"""Do heads follow coreference? (Clark et al. 2019, section 4.3)

Reads sentences with dependencies and mentions of entities, as in GUM (`--conllu`). An anaphor is the head word of a
mention of an entity that was mentioned earlier in the sentence, with at least two earlier mentions in all. A head is
right if, among the head words of earlier mentions, it attends most to one of that entity. Baselines: the nearest
earlier mention; the nearest of the same kind (noun, pronoun); the nearest with the same word, or of the same kind if
there is none; a random choice. The best head is chosen on one half of the sentences and evaluated on the other;
intervals by bootstrap of sentences.

A head that attends to some words from everywhere would be right for the wrong reason. So for each anaphor and its
nearest true antecedent, the weight is compared with the mean weight on the same antecedent from later mentions of
other entities. The share of anaphors for which it is larger is one half if the head ignores the query.

    python -m experiments.beyond.coreference --conllu en_gum-ud-dev.conllu.gz
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from bertjax.plots import Panel
from experiments.shared.figures import Texts, draw_maps
from experiments.shared.run import (
    Figures,
    Found,
    Numbers,
    Run,
    Runs,
    draw_sample,
    make_parser,
    name_maps,
    run_script,
    short_name,
)
from experiments.shared.tables import format_interval, make_table
from experiments.words.anaphors import BASELINES, Resolved, read_resolved
from experiments.words.conllu_files import read_sentences
from experiments.words.held_out import DRAWS, compare, draw_half


def compute(run: Run) -> Found:
    """The best head and the baselines."""
    options, config = run.options, run.model.config
    sentences = read_sentences(options.conllu)
    sentences = [sentences[index] for index in draw_sample(len(sentences), options)]
    resolved = read_resolved(run, sentences)
    chosen_on = draw_half(len(resolved), options.seed)
    counts, hits = np.array([one.count for one in resolved]), np.stack([one.hits for one in resolved])
    heads, width = len(resolved[0].higher), config.num_attention_heads
    against = {}
    for index, name in enumerate(BASELINES):
        both = np.concatenate([hits[:, :heads], hits[:, heads + index, None]], axis=1)[:, None]
        against[name] = compare(both, counts, heads, chosen_on, options.seed)
    best = against[BASELINES[0]]["head"]["guess"]
    results = {
        "anaphors": int(counts.sum()),
        "sentences": len(resolved),
        "source": options.conllu.name,
        "head": f"{best // width}.{best % width}",
        "against": against,
        "chance": float(sum(one.chance for one in resolved) / counts.sum()),
        "knows": _knows(resolved, best, ~chosen_on, options.seed),
        "of_all_heads": (hits[:, :heads].sum(axis=0) / counts.sum()).round(4).tolist(),
    }
    results["shape"] = [config.num_hidden_layers, width]
    return results, {"hits": hits, "counts": counts}


def _knows(
    resolved: Sequence[Resolved], head: int, evaluated_on: Bool[np.ndarray, " sentences"], seed: int
) -> dict[str, Any]:
    """Of how many anaphors a head gives the antecedent more than others do, on the sentences for evaluation."""
    evaluated = [one for one, is_evaluated in zip(resolved, evaluated_on.tolist(), strict=True) if is_evaluated]
    compared, knows = np.array([one.compared for one in evaluated]), np.array([one.higher[head] for one in evaluated])
    drawn = np.random.default_rng(seed).integers(0, len(evaluated), (DRAWS, len(evaluated)))
    totals = np.where(compared[drawn].sum(axis=1) > 0, compared[drawn].sum(axis=1), np.nan)
    ends = np.nanquantile(knows[drawn].sum(axis=1) / totals, [0.025, 0.975]).tolist() if compared.any() else [0.0, 1.0]
    share = float(knows.sum() / compared.sum()) if compared.any() else float("nan")
    return {"asked": int(compared.sum()), "share": share, "ends": ends}


def tables(runs: Runs) -> str:
    """The best head and the baselines of runs side by side."""
    results = [numbers["results"] for numbers in runs.values()]
    first = [one["against"][BASELINES[0]] for one in results]
    best = [f"{one['head']}: {_score(result['head'])}" for one, result in zip(results, first, strict=True)]
    rows = [["the best head", *best]]
    rows += [[name, *(_score(one["against"][name]["distance"]) for one in results)] for name in BASELINES]
    rows.append(["a draw", *(f"{100 * one['chance']:.1f}" for one in results)])
    knows = [{"score": one["knows"]["share"], "ends": one["knows"]["ends"]} for one in results]
    rows.append(["the head attends from the anaphor", *map(_score, knows)])
    names = [short_name(numbers["settings"]["model"]) for numbers in runs.values()]
    columns = [f"{name}, {result['count']} anaphors" for name, result in zip(names, first, strict=True)]
    return make_table(["% right (95 % CI)", *columns], rows)


def _score(result: Mapping[str, Any]) -> str:
    return format_interval(result["score"], result["ends"], 1, 100.0)


def figures(numbers: Numbers) -> Figures:
    """The figure, from a run's `numbers.json`: all heads, on all sentences."""
    results, settings = numbers["results"], numbers["settings"]
    values = 100 * np.array(results["of_all_heads"]).reshape(results["shape"])
    subtitle = f"{short_name(settings['model'])}{name_maps(settings)}, {results['anaphors']:,} anaphors"
    nearest, chance = 100 * results["against"]["nearest"]["distance"]["score"], 100 * results["chance"]
    note = f"A draw is right for {chance:.0f} %; the nearest mention is right for {nearest:.0f} %."
    texts = Texts("Do heads find antecedents?", subtitle, "% right")
    panels = [Panel("most to a true antecedent", values)]
    return {"figure": partial(draw_maps, panels=panels, texts=texts, note=note)}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser(__doc__, norms=True)
    text = "sentences with mentions, as GUM has them"
    parser.add_argument("--conllu", type=Path, required=True, metavar="FILE", help=text)
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
