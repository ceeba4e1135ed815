"""The page in a real browser: what it shows, that it can be used, and that it asks no host for anything."""

import csv

import numpy as np
import pytest

from bertjax.results.directory import read_results
from bertjax.results.page import make_page, write_page
from tests.browser import (
    assert_quiet,
    browser_needed,
    choose,
    drawn_map,
    go_to,
    has_colour_bar,
    is_shown,
    rows_of,
    text_of,
    wait_for,
)
from tests.result_factories import EVIL, EVIL_TOKENS, make_results

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return make_results(tmp_path_factory.mktemp("page") / "mrpc")


@pytest.fixture
def page(browser, results):
    """The page of made-up results, open and ready; after the test nothing was asked of any host, nothing went wrong."""
    path = write_page(read_results(results))
    browser.get(path.as_uri())
    wait_for(lambda: browser.execute_script("return document.body.dataset.ready && document.body.dataset.attention"))
    yield browser
    assert_quiet(browser)


@browser_needed
def test_the_page_opens_with_the_sentence_and_the_largest_effect(page, results):
    assert text_of(page, "#sentence") == read_results(results).summary["sentence"]
    assert page.title == read_results(results).title
    assert "head 2.3" in text_of(page, "#chosen")
    assert "q ≤ 0.0" in text_of(page, "#chosen")
    assert "; p ≤ 0.001" in text_of(page, "#chosen")


@browser_needed
def test_pointing_at_a_cell_shows_its_numbers(page, results):
    go_to(page, 2, 3).perform()
    wait_for(lambda: page.execute_script("return document.querySelector('#map .hoverlayer .hovertext')"))
    hover = page.execute_script("return document.querySelector('#map .hoverlayer').textContent")
    row = next(row for row in read_results(results).rows_of() if row.name == "2.3")
    assert f"head 2.3: score {100 * row.score:.2f}" in hover
    assert f"change +{100 * row.difference:.2f} points (95 % CI +{100 * row.low:.2f} to" in hover
    assert f"{row.gains} become right, {row.losses} wrong" in hover


@browser_needed
def test_clicking_a_cell_chooses_that_head(page):
    go_to(page, 1, 2).click().perform()
    wait_for(lambda: "head 1.2" in text_of(page, "#chosen"))
    assert "head 1.2" in text_of(page, "#examples-heading")
    assert page.execute_script("return document.querySelector('tr.selected').dataset.name") == "1.2"
    wait_for(lambda: page.execute_script("return document.body.dataset.attention").startswith("1.2 "))


@browser_needed
def test_insignificant_cells_are_pale_and_show_their_numbers(page, results):
    """In a layer of their own over the same axes, so that all cells can be pointed at and clicked."""
    rows = {row.name: row for row in read_results(results).rows_of()}
    sure = {name for name, row in rows.items() if row.q < 0.05}
    assert 0 < len(sure) < len(rows)
    full, noise, means = drawn_map(page)
    assert {name for name in rows if full["z"][rows[name].layer][rows[name].head] is not None} == sure
    for name, row in rows.items():
        shown = (full if name in sure else noise)["z"][row.layer][row.head]
        assert shown == pytest.approx(100 * row.difference)
    assert full["opacity"] is None
    assert noise["opacity"] == means["opacity"] == 0.22
    assert has_colour_bar(page)
    assert "pale: not significant" in text_of(page, ".of-map")
    go_to(page, 1, 1).perform()
    wait_for(lambda: text_of(page, "#map .hoverlayer .hovertext").startswith("head 1.1: score"))
    go_to(page, 1, 1).click().perform()
    wait_for(lambda: text_of(page, "#chosen").startswith("head 1.1: score"))


@browser_needed
def test_a_map_of_noise_alone_has_its_scale_of_colours(browser, tmp_path):
    results = read_results(make_results(tmp_path / "noise", examples=60, labelled=4))
    browser.get(write_page(results).as_uri())
    wait_for(lambda: browser.execute_script("return document.body.dataset.ready"))
    full, noise, _ = drawn_map(browser)
    assert {value for row in full["z"] for value in row} == {None}
    assert sum(value is not None for row in noise["z"] for value in row) == len(results.names)
    assert has_colour_bar(browser)
    assert_quiet(browser)


