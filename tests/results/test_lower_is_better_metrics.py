"""A score that is better when lower, printed in a unit of its own: everywhere the mirror of one that is not."""

import io
import re
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from rich.console import Console

import bertjax
from bertjax.errors import DataError
from bertjax.plots import make_heads, make_layers
from bertjax.results import read_results, show_table, show_text
from bertjax.results.contents import measure_of
from bertjax.results.page import write_page
from bertjax.statistics import SCORE, Measure, compute_statistics, describe_statistics, summarise
from tests.browser import assert_quiet, browser_needed, text_of, wait_for
from tests.result_factories import make_results
from tests.tiny_models import largest_difference


def mean_error(values, labels, positive):
    return np.abs(values - labels).mean(1)


def closeness(values, labels, positive):
    return -mean_error(values, labels, positive)


BOUNDS = {"error": (0.0, np.inf), "closeness": (-np.inf, 0.0)}
ERROR, CLOSENESS = (
    bertjax.Metric(
        name,
        f"Mean {name}",
        "values",
        "numbers",
        function,
        lowest=BOUNDS[name][0],
        highest=BOUNDS[name][1],
        unit="years",
        greater_is_better=name == "closeness",
    )
    for name, function in (("error", mean_error), ("closeness", closeness))
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    directory = tmp_path_factory.mktemp("measures")
    return {
        metric.name: read_results(make_results(directory / metric.name, "stsb", metrics=(metric,)))
        for metric in (ERROR, CLOSENESS)
    }


def test_numbers_are_printed_in_their_unit():
    years = Measure("Age", "years", greater_is_better=False)
    assert (years.score(1.5), years.change(-0.25), years.with_unit("2")) == ("1.500", "−0.250", "2 years")
    assert (SCORE.score(0.5), SCORE.change(0.01), SCORE.with_unit("1")) == ("50.00", "+1.00", "1 points")
    assert (years.change(0.0004), SCORE.change(-0.00004), SCORE.score(None)) == ("0.000", "0.00", "undefined")
    assert Measure("Ratio", "").with_unit("3") == "3"
    assert (years.caption, Measure("Ratio", "").caption) == ("Age in years (change)", "Ratio (change)")


def test_statistics_of_a_loss_equal_those_of_its_negative(rng):
    labels = rng.normal(size=80)
    base = labels + 0.5 * rng.normal(size=80)
    outputs = base + np.array([0.4, 0.1, 0.02])[:, None] * rng.normal(size=(3, 80)) - 0.3 * (base - labels)
    error, close = (
        compute_statistics(metric, base, outputs, labels, resamples=400, draws=499) for metric in (ERROR, CLOSENESS)
    )
    assert largest_difference(error.difference, -close.difference) < 1e-12
    assert largest_difference(error.percentile, -close.percentile[::-1]) < 1e-12
    assert largest_difference(error.low, -close.high) < 1e-9
    for name in ("p", "q", "holm", "best", "best_raw", "detectable", "standard_error"):
        assert getattr(error, name).tolist() == pytest.approx(getattr(close, name).tolist(), rel=1e-9), name
    assert error.best.min() < 0.5
    assert error.halves["chosen"] == close.halves["chosen"]
    assert error.halves["on_other"] == pytest.approx(-close.halves["on_other"])
    assert error.base > 0 > close.base


def test_sentences_say_which_way_is_better(rng):
    labels = rng.normal(size=200)
    base, noise = labels + rng.normal(size=200), rng.normal(size=200)
    found = compute_statistics(
        ERROR, base, np.stack([labels + 0.5 * noise, base + 3 * noise]), labels, resamples=200, draws=299
    )
    sentence = summarise(found, ["good", "bad"], "set")
    assert "raises the score for 1 of 2 sets and lowers it for 1, at q < 0.05 (Mean error, lower is better)" in sentence
    gain, loss = (found.metric.measure.change(change) for change in found.difference)
    assert f"the largest fall is {gain} years" in sentence
    assert f"the largest rise is {loss} years" in sentence
    assert "largest loss" not in sentence
    assert (gain[0], loss[0]) == ("−", "+")
    assert describe_statistics(found, ["good", "bad"], "set")["halves"]["chosen"][0][0] == "good"


def test_tables_begin_with_the_largest_loss(results):
    for name in ("error", "closeness"):
        console = Console(width=90, record=True)
        console.print(show_table(results[name]))
        text = console.export_text()
        assert ("lower is better" in text) == (name == "error")
        assert "in years" in text
        rows = [line.split()[0] for line in text[text.index("95 % CI") :].splitlines() if re.match(r" *\d\.\d ", line)]
        markdown = [line.split(" | ")[0][2:] for line in show_text(results[name], "md").splitlines() if "| 0." in line]
        sign = results[name].measure().sign
        ordered = sorted(results[name].rows_of(), key=lambda row: sign * row.difference)
        assert rows == [row.name for row in ordered]
        assert markdown[0] in [row.name for row in ordered]
    assert "scores and changes in years; lower is better" in results["error"]._repr_html_()


def test_colours_are_those_of_losses_and_gains():
    scores = np.array([[0.2, 0.5, 0.9]])
    losses = make_heads(scores, 0.5, "Title", measure=Measure("Error", "", greater_is_better=False))
    gains = make_heads(1 - scores, 0.5, "Title", measure=Measure("Quality", ""))
    first, second = (np.asarray(figure.axes[0].collections[0].get_array()).reshape(-1, 3) for figure in (losses, gains))
    assert np.abs(first - second).max() < 1e-6
    assert np.abs(first[0] - first[2]).max() > 0.3
    words = [text.get_text() for legend in losses.legends for text in legend.get_texts()]
    assert words == ["largest rise: head 0.2, +0.400", "largest fall: head 0.0, −0.300"]
    bars = make_layers(scores[0], 0.5, "Title", measure=Measure("Error", "", greater_is_better=False)).axes[0]
    red, blue = matplotlib.colormaps["RdBu"]([0.12, 0.88])
    assert np.abs(bars.patches[2].get_facecolor() - red).max() < 1e-6
    assert np.abs(bars.patches[0].get_facecolor() - blue).max() < 1e-6


def test_comparing_a_loss_with_its_negative_compares_gains(results):
    comparison = results["error"].compare(results["closeness"])
    (pair,) = comparison.pairs
    assert pair.correlation == pytest.approx(1)
    assert (pair.both, pair.opposite) == (pair.found[0], 0)
    assert pair.both > 0
    changes = comparison.to_dict()["agreeing"][0]["changes"]
    assert sum(changes.values()) == pytest.approx(0, abs=1e-9)


def test_saved_results_know_the_unit(results):
    saved = results["error"]
    assert saved.measure() == ERROR.measure
    assert saved.printed("score").tolist() == [row.score for row in saved.rows_of()]
    older = saved.summary | {
        "own_metrics": {"error": {"label": "Mean error", "reads": "values", "of_one_label": False}}
    }
    assert measure_of(older, "error") == Measure("Mean error")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lowest": 2.0}, "metric x has scores from 2.0 to 1.0"),
        ({"highest": float("nan")}, "metric x has scores from 0.0 to nan"),
    ],
)
def test_what_is_no_unit_or_range_is_refused(changes, message):
    with pytest.raises(DataError, match=message):
        bertjax.Metric("x", "X", "values", "numbers", mean_error, **changes)


