"""Tables and pictures of section 4.5 from what `numbers.json` keeps."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from experiments.shared.map_table import MapRow, Scale, draw_table, plain_scale, ratio_scale
from experiments.shared.maps import Panel
from experiments.words.cls_row import FORMS
from experiments.words.estimates import LEVEL, differing, name_head, read_estimate
from experiments.words.features import FEATURES
from experiments.words.links import CONTROLS
from experiments.words.markdown import make_table
from experiments.words.pattern_join import join_table

Numbers = Mapping[str, Any]
ROWS = ("cls_row", "cls_row_largest")


def figures(numbers: Numbers) -> dict[str, Callable[[Path], None]]:
    """The pictures by name: `figure` (relations), `shared_words`, `cls_row`, `as_published`, as far as there are data.

    Args:
        numbers: what `numbers.json` holds.
    """
    sources = numbers["results"]["sources"]
    found: dict[str, Callable[[Path], None]] = {}
    if _with(sources, "relations"):
        found["figure"] = partial(_draw_relations, numbers=numbers)
    if _with(sources, "shared_words"):
        found["shared_words"] = partial(_draw_shared, numbers=numbers)
    found["cls_row"] = partial(_draw_rows, numbers=numbers)
    if any(one.get("as_published", {}).get("maps") for one in sources.values()):
        found["as_published"] = partial(_draw_published, numbers=numbers)
    return found


def _with(sources: Numbers, part: str) -> dict[str, Any]:
    """The sources whose models have something."""
    return {name: one for name, one in sources.items() if one["models"][0].get(part)}


def _subtitle(numbers: Numbers, sources: Numbers) -> str:
    model = numbers["settings"]["model"]
    if len(sources) > 1:
        return f"{model}; columns: tasks"
    (one,) = sources.values()
    return f"{model}, {one['data']['corrected']['source']}"


def weakest_margin(relation: Numbers) -> tuple[Float[np.ndarray, "layers heads"], Bool[np.ndarray, "layers heads"]]:
    """How much more often each head finds a target than the control that finds it most, and whether it beats all."""
    margins = [relation["margins"][name] for name in CONTROLS]
    beyond = np.all([np.array(one["q_values"]) < LEVEL for one in margins], axis=0)
    return np.min([np.array(one["mean"]) for one in margins], axis=0), beyond


def _draw_relations(path: Path, numbers: Numbers) -> None:
    sources = _with(numbers["results"]["sources"], "relations")
    (name, one), *_ = sources.items()
    relations = one["models"][0]["relations"]
    weights = [Panel(f"{name} ({own['sources']:,})", np.array(own["mean"])) for name, own in relations.items()]
    found = [Panel("", 100 * np.array(own["share"])) for own in relations.values()]
    margins = [(100 * margin, beyond) for margin, beyond in map(weakest_margin, relations.values())]
    rows = [
        MapRow("weight", plain_scale("weight", [panel.values for panel in weights]), weights),
        MapRow("found", plain_scale("found, %", [panel.values for panel in found]), found),
        MapRow(
            "beyond\ncontrols",
            plain_scale("points more", [margin for margin, _ in margins]),
            [Panel("", margin, beyond, ~beyond) for margin, beyond in margins],
        ),
    ]
    note = (
        "In brackets: words that look for a target. Controls: the best distance, the nearest word of the kind, the\n"
        f"same head from other words, and from neighbours. Dot: more than all four (q < {LEVEL} each); pale: not."
    )
    title = "Attention along relations between words"
    draw_table(path, rows, title, _subtitle(numbers, {name: one}), note)


def _draw_shared(path: Path, numbers: Numbers) -> None:
    sources = _with(numbers["results"]["sources"], "shared_words")
    kinds = list(dict.fromkeys(kind for one in sources.values() for kind in one["models"][0]["shared_words"]))
    shares: dict[str, list[Panel | None]] = {kind: [] for kind in kinds}
    margins: dict[str, list[Panel | None]] = {kind: [] for kind in kinds}
    for name, one in sources.items():
        for kind in kinds:
            own = one["models"][0]["shared_words"].get(kind)
            if own is None:
                shares[kind].append(None)
                margins[kind].append(None)
                continue
            least, beyond = weakest_shared(own)
            share = np.array(own["share"]["mean"])
            shares[kind].append(Panel(name if kind == kinds[0] else "", share))
            margins[kind].append(Panel("", least, beyond & twice_controls(share, least), ~beyond))
    largest = max(float(panel.values.max()) for several in shares.values() for panel in several if panel)
    scale = Scale("share of attention", 0.0, largest)
    every = [panel.values for several in margins.values() for panel in several if panel]
    signed = plain_scale("more than controls", every)
    rows = [MapRow(kind.replace(" ", "\n"), scale, shares[kind]) for kind in kinds]
    rows += [MapRow(f"{kind},\nbeyond", signed, margins[kind]) for kind in kinds]
    note = (
        "Share of a word's attention that goes to the same word in the other text. Controls: other words there, other\n"
        f"words in the same places, the same word seen from others. Pale: not more than all three (q < {LEVEL}).\n"
        "Dot: more, and at least twice the largest control."
    )
    draw_table(path, rows, "Attention to words that both texts share", _subtitle(numbers, sources), note)


def weakest_shared(kind: Numbers) -> tuple[Float[np.ndarray, "layers heads"], Bool[np.ndarray, "layers heads"]]:
    """How much more a head gives along links than the control that gets most, and whether it beats all controls."""
    margins = {name: read_estimate(one) for name, one in kind["margins"].items()}
    beyond = [differing({name: one})[name] & (one.mean > 0) for name, one in margins.items()]
    return np.min([one.mean for one in margins.values()], axis=0), np.all(beyond, axis=0)


def twice_controls(
    share: Float[np.ndarray, "layers heads"], least: Float[np.ndarray, "layers heads"]
) -> Bool[np.ndarray, "layers heads"]:
    """Which heads give along links at least twice what the largest control gets; `least` as `weakest_shared`."""
    return share >= 2 * (share - least)


def say_shared(found: Numbers) -> list[str]:
    """Lines of words that both texts share."""
    lines = []
    for kind, own in found.items():
        share, (least, beyond) = np.array(own["share"]["mean"]), weakest_shared(own)
        place = int(least.argmax())
        lines.append(
            f"  {kind} in the other text: {own['links']:,} in {own['examples']:,} pairs, most beyond controls "
            f"{name_head(place, share.shape[1])} {share.ravel()[place]:.3f} ({least.max():+.3f}); "
            f"{int(beyond.sum())} of {share.size} heads beyond all (q < {LEVEL})"
        )
    return lines


def _draw_rows(path: Path, numbers: Numbers) -> None:
    """The mean weights, relative to uniform attention, of the base model and of the mean of fine-tuned ones."""
    sources = numbers["results"]["sources"]
    features = [name for name in FEATURES if any(name in one["models"][0]["cls_row"] for one in sources.values())]
    scale, rows = ratio_scale("mean weight × tokens (1: uniform)"), []
    for label, members in (("base", slice(0, 1)), ("fine-\ntuned", slice(1, None))):
        panels = []
        for name, one in sources.items():
            several = [model["cls_row"] for model in one["models"][members]]
            panels.append(Panel(name if label == "base" else "", _stack(several, features)) if several else None)
        if any(panels):
            rows.append(MapRow(label if len(sources) > 1 else "", scale, panels, features))
    draw_table(path, rows, "What [CLS] attends to in the last layer", _subtitle(numbers, sources))


def _stack(several: Sequence[Numbers], features: Sequence[str]) -> Float[np.ndarray, "features heads"]:
    empty = np.full(len(next(iter(several[0].values()))["largest"]), np.nan)
    maps = [[row[name]["mean_by_uniform"] if name in row else empty for name in features] for row in several]
    return np.mean(np.array(maps, np.float64), axis=0)


def _draw_published(path: Path, numbers: Numbers) -> None:
    sources = {name: one for name, one in numbers["results"]["sources"].items() if one["as_published"]["maps"]}
    (name, one), *_ = sources.items()
    panels = [Panel(relation, np.array(own)) for relation, own in one["as_published"]["maps"].items()]
    scale = Scale("largest weight", 0.0, max(float(one.values.max()) for one in panels))
    title = "Attention along relations between words, as published"
    draw_table(path, [MapRow("", scale, panels)], title, _subtitle(numbers, {name: one}))


def tables(numbers: Numbers) -> str:
    """The tables of the section in Markdown, as far as there are data.

    Args:
        numbers: what `numbers.json` holds.
    """
    results = numbers["results"]
    sources, found = results["sources"], []
    for one in _with(sources, "relations").values():
        relations = one["models"][0]["relations"]
        found += [_relation_table(relations), _followers_table(relations)]
        if "patterns" in results:
            found.append(join_table(relations, results["patterns"]))
        if one.get("as_published", {}).get("maps"):
            found.append(_published_table(relations, one))
    if shared := _with(sources, "shared_words"):
        found.append(_shared_table(shared))
    found.append(_row_table(sources))
    return "\n\n".join(found) + "\n"


def _relation_table(relations: Numbers) -> str:
    """For the head that finds most: what the controls find, and by how many heads each is beaten."""
    rows = []
    for name, one in relations.items():
        share = np.array(one["share"])
        place = int(share.argmax())
        row = [name, f"{one['sources']:,} in {one['examples']:,}"]
        row.append(f"{name_head(place, share.shape[1])} {100 * share.max():.1f}")
        for control in CONTROLS:
            margin, found = one["margins"][control], np.array(one["control_shares"][control])
            mean, half = (100 * np.array(margin[key]).ravel()[place] for key in ("mean", "interval"))
            there = 100 * float(found if found.ndim == 0 else found.ravel()[place])
            what = {"distance": f"{one['best_distance']:+d}: ", "nearest": f"{one['nearest']}: "}.get(control, "")
            row.append(f"{what}{there:.1f}; {mean:+.1f} ± {half:.1f}; {margin['significant_heads']}")
        rows.append([*row, str(len(one["followed_by"]))])
    head = ["relation", "sources in texts", "head that finds most, %"]
    head += [
        f"{name}: finds, margin, heads above"
        for name in ("best distance", "nearest of the kind", "others", "neighbours")
    ]
    return make_table([*head, "heads above all"], rows)


def _followers_table(relations: Numbers) -> str:
    """The heads that beat all controls."""
    rows = []
    for name, one in relations.items():
        heads = len(one["share"][0])
        for head in one["followed_by"]:
            layer, number = map(int, head.split("."))
            place = layer * heads + number
            cells = [
                f"{100 * np.array(one['margins'][control]['mean']).ravel()[place]:+.1f} ± "
                f"{100 * np.array(one['margins'][control]['interval']).ravel()[place]:.1f}"
                for control in CONTROLS
            ]
            rows.append([name, head, f"{100 * one['share'][layer][number]:.1f}", *cells])
    head_row = ["relation", "head", "finds, %", "over distance", "over nearest", "over others", "over neighbours"]
    return make_table(head_row, rows or [["none", *[""] * 6]])


def _published_table(relations: Numbers, one: Numbers) -> str:
    rows = []
    for name, own in one["as_published"]["maps"].items():
        apart, cells = one["published_against_corrected"][name], []
        for values in (np.array(relations[name]["mean"]), np.array(own)):
            cells.append(f"{name_head(int(values.argmax()), values.shape[1])} {values.max():.3f}")
        rows.append([name, *cells, f"{apart['largest_difference']:.3f}", f"{apart['rank_correlation']:.2f}"])
    head = ["relation", "highest, corrected", "highest, as published", "largest difference of a head"]
    return make_table([*head, "rank correlation"], rows)


def _shared_table(sources: Numbers) -> str:
    rows = []
    for name, one in sources.items():
        for kind in one["models"][0]["shared_words"]:
            models = [model["shared_words"][kind] for model in one["models"]]
            base = models[0]
            share, (least, beyond) = np.array(base["share"]["mean"]), weakest_shared(base)
            order = np.argsort(-least.ravel())[:3]
            heads = ", ".join(
                f"{name_head(int(at), share.shape[1])} {share.ravel()[at]:.3f} ({least.ravel()[at]:+.3f})"
                for at in order
            )
            row = [name, kind, f"{base['links']:,} in {base['examples']:,}", f"{share.mean():.4f}", heads]
            row += [str(int(beyond.sum())), str(int((beyond & twice_controls(share, least)).sum()))]
            tuned = [np.array(model["share"]["mean"]) for model in models[1:]]
            counts = [str(int(weakest_shared(model)[1].sum())) for model in models[1:]]
            row += [", ".join(f"{values.mean():.4f}" for values in tuned)]
            row += [_by_seed(order[:2], tuned), ", ".join(counts)]
            rows.append(row)
    head = ["task", "words", "links in pairs", "share, mean of heads", "heads most beyond controls: share (margin)"]
    head += [
        "heads beyond all",
        "twice the largest control",
        "tuned, by seed: share",
        "first two heads",
        "heads beyond all",
    ]
    return make_table(head, rows)


def _by_seed(heads: Int[np.ndarray, " chosen"], tuned: Sequence[Float[np.ndarray, "layers heads"]]) -> str:
    """The values of some heads in several models."""
    several = ((at, ", ".join(f"{values.ravel()[at]:.3f}" for values in tuned)) for at in heads)
    return "; ".join(f"{name_head(int(at), tuned[0].shape[1])} {values}" for at, values in several) if tuned else ""


def _row_table(sources: Numbers) -> str:
    """Means over the heads of the last layer, base and tuned."""
    features = [name for name in FEATURES if any(name in one["models"][0]["cls_row"] for one in sources.values())]
    rows = []
    forms = FORMS if len(sources) == 1 else (FORMS[0], FORMS[2])
    for name, one in sources.items():
        for form in forms:
            for label, models in (("base", one["models"][:1]), ("tuned", one["models"][1:])):
                if models:
                    cells = [_row_cell([model["cls_row"] for model in models], feature, form) for feature in features]
                    rows.append([name, label, form.replace("_", " "), *cells])
    return make_table(["last layer's [CLS]", "", "", *features], rows)


def _row_cell(rows: Sequence[Numbers], feature: str, form: str) -> str:
    if feature not in rows[0]:
        return ""
    found = [row[feature]["all_heads"][form] for row in rows]
    digits = 3 if form == "largest" else 2
    mean = np.mean([one["mean"] for one in found])
    if len(found) > 1:
        low, high = (fold(one["mean"] for one in found) for fold in (min, max))
        return f"{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
    half = found[0]["interval"]
    return f"{mean:.{digits}f}" + (f" ± {half:.{digits}f}" if half is not None else "")