@browser_needed
def test_the_keyboard_moves_over_the_map_and_opens_rows(page):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    where = page.find_element(By.ID, "map")
    page.find_element(By.CSS_SELECTOR, "tr[data-name='0.1'] button").send_keys(Keys.ENTER)
    where.send_keys(Keys.ARROW_DOWN)
    wait_for(lambda: "head 1.1" in text_of(page, "#chosen"))
    where.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_UP)
    wait_for(lambda: "head 0.2" in text_of(page, "#chosen"))
    where.send_keys(Keys.ARROW_UP)  # there is nothing above
    assert "head 0.2" in text_of(page, "#chosen")
    page.find_element(By.CSS_SELECTOR, "tr[data-name='2.3'] button").send_keys(Keys.ENTER)
    wait_for(lambda: "head 2.3" in text_of(page, "#chosen"))


@browser_needed
def test_the_ranking_is_filtered_and_sorted(page):
    from selenium.webdriver.common.by import By

    assert rows_of(page, "table")[0].startswith("0.1")
    assert rows_of(page, "table")[-1].startswith("2.3")
    box = page.find_element(By.ID, "filter")
    box.send_keys("1.")
    wait_for(lambda: text_of(page, "#count") == "4 of 12 heads")
    box.clear()
    box.send_keys(".1")  # no head begins so
    wait_for(lambda: text_of(page, "#count").startswith("Nothing found"))
    box.clear()
    box.send_keys("1.")
    wait_for(lambda: text_of(page, "#count") == "4 of 12 heads")
    assert all(row.startswith("1.") for row in rows_of(page, "table"))
    page.execute_script("arguments[0].value = ''; arguments[0].dispatchEvent(new Event('input'))", box)
    page.find_element(By.ID, "sure").click()
    wait_for(lambda: {row.split()[0] for row in rows_of(page, "table")} == {"0.1", "2.3"})
    page.find_element(By.ID, "sure").click()
    page.find_element(By.CSS_SELECTOR, "#table thead th button").click()
    names = [row.split()[0] for row in rows_of(page, "table")]
    assert names == sorted(names)
    page.find_element(By.CSS_SELECTOR, "#table thead th button").click()
    assert [row.split()[0] for row in rows_of(page, "table")] == names[::-1]


@browser_needed
def test_a_filter_that_finds_nothing_says_so(page):
    from selenium.webdriver.common.by import By

    page.find_element(By.ID, "filter").send_keys("zzz")
    wait_for(lambda: text_of(page, "#count") == "Nothing found: none of the 12 heads is called zzz.")
    assert not page.find_element(By.ID, "ranking").is_displayed()
    page.find_element(By.ID, "sure").click()
    wait_for(lambda: text_of(page, "#count").endswith("is called zzz and more than chance."))
    page.find_element(By.ID, "sure").click()
    box = page.find_element(By.ID, "filter")
    page.execute_script("arguments[0].value = ''; arguments[0].dispatchEvent(new Event('input'))", box)
    wait_for(lambda: page.find_element(By.ID, "ranking").is_displayed())


@browser_needed
def test_a_browser_that_cannot_unpack_the_charts_gets_one_line(browser, results, tmp_path):
    path = write_page(read_results(results), tmp_path / "page.html")
    script = {"source": "delete window.DecompressionStream"}
    older = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", script)
    try:
        browser.get(path.as_uri())
        wait_for(lambda: text_of(browser, "#failure").startswith("This page needs a newer browser: Chrome"))
        assert text_of(browser, "body") == text_of(browser, "#failure")
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", older)
    browser.get(path.as_uri())
    wait_for(lambda: browser.execute_script("return document.body.dataset.ready"))
    assert not is_shown(browser, "failure")
    assert_quiet(browser)


