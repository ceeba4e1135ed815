"""Do heads follow coreference? (Clark et al. 2019, section 4.3)

Reads sentences with dependencies and mentions of entities, as GUM has them (`--conllu`). An anaphor is the head word of
a mention whose entity was mentioned earlier in the sentence, where there are two earlier mentions or more; a head is
right where, of the earlier mentions' head words, it attends most to one of that entity. Beside it: the nearest earlier
mention; the nearest of the same kind (noun, pronoun); the nearest with the same word, or of the same kind where there
is none; and a draw. The best head is chosen on one half of the sentences and judged on the other; intervals by
bootstrap of sentences.

A head that attends to some words from everywhere would be right for the wrong reason. So for each anaphor and its
nearest true antecedent the weight is compared with that of the same key from other mentions after it, of other
entities: of how many anaphors is it larger than the mean of these? Half, where the head does not know who asks.

    python -m experiments.beyond.coreference --conllu en_gum-ud-dev.conllu.gz
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from bertjax.plots import Panel
from experiments.shared.figures import draw_maps
from experiments.shared.run import (
    Figures,
    Found,
    Numbers,
    Run,
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
    several = read_resolved(run, sentences)
    chosen_on = draw_half(len(several), options.seed)
    counts, hits = np.array([one.count for one in several]), np.stack([one.hits for one in several])
    heads, width = len(several[0].knows), config.num_attention_heads
    against = {}
    for index, name in enumerate(BASELINES):
        both = np.concatenate([hits[:, :heads], hits[:, heads + index, None]], axis=1)[:, None]
        against[name] = compare(both, counts, heads, chosen_on, options.seed)
    best = against[BASELINES[0]]["head"]["guess"]
    results = {
        "anaphors": int(counts.sum()),
        "sentences": len(several),
        "source": options.conllu.name,
        "head": f"{best // width}.{best % width}",
        "against": against,
        "chance": float(sum(one.chance for one in several) / counts.sum()),
        "knows": _knows(several, best, ~chosen_on, options.seed),
        "of_all_heads": (hits[:, :heads].sum(axis=0) / counts.sum()).round(4).tolist(),
    }
    results["shape"] = [config.num_hidden_layers, width]
    return results, {"hits": hits, "counts": counts}


def _knows(several: Sequence[Resolved], head: int, judged: Bool[np.ndarray, " sentences"], seed: int) -> dict[str, Any]:
    """Of how many anaphors a head gives the antecedent more than others do, on the sentences that judge."""
    own = [one for one, is_judged in zip(several, judged.tolist(), strict=True) if is_judged]
    asked, knows = np.array([one.asked for one in own]), np.array([one.knows[head] for one in own])
    drawn = np.random.default_rng(seed).integers(0, len(own), (DRAWS, len(own)))
    totals = np.where(asked[drawn].sum(axis=1) > 0, asked[drawn].sum(axis=1), np.nan)
    ends = np.nanquantile(knows[drawn].sum(axis=1) / totals, [0.025, 0.975]).tolist() if asked.any() else [0.0, 1.0]
    share = float(knows.sum() / asked.sum()) if asked.any() else float("nan")
    return {"asked": int(asked.sum()), "share": share, "ends": ends}


def tables(numbers: Numbers) -> str:
    """The table in Markdown, from a run's `numbers.json`."""
    results = numbers["results"]
    result = results["against"][BASELINES[0]]
    rows = [[f"head {results['head']}", _score(result["head"]), ""]]
    for name, one in results["against"].items():
        low, high = (f"{100 * end:+.1f}" for end in one["difference"])
        rows.append([name, _score(one["distance"]), f"{low} to {high}"])
    rows.append(["a draw (all sentences)", f"{100 * results['chance']:.1f}", ""])
    knows = {"score": results["knows"]["share"], "ends": results["knows"]["ends"]}
    rows.append([f"head {results['head']} knows who asks ({results['knows']['asked']})", _score(knows), ""])
    what = f"{short_name(numbers['settings']['model'])}, {result['count']} of {results['anaphors']} anaphors judge"
    return make_table([what, "% right (95 % CI)", "head less this, 95 % CI"], rows)


def overview(runs: Mapping[str, Numbers]) -> str:
    """Several runs side by side, in Markdown, from their `numbers.json`."""
    results = [numbers["results"] for numbers in runs.values()]
    names = [short_name(numbers["settings"]["model"]) for numbers in runs.values()]
    first = [one["against"][BASELINES[0]] for one in results]
    rows = [
        [
            "the best head",
            *(f"{one['head']}: {_score(result['head'])}" for one, result in zip(results, first, strict=True)),
        ]
    ]
    rows += [[name, *(_score(one["against"][name]["distance"]) for one in results)] for name in BASELINES]
    rows.append(["a draw", *(f"{100 * one['chance']:.1f}" for one in results)])
    knows = [{"score": one["knows"]["share"], "ends": one["knows"]["ends"]} for one in results]
    rows.append(["the head knows who asks", *map(_score, knows)])
    columns = [f"{name}, {result['count']} anaphors" for name, result in zip(names, first, strict=True)]
    return make_table(["% right (95 % CI)", *columns], rows)


def _score(result: Mapping[str, Any]) -> str:
    return format_interval(result["score"], result["ends"], 1, 100.0)


def figures(numbers: Numbers) -> Figures:
    """The figure, from a run's `numbers.json`: all heads, on all sentences."""
    results, settings = numbers["results"], numbers["settings"]
    values = 100 * np.array(results["of_all_heads"]).reshape(results["shape"])
    title = "Do heads find antecedents?"
    subtitle = f"{short_name(settings['model'])}{name_maps(settings)}, {results['anaphors']:,} anaphors"
    nearest = 100 * results["against"]["nearest"]["distance"]["score"]
    chance = 100 * results["chance"]
    note = f"A draw is right for {chance:.0f} %; on the half that judges the nearest mention is for {nearest:.0f} %."
    draw = partial(draw_maps, panels=[Panel("most to a true antecedent", values)], title=title, subtitle=subtitle)
    return {"figure": partial(draw, label="% right", note=note)}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser(__doc__, norms=True)
    text = "sentences with mentions, as GUM has them"
    parser.add_argument("--conllu", type=Path, required=True, metavar="FILE", help=text)
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
