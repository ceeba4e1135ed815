"""The page in a real browser: what it shows, that it can be used, and that it asks no host for anything."""

import csv
import re

import numpy as np
import pytest

from bertjax.results.directory import read_results
from bertjax.results.page import make_page, write_page
from tests.browser import (
    assert_quiet,
    browser_needed,
    choose,
    choose_head,
    drawn_map,
    focus_on,
    go_to,
    has_colour_bar,
    is_shown,
    open_page,
    rows_of,
    text_of,
    tooltip_of,
    wait_for,
    weights_in,
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
    wait_for(lambda: tooltip_of(page).startswith("head 2.3"))
    hover = tooltip_of(page)
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
def test_cells_have_their_full_colour_and_significant_ones_a_dot(page, results):
    rows = {row.name: row for row in read_results(results).rows_of()}
    significant = {name for name, row in rows.items() if row.q < 0.05}
    assert 0 < len(significant) < len(rows)
    drawn = drawn_map(page)
    assert drawn.keys() == rows.keys()
    assert {name for name, cell in drawn.items() if cell["marked"]} == significant
    for name, row in rows.items():
        number = float(drawn[name]["text"].replace("−", "-"))
        assert number == pytest.approx(100 * row.difference, abs=0.0051)
        assert drawn[name]["opacity"] == "1"
        red, _, blue = (int(part) for part in re.findall(r"\d+", drawn[name]["colour"]))
        assert number == 0 or (blue >= red if number > 0 else red >= blue)
    assert has_colour_bar(page)
    assert "● significant (q < 0.05)" in text_of(page, "#overview .map-scale")
    go_to(page, 1, 1).perform()
    wait_for(lambda: tooltip_of(page).startswith("head 1.1: score"))
    go_to(page, 1, 1).click().perform()
    wait_for(lambda: text_of(page, "#chosen").startswith("head 1.1: score"))


@browser_needed
def test_a_map_of_noise_alone_has_its_scale_of_colours(browser, tmp_path):
    results = read_results(make_results(tmp_path / "noise", examples=60, labelled=4))
    open_page(browser, write_page(results))
    drawn = drawn_map(browser)
    assert {cell["marked"] for cell in drawn.values()} == {False}
    assert all(cell["text"] for cell in drawn.values())
    assert len(drawn) == len(results.names)
    assert has_colour_bar(browser)
    assert_quiet(browser)


@browser_needed
def test_the_keyboard_moves_over_the_map_and_opens_rows(page):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    def press(*keys):
        for key in keys:
            page.switch_to.active_element.send_keys(key)

    page.find_element(By.CSS_SELECTOR, "tr[data-name='0.1'] button").send_keys(Keys.ENTER)
    focus_on(page, 0, 1)
    press(Keys.ARROW_DOWN)
    assert tooltip_of(page).startswith("head 1.1: score")
    press(Keys.ENTER)
    wait_for(lambda: "head 1.1" in text_of(page, "#chosen"))
    press(Keys.ARROW_RIGHT, Keys.ARROW_UP, Keys.ENTER)
    wait_for(lambda: "head 0.2" in text_of(page, "#chosen"))
    press(Keys.ARROW_UP, Keys.ENTER)  # nothing is above
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
    page.find_element(By.ID, "significant").click()
    wait_for(lambda: {row.split()[0] for row in rows_of(page, "table")} == {"0.1", "2.3"})
    page.find_element(By.ID, "significant").click()
    page.find_element(By.CSS_SELECTOR, "#table thead th button").click()
    names = [row.split()[0] for row in rows_of(page, "table")]
    assert names == sorted(names)
    page.find_element(By.CSS_SELECTOR, "#table thead th button").click()
    assert [row.split()[0] for row in rows_of(page, "table")] == names[::-1]


@browser_needed
def test_a_filter_that_finds_nothing_says_so(page):
    from selenium.webdriver.common.by import By

    page.find_element(By.ID, "filter").send_keys("zzz")
    wait_for(lambda: text_of(page, "#count") == "Nothing found: none of the 12 heads has a name with zzz.")
    assert not page.find_element(By.ID, "ranking").is_displayed()
    page.find_element(By.ID, "significant").click()
    wait_for(lambda: text_of(page, "#count").endswith("has a name with zzz and is significant."))
    page.find_element(By.ID, "significant").click()
    box = page.find_element(By.ID, "filter")
    page.execute_script("arguments[0].value = ''; arguments[0].dispatchEvent(new Event('input'))", box)
    wait_for(lambda: page.find_element(By.ID, "ranking").is_displayed())


@browser_needed
def test_a_browser_that_cannot_unpack_attention_gets_one_line(browser, results, tmp_path):
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
    [lambda packed: packed[:-40], lambda packed: f"?{packed}", lambda packed: ""],
    ids=["shortened", "not base64", "empty"],
)
def test_a_page_whose_attention_is_damaged_says_so(browser, results, tmp_path, damage):
    whole = make_page(read_results(results))
    packed = re.search(r'"weights":"([^"]+)"', whole)[1]
    (tmp_path / "page.html").write_text(whole.replace(packed, damage(packed), 1))
    browser.get((tmp_path / "page.html").as_uri())
    wait_for(lambda: text_of(browser, "#failure").startswith("This page is damaged: its attention cannot be unpacked."))
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
    assert not is_shown(browser, "attention-parts")
    assert_quiet(browser)


