"""Tables and pictures of section 4.5 from the contents of `numbers.json`."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from bertjax.plots import Panel
from experiments.shared.map_table import MapRow, Scale, draw_table, plain_scale, ratio_scale
from experiments.shared.run import Figures, Numbers, name_maps
from experiments.shared.tables import make_table, name_head
from experiments.words.estimates import LEVEL, differing, read_estimate
from experiments.words.features import FEATURES
from experiments.words.links import CONTROLS
from experiments.words.pattern_join import join_table


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


def _subtitle(numbers: Numbers, sources: Numbers) -> str:
    model = numbers["settings"]["model"] + name_maps(numbers["settings"])
    if len(sources) > 1:
        return f"{model}; columns: tasks"
    (source,) = sources.values()
    return f"{model}, {source['data']['corrected']['source']}"


def weakest_margin(relation: Numbers) -> tuple[Float[np.ndarray, "layers heads"], Bool[np.ndarray, "layers heads"]]:
    """How much more often each head finds a target than the best control does, and whether it beats all controls."""
    margins = [relation["margins"][name] for name in CONTROLS]
    beyond = np.all([np.array(margin["q_values"]) < LEVEL for margin in margins], axis=0)
    return np.min([np.array(margin["mean"]) for margin in margins], axis=0), beyond


def _draw_relations(path: Path, numbers: Numbers) -> None:
    sources = _with(numbers["results"]["sources"], "relations")
    (name, source), *_ = sources.items()
    relations = source["models"][0]["relations"]
    weights = [
        Panel(f"{name} ({relation['sources']:,})", np.array(relation["mean"])) for name, relation in relations.items()
    ]
    shares = [Panel("", 100 * np.array(relation["share"])) for relation in relations.values()]
    margins = [(100 * margin, beyond) for margin, beyond in map(weakest_margin, relations.values())]
    rows = [
        MapRow("weight", plain_scale("weight", [panel.values for panel in weights]), weights),
        MapRow("found", plain_scale("found, %", [panel.values for panel in shares]), shares),
        MapRow(
            "beyond\ncontrols",
            plain_scale("points more", [margin for margin, _ in margins]),
            [Panel("", margin, beyond, ~beyond) for margin, beyond in margins],
        ),
    ]
    note = (
        "In brackets: words that look for a target. Controls: the best distance, the nearest word of the kind, the\n"
        f"same head from other words, and from neighbours. Dot: more than all four (q < {LEVEL} each); stroke: not."
    )
    title = "Attention along relations between words"
    draw_table(path, rows, title, _subtitle(numbers, {name: source}), note)


def _draw_shared(path: Path, numbers: Numbers) -> None:
    sources = _with(numbers["results"]["sources"], "shared_words")
    kinds = list(dict.fromkeys(kind for source in sources.values() for kind in source["models"][0]["shared_words"]))
    shares: dict[str, list[Panel | None]] = {kind: [] for kind in kinds}
    margins: dict[str, list[Panel | None]] = {kind: [] for kind in kinds}
    for name, source in sources.items():
        for kind in kinds:
            entry = source["models"][0]["shared_words"].get(kind)
            if entry is None:
                shares[kind].append(None)
                margins[kind].append(None)
                continue
            least, beyond = weakest_shared(entry)
            share = np.array(entry["share"]["mean"])
            shares[kind].append(Panel(name if kind == kinds[0] else "", share))
            margins[kind].append(Panel("", least, beyond & twice_controls(share, least), ~beyond))
    largest = max(float(panel.values.max()) for row in shares.values() for panel in row if panel)
    scale = Scale("share of attention", 0.0, largest)
    arrays = [panel.values for row in margins.values() for panel in row if panel]
    signed = plain_scale("more than controls", arrays)
    rows = [MapRow(kind.replace(" ", "\n"), scale, shares[kind]) for kind in kinds]
    rows += [MapRow(f"{kind},\nbeyond", signed, margins[kind]) for kind in kinds]
    note = (
        "Share of a word's attention that goes to the same word in the other text. Controls: other words there, other\n"
        f"words in the same places, the same word seen from others. Stroke: not more than all three (q < {LEVEL}).\n"
        "Dot: more, and at least twice the largest control."
    )
    draw_table(path, rows, "Attention to words that both texts share", _subtitle(numbers, sources), note)


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
    scale, rows = ratio_scale("mean weight × tokens (1: uniform)"), []
    for label, members in (("base", slice(0, 1)), ("fine-\ntuned", slice(1, None))):
        panels = []
        for name, source in sources.items():
            cls_rows = [model["cls_row"] for model in source["models"][members]]
            panels.append(Panel(name if label == "base" else "", _stack(cls_rows, features)) if cls_rows else None)
        if any(panels):
            rows.append(MapRow(label if len(sources) > 1 else "", scale, panels, features))
    draw_table(path, rows, "What [CLS] attends to in the last layer", _subtitle(numbers, sources))


def _stack(cls_rows: Sequence[Numbers], features: Sequence[str]) -> Float[np.ndarray, "features heads"]:
    empty = np.full(len(next(iter(cls_rows[0].values()))["largest"]), np.nan)
    maps = [[row[name]["mean_by_uniform"] if name in row else empty for name in features] for row in cls_rows]
    return np.mean(np.array(maps, np.float64), axis=0)


def tables(numbers: Numbers) -> str:
    """The tables of the section in Markdown, as far as there are data.

    Args:
        numbers: the contents of `numbers.json`.
    """
    results = numbers["results"]
    sources, sections = results["sources"], []
    for source in _with(sources, "relations").values():
        relations = source["models"][0]["relations"]
        sections += [_relation_table(relations), _followers_table(relations)]
        if "patterns" in results:
            sections.append(join_table(relations, results["patterns"]))
        if source.get("as_published", {}).get("maps"):
            sections.append(_published_table(relations, source))
    if shared := _with(sources, "shared_words"):
        sections.append(_shared_table(shared))
    return "\n\n".join(sections)


def _relation_table(relations: Numbers) -> str:
    """For the head that finds most: what the controls find, and how many heads beat each of them."""
    rows = []
    for name, relation in relations.items():
        share = np.array(relation["share"])
        index = int(share.argmax())
        row = [name, f"{relation['sources']:,} in {relation['examples']:,}"]
        row.append(f"{name_head(index, share.shape[1])} {100 * share.max():.1f}")
        for control in CONTROLS:
            margin, control_shares = relation["margins"][control], np.array(relation["control_shares"][control])
            mean, half = (100 * np.array(margin[key]).ravel()[index] for key in ("mean", "interval"))
            percentage = 100 * float(control_shares if control_shares.ndim == 0 else control_shares.ravel()[index])
            prefix = {"distance": f"{relation['best_distance']:+d}: ", "nearest": f"{relation['nearest']}: "}.get(
                control, ""
            )
            row.append(f"{prefix}{percentage:.1f}; {mean:+.1f} ± {half:.1f}; {margin['significant_heads']}")
        rows.append([*row, str(len(relation["followed_by"]))])
    header = ["relation", "sources in texts", "head that finds most, %"]
    header += [
        f"{name}: finds, margin, heads above"
        for name in ("best distance", "nearest of the kind", "others", "neighbours")
    ]
    return make_table([*header, "heads above all"], rows)


def _followers_table(relations: Numbers) -> str:
    """The heads that beat all controls."""
    rows = []
    for name, relation in relations.items():
        heads = len(relation["share"][0])
        for head in relation["followed_by"]:
            layer, number = map(int, head.split("."))
            index = layer * heads + number
            cells = [
                f"{100 * np.array(relation['margins'][control]['mean']).ravel()[index]:+.1f} ± "
                f"{100 * np.array(relation['margins'][control]['interval']).ravel()[index]:.1f}"
                for control in CONTROLS
            ]
            rows.append([name, head, f"{100 * relation['share'][layer][number]:.1f}", *cells])
    header = ["relation", "head", "finds, %", "over distance", "over nearest", "over others", "over neighbours"]
    return make_table(header, rows or [["none", *[""] * 6]])


def _published_table(relations: Numbers, source: Numbers) -> str:
    rows = []
    for name, published in source["as_published"]["maps"].items():
        difference, cells = source["published_against_corrected"][name], []
        for values in (np.array(relations[name]["mean"]), np.array(published)):
            cells.append(f"{name_head(int(values.argmax()), values.shape[1])} {values.max():.3f}")
        rows.append([name, *cells, f"{difference['largest_difference']:.3f}", f"{difference['rank_correlation']:.2f}"])
    header = ["relation", "highest, corrected", "highest, as published", "largest difference of a head"]
    return make_table([*header, "rank correlation"], rows)


def _shared_table(sources: Numbers) -> str:
    rows = []
    for name, source in sources.items():
        for kind in list(source["models"][0]["shared_words"])[:1]:
            models = [model["shared_words"][kind] for model in source["models"]]
            base = models[0]
            share, (least, beyond) = np.array(base["share"]["mean"]), weakest_shared(base)
            order = np.argsort(-least.ravel())[:3]
            heads = ", ".join(
                f"{name_head(int(index), share.shape[1])} {share.ravel()[index]:.3f} ({least.ravel()[index]:+.3f})"
                for index in order
            )
            row = [name, kind, f"{base['links']:,} in {base['examples']:,}", f"{share.mean():.4f}", heads]
            row += [str(int(beyond.sum())), str(int((beyond & twice_controls(share, least)).sum()))]
            tuned = [np.array(model["share"]["mean"]) for model in models[1:]]
            counts = [str(int(weakest_shared(model)[1].sum())) for model in models[1:]]
            row += [", ".join(f"{values.mean():.4f}" for values in tuned)]
            row += [_by_seed(order[:2], tuned), ", ".join(counts)]
            rows.append(row)
    header = ["task", "words", "links in pairs", "share, mean of heads", "heads most beyond controls: share (margin)"]
    header += [
        "heads beyond all",
        "twice the largest control",
        "tuned, by seed: share",
        "first two heads",
        "heads beyond all",
    ]
    return make_table(header, rows)


def _by_seed(heads: Int[np.ndarray, " chosen"], tuned: Sequence[Float[np.ndarray, "layers heads"]]) -> str:
    """The values of the given heads in each tuned model."""
    by_head = ((index, ", ".join(f"{values.ravel()[index]:.3f}" for values in tuned)) for index in heads)
    return (
        "; ".join(f"{name_head(int(index), tuned[0].shape[1])} {values}" for index, values in by_head) if tuned else ""
    )