@browser_needed
@pytest.mark.parametrize(
    "damage",
    [lambda packed: packed[:-400], lambda packed: f"?{packed}", lambda packed: ""],
    ids=["shortened", "not base64", "empty"],
)
def test_a_page_whose_charts_are_damaged_says_so(browser, results, tmp_path, damage):
    page, start = make_page(read_results(results)), '<script type="text/plain" id="plotly">'
    before, after = page.split(start)
    packed, rest = after.split("</script>", 1)
    (tmp_path / "page.html").write_text(f"{before}{start}{damage(packed)}</script>{rest}")
    browser.get((tmp_path / "page.html").as_uri())
    wait_for(lambda: text_of(browser, "#failure").startswith("This page is damaged: its charts cannot be unpacked."))
    assert not browser.find_element("tag name", "main").is_displayed()
    assert_quiet(browser)


@browser_needed
def test_a_page_without_kept_attention(browser, tmp_path):
    path = make_results(tmp_path / "some", examples=30)
    (path / "attention.npz").unlink()
    with pytest.warns(UserWarning, match="lacks attention.npz"):
        page = write_page(read_results(path))
    browser.get(page.as_uri())
    wait_for(lambda: browser.execute_script("return document.body.dataset.ready"))
    browser.execute_script("document.querySelector(\"tr[data-name='1.1'] button\").click()")
    assert "head 1.1" in text_of(browser, "#chosen")
    assert "attention.npz is not in the directory" in text_of(browser, "#attention-note")
    assert text_of(browser, "#attention-parts") == ""
    assert_quiet(browser)


@browser_needed
def test_another_metric_changes_all_numbers(page, results):
    choose(page, "metric", "accuracy")
    row = next(row for row in read_results(results).rows_of("accuracy") if row.name == "2.3")
    wait_for(lambda: f"score {100 * row.score:.2f}" in text_of(page, "#chosen"))
    assert "McNemar, exact" in text_of(page, "#method")
    assert (
        text_of(page, "#sentence")
        == read_results(results).sentence_of("accuracy")
        != read_results(results).sentence_of()
    )


@browser_needed
def test_flipped_examples_have_their_texts_as_text(page, results):
    saved = read_results(results)
    rows = rows_of(page, "examples")
    assert len(rows) == 20
    assert EVIL in rows[0]
    before, after = (saved.outputs[name].argmax(-1) for name in ("base", "outputs"))
    flips = int((after[-1] != before).sum())
    assert text_of(page, "#examples-note").startswith(f"{flips} predictions change")
    number = int(rows[0].split()[0])
    assert before[number] != after[-1][number]
    names = saved.summary["data"]["label_names"]
    assert f"{names[before[number]]} → {names[after[-1][number]]}" in rows[0]


@browser_needed
def test_the_viewer_shows_the_weights_that_were_saved(page, results):
    arrays = read_results(results).attention
    runs = arrays["runs"].tolist()
    script = "return document.getElementById(arguments[0]).data[0].z"
    for example, layer, head, run in ((0, 2, 2, 1), (1, 2, 3, 2), (0, 0, 2, 1), (0, 1, 0, 2)):
        for control, value in (("example", example), ("layer", layer), ("head", head), ("run", run)):
            choose(page, control, str(value))
        wanted = f"{layer}.{head} {runs[run]} {arrays['examples'][example]}"
        wait_for(lambda wanted=wanted: page.execute_script("return document.body.dataset.attention") == wanted)
        weights = arrays[f"weights_{example}_0"]
        differs = not np.array_equal(weights[run, layer], weights[0, layer])
        for name, which in (("matrix-base", 0), ("matrix-ablated", run))[: 1 + differs]:
            shown = np.array(page.execute_script(script, name))
            assert np.abs(shown - weights[which, layer, head]).max() <= 0.5 / 255 + 1e-6
        assert is_shown(page, "matrix-ablated") == is_shown(page, "ablated-caption") == differs
        reason = f"Ablating head {runs[run]} changes nothing in layer {layer}: what is ablated lies in a later layer."
        assert text_of(page, "#one-panel") == ("" if differs else reason)
    assert {runs[1], runs[2]} == {"0.1", "2.3"}
    choose(page, "example", "0")
    ticks = "return [...document.querySelectorAll('#matrix-base .ytick text')].map(tick => tick.textContent)"
    wait_for(lambda: page.execute_script(ticks) == list(EVIL_TOKENS))
    assert EVIL in text_of(page, "#example-text")
    choose(page, "view", "matrix")
    wait_for(lambda: not page.execute_script("return document.getElementById('lines-base').offsetHeight"))