@browser_needed
def test_another_metric_changes_all_numbers(page, results):
    choose(page, "metric", "accuracy")
    row = next(row for row in read_results(results).rows_of("accuracy") if row.name == "2.3")
    wait_for(lambda: f"score {100 * row.score:.2f}" in text_of(page, "#chosen"))
    page.find_element("css selector", "details summary").click()
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
    for example, layer, head, run in ((0, 2, 2, 1), (1, 2, 3, 2), (0, 0, 2, 1), (0, 1, 0, 2)):
        choose(page, "example", str(example))
        choose(page, "run", str(run))
        choose_head(page, layer, head)
        expected = f"{layer}.{head} {runs[run]} {arrays['examples'][example]}"
        wait_for(lambda expected=expected: page.execute_script("return document.body.dataset.attention") == expected)
        weights = arrays[f"weights_{example}_0"]
        differs = not np.array_equal(weights[run, layer], weights[0, layer])
        wait_for(lambda count=1 + differs: panels_of(page) == count)
        for panel, which in ((0, 0), (1, run))[: 1 + differs]:
            shown = np.array(weights_in(page, panel))
            assert np.abs(shown - weights[which, layer, head]).max() <= 0.5 / 255 + 0.0005 + 1e-6
        reason = f"Ablating head {runs[run]} changes nothing in layer {layer}: it acts on later layers."
        assert text_of(page, "#one-panel") == ("" if differs else reason)
    assert {runs[1], runs[2]} == {"0.1", "2.3"}
    choose(page, "example", "0")
    tokens = "return [...document.querySelectorAll('#viewer .head-token')].map(token => token.textContent)"
    wait_for(lambda: page.execute_script(tokens)[: len(EVIL_TOKENS)] == list(EVIL_TOKENS))
    assert EVIL in text_of(page, "#example-text")
    page.find_element("css selector", "#viewer [data-view=matrix]").click()
    wait_for(lambda: page.execute_script("return document.querySelectorAll('#viewer .matrix-view').length"))
    assert not panels_of(page)


def panels_of(page):
    """The number of panels that show lines."""
    return page.execute_script("return document.querySelectorAll('#viewer .head-view').length")


@browser_needed
def test_pointing_at_a_token_shows_its_weights(page, results):
    from selenium.webdriver.common.action_chains import ActionChains

    first = "#viewer .head-item[data-side=query] .head-token"
    token = wait_for(lambda: page.find_elements("css selector", first))[0]
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", token)
    ActionChains(page).move_to_element(token).perform()
    arrays = read_results(results).attention
    weights = arrays["weights_0_0"][0, 2, 3, 0]
    read = f"return [...document.querySelectorAll('{first}')].map(one => one.textContent)".replace("query]", "key]")
    read = read.replace(".head-token", ".head-weight")
    wait_for(lambda: all(page.execute_script(read)))
    shown = np.array([float(text) for text in page.execute_script(read)[: len(weights)]])
    assert np.abs(shown - weights).max() <= 0.5 / 255 + 0.0005 + 1e-6


@browser_needed
def test_charts_keep_their_size_when_the_window_changes(page):
    heights = "return ['overview', 'ranking', 'viewer'].map(id => document.querySelector(`#${id} svg`).clientHeight)"
    width = "return document.querySelector('#ranking svg').clientWidth"
    choose(page, "metric", "accuracy")
    page.execute_script("document.querySelector(\"tr[data-name='1.1'] button\").click()")
    wait_for(lambda: page.execute_script("return document.querySelector('#viewer svg') !== null"))
    before = page.execute_script(heights)
    page.set_window_size(700, 1200)
    wait_for(lambda: page.execute_script(width) < 700)
    assert page.execute_script(heights) == before
    assert min(before) > 100
    page.set_window_size(1280, 1600)


