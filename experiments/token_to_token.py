"""Do heads link subjects with verbs, pronouns with nouns? What does [CLS] attend to? (Kovaleva et al. 2019, 4.5)

For each head and relation (subject to verb, verb to subject, pronoun to noun, noun to pronoun; `relations.py` says
which): the largest weight from a token of a source to a token of its target, averaged over the examples that have the
relation. Heads that merely look a fixed distance away find many targets, so each is held against position:

- how often the word that a source attends to most, special tokens left out, is its target, less how often the best
  fixed distance in words finds it, chosen on the same examples (Clark et al. 2019);
- the mean weight between sources and targets, less what the head gives on average at the same distances in tokens.

A head is marked where it beats the fixed distance and the nearest word of the target's kind (a third baseline, ours:
the next verb for a subject, and so on), and where it gives more weight: random signs of the examples,
q < 0.05 over all heads (Benjamini and Hochberg 1995). The second picture (figure 7) is the last layer's [CLS] row: the
largest weight on a feature's tokens, over the examples that have it, as the authors show it; the same times the tokens
of the input, which is 1 where attention is uniform; and the mean weight on the feature's tokens times the tokens of the
input, which does not grow with the number of the feature's tokens.

--as-published also takes what the authors' code takes, and shows it: the pieces of all sources and of all targets,
wherever they stand, paired one to one in order; the largest weight; 0 for an example without the relation.

Words come from CoNLL-U (--conllu; the package `conllu` reads it), from spaCy for a task (--task with --spacy), or from
200 sentences of the English Web Treebank that come with the program. Pronoun and noun need entities, as GUM has them
(`Entity=` in its files):

    python -m experiments.token_to_token --conllu en_gum-ud-dev.conllu         71 s of processor time (1,000 sentences)

There two of the 72 heads of all-MiniLM-L6-v2 find a subject's verb more often than the next word is one (2.8: 63
against 49 %), two a verb's subject, and none more often than the nearest word of the right kind; from pronouns 3.1
finds a noun of the same entity in 62 %, the best distance in 8 %, the nearest noun in 27 % (`RESULTS.md`). It has been
run neither on bert-base-uncased nor with a model of spaCy.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.cli import positive
from bertjax.errors import DataError
from experiments.shared.agreement import compare_maps, say_agreement
from experiments.shared.map_grid import draw_grid
from experiments.shared.maps import Panel
from experiments.shared.program import Outcome, Run, make_parser, run_program
from experiments.words.annotation import add_annotation_options, read_annotated
from experiments.words.links import attend_from_cls, follow_links, follow_published, measure
from experiments.words.positions import Margin
from experiments.words.relations import RELATIONS, TARGETS

LEVEL = 0.05
KEPT = ("examples", "sources", "best_distance", "best_distance_share", "nearest", "nearest_share")
Rows = dict[str, dict[str, np.ndarray]]


def compute(run: Run) -> Outcome:
    """Relations and [CLS] row, of one mode or both."""
    sample = read_annotated(run)
    found = follow_links(run, sample)
    relations, lengths = measure(run, found), np.array([len(text) for text in sample.texts])
    if not relations:
        raise DataError(f"{sample.source}: no subject of a verb, and no pronoun and noun of one entity, is annotated")
    rows = attend_from_cls(found, lengths)
    taken = ("sources", "largest", "hits", "excess", "row", "row_mean")
    values = {name: getattr(found, name) for name in taken} | {"lengths": lengths, "features": found.masks.any(-1)}
    missing = [relation for relation in RELATIONS if relation not in relations]
    lines = [sample.source, *(line for relation, one in relations.items() for line in _summary(relation, one))]
    if missing:
        lines.append(f"{', '.join(missing)}: none here; pronoun and noun need entities, as GUM's files have them")
    values["ids"] = np.array(sample.ids)
    numbers = {"data": sample.told(), **_report(relations, rows)}
    where, panels = f"{run.options.model}, {sample.source}", _panels(relations)
    if run.options.as_published:
        read = read_annotated(run, published=True)
        all_maps, row, values["published"] = follow_published(run, read)
        values["published_ids"] = np.array(read.ids)
        maps = {name: all_maps[name] for name in relations}
        apart = _compare(maps, row, relations, rows)
        numbers |= {"as_published": {"data": read.told(), "maps": _rounded(maps), "cls_row": _rounded(row)}}
        numbers |= {"published_against_corrected": apart}
        lines += [f"as published: {name} {_say_largest(one)}" for name, one in maps.items()]
        lines += [say_agreement(name, one) for name, one in apart.items()]
        shown = [Panel(name, one) for name, one in maps.items()]
        panels, rows = [shown[place : place + 2] for place in range(0, len(shown), 2)], {"largest": row}
        where += ", as published"
    pictures = {"cls_row": lambda path: _draw_rows(path, rows, where)}
    return Outcome(numbers, values, lambda path: _draw_relations(path, panels, where), lines, pictures)


def _compare(
    maps: dict[str, np.ndarray], row: dict[str, np.ndarray], relations: dict[str, dict[str, Any]], rows: Rows
) -> dict[str, Any]:
    """How far the published maps, and the published [CLS] row, are from the corrected ones."""
    found = {name: compare_maps(maps[name], one["mean"]) for name, one in relations.items()}
    both = [feature for feature in row if feature in rows["largest"]]
    return found | {f"[CLS] to {feature}": compare_maps(row[feature], rows["largest"][feature]) for feature in both}


def _rounded(maps: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: found.round(6).tolist() for name, found in maps.items()}


def _report(relations: dict[str, dict[str, Any]], rows: Rows) -> dict[str, Any]:
    found: dict[str, Any] = {"relations": {}, "cls_row": {name: _rounded(row) for name, row in rows.items()}}
    for relation, one in relations.items():
        kept = {name: one[name] for name in KEPT}
        kept |= _rounded({name: one[name] for name in ("mean", "share")})
        for name in ("margin", "nearest_margin", "excess"):
            margin: Margin = one[name]
            kept[name] = _rounded(vars(margin)) | {"significant_heads": int((margin.q_values < LEVEL).sum())}
        found["relations"][relation] = kept
    return found


def _summary(relation: str, one: dict[str, Any]) -> list[str]:
    layer, head = np.unravel_index(one["share"].argmax(), one["share"].shape)
    several = {
        f"the word at {one['best_distance']:+d}": (one["best_distance_share"], one["margin"]),
        f"the nearest {'/'.join(TARGETS[RELATIONS.index(relation)])} {one['nearest']}": (
            one["nearest_share"],
            one["nearest_margin"],
        ),
    }
    lines = [
        f"{relation}: {one['sources']} in {one['examples']} texts, head {layer}.{head} finds most, "
        f"{100 * one['share'][layer, head]:.1f} %"
    ]
    for name, (share, margin) in several.items():
        own, half = 100 * margin.mean[layer, head], 100 * margin.interval[layer, head]
        heads = f"{int((margin.q_values < LEVEL).sum())} of {margin.mean.size} heads find more (q < {LEVEL})"
        lines.append(f"    {name} finds {100 * share:.1f} %: margin {own:+.1f} ± {half:.1f}; {heads}")
    count = int((one["excess"].q_values < LEVEL).sum())
    return [*lines, f"    {count} heads give more weight than at the same distances elsewhere (q < {LEVEL})"]


def _panels(relations: dict[str, dict[str, Any]]) -> list[list[Panel]]:
    rows = []
    for relation, one in relations.items():
        margin, nearest, excess = one["margin"], one["nearest_margin"], one["excess"]
        beyond = (margin.q_values < LEVEL) & (nearest.q_values < LEVEL)
        apart, best = one["best_distance"], 100 * one["best_distance_share"]
        rows.append(
            [
                Panel(f"{relation} ({one['sources']:,}): weight", one["mean"]),
                Panel(f"found, % (word at {apart:+d}: {best:.0f})".replace("-", "−"), 100 * one["share"], beyond),
                Panel("weight − expected", excess.mean, excess.q_values < LEVEL),
            ]
        )
    return rows


def _say_largest(found: np.ndarray) -> str:
    layer, head = np.unravel_index(found.argmax(), found.shape)
    return f"head {layer}.{head} most, {found[layer, head]:.3f}"


def _draw_relations(path: Path, panels: list[list[Panel]], where: str) -> None:
    marked = any(panel.marked is not None for row in panels for panel in row)
    published = "largest weight of the pairs, mean over the examples; one without the relation counts as 0"
    note = (
        "In brackets: how many words look for a target; how often the word at the best fixed distance is it, in %.\n"
        "Dot, middle: finds it more often than that word, and than the nearest of the right kind; right: gives\n"
        f"it more weight than it gives words at the same distances elsewhere (q < {LEVEL})."
    )
    draw_grid(path, panels, "Attention along relations between words", where, note if marked else published)


def _draw_rows(path: Path, rows: Rows, where: str) -> None:
    titles = {"largest": "largest weight", "largest_by_uniform": "largest × tokens", "mean_by_uniform": "mean × tokens"}
    features = tuple(next(iter(rows.values())))
    panels = [Panel(titles[name], np.stack(list(row.values()))) for name, row in rows.items()]
    note = "× tokens of the input: 1 is what uniform attention gives. " if len(panels) > 1 else ""
    note += "Colours by square roots"
    draw_grid(path, [panels], "What [CLS] attends to in the last layer", where, note, names=features, power=0.5)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser("token_to_token", __doc__)
    add_annotation_options(parser)
    text = "random signs of the null (default %(default)s)"
    parser.add_argument("--draws", type=positive, default=10000, metavar="N", help=text)
    return run_program(parser, compute, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