@browser_needed
def test_charts_keep_their_size_when_the_window_changes(page):
    heights = "return ['map', 'ranking', 'matrix-base'].map(id => document.getElementById(id).offsetHeight)"
    choose(page, "metric", "accuracy")
    page.execute_script("document.querySelector(\"tr[data-name='1.1'] button\").click()")
    before = page.execute_script(heights)
    page.set_window_size(700, 1200)
    wait_for(lambda: page.execute_script("return document.getElementById('map')._fullLayout.width") < 700)
    assert page.execute_script(heights) == before
    assert min(before) > 100
    page.set_window_size(1280, 1600)


@browser_needed
def test_attention_before_and_after_has_one_scale(page):
    scales = page.execute_script(
        "return ['matrix-base', 'matrix-ablated'].map(id => document.getElementById(id).data[0])"
    )
    assert scales[0]["zmax"] == scales[1]["zmax"] == max(max(row) for one in scales for row in one["z"])


@browser_needed
def test_narrow_screens_need_no_horizontal_scrolling(page):
    width = "const box = document.getElementById('examples').parentElement; return box.scrollWidth - box.clientWidth"
    page.set_window_size(500, 1200)
    wait_for(lambda: page.execute_script("return document.getElementById('map')._fullLayout.width") < 500)
    assert page.execute_script(width) <= 0
    assert EVIL in text_of(page, "#examples")
    page.set_window_size(1280, 1600)


@browser_needed
def test_an_ablation_without_kept_attention_shows_the_reason(page):
    page.execute_script("document.querySelector(\"tr[data-name='1.1'] button\").click()")
    wait_for(lambda: "The attention without head 1.1 was not kept" in text_of(page, "#one-panel"))
    assert text_of(page, "#one-panel").endswith('only those of the 2 largest effects. Choose one under "Without".')
    assert is_shown(page, "matrix-base")
    assert not is_shown(page, "ablated")
    choose(page, "run", "1")
    choose(page, "layer", "2")
    wait_for(lambda: is_shown(page, "matrix-ablated"))
    assert text_of(page, "#one-panel") == ""
    assert text_of(page, "#ablated-caption").startswith("Without head")


def chosen_in(page):
    return page.execute_script("return document.querySelector('tr.selected').dataset.name")


@browser_needed
def test_the_address_names_the_head_and_can_be_sent(browser, page, results):
    url = page.current_url.split("#")[0]
    assert page.current_url == url  # nothing was chosen yet
    for name in ("1.1", "0.2"):
        page.execute_script(f"document.querySelector(\"tr[data-name='{name}'] button\").click()")
        assert page.current_url == f"{url}#{name}"
    page.back()
    wait_for(lambda: chosen_in(page) == "1.1")
    assert "head 1.1" in text_of(page, "#chosen")
    page.back()
    wait_for(lambda: chosen_in(page) == "2.3")  # the largest effect, as at the beginning
    page.forward()
    wait_for(lambda: chosen_in(page) == "1.1")
    for sent, shown in (("1.3", "1.3"), ("9.9", "2.3"), ("%", "2.3"), ("map", "2.3")):
        page.get(f"{url}#{sent}")
        page.refresh()
        wait_for(lambda: page.execute_script("return document.body.dataset.ready"))
        assert chosen_in(page) == shown
        assert "head " + shown in text_of(page, "#examples-heading")


@browser_needed
def test_arrow_keys_change_the_address_without_history_entries(page):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    before = page.execute_script("return history.length")
    page.find_element(By.ID, "map").send_keys(Keys.ARROW_UP, Keys.ARROW_LEFT)
    wait_for(lambda: page.current_url.endswith("#1.2"))
    assert page.execute_script("return history.length") == before