@browser_needed
def test_attention_before_and_after_has_one_scale(page, results):
    weights = read_results(results).attention["weights_0_0"]
    run = page.execute_script("return document.getElementById('run').value")
    most = weights[[0, int(run)], 2, 3].max()
    shown = float(re.search(r"The strongest line is a weight of ([\d.]+)\.", text_of(page, "#viewer .viewer-note"))[1])
    assert shown == pytest.approx(most, abs=0.5 / 255 + 0.005)


@browser_needed
def test_narrow_screens_need_no_horizontal_scrolling(page):
    width = "const box = document.getElementById('examples').parentElement; return box.scrollWidth - box.clientWidth"
    page.set_window_size(500, 1200)
    wait_for(lambda: page.execute_script("return document.querySelector('#ranking svg').clientWidth") < 500)
    assert page.execute_script("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.execute_script(width) <= 0
    assert EVIL in text_of(page, "#examples")
    page.set_window_size(1280, 1600)


@browser_needed
def test_an_ablation_without_kept_attention_shows_the_reason(page):
    page.execute_script("document.querySelector(\"tr[data-name='1.1'] button\").click()")
    wait_for(lambda: "The attention with head 1.1 ablated is not recorded" in text_of(page, "#one-panel"))
    assert text_of(page, "#one-panel").endswith("only that of the 2 largest effects. Choose one under “Ablated”.")
    assert panels_of(page) == 1
    choose(page, "run", "1")
    choose_head(page, 2, 0)
    wait_for(lambda: panels_of(page) == 2)
    assert text_of(page, "#one-panel") == ""
    captions = [one.text for one in page.find_elements("css selector", "#viewer figcaption")]
    assert captions == ["Without ablation", f"Head {page.execute_script(CHOSEN_RUN)} ablated"]


CHOSEN_RUN = "return document.getElementById('run').selectedOptions[0].text"


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
def test_arrow_keys_add_no_history_entries(page):
    from selenium.webdriver.common.keys import Keys

    before = page.execute_script("return history.length")
    focus_on(page, 2, 3)
    for key in (Keys.ARROW_UP, Keys.ARROW_LEFT):
        page.switch_to.active_element.send_keys(key)
    assert page.execute_script("return history.length") == before
    page.switch_to.active_element.send_keys(Keys.ENTER)
    wait_for(lambda: page.current_url.endswith("#1.2"))
    assert page.execute_script("return history.length") == before + 1
    assert page.execute_script("return document.activeElement.dataset.head") == "1.2"


@browser_needed
def test_the_page_says_which_label_a_metric_is_about(page):
    assert text_of(page, "#positive") == "F1 is about the label “equivalent”."
    choose(page, "metric", "accuracy")
    assert text_of(page, "#positive") == ""
    page.find_element("css selector", "details summary").click()
    assert "An interval can leave out zero where p is above 0.05" in text_of(page, "details")


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
    dots = "return getComputedStyle(document.querySelector('#ranking circle')).stroke"
    before = page.execute_script(paper), drawn_map(page)["2.3"]["colour"], page.execute_script(dots)
    page.find_element(By.ID, "theme").click()
    wait_for(lambda: drawn_map(page)["2.3"]["colour"] != before[1])
    assert page.execute_script(paper) != before[0]
    assert page.execute_script(dots) != before[2]


@browser_needed
def test_numbers_are_downloaded_as_csv(page, results, tmp_path):
    from selenium.webdriver.common.by import By

    from bertjax.results.terminal import show_text

    page.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    page.find_element(By.ID, "all-numbers").click()
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
    page.find_element(By.ID, "changed-examples").click()
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
        bars = browser.find_elements(By.CSS_SELECTOR, "#overview .bar")
        significant = [row.q < 0.05 for row in read_results(path.parent).rows_of()]
        assert [bar.get_attribute("data-significant") == "true" for bar in bars] == significant
        assert {*significant} == {True, False}
        dots = browser.find_elements(By.CSS_SELECTOR, "#overview .dot")
        assert len(dots) == sum(significant)
        assert not is_shown(browser, "ranking")  # the bars have intervals
        browser.execute_script("document.getElementById('overview').scrollIntoView({block: 'center'})")
        ActionChains(browser).move_to_element(
            browser.find_elements(By.CSS_SELECTOR, "#overview [data-index]")[2]
        ).click().perform()
        wait_for(lambda: "layer 2" in text_of(browser, "#chosen"))
