"""Figures of results by name: `Results.plot`, `bertjax plot`."""

import reprlib
from collections.abc import Sequence
from numbers import Real
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int

from bertjax.arguments import parse_head_name, refuse
from bertjax.errors import InputError, some_of
from bertjax.formatting import count_of, plain_name, plural
from bertjax.plots import (
    Certainty,
    Curve,
    Frame,
    Grid,
    Panel,
    grids_of_cells,
    make_attention,
    make_curves,
    make_distances,
    make_grids,
    make_heads,
    make_layers,
    make_mix,
    make_pairs,
    make_panels,
    make_ranking,
    make_sets,
)
from bertjax.results.contents import Contents, describe_silhouette
from bertjax.results.table import CELL, Row, column, significant
from bertjax.statistics import Measure, coordinates_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURES = (
    "auto",
    "map",
    "ranking",
    "layers",
    "pairs",
    "curves",
    "roles",
    "distances",
    "patches",
    "mix",
    "attention",
    "change",
)


def make_figure(
    saved: Contents,
    figure: str = "auto",
    *,
    metric: str | None = None,
    head: str | None = None,
    example: int | str | None = None,
    text: int | None = None,
    run: str | None = None,
    title: str | None = None,
    size: Sequence[int | float] | None = None,
    ax: "Axes | None" = None,
) -> "Figure":
    """A figure of results.

    Args:
        saved: the results.
        figure: the name of a figure:
            'map': the effects of single heads, layers by heads;
            'ranking': all effects with intervals;
            'layers': the mean effect of each layer's heads, or the effects of whole layers;
            'pairs': the effects of pairs of heads;
            'curves': scores against the number of heads left, for each order of removal;
            'roles': a map for each role;
            'distances': heads by the divergence of their attention;
            'patches': a grid for each site;
            'mix': the weights of the mix of all layers of edge probes, with their centre of gravity;
            'attention': the attention of a head;
            'change': the attention of a head before and after an ablation;
            'auto': the main figure of the analysis.
        metric: the metric; by default the main one, for gradients the importance.
        head: the head of 'attention' and 'change', such as '3.0'; by default the one with the largest effect.
        example: the id of an example in `Contents.kept`, for 'attention' and 'change'; by default the first.
        text: 1 or 2, the text of a pair whose texts the model reads separately; by default 1.
        run: the ablation of 'change'; by default the one with the largest effect.
        title: replaces title and subtitle; '' leaves them out.
        size: width and height in inches; fonts scale with the size.
        ax: matplotlib axes to draw into, without subtitle, notes and legend, for figures with one panel: 'map',
            'ranking', 'layers', 'pairs', 'curves', 'mix', 'attention'.

    Raises:
        InputError: an unknown figure, metric, head, example, text or run, or an option that the figure does not take.
    """
    if figure not in FIGURES:
        raise InputError(f"figure {figure!r} is not one of {', '.join(FIGURES)}")
    if figure == "change" and saved.has_attention and len(saved.attention["runs"]) < 2:
        instead = "patches" if saved.has_grids else "attention"
        raise InputError(f"{saved.source} has no attention of other runs than the model's: --figure {instead}")
    _check_options(figure, {"head": head, "example": example, "text": text, "run": run, "metric": metric})
    if ax is not None and size is not None:
        raise InputError("size is the size of a page, and axes have a figure already: give ax or size")
    if size is not None and not (np.shape(size) == (2,) and all(map(_is_length, size))):
        refuse("size", "width and height in inches", size)
    frame = Frame(title, ax, size)
    if figure in ("attention", "change"):
        kept_text = 1 if text is None else text
        both = figure == "change"
        drawn = _attention(saved, head, run, example_id=example, text=kept_text, both=both, frame=frame)
    else:
        drawn = _draw(saved, figure, metric, frame)
    frame.resize(drawn)
    return drawn