@browser_needed
def test_the_page_says_which_label_a_metric_is_about(page):
    assert text_of(page, "#positive") == "F1 is about the label “equivalent”."
    choose(page, "metric", "accuracy")
    assert text_of(page, "#positive") == ""
    assert "An interval can leave out zero where p is above 0.05" in text_of(page, "#ranking-heading + .how")


@browser_needed
def test_the_keyboard_stays_where_it_was(page):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    page.find_element(By.CSS_SELECTOR, "tr[data-name='1.2'] button").send_keys(Keys.ENTER)
    assert page.switch_to.active_element.text == "1.2"
    page.find_element(By.CSS_SELECTOR, "#table thead th:nth-child(5) button").send_keys(Keys.ENTER)
    assert page.switch_to.active_element.text == "q"


@browser_needed
def test_light_and_dark(page):
    from selenium.webdriver.common.by import By

    paper = "return getComputedStyle(document.body).backgroundColor"
    before = page.execute_script(paper)
    page.find_element(By.ID, "theme").click()
    assert page.execute_script(paper) != before
    ink = page.execute_script("return document.getElementById('map')._fullLayout.font.color")
    assert ink == page.execute_script("return getComputedStyle(document.body).getPropertyValue('--ink').trim()")


@browser_needed
def test_numbers_are_downloaded_as_csv(page, results, tmp_path):
    from selenium.webdriver.common.by import By

    from bertjax.results.terminal import show_text

    page.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    page.find_element(By.ID, "download").click()
    wait_for(lambda: (tmp_path / "results.csv").exists())
    ours, theirs = (
        show_text(read_results(results), "csv").splitlines(),
        (tmp_path / "results.csv").read_text().splitlines(),
    )
    assert theirs[0] == ours[0]
    assert len(theirs) == len(ours)
    numbers = [
        {(row["metric"], row["name"]): float(row["difference"]) for row in csv.DictReader(lines)}
        for lines in (ours, theirs)
    ]
    assert numbers[0].keys() == numbers[1].keys()
    assert max(abs(numbers[0][key] - numbers[1][key]) for key in numbers[0]) < 1e-12
    page.find_element(By.ID, "download-examples").click()
    wait_for(lambda: (tmp_path / "examples.csv").exists())
    assert EVIL in (tmp_path / "examples.csv").read_text()
    changed = list(csv.DictReader((tmp_path / "examples.csv").read_text().splitlines()))
    assert {row["name"] for row in changed} <= {*read_results(results).frame["name"]}
    assert all(row["name"] == f"L{row['layer']}H{row['head']}" for row in changed)
    assert len({row["name"] for row in changed}) > 5


@browser_needed
@pytest.mark.parametrize(
    ("task", "ablate", "options"),
    [("stsb", "heads", {}), ("mrpc", "layers", {"helpful": "0", "harmful": "2"}), ("mrpc", "heads", {"labelled": 1})],
)
def test_other_results_have_a_page_too(browser, tmp_path, task, ablate, options):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    path = write_page(read_results(make_results(tmp_path / "some", task, examples=60, ablate=ablate, **options)))
    browser.get(path.as_uri())
    wait_for(lambda: browser.execute_script("return document.body.dataset.ready && document.body.dataset.attention"))
    assert_quiet(browser)
    assert len(rows_of(browser, "table")) == (3 if ablate == "layers" else 12)
    if ablate == "layers":
        browser.execute_script("document.querySelector(\"tr[data-name='1'] button\").click()")
        assert "layer 1" in text_of(browser, "#chosen")
        bars = "document.querySelectorAll('#map .bars .point path')"
        fills = browser.execute_script(f"return [...{bars}].map(bar => getComputedStyle(bar).fillOpacity > 0)")
        sure = [row.q < 0.05 for row in read_results(path.parent).rows_of()]
        assert fills == sure
        assert {*sure} == {True, False}
        browser.execute_script("document.getElementById('map').scrollIntoView({block: 'center'})")
        ActionChains(browser).move_to_element(
            browser.find_elements(By.CSS_SELECTOR, "#map .bars .point")[2]
        ).click().perform()
        wait_for(lambda: "layer 2" in text_of(browser, "#chosen"))