@browser_needed
def test_the_page_shows_losses_in_red_whatever_their_sign(browser, results, tmp_path):
    shown = {}
    for name, saved in results.items():
        browser.get(write_page(saved, tmp_path / f"{name}.html").as_uri())
        wait_for(lambda: browser.execute_script("return document.body.dataset.ready"))
        largest = text_of(browser, "#chosen")
        assert "years (95 % CI" in largest
        assert ("Lower is better." in text_of(browser, "#positive")) == (name == "error")
        colours = browser.execute_script(
            "return [...document.querySelectorAll('#ranking .dot')].map(dot => dot.getAttribute('stroke'))"
        )
        classes = browser.execute_script(
            "return [...document.querySelectorAll('#table tbody tr')].map(row => row.cells[2].className)"
        )
        names = browser.execute_script(
            "return [...document.querySelectorAll('#table tbody tr')].map(row => row.dataset.name)"
        )
        scale = browser.execute_script(
            "return [...document.querySelectorAll('#overview .map-scale rect')].map(part => part.getAttribute('fill'))"
        )
        assert text_of(browser, "#ranking .axis-title") == "change in years"
        assert {"var(--low)", "var(--high)"} <= {*colours} <= {"var(--low)", "var(--grey)", "var(--high)"}
        assert classes[0] == "number loss"
        shown[name] = (colours, classes, names, sorted(scale), scale[0])
        assert_quiet(browser)
    assert shown["error"][:4] == shown["closeness"][:4]
    assert shown["error"][4] != shown["closeness"][4]


EFFECT = replace(ERROR, name="effect", label="Mean effect", of_effects=True)


@pytest.fixture(scope="module")
def effects(tmp_path_factory):
    return read_results(make_results(tmp_path_factory.mktemp("effects") / "effects", "stsb", metrics=[EFFECT]))