def _draw(saved: Contents, figure: str, metric: str | None, frame: Frame) -> "Figure":
    """A figure of effects."""
    name = metric or saved.drawn_metric
    rows, measure = saved.rows_of(name), saved.measure(name)
    if figure == "ranking":
        return _ranking(saved, rows, measure, frame)
    if figure == "auto" and "likeness" in saved.summary:
        return _likeness(saved, name, measure, frame)
    if figure == "pairs" or (figure == "auto" and saved.summary["outputs"] == "interactions"):
        return _pairs(saved, rows, measure, frame)
    if figure in ("roles", "distances", "mix") and metric is not None:
        raise InputError(f"figure {figure!r} is of no single metric: leave the metric out, or take --figure map")
    if figure == "patches" or (figure == "auto" and saved.has_grids):
        return _patches(saved, rows, measure, frame)
    if figure == "mix":
        return _mix(saved, frame)
    if figure == "distances":
        return _distances(saved, frame)
    if figure == "roles" or (figure == "auto" and metric is None and saved.summary["outputs"] == "roles"):
        return _roles(saved, frame)
    if figure == "curves" or (figure == "auto" and "pruning" in saved.summary):
        return _curves(saved, metric, measure, frame)
    if figure == "map" and saved.kind != "head":
        raise InputError(f"{saved.source} has no single heads to map, but {plural(saved.noun)}: --figure ranking")
    return _overview(saved, rows, measure, "map" if figure == "auto" and saved.kind == "head" else figure, frame)


