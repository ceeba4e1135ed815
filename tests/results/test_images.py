"""Every kind of picture is, within a tolerance for fonts, the one that was looked at and kept in `tests/images/`.

After an intended change, `BERTJAX_KEEP_IMAGES=1 python -m pytest tests/results/test_images.py` saves the new ones: look
at them before you commit them.
"""

import itertools
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.testing.compare import compare_images
from scipy.cluster.hierarchy import linkage

from bertjax.errors import InputError, OutputError
from bertjax.paths import hash_file
from bertjax.plots import Curve, Frame, Panel, canvas, make_curves, make_distances, make_grids, make_pairs
from bertjax.plots.attention import make_attention
from bertjax.plots.bars import make_sets
from bertjax.plots.canvas import save_page
from bertjax.plots.grids import Grid
from bertjax.results.directory import read_results
from bertjax.results.figures import FIGURES, make_figure
from bertjax.statistics import Measure
from experiments.patterns.figure import draw_patterns
from experiments.patterns.maps import NAMES
from experiments.shared.figures import Texts, draw_effect_bars, draw_effect_maps, draw_maps
from tests.result_factories import make_results

KEPT = Path(__file__).parents[1] / "images"
# Root mean square of the differences of colours in 0 to 255: another version of matplotlib moves letters a little; a
# bar that is missing, another colour scale or a shifted axis give five times this.
TOLERANCE = 6.0


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    return {
        "heads": read_results(make_results(folder / "heads")),
        "layers": read_results(make_results(folder / "layers", ablate="layers", helpful="0", harmful="2")),
    }


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A quarter of the usual size."""
    monkeypatch.setattr(canvas, "PIXELS_PER_INCH", 50)


TEXTS = Texts("Two tasks", "made up", "points")


def effects():
    """Two tasks on one scale, each with effects of both signs, noise, and an undefined one."""
    rng, effects_of_tasks = np.random.default_rng(1), {}
    for task, scale in (("one", 1.0), ("two", 5.0)):
        change = scale * rng.normal(size=(3, 8))
        change[1, 1] = np.nan
        effects_of_tasks[task] = change, np.abs(change) > scale
    return effects_of_tasks


def effect_bars(path):
    bars = {task: (change[0], change[0] - 1, change[0] + 1, found[0]) for task, (change, found) in effects().items()}
    draw_effect_bars(path, list("abcdefgh"), bars, TEXTS)


def patterns(path):
    shares = dict(zip(NAMES, (0.4, 0.3, 0.15, 0.1, 0.05), strict=True))
    tasks = {"MRPC": {"shares": shares, "published": shares, "examples": 408}}
    draw_patterns(path, tasks, "made up")


def cls_rows(path):
    rng = np.random.default_rng(0)
    values = rng.uniform(size=(4, 12))
    names = ["nouns", "verbs", "[SEP]", "negation"]
    panels = [Panel("one", 4 * values), Panel("two", 4 * values**2, values > 0.9, rng.random((4, 12)) < 0.3)]
    texts = Texts("What [CLS] attends to", "made up", "mean weight × tokens (1: uniform)")
    draw_maps(path, panels, texts, rows=names, ratio=3, note="Stroke: not different from uniform attention.")


def sets(path):
    scores = 0.8 + np.linspace(-0.1, 0.05, 30)
    names = [f"set {number}" for number in range(30)]
    save_page(make_sets(names, scores, 0.8, "Sets of heads", "made up", Measure("Accuracy")), path)


PICTURES = {
    "map": lambda results, path: save_page(results["heads"].plot(), path),
    "ranking": lambda results, path: save_page(results["heads"].plot("ranking", metric="accuracy"), path),
    "layers": lambda results, path: save_page(results["layers"].plot(), path),
    "layer_means": lambda results, path: save_page(results["heads"].plot("layers"), path),
    "attention": lambda results, path: save_page(results["heads"].plot("attention", head="1.2", example=7), path),
    "change": lambda results, path: save_page(results["heads"].plot("change"), path),
    "sets": lambda results, path: sets(path),
    "effect_maps": lambda results, path: draw_effect_maps(path, effects(), TEXTS),
    "effect_bars": lambda results, path: effect_bars(path),
    "pairs": lambda results, path: pairs(path),
    "curves": lambda results, path: curves(path),
    "patterns": lambda results, path: patterns(path),
    "cls_rows": lambda results, path: cls_rows(path),
}


PRUNING = Measure("Accuracy")
POINTS = np.array([36, 18, 0])


def pruning_curves():
    """An order with intervals, its reverse, gates that end early, and random orders."""
    scores = {"gradient": [85.0, 70.0, 50.0], "gradient reversed": [60.0, 52.0, 50.0]}
    found = [Curve(name, np.array([score]), np.add([score, score], [[-3.0], [3.0]])) for name, score in scores.items()]
    gates = Curve("gates", np.array([[84.0, 78.0]]), left=np.array([30, 20]))
    return [*found, gates, Curve("random", np.array([[80.0, 60.0, 50.0], [70.0, 52.0, 50.0]]))]


def curves(path):
    save_page(make_curves(POINTS, pruning_curves(), (54, 86.7), "As heads go", "a model", measure=PRUNING), path)


def pairs(path):
    rng, heads = np.random.default_rng(3), [(layer, head) for layer in range(3) for head in range(3)]
    found = np.array([(one, other) for one in range(9) for other in range(one)])
    changes, measure = rng.normal(size=len(found)), Measure("Interaction", of_effects=True)
    figure = make_pairs(heads, found, changes, np.abs(changes) > 1, "Pairs", "a model", measure=measure)
    save_page(figure, path)


@pytest.mark.parametrize("name", PICTURES)
def test_figures_equal_the_reference_images(results, tmp_path, name):
    drawn = tmp_path / f"{name}.png"
    PICTURES[name](results, drawn)
    if os.environ.get("BERTJAX_KEEP_IMAGES"):
        shutil.copy(drawn, KEPT / drawn.name)
    kept = tmp_path / f"{name}-kept.png"
    shutil.copy(KEPT / drawn.name, kept)
    assert compare_images(str(kept), str(drawn), TOLERANCE) is None


def test_the_tolerance_detects_other_figures(results, tmp_path):
    """The same attention with one map turned is another picture, and so are effects of other sizes."""
    for number, seed in enumerate((0, 1)):
        saved = read_results(make_results(tmp_path / str(seed), seed=seed))
        for name in ("attention", "ranking"):
            save_page(saved.plot(name), tmp_path / f"{name}{number}.png")
    for name in ("attention", "ranking"):
        pair = (str(tmp_path / f"{name}{number}.png") for number in (0, 1))
        assert compare_images(*pair, TOLERANCE, in_decorator=True)["rms"] > 1.5 * TOLERANCE


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_pictures_of_all_three_formats_are_reproducible(results, tmp_path, suffix):
    first, second = (tmp_path / f"{name}.{suffix}" for name in ("a", "b"))
    for path in (first, second):
        save_page(results["heads"].plot("ranking"), path)
    assert first.read_bytes() == second.read_bytes()
    start = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[suffix]
    assert first.read_bytes().startswith(start)
    save_page(results["heads"].plot(), tmp_path / f"c.{suffix.upper()}")
    assert (tmp_path / f"c.{suffix.upper()}").read_bytes().startswith(start)
    if suffix == "svg":
        assert ">2.3<" in first.read_text().replace(" ", "")  # text stays text
    if suffix == "pdf":
        assert b"/FontFile2" in first.read_bytes()  # TrueType
        assert b"/Type3" not in first.read_bytes()
    with pytest.raises(OutputError, match=r"\.png, \.pdf or \.svg"):
        save_page(results["heads"].plot(), tmp_path / "a.jpg")


@pytest.mark.parametrize("figure", ["map", "ranking", "layers", "attention", "change"])
def test_pictures_are_shapes_not_pixels(results, tmp_path, figure):
    save_page(results["heads"].plot(figure), tmp_path / "a.svg")
    assert "<image" not in (tmp_path / "a.svg").read_text()


def test_only_some_of_many_tokens_are_named():
    tokens = [f"token{number}" for number in range(120)]
    figure = make_attention(tokens, [np.eye(120), np.eye(120)], ["one", "other"], "Many tokens")
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    apart = figure.axes[0].get_position().width * figure.get_size_inches()[0] * 72 / len(labels)
    assert labels == tokens[:: 120 // len(labels) + (120 % len(labels) > 0)]
    assert apart >= figure.axes[0].get_xticklabels()[0].get_fontsize()


def test_the_figure_of_attention_names_the_example(results):
    caption = " ".join(results["heads"].plot("attention", example=7).texts[1].get_text().split())
    example = results["heads"].examples[7]
    label = ["not_equivalent", "equivalent"][example["label"]]
    assert f"example 7, label {label}: {example['first']} / {example['second']}" in caption


@pytest.mark.parametrize("figure", ["map", "ranking", "layers", "attention"])
def test_a_figure_is_drawn_into_axes_that_exist(results, figure):
    page = Figure()
    left, right = page.subplots(1, 2)
    assert results["heads"].plot(figure, ax=left, title="a $b$") is page
    assert left.get_title() == "a $b$"
    assert left.has_data()
    assert not right.has_data()
    assert not page.texts
    assert not page.legends


def test_curves_and_pairs_are_drawn_into_axes_that_exist():
    for draw in (
        lambda frame: make_curves(POINTS, pruning_curves(), (54, 86.7), "Title", "", measure=PRUNING, frame=frame),
        lambda frame: make_pairs(
            [(0, 0), (0, 1)],
            np.array([[0, 1]]),
            np.ones(1),
            np.ones(1, bool),
            "Title",
            "",
            measure=PRUNING,
            frame=frame,
        ),
    ):
        axes = Figure().subplots()
        assert draw(Frame(ax=axes)) is axes.figure
        assert axes.get_title() == "Title"
        assert not axes.figure.texts


@pytest.mark.parametrize("figure", ["map", "ranking", "layers", "attention", "change"])
def test_size_and_title_of_a_figure(results, figure):
    usual, small = results["heads"].plot(figure), results["heads"].plot(figure, size=(4, 2), title="Mine")
    assert small.get_size_inches().tolist() == [4, 2]
    assert [text.get_text() for text in small.texts][:2] == ["Mine", ""]
    scale = min(4 / usual.get_size_inches()[0], 2 / usual.get_size_inches()[1])
    ours, theirs = (page.axes[0].get_yticklabels()[0].get_fontsize() for page in (small, usual))
    assert ours < theirs
    assert small.texts[0].get_fontsize() == pytest.approx(13 * min(4 / 8, scale), rel=0.3)
    bare = results["heads"].plot(figure, title="")
    assert bare.get_size_inches()[1] < usual.get_size_inches()[1]
    assert not bare.texts[0].get_text()


def boxes_of(figure, texts):
    renderer = figure.canvas.get_renderer()
    return [text.get_window_extent(renderer) for text in texts if text.get_text()]


def overlaps(boxes):
    return [1 for one, other in itertools.combinations(boxes, 2) if one.overlaps(other)]


def test_names_of_curves_do_not_overlap_and_lie_on_the_page():
    figure = make_curves(POINTS, pruning_curves(), (54, 86.7), "Title", "", measure=PRUNING)
    boxes = boxes_of(figure, figure.axes[0].texts)
    assert len(boxes) == 4
    assert not overlaps(boxes)
    assert all(figure.bbox.contains(box.x1, box.y0) for box in boxes)
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) > 2 and line.get_clip_on()]
    assert len({line.get_marker() for line in lines}) == 4


def test_a_curve_without_a_score_at_its_end_has_a_name():
    """A correlation is undefined where a model gives the same output for all examples."""
    curves = [Curve("gradient", np.array([[85.0, 40.0, np.nan]])), Curve("loss", np.array([[80.0, 60.0, 50.0]]))]
    figure = make_curves(POINTS, curves, (54, 86.7), "Title", "", measure=PRUNING)
    assert [text.get_text() for text in figure.axes[0].texts] == ["loss", "gradient"]  # from the highest
    boxes = boxes_of(figure, figure.axes[0].texts)
    assert not overlaps(boxes)
    assert all(figure.bbox.contains(box.x1, box.y0) for box in boxes)


def test_names_in_the_map_of_distances_do_not_overlap(rng, monkeypatch):
    monkeypatch.setattr(canvas, "PIXELS_PER_INCH", 200)  # extents of texts are whole pixels
    points = np.concatenate([rng.normal(0, 0.05, (30, 2)), rng.normal(0, 3.0, (10, 2))])
    tree = linkage(points)
    names, layers = [f"{head // 10}.{head % 10}" for head in range(40)], np.arange(40) // 10
    figure = make_distances(names, layers, points, tree, "Title", "")
    texts = figure.axes[0].texts
    assert 10 < len(texts) <= 40
    assert not overlaps(boxes_of(figure, texts))


@pytest.mark.parametrize(
    ("which", "options", "message"),
    [
        ("heads", {"figure": "change", "ax": Figure().subplots()}, "several panels, which need a page: leave ax out"),
        ("heads", {"size": (4, 3), "ax": Figure().subplots()}, "give ax or size"),
        ("heads", {"size": (4, 0)}, "size must be width and height in inches"),
        ("heads", {"figure": "pie"}, "is not one of " + ", ".join(FIGURES)),
        ("heads", {"metric": "bleu"}, "has no metric 'bleu'"),
        ("layers", {"figure": "map"}, "has no single heads to map, but layers"),
        ("layers", {"figure": "mix"}, "has no mix of layers: give results of bertjax probe-edges"),
        ("heads", {"figure": "attention", "example": 2}, "attention of example 2 is not kept, but of 0, 7"),
        ("heads", {"head": "0.1"}, "figure 'auto' does not take head, but metric"),
        ("heads", {"figure": "attention", "run": "2.3"}, "does not take run, but head, example, text"),
        ("heads", {"figure": "change", "metric": "f1"}, "does not take metric, but head, example, text, run"),
        ("heads", {"figure": "attention", "text": 2}, "of each example the model read 1, counted from 1"),
        ("heads", {"figure": "attention", "head": "9.9"}, "there is no head '9.9'"),
        ("heads", {"figure": "attention", "head": "x"}, "there is no head 'x'"),
        ("heads", {"figure": "change", "run": "0.0"}, "is not kept, but without"),
    ],
)
def test_impossible_figures_are_refused(results, which, options, message):
    with pytest.raises(InputError, match=message):
        make_figure(results[which], **options)


def test_both_texts_of_a_pair_can_be_drawn(tmp_path):
    path = make_results(tmp_path / "pair", examples=30)
    with np.load(path / "attention.npz") as arrays:
        kept = dict(arrays)
    second = {name.replace("_0_0", "_0_1").replace("_1_0", "_1_1"): array for name, array in kept.items()}
    second |= {name: array[..., :3, :3] if name.startswith("weights") else array[:3] for name, array in second.items()}
    np.savez(path / "attention.npz", **(second | kept))
    summary = json.loads((path / "summary.json").read_text())
    summary["files"]["attention.npz"]["sha256"] = hash_file(path / "attention.npz")
    (path / "summary.json").write_text(json.dumps(summary))
    saved = read_results(path)
    assert saved.texts == 2
    sizes = [len(saved.plot("attention", text=text).axes[0].get_xticks()) for text in (1, 2)]
    assert sizes == [6, 3]


@pytest.mark.parametrize(
    ("layers", "heads", "spans"),
    [
        (6, 0, ["0 [CLS]", "1 internationalization", "2 counterrevolution/x ...", "3 of", "4 [MASK]", "5 [SEP]"]),
        (4, 0, [f"{place} wwwwwwwwwwwwwwwwwwww" for place in range(3)]),
        (3, 20, [f"{place} token{place}/$other$ ..." for place in range(48)]),
        (60, 0, ["first", "before", "changed", "after", "masked", "other text", "special"]),
        (1, 0, [f"{place} word" for place in range(128)]),
    ],
    ids=["six long", "three wide", "many tokens", "many layers", "one layer"],
)
def test_names_of_grids_do_not_overlap(layers, heads, spans):
    rng, grids = np.random.default_rng(0), []
    for rows in (
        [str(layer) for layer in range(layers)],
        [f"{layer}.{h}" for layer in range(layers) for h in range(heads)],
    ):
        if rows:
            shape = len(rows), len(spans)
            grids.append(Grid("a place", rows, rng.normal(size=shape), rng.random(shape) < 0.5, "layer"))
    figure = make_grids(grids, spans, "Share restored", "a model", measure=Measure())
    renderer, page = figure.canvas.get_renderer(), figure.bbox
    for axes in figure.axes:
        for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
            boxes = [label.get_window_extent(renderer) for label in labels if label.get_text()]
            assert not [1 for one, other in itertools.combinations(boxes, 2) if one.overlaps(other)]
            assert all(page.contains(box.x0, box.y0) and page.contains(box.x1, box.y1) for box in boxes)
    below = min(label.get_window_extent(renderer).y0 for label in figure.axes[len(grids) - 1].get_xticklabels())
    assert below > max(text.get_window_extent(renderer).y1 for text in figure.texts if "dot" in text.get_text())