def test_effects_are_no_change_of_a_score(effects):
    rows = effects.rows_of()
    found = [sum(row.significant and sign * row.difference > 0 for row in rows) for sign in (1, -1)]
    start = f"Mean effect (lower is better) is above 0 for {found[0]} of {len(rows)} heads and below 0 for {found[1]}"
    assert effects.sentence.startswith(start)
    assert "Ablating" not in effects.sentence
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(show_table(effects))
    printed = console.export_text()
    assert "without ablation" not in printed
    assert re.search(r"head +effect +95 % CI +p +q", printed)
    assert "effects in years" in printed
    assert show_text(effects, "md").splitlines()[4].split("|")[2].strip() == "effect"
    assert re.findall("<th [^>]*>([^<]*)<", effects._repr_html_())[:3] == ["head", "effect", "95 % CI"]
    assert EFFECT.measure.caption == "Mean effect in years"
    assert effects.measure() == EFFECT.measure
    figure = effects.plot()
    assert "with one head" not in "".join(text.get_text() for text in figure.texts)
    labels = [label.get_text() for axes in figure.axes for label in axes.get_yticklabels()]
    assert "0" in labels
    assert not any("base" in label for label in labels)


@browser_needed
def test_the_page_shows_effects_as_such(browser, effects, tmp_path):
    browser.get(write_page(effects, tmp_path / "effects.html").as_uri())
    wait_for(lambda: browser.execute_script("return document.body.dataset.ready"))
    assert "score" not in text_of(browser, "#chosen")
    assert "effect" in text_of(browser, "#chosen")
    assert "Mean effect" in text_of(browser, "#drawn")
    titles = browser.execute_script(
        "return [...document.querySelectorAll('#table thead th')].map(one => one.innerText)"
    )
    assert titles == ["head", "effect", "95 % interval", "q"]
    assert text_of(browser, "#ranking .axis-title") == "effect in years"
    assert_quiet(browser)


def mean_size(values, labels, positive):
    return np.abs(values).mean(1)


SIZE = bertjax.Metric(
    "size", "Mean size", "values", "numbers", mean_size, highest=np.inf, unit="years", of_effects=True, tested=False
)


def test_what_is_never_below_zero_has_no_test(rng):
    outputs = rng.normal(size=(3, 50)) * np.array([[1.0], [3.0], [2.0]])
    found = compute_statistics(SIZE, np.zeros(50), outputs, rng.normal(size=50), resamples=200)
    for name in ("p", "q", "holm", "best", "best_raw", "detectable"):
        assert np.isnan(getattr(found, name)).all(), name
    assert not found.significant.any()
    assert found.least_p is found.least_best_p is None
    assert (found.low < found.difference).all()
    assert (found.difference < found.high).all()
    sizes = np.abs(outputs).mean(1)
    sentence = summarise(found, ["0.0", "0.1", "0.2"], "head")
    assert f"the largest is {sizes[1]:.3f} years (95 % CI" in sentence
    assert f"the smallest is {sizes[0]:.3f} years (95 % CI" in sentence
    assert not re.search("q <|above 0 for|chance|Ablating", sentence)
    assert describe_statistics(found, ["0.0", "0.1", "0.2"], "head")["test"] == "none"


def test_what_is_not_tested_is_not_marked_anywhere(tmp_path):
    path = make_results(tmp_path / "sizes", "stsb", metrics=(SIZE,))
    saved = read_results(path)
    assert saved.frame[["p", "q", "holm", "best_p", "test"]].isna().all(axis=None)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(show_table(saved))
    texts = [console.export_text(), show_text(saved, "md"), saved._repr_html_(), saved.sentence]
    for figure in (saved.plot("map"), saved.plot("ranking"), saved.plot("layers")):
        texts += [text.get_text() for text in figure.texts]
        texts += [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    for text in texts:
        assert not re.search(
            r"q (<|&lt;)|\*|more than chance|significant|largest (loss|gain)", text.replace("**", "")
        ), text
    largest = max(saved.rows_of(), key=lambda row: row.score)
    markdown = [line for line in show_text(saved, "md").splitlines() if line.startswith("| ")]
    assert markdown[2].split(" | ")[0] == f"| {largest.name}"
    assert markdown[0] == "| head | value | 95 % CI |"


@browser_needed
def test_the_page_has_no_test_of_sizes(browser, tmp_path):
    saved = read_results(make_results(tmp_path / "sizes", "stsb", metrics=(SIZE,)))
    browser.get(write_page(saved, tmp_path / "sizes.html").as_uri())
    wait_for(lambda: browser.execute_script("return document.body.dataset.ready"))
    shown = text_of(browser, "body").split("Model, data and settings")[0]
    assert not re.search(r"q <|p [=<≤]|●|more than chance|\bloss\b|\bgain\b", shown), shown
    titles = browser.execute_script(
        "return [...document.querySelectorAll('#table thead th')].map(one => one.innerText)"
    )
    assert titles == ["head", "value", "95 % interval"]
    ticks = "return [...document.querySelectorAll('#overview .map-scale text')].map(tick => tick.textContent)"
    assert browser.execute_script(ticks)[0] == "0"
    assert_quiet(browser)