def _is_length(value: Any) -> bool:
    """Whether a value is a positive number of inches."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < float("inf")


def _check_options(figure: str, options: dict[str, Any]) -> None:
    """Raise `InputError` for options that the figure does not take."""
    attention_options = ("head", "example", "text")
    accepted = {"attention": attention_options, "change": (*attention_options, "run")}.get(figure, ("metric",))
    for name, value in options.items():
        if value is not None and name not in accepted:
            raise InputError(f"figure {figure!r} does not take {name}, but {', '.join(accepted)}")


def _what(saved: Contents) -> str:
    mode = saved.summary["mode"]
    return str(mode.get("title", f"ablated, mode {mode['name']}"))


def _titled(saved: Contents, measure: Measure, what: str) -> str:
    """The title of a figure of ablations.

    Args:
        what: the ablated heads, such as 'one head'.
    """
    receivers = saved.summary.get("patching", {}).get("receivers")
    if receivers:
        to = ", ".join(f"{place} of {' '.join(heads)}" for place, heads in receivers.items())
        return f"{measure.label} by paths from a head to {to}"
    if saved.summary["outputs"] == "shapley":
        return f"{measure.label}, heads {_what(saved)} in any order"
    if measure.compared_with:
        return f"{measure.label} beside {measure.compared_with}"
    if measure.by == "comparison":
        return f"{measure.label} of layers"
    if measure.by == "gradients":
        of = "of" if measure.of_effects else "without"
        return f"{measure.label} {of} each head, mode {saved.summary['mode']['name']}"
    what = saved.summary.get("restoring", {}).get("part", what)
    return f"{measure.label}{',' if measure.of_effects else ' with'} {what} {_what(saved)}"


def _where(saved: Contents) -> str:
    data = saved.summary["data"]
    if "patching" in saved.summary:
        return f"{saved.summary['model']['name']}, {count_of(data['examples'], 'contrast')}"
    return f"{saved.summary['model']['name']} on {data['task']}, {count_of(data['examples'], 'example')}"


def _overview(saved: Contents, rows: Sequence[Row], measure: Measure, figure: str, frame: Frame) -> "Figure":
    scores, base = column(rows, "score"), float(column(rows[:1], "base")[0])
    if saved.kind in ("set", CELL):
        if figure == "layers":
            what = "sets of heads" if saved.noun == "set" else plural(saved.noun)
            raise InputError(f"{saved.source} has no layers, but {what}: --figure ranking")
        title = _titled(saved, measure, "sets of heads")
        return make_sets(
            saved.names, scores, base, title, _where(saved), measure, certainty=_certainty(rows, measure), frame=frame
        )
    if saved.kind == "layer":
        title, certainty = _titled(saved, measure, "all heads of one layer"), _certainty(rows, measure)
        places, layers = column(rows, "layer").astype(int), saved.summary["model"]["layers"]
        layer_scores, ends = np.full(layers, np.nan), np.full((2, layers), np.nan)
        are_significant = np.zeros(layers, bool)
        layer_scores[places] = scores
        if certainty is not None:
            ends[:, places], are_significant[places] = certainty.intervals, certainty.significant
            certainty = Certainty(ends, are_significant)
        return make_layers(layer_scores, base, title, _where(saved), measure, certainty, frame=frame)
    shape = saved.summary["model"]["layers"], saved.summary["model"]["heads"]
    head_scores, are_significant = np.full(shape, np.nan), np.zeros(shape, bool)
    for row, score, is_significant in zip(rows, scores, significant(rows), strict=True):
        head_scores[row.layer, row.head], are_significant[row.layer, row.head] = score, is_significant
    if figure == "map":
        title, tests = _titled(saved, measure, "one head"), are_significant if measure.tested else None
        return make_heads(head_scores, base, title, _where(saved), measure, tests, frame=frame)
    defined = np.isfinite(head_scores)
    means = np.where(defined, head_scores, 0).sum(1) / np.where(defined.any(1), defined.sum(1), np.nan)
    title = f"{_titled(saved, measure, 'one head')}, mean of each layer"
    note = "means are not tested"
    return make_layers(means, base, title, f"{_where(saved)}; {note}", measure, frame=frame)


def pairs_of_heads(rows: Sequence[Row]) -> tuple[list[tuple[int, int]], Int[np.ndarray, "rows 2"]] | None:
    """The heads of pairs in ascending order, and their indices for each row; None if not all rows are of pairs."""
    parsed = [[parse_head_name(head) for head in row.heads] for row in rows]
    both = [(one[0], one[1]) for one in parsed if len(one) == 2 and one[0] is not None and one[1] is not None]
    if not rows or len(both) < len(rows):
        return None
    heads = sorted({head for pair in both for head in pair if head is not None})
    places = {head: place for place, head in enumerate(heads)}
    return heads, np.array([[places[head] for head in pair if head is not None] for pair in both], np.int64)


def _pairs(saved: Contents, rows: Sequence[Row], measure: Measure, frame: Frame) -> "Figure":
    found = pairs_of_heads(rows)
    if found is None:
        raise InputError(f"{saved.source} has sets that are no pairs of heads: --figure ranking")
    heads, pairs = found
    changes, title = measure.factor * column(rows, "difference"), _titled(saved, measure, "two heads")
    return make_pairs(heads, pairs, changes, significant(rows), title, _where(saved), measure=measure, frame=frame)


def _likeness(saved: Contents, metric: str, measure: Measure, frame: Frame) -> "Figure":
    found = saved.summary["likeness"]
    other = found.get("other")
    values = np.array(found[metric], np.float64)
    rows, columns = ([name.replace("embeddings", "emb.") for name in found[axis]] for axis in ("rows", "columns"))
    caption = "" if other is None else f"columns: layers of {other}"
    grid = Grid(caption, rows, values, np.zeros(values.shape, np.bool_))  # not tested
    title, note = _titled(saved, measure, ""), f"unrelated words: an alignment of {np.max(found['chance']):.2g} at most"
    return make_grids([grid], columns, title, _where(saved), note, measure=measure, frame=frame)


def _mix(saved: Contents, frame: Frame) -> "Figure":
    probe = saved.summary.get("probe", {})
    if "mix" not in probe:
        raise InputError(f"{saved.source} has no mix of layers: give results of bertjax probe-edges")
    mix = probe["mix"]
    title = f"Edge probe for {probe['kind']}: weights of layers"
    subtitle = f"{_where(saved)}; accuracy of the mix {100 * mix['accuracy']:.1f} %"
    return make_mix(np.array(mix["weights"], np.float64), mix["centre_of_gravity"], title, subtitle, frame=frame)


def _roles(saved: Contents, frame: Frame) -> "Figure":
    if "roles" not in saved.summary:
        raise InputError(f"{saved.source} has no roles of heads: give results of bertjax roles")
    shape, panels = (saved.summary["model"]["layers"], saved.summary["model"]["heads"]), list[Panel]()
    for name in saved.summary["roles"]["definitions"]:
        rows, values = saved.rows_of(name), np.full(shape, np.nan)
        for row in rows:
            values[row.layer, row.head] = row.score
        uniform = f"{100 * (rows[0].base or 0.0):.0f}"
        panels.append(Panel(f"{saved.measure(name).label.removeprefix('Attention to ')} ({uniform})", 100 * values))
    note = "In brackets: the share under uniform attention."
    return make_panels(
        panels, "Attention by role", _where(saved), "% of attention", note, scale=(0.0, 100.0), frame=frame
    )


def _patches(saved: Contents, rows: Sequence[Row], measure: Measure, frame: Frame) -> "Figure":
    if "patching" not in saved.summary:
        raise InputError(f"{saved.source} has no patches: give results of bertjax patch")
    if saved.kind == "head":
        raise InputError(f"{saved.source} has paths from heads, whose picture is a map: --figure map")
    patching = saved.summary["patching"]
    values, few = measure.factor * column(rows, "difference"), saved.too_few_contrasts
    found = significant(rows)
    grids = grids_of_cells(patching["cells"], len(patching["spans"]), values, found)
    title = f"{measure.label}, {patching['into']} texts patched" + ("" if measure.of_effects else ": the change")
    limit = min(100.0, float(np.nanmax(np.abs(values)))) if measure.of_effects else None
    others = "clean" if patching["into"] == "corrupted" else "corrupted"
    ends = f"{patching['score']}: {patching['own_score']:.3g}, of {others} texts {patching['donor_score']:.3g}"
    return make_grids(
        grids, patching["spans"], title, f"{_where(saved)}. {ends}", few, measure=measure, limit=limit, frame=frame
    )


def _distances(saved: Contents, frame: Frame) -> "Figure":
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    if "distances" not in saved.outputs:
        raise InputError(f"{saved.source} has no distances between heads: give results of bertjax roles")
    divergences = np.asarray(saved.outputs["distances"], np.float64)
    tree = linkage(squareform(divergences, checks=False), method="average")
    layers = np.array([entry["layer"] for entry in saved.summary["ablations"]], np.int64)
    note = "Points: multidimensional scaling of the divergences. Tree: average linkage."
    if "silhouette" in saved.summary["roles"]:
        found = saved.summary["roles"]["silhouette"]
        note += f"\n{describe_silhouette(found)}"
    title, points = "Heads with similar attention", coordinates_of(divergences)
    return make_distances(saved.names, layers, points, tree, title, _where(saved), note=note, frame=frame)


def pruning_curves(saved: Contents, metric: str | None = None) -> list[Curve]:
    """The curve of each order of removal; all random orders are one curve.

    Args:
        saved: results of `bertjax prune`.
        metric: the metric; by default the main one.

    Raises:
        InputError: the results are those of another analysis.
    """
    if "pruning" not in saved.summary:
        raise InputError(f"{saved.source} has no orders in which heads go: give results of bertjax prune")
    measure = saved.measure(metric)
    by_name, points = {row.name: row for row in saved.rows_of(metric)}, saved.summary["pruning"]["points"]
    drawn, curves = list[Float[np.ndarray, " points"]](), list[Curve]()
    for order in saved.summary["pruning"]["orders"]:
        of_order = [by_name[order["runs"][str(left)]] for left in points]
        if order["name"].startswith("random"):
            drawn.append(measure.factor * column(of_order, "score"))
        else:
            curves.append(_curve(order["name"], of_order, measure))
    closed = [learned for learned in saved.summary["pruning"].get("gates", ()) if learned["run"] is not None]
    gates = sorted(closed, key=lambda learned: -learned["left"])
    if gates:
        closed_rows, left = [by_name[learned["run"]] for learned in gates], [learned["left"] for learned in gates]
        curves.append(_curve("gates", closed_rows, measure, np.array(left)))
    if drawn:
        curves.append(Curve("random", np.stack(drawn)))
    return curves


def _curves(saved: Contents, metric: str | None, measure: Measure, frame: Frame) -> "Figure":
    curves, base = pruning_curves(saved, metric), float(column(saved.rows_of(metric)[:1], "base")[0])
    model, points = saved.summary["model"], np.array(saved.summary["pruning"]["points"])
    every = model["layers"] * model["heads"], measure.factor * base
    title = f"{measure.label} by number of heads left, {_what(saved)}"
    bounds = saved.bounds(metric)
    return make_curves(points, curves, every, title, _where(saved), measure=measure, bounds=bounds, frame=frame)


def _curve(name: str, rows: Sequence[Row], measure: Measure, left: Int[np.ndarray, " points"] | None = None) -> Curve:
    """The scores of sets of heads, with the intervals of their changes."""
    scores = measure.factor * column(rows, "score")
    ends = None
    if rows[0].low is not None:
        ends = scores - measure.factor * column(rows, "difference") + _ends(rows, measure)
    return Curve(name, scores[None], ends, left)


def _certainty(rows: Sequence[Row], measure: Measure) -> Certainty | None:
    """The certainty of the changes; None if there are too few labels for statistics."""
    if all(row.low is None for row in rows):
        return None
    return Certainty(_ends(rows, measure), _filled(rows, measure))


def _filled(rows: Sequence[Row], measure: Measure) -> Bool[np.ndarray, " rows"]:
    """Which marks are filled: those of significant effects, or all if effects are not tested."""
    return significant(rows) if measure.tested else np.ones(len(rows), np.bool_)


def _ends(rows: Sequence[Row], measure: Measure) -> Float[np.ndarray, "ends rows"]:
    return measure.factor * np.stack([column(rows, "low"), column(rows, "high")])


def _ranking(saved: Contents, rows: Sequence[Row], measure: Measure, frame: Frame) -> "Figure":
    ends = _ends(rows, measure)
    title = _titled(saved, measure, f"each {saved.noun}")
    return make_ranking(
        saved.names,
        measure.factor * column(rows, "difference"),
        ends,
        _filled(rows, measure),
        title,
        _where(saved),
        measure=measure,
        frame=frame,
    )


def _attention(
    saved: Contents,
    head: str | None,
    run: str | None,
    *,
    example_id: int | str | None,
    text: int,
    both: bool,
    frame: Frame,
) -> "Figure":
    arrays = saved.attention
    runs, ids = arrays["runs"].tolist(), [str(kept_id) for kept_id in saved.kept]
    if example_id is not None and str(example_id) not in ids:
        raise InputError(f"attention of example {example_id} is not kept, but of {some_of(ids)}")
    example = 0 if example_id is None else ids.index(str(example_id))
    if not 1 <= text <= saved.texts:
        raise InputError(f"there is no text {text}: of each example the model read {saved.texts}, counted from 1")
    run = run if run is None or run in runs else plain_name(run)
    if run is not None and run not in runs[1:]:
        raise InputError(f"the attention without {run} is not kept, but without {some_of(runs[1:])}")
    after = runs.index(run) if run is not None else min(1, len(runs) - 1)
    layer, head_index = _place(saved, head or _first_head(saved, runs[after]))
    weights = arrays[f"weights_{example}_{text - 1}"][:, layer, head_index]
    tokens = [str(token) for token in arrays[f"tokens_{example}_{text - 1}"]]
    title = f"Attention of head {layer}.{head_index}"
    subtitle = f"{saved.summary['model']['name']}, {_describe(saved, saved.examples[arrays['examples'][example]])}"
    if not both:
        return make_attention(tokens, [weights[0]], [""], title, subtitle, frame)
    names = ["without ablation", f"without {saved.kind} {runs[after]}"]
    return make_attention(tokens, [weights[0], weights[after]], names, title, subtitle, frame)


def _describe(saved: Contents, example: dict[str, Any]) -> str:
    """Id, label and texts of an example in one line."""
    texts = [shorten(example[name], 100, placeholder=" …") for name in ("first", "second") if name in example]
    return f"example {example['id']}, label {saved.label_of(example)}: {' / '.join(texts)}"


def _first_head(saved: Contents, name: str) -> str:
    entry = next((entry for entry in saved.summary["ablations"] if entry["name"] == name), None)
    if entry is None:
        sizes = np.nan_to_num(np.abs(column(saved.rows_of(saved.drawn_metric), "difference")))
        entry = saved.summary["ablations"][int(sizes.argmax())]
    return str(entry["heads"][0]).split("=")[0] if entry["heads"] else "0.0"


def _place(saved: Contents, head: str) -> tuple[int, int]:
    model = saved.summary["model"]
    place = parse_head_name(head)
    if place is not None and place[0] < model["layers"] and place[1] < model["heads"]:
        return place
    raise InputError(
        f"there is no head {reprlib.repr(head)}: the model has {model['layers']} layers of {model['heads']} heads"
    )
