"""Figures of scores show what they claim to show."""

import os
import re
import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from matplotlib.text import Text

from bertjax.errors import DataError, OutputError
from bertjax.formatting import format_change
from bertjax.plots.bars import Certainty, make_layers, make_sets
from bertjax.plots.canvas import save_page
from bertjax.plots.heads_map import make_heads
from bertjax.statistics import Measure

BASE, LABEL, TITLE = 0.8672, Measure("Spearman correlation"), "A title that is no formula: $_$ and $x^^$"


def random_scores(layers: int, heads: int) -> np.ndarray:
    """Scores like those of a real sweep: most near the base, few far below, some above."""
    rng = np.random.default_rng(3)
    changes = -0.15 * np.abs(rng.standard_t(3, size=(layers, heads))) + 0.08 * rng.normal(size=(layers, heads))
    return BASE + np.clip(changes, -0.9, 0.3) / 100


def test_changes_are_written_with_their_sign_and_short():
    assert [format_change(x) for x in (0.0, -0.004, 0.006, -9.994, -9.996, 100.0)] == [
        *("0.00", "0.00", "+0.01", "−9.99", "−10.0", "+100.0"),
    ]


def legend_of(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def limits_of(figure) -> tuple[float, float]:
    """Where the scale of colours ends, in points."""
    return figure.axes[-1].get_ylim()


def colours_of(axes) -> np.ndarray:
    """Of the cells of a map, as layers x heads x 3."""
    return np.asarray(axes.collections[0].get_array())


def cell_texts(figure) -> dict[tuple[int, int], str]:
    """The numbers in the cells by (layer, head)."""
    return {(int(t.get_position()[1]), int(t.get_position()[0])): t.get_text() for t in figure.axes[0].texts}


def test_the_map_is_centred_on_the_base():
    scores = random_scores(6, 12)
    figure = make_heads(scores, BASE, "Title", "Subtitle", LABEL)
    heads, bar = figure.axes
    low, high = limits_of(figure)
    assert low == -high < 0
    shares = 100 * (scores - BASE) / (high - low) + 0.5
    np.testing.assert_allclose(colours_of(heads), matplotlib.colormaps["RdBu"](shares)[..., :3], atol=1e-6)
    labels = {label.get_text(): label.get_fontweight() for label in bar.get_yticklabels()}
    assert labels["86.72  (base)"] == "bold"
    assert [line.get_ydata()[0] for line in bar.lines][-1] == 0  # the line across at the base
    assert any(LABEL.label in text.get_text() for text in figure.texts)


def test_layers_run_down_and_heads_across_both_from_0():
    figure = make_heads(random_scores(4, 7), BASE, "Title")
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == list("0123456")
    assert [label.get_text() for label in axes.get_yticklabels()] == list("0123")
    assert axes.yaxis_inverted()
    assert not axes.xaxis_inverted()


def test_the_largest_loss_and_gain_are_outlined_and_named():
    scores = np.full((3, 5), BASE)
    scores[2, 4], scores[0, 1], scores[1, 1] = BASE - 0.009, BASE + 0.003, np.nan
    figure = make_heads(scores, BASE, "Title")
    assert "largest loss: head 2.4, −0.90" in legend_of(figure)
    assert "largest gain: head 0.1, +0.30" in legend_of(figure)
    outlined = [patch.get_xy() for patch in figure.axes[0].patches if not patch.get_fill()]
    assert sorted(outlined) == [(1, 0), (4, 2)]
    assert cell_texts(figure)[2, 4] == "−0.90"


def test_ties_are_counted():
    scores = np.full((3, 5), BASE)
    scores[2, 4], scores[0, 1], scores[1, 1], scores[1, 2] = BASE - 0.009, BASE + 0.003, np.nan, BASE + 0.003
    scores[2, 2] = BASE + 0.003 - 1e-9
    figure = make_heads(scores, BASE, "Title")
    assert "largest loss: head 2.4, −0.90" in legend_of(figure)
    assert "largest gain: head 0.1 and 2 more, +0.30" in legend_of(figure)


def test_undefined_scores_are_hatched_and_counted():
    scores = random_scores(3, 5)
    scores[1, 4] = scores[2, 0] = np.nan
    figure = make_heads(scores, BASE, "Title")
    hatched = [patch.get_xy() for patch in figure.axes[0].patches if patch.get_hatch()]
    assert sorted(hatched) == [(0, 2), (4, 1)]
    assert "heads without a result: 2" in legend_of(figure)
    assert set(cell_texts(figure)) == {(i, j) for i in range(3) for j in range(5)} - {(1, 4), (2, 0)}


def test_an_undefined_base_is_drawn_as_such():
    heads, layers = (
        make(np.full(shape, 0.5), float("nan"), "Title") for make, shape in ((make_heads, (2, 3)), (make_layers, 4))
    )
    assert "heads without a result: 6" in legend_of(heads)
    assert "undefined  (base)" in [label.get_text() for label in heads.axes[1].get_yticklabels()]
    assert {text.get_text().strip() for text in layers.axes[0].texts} == {"undefined"}


def test_one_extreme_head_does_not_wash_out_the_rest():
    scores = random_scores(6, 12)
    scores[3, 0] = BASE - 0.30
    figure = make_heads(scores, BASE, "Title")
    limit = limits_of(figure)[1]
    assert limit < 2
    assert "heads below the colour scale: 1" in legend_of(figure)
    assert cell_texts(figure)[3, 0] == "−30.0"


@pytest.mark.parametrize("change", [0.0, 1e-9])
def test_rounding_gets_no_colour(change):
    figure = make_heads(np.full((3, 4), BASE + change), BASE, "Title")
    assert limits_of(figure)[1] >= 0.05
    assert legend_of(figure) == ["no head changes the score"]


def test_numbers_can_be_read_on_every_colour():
    scores = BASE + np.linspace(-0.01, 0.01, 72).reshape(6, 12)

    def luminance(colour) -> float:  # WCAG 2.2, relative luminance
        rgb = np.asarray(to_rgb(colour))
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    for found in (None, np.zeros((6, 12), bool)):
        axes = make_heads(scores, BASE, "Title", significant=found).axes[0]
        for face, text in zip(colours_of(axes).reshape(-1, 3), axes.texts, strict=True):
            dark, light = sorted((luminance(face), luminance(text.get_color())))
            assert (light + 0.05) / (dark + 0.05) > 4


def test_significant_cells_have_a_dot():
    scores = random_scores(4, 5)
    found = np.zeros((4, 5), bool)
    found[1, 2] = found[3, 0] = True
    scores[0, 0], scores[2, 3] = np.nan, BASE
    figure, full = make_heads(scores, BASE, "Title", significant=found), make_heads(scores, BASE, "Title")
    cells, means = figure.axes[:2]
    assert np.array_equal(colours_of(cells), colours_of(full.axes[0]), equal_nan=True)
    dots = np.floor(cells.collections[1].get_offsets()).tolist()
    assert dots == [[head, layer] for layer, head in np.argwhere(found).tolist()]
    assert len(means.collections) == len(full.axes[0].collections) == 1
    assert "significant (q < 0.05): 2 of 19; means are not tested" in legend_of(figure)
    assert not any("significant" in text for text in legend_of(full))


def test_layers_become_bars_around_the_base():
    figure = make_layers(np.array([0.80, BASE, np.nan, 0.88]), BASE, "Title", "", LABEL)
    axes = figure.axes[0]
    assert axes.get_ylabel() == "layer"
    np.testing.assert_allclose([bar.get_width() for bar in axes.patches], [-6.72, 0, 0, 1.28])
    assert [text.get_text().strip() for text in axes.texts] == ["−6.72", "0.00", "undefined", "+1.28"]
    assert axes.yaxis_inverted()
    assert "86.72\n(base)" in [label.get_text() for label in axes.get_xticklabels()]
    assert axes.get_xlim()[0] < -6.72 < 1.28 < axes.get_xlim()[1]


def test_bars_have_intervals_and_significance():
    """Filled where more than chance; a line from end to end of each interval; the number beyond both."""
    ends = np.array([[-9.0, -0.5, np.nan, 0.2], [-3.0, 1.5, np.nan, 2.5]])
    certainty = Certainty(ends, np.array([True, False, False, True]))
    figure = make_layers(np.array([0.80, BASE + 0.004, np.nan, 0.88]), BASE, "Title", "", LABEL, certainty)
    axes = figure.axes[0]
    hollow = [bar.get_facecolor() == (1, 1, 1, 1) for bar in axes.patches]
    assert hollow == [False, True, True, False]
    (lines,) = axes.collections
    found = [[*path.vertices[:, 0]] for path in lines.get_paths()]
    assert found == [[-9, -3], [-0.5, 1.5], [0.2, 2.5]]
    assert [text.get_position()[0] for text in axes.texts] == [-9, 1.5, 0, 2.5]
    assert figure.texts[-1].get_text() == "filled: significant (q < 0.05), 2 of 4; lines: 95 % intervals"


def test_the_most_changed_sets_are_drawn_from_gain_to_loss():
    names = [f"set {number}" for number in range(30)]
    scores = BASE + np.linspace(-0.02, 0.01, 30)
    scores[4] = np.nan
    figure = make_sets(names, scores, BASE, "Title", "Where", LABEL)
    axes = figure.axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    widths = [bar.get_width() for bar in axes.patches]
    assert len(labels) == len(widths) == 24
    assert widths == sorted(widths, reverse=True)
    assert labels[0] == "set 29"
    assert labels[-1] == "set 0"
    assert "set 4" not in labels
    assert axes.get_ylabel() == ""
    assert any("the 24 of 30 sets that change most" in text.get_text() for text in figure.texts)
    with pytest.raises(DataError, match="30 sets, but 2 names"):
        make_sets(["a", "b"], scores, BASE, "Title")


@pytest.mark.parametrize(
    "scores",
    [
        *(random_scores(*shape) for shape in ((1, 1), (1, 12), (6, 12), (12, 1), (24, 16))),
        *(np.full(shape, value) for shape in ((1, 1), (2, 3)) for value in (BASE, np.nan)),
        np.array([[BASE, np.nan], [BASE + 0.002, BASE + 0.001]]),
    ],
    ids=lambda scores: "x".join(map(str, scores.shape)),
)
def test_every_map_becomes_a_picture_of_readme_width(scores, tmp_path):
    save_page(make_heads(scores, BASE, TITLE, "", LABEL), tmp_path / "heads.png")
    save_page(make_layers(scores[:, 0], BASE, TITLE), tmp_path / "layers.png")
    for name in ("heads.png", "layers.png"):
        picture = imread(tmp_path / name)
        assert picture.shape[1] == 1600
        assert 300 < picture.shape[0] < 2600
    assert sorted(os.listdir(tmp_path)) == ["heads.png", "layers.png"]


@pytest.mark.parametrize("shape", [(1, 1), (6, 12), (24, 16)])
def test_every_word_is_inside_the_picture(shape):
    scores = random_scores(*shape)
    texts = BASE, TITLE * 3, "Many a word " * 20, Measure("Matthews correlation")
    for figure in (
        make_heads(scores, *texts),
        make_heads(scores, *texts, significant=scores > BASE),
        make_layers(scores[:, 0], *texts),
    ):
        figure.draw_without_rendering()  # places the words
        for text in figure.findobj(Text, include_self=False):
            if text.get_text().strip() and text.get_visible():
                box = text.get_window_extent()
                assert 0 <= box.x0 < box.x1 <= figure.bbox.width, text
                assert 0 <= box.y0 < box.y1 <= figure.bbox.height, text


def test_equal_scores_give_equal_bytes_in_any_style(tmp_path):
    scores = random_scores(5, 3)
    scores[2, 1] = np.nan
    save_page(make_heads(scores, BASE, "Title"), tmp_path / "a.png")
    with matplotlib.rc_context({"font.family": "serif", "hatch.linewidth": 5}):
        save_page(make_heads(scores, BASE, "Title"), tmp_path / "b.png")
        assert matplotlib.rcParams["hatch.linewidth"] == 5  # the user's style is left as it was
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    texts = re.findall(rb"(tEXt|iTXt|tIME)(.{16})", (tmp_path / "a.png").read_bytes())
    assert texts == [(b"tEXt", b"Software\0bertjax")]  # no time and no version


def test_a_picture_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    figure = make_layers(np.full(2, 0.5), 0.5, "Title")
    for path in (tmp_path / "file" / "heads.png", tmp_path):
        with pytest.raises(OutputError) as caught:
            save_page(figure, path)
        assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("make", "scores", "words"),
    [
        (make_heads, np.zeros(3), r"\[3\].*\[layers, heads\]"),
        (make_heads, np.zeros((0, 3)), r"\[0, 3\]"),
        (make_layers, np.zeros((2, 3)), r"\[2, 3\].*\[layers\]"),
    ],
)
def test_scores_that_make_no_picture_are_an_error(make, scores, words):
    with pytest.raises(DataError, match=words):
        make(scores, 0.5, "Title")


@pytest.mark.integration
def test_the_heavy_libraries_load_when_needed_and_pyplot_never(tmp_path):
    code = """
import sys, numpy, bertjax.statistics, bertjax.plots, bertjax.results, bertjax.study
assert not {"matplotlib", "sklearn", "scipy.stats"} & set(sys.modules)
bertjax.plots.save_page(bertjax.plots.make_heads(numpy.full((2, 3), 0.5), 0.5, "Title"), sys.argv[1])
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "heads.png")], check=True)
