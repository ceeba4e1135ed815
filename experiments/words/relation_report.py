"""Tables and pictures of section 4.5 from the contents of `numbers.json`."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from bertjax.plots import Panel
from experiments.shared.figures import Texts, draw_maps
from experiments.shared.run import Figures, Numbers, Runs, name_maps
from experiments.shared.tables import make_table, name_head
from experiments.words.estimates import LEVEL, differing, read_estimate
from experiments.words.features import FEATURES
from experiments.words.links import CONTROLS
from experiments.words.pattern_join import join_table

KIND = "same word"  # of links, in tables


def figures(numbers: Numbers) -> Figures:
    """The pictures by name, as far as there are data: `figure` (relations), `shared_words`, `cls_row`.

    Args:
        numbers: the contents of `numbers.json`.
    """
    sources = numbers["results"]["sources"]
    pictures: dict[str, Callable[[Path], None]] = {}
    if _with(sources, "relations"):
        pictures["figure"] = partial(_draw_relations, numbers=numbers)
    if _with(sources, "shared_words"):
        pictures["shared_words"] = partial(_draw_shared, numbers=numbers)
    pictures["cls_row"] = partial(_draw_rows, numbers=numbers)
    return pictures


def _with(sources: Numbers, part: str) -> dict[str, Any]:
    """The sources whose models have this part."""
    return {name: source for name, source in sources.items() if source["models"][0].get(part)}


def _subtitle(numbers: Numbers) -> str:
    model, sources = numbers["settings"]["model"] + name_maps(numbers["settings"]), numbers["results"]["sources"]
    return model if len(sources) > 1 else f"{model}, {next(iter(sources.values()))['data']['corrected']['source']}"


def weakest_margin(relation: Numbers) -> tuple[Float[np.ndarray, "layers heads"], Bool[np.ndarray, "layers heads"]]:
    """How much more often each head finds a target than the best control does, and whether it beats all controls."""
    margins = [relation["margins"][name] for name in CONTROLS]
    beyond = np.all([np.array(margin["q_values"]) < LEVEL for margin in margins], axis=0)
    return np.min([np.array(margin["mean"]) for margin in margins], axis=0), beyond


def _draw_relations(path: Path, numbers: Numbers) -> None:
    (name, source), *_ = _with(numbers["results"]["sources"], "relations").items()
    relations = source["models"][0]["relations"].items()
    panels = [Panel(f"{name} ({one['sources']:,})", 100 * np.array(one["share"])) for name, one in relations]
    for name, relation in relations:
        margin, beyond = weakest_margin(relation)
        panels.append(Panel(f"beyond: {name}", 100 * margin, beyond, ~beyond))
    note = (
        "In brackets: words that look for a target. Controls: the best distance, the nearest word of the kind, the\n"
        f"same head from other words, and from neighbours. Dot: more than all four (q < {LEVEL} each); stroke: not."
    )
    draw_maps(path, panels, Texts("Attention along relations between words", _subtitle(numbers), "% found"), note=note)


def _draw_shared(path: Path, numbers: Numbers) -> None:
    panels = []
    for name, source in _with(numbers["results"]["sources"], "shared_words").items():
        for kind, entry in source["models"][0]["shared_words"].items():
            share, (least, beyond) = np.array(entry["share"]["mean"]), weakest_shared(entry)
            panels.append(
                Panel(f"{name.partition(':')[0]}, {kind}", share, beyond & twice_controls(share, least), ~beyond)
            )
    note = (
        "Controls: other words there, other words in the same places, the same word seen from others.\n"
        f"Stroke: not more than all three (q < {LEVEL}). Dot: more, and at least twice the largest control."
    )
    title = "Attention to the same word in the other text"
    draw_maps(path, panels, Texts(title, _subtitle(numbers), "share of a word's attention"), note=note)


def weakest_shared(kind: Numbers) -> tuple[Float[np.ndarray, "layers heads"], Bool[np.ndarray, "layers heads"]]:
    """How much more each head gives along links than its strongest control gets, and whether it beats all controls."""
    margins = {name: read_estimate(entry) for name, entry in kind["margins"].items()}
    beyond = [differing({name: margin})[name] & (margin.mean > 0) for name, margin in margins.items()]
    return np.min([margin.mean for margin in margins.values()], axis=0), np.all(beyond, axis=0)


def twice_controls(
    share: Float[np.ndarray, "layers heads"], least: Float[np.ndarray, "layers heads"]
) -> Bool[np.ndarray, "layers heads"]:
    """Which heads give along links at least twice what the largest control gets; `least` is from `weakest_shared`."""
    return share >= 2 * (share - least)


def _draw_rows(path: Path, numbers: Numbers) -> None:
    """Draw mean weights relative to uniform attention, of the base model and averaged over the fine-tuned ones."""
    sources = numbers["results"]["sources"]
    features = [name for name in FEATURES if any(name in source["models"][0]["cls_row"] for source in sources.values())]
    panels = []
    for label, members in (("", slice(0, 1)), (", fine-tuned", slice(1, None))):
        for name, source in sources.items():
            if cls_rows := [model["cls_row"] for model in source["models"][members]]:
                panels.append(Panel(f"{name.partition(':')[0]}{label}", _stack(cls_rows, features)))
    texts = Texts("What [CLS] attends to in the last layer", _subtitle(numbers), "mean weight × tokens (1: uniform)")
    draw_maps(path, panels, texts, rows=features, ratio=3)


def _stack(cls_rows: Sequence[Numbers], features: Sequence[str]) -> Float[np.ndarray, "features heads"]:
    empty = np.full(len(next(iter(cls_rows[0].values()))["largest"]), np.nan)
    maps = [[row[name]["mean_by_uniform"] if name in row else empty for name in features] for row in cls_rows]
    return np.mean(np.array(maps, np.float64), axis=0)


def tables(runs: Runs) -> str:
    """The tables of the section, as far as there are data: relations of all runs, diagonal heads, shared words."""
    sections, rows = list[str](), list[list[str]]()
    for numbers in runs.values():
        results, maps = numbers["results"], ", norms" if numbers["settings"].get("norms") else ""
        for source in _with(results["sources"], "relations").values():
            relations = source["models"][0]["relations"]
            rows += [_relation_cells(f"{name}{maps}", relation) for name, relation in relations.items()]
            sections += [join_table(relations, results["patterns"])] if "patterns" in results else []
        if shared := _with(results["sources"], "shared_words"):
            sections.append(_shared_table(shared))
    header = ["relation", "sources in texts", "head that finds most, %", "best distance: finds; margin"]
    header += ["nearest of the kind", "other sources", "neighbours", "heads above all"]
    return "\n\n".join([make_table(header, rows)] * bool(rows) + sections)


def _relation_cells(name: str, relation: Numbers) -> list[str]:
    """For the head that finds most: what each control finds, and by how much the head finds more."""
    share = np.array(relation["share"])
    index = int(share.argmax())
    cells = [name, f"{relation['sources']:,} in {relation['examples']:,}"]
    cells.append(f"{name_head(index, share.shape[1])} {100 * share.max():.1f}")
    prefixes = {"distance": f"{relation['best_distance']:+d}: ", "nearest": f"{relation['nearest']}: "}
    for control in CONTROLS:
        mean, half = (100 * np.array(relation["margins"][control][key]).ravel()[index] for key in ("mean", "interval"))
        found = np.broadcast_to(relation["control_shares"][control], share.shape).ravel()[index]
        cells.append(f"{prefixes.get(control, '')}{100 * found:.1f}; {mean:+.1f} ± {half:.1f}")
    found_by = {head: share[tuple(map(int, head.split(".")))] for head in relation["followed_by"]}
    return [*cells, ", ".join(f"{head} {100 * value:.1f}" for head, value in found_by.items()) or "none"]


def _shared_table(sources: Numbers) -> str:
    """The same word in the other text, by task: the base model's heads, and the same heads of tuned models."""
    rows = []
    for name, source in sources.items():
        base, *tuned = (model["shared_words"][KIND] for model in source["models"])
        share, (least, beyond) = np.array(base["share"]["mean"]), weakest_shared(base)
        order = np.argsort(-least.ravel())[:3].tolist()
        names = [name_head(index, share.shape[1]) for index in order]
        heads = [
            f"{head} {share.ravel()[i]:.3f} ({least.ravel()[i]:+.3f})" for head, i in zip(names, order, strict=True)
        ]
        row = [name, f"{base['links']:,} in {base['examples']:,}", ", ".join(heads)]
        row.append(f"{beyond.sum()} ({(beyond & twice_controls(share, least)).sum()})")
        by_seed = [np.array(model["share"]["mean"]).ravel() for model in tuned]
        values = (", ".join(f"{seed[i]:.3f}" for seed in by_seed) for i in order[:2])
        row.append("; ".join(f"{head} {seeds}" for head, seeds in zip(names, values, strict=False)) if tuned else "")
        rows.append([*row, ", ".join(str(weakest_shared(model)[1].sum()) for model in tuned)])
    header = ["task", "links in pairs", "heads most beyond controls: share (margin)", "heads beyond all (by twice)"]
    return make_table([*header, "tuned, by seed: share", "heads beyond all"], rows)
