"""Do heads follow syntax? Dependency relations (Clark et al. 2019, section 4.2) and trees (Htut et al. 2019)

Reads sentences with dependencies (`--conllu`; 200 sentences of UD English EWT are included). Attention between words is
the mean over the pieces of the query and the sum over those of the key; special tokens and a word itself are left out.
For each relation and direction (from the dependent to its head, or back) a head is right if it attends most to the word
at the other end. The best head and direction, and the best fixed distance in words as a baseline, are chosen on one
half of the sentences and evaluated on the other; intervals and p-values of their difference by bootstrap of sentences,
corrected over relations (Holm). Root and punctuation are left out. A relation with a subtype (`nsubj:pass`) is a
separate relation.

Trees are maximum spanning trees of each head's weights between words without punctuation, both directions together. The
number of true edges (UUAS), and of true heads with the tree rooted at the true root, is compared with the chain that
joins each word with the next. The best head is chosen on one half and evaluated on the other.

    python -m experiments.beyond.syntax --conllu en_ewt-ud-dev.conllu.gz
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from bertjax.plots import GREY, INK
from experiments.shared.figures import Series, Texts, draw_estimates
from experiments.shared.run import Figures, Found, Numbers, Run, Runs, draw_sample, make_parser, run_script, short_name
from experiments.shared.tables import make_table, name_head
from experiments.words.annotation import SAMPLE
from experiments.words.conllu_files import read_sentences
from experiments.words.held_out import compare, draw_half, holm
from experiments.words.parses import REACH, Parsed, read_parsed, relation_hits

FEWEST = 20  # relations of each half
SHOWN, LEVEL = 8, 0.05  # relations of an overview; of corrected p-values


def compute(run: Run) -> Found:
    """Relations and trees."""
    options, config = run.options, run.model.config
    sentences = read_sentences(options.conllu)
    sentences = [sentences[index] for index in draw_sample(len(sentences), options)]
    parsed = read_parsed(run, sentences)
    chosen_on = draw_half(len(parsed), options.seed)
    names = _frequent(parsed, chosen_on)
    hits, counts = relation_hits(parsed, names)
    heads, width = len(parsed[0].most), config.num_attention_heads
    offsets = [offset for offset in range(-REACH, REACH + 1) if offset]
    relations = []
    for index, name in enumerate(names):
        result = compare(hits[:, index], counts[:, index], heads, chosen_on, options.seed)
        result["head"]["name"] = name_head(result["head"].pop("guess"), width)
        result["distance"]["offset"] = offsets[result["distance"].pop("guess")]
        relations.append({"relation": name, **result})
    for result, p in zip(relations, holm([result["p"] for result in relations]), strict=True):
        result["p_corrected"] = p
    results = {
        "sentences": len(parsed),
        "left_out": len(sentences) - len(parsed),
        "source": options.conllu.name,
        "relations": relations,
        "trees": compare_trees(parsed, chosen_on, width, options.seed),
    }
    shape = (config.num_hidden_layers, width)
    values = {"relations": np.array(names), "hits": hits.sum(axis=0)[..., :heads], "counts": counts.sum(axis=0)}
    values["trees"] = np.sum([one.trees[:heads] for one in parsed], axis=0).reshape(*shape, 2)
    return results, values


def _frequent(parsed: Sequence[Parsed], chosen_on: Bool[np.ndarray, " sentences"]) -> list[str]:
    """Relations of which each half has enough, the most frequent first; and all together."""
    counts: dict[str, list[int]] = {}
    for sentence, chooses in zip(parsed, chosen_on.tolist(), strict=True):
        for word in np.flatnonzero(sentence.counted).tolist():
            counts.setdefault(sentence.relations[word], [0, 0])[chooses] += 1
    frequent = [name for name, halves in counts.items() if min(halves) >= FEWEST]
    return ["all", *sorted(frequent, key=lambda name: -sum(counts[name]))]


def compare_trees(
    parsed: Sequence[Parsed], chosen_on: Bool[np.ndarray, " sentences"], width: int, seed: int
) -> dict[str, Any]:
    """The best head's trees beside chains, by either measure."""
    trees, counts = np.stack([one.trees for one in parsed]), np.array([one.in_trees for one in parsed])
    found = {}
    for index, measure in enumerate(("edges", "heads")):
        result = compare(trees[:, None, :, index], counts, trees.shape[1] - 1, chosen_on, seed)
        result["head"]["name"] = name_head(result["head"].pop("guess"), width)
        result["chain_of_all"] = float(trees[:, -1, index].sum() / counts.sum())
        found[measure] = result
    return found


def tables(runs: Runs) -> str:
    """The most frequent relations and the trees of runs side by side.

    A cell has the best head, of how many percent of the words it is right, and of how many the best distance is.
    """
    results = [numbers["results"] for numbers in runs.values()]
    columns = [
        f"{short_name(numbers['settings']['model'])}, {numbers['results']['source'].split('-')[0]}"
        for numbers in runs.values()
    ]
    of_runs = [{result["relation"]: result for result in one["relations"]} for one in results]
    shared = [name for name in of_runs[0] if all(name in run for run in of_runs)][:SHOWN]
    rows = [[name, *(_cell(run[name], star=run[name]["p_corrected"] < LEVEL) for run in of_runs)] for name in shared]
    for measure in ("edges", "heads"):
        trees = [one["trees"][measure] for one in results]
        rows.append([f"trees: true {measure}", *(_cell(one, star=one["p"] < LEVEL) for one in trees)])
    return make_table(["head: % right / by distance", *columns], rows)


def _cell(result: Mapping[str, Any], *, star: bool) -> str:
    shares = " / ".join(f"{100 * result[kind]['score']:.0f}" for kind in ("head", "distance"))
    mark = "\\*" if star else ""
    return f"{result['head']['name']}: {shares}{mark}"


def figures(numbers: Numbers) -> Figures:
    """The best head and the best distance for each relation."""
    results = numbers["results"]
    relations, model = results["relations"], short_name(numbers["settings"]["model"])
    series = [
        Series(
            f"best {kind}",
            [100 * one[kind]["score"] for one in relations],
            [[100 * end for end in one[kind]["ends"]] for one in relations],
            *look,
        )
        for kind, look in (("distance", (GREY, "s")), ("head", (INK, "o")))
    ]
    subtitle = f"{model}, {results['sentences']:,} sentences of {results['source']}, evaluated on half of them"
    label = "% of words whose largest weight is at the other end; 95 % intervals"
    texts = Texts("Do heads follow dependency relations?", subtitle, label)
    names = [f"{one['relation']}  {one['head']['name']}" for one in relations]
    return {"figure": partial(draw_estimates, names=names, series=series, texts=texts, limits=(0, 100))}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser(__doc__, norms=True)
    text = "sentences with dependencies (default 200 of EWT)"
    parser.add_argument("--conllu", type=Path, default=SAMPLE, metavar="FILE", help=text)
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
