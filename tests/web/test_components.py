"""The shared components in a real browser: what they show, keys, hover, hostile tokens, saved files."""

import base64
import gzip
import shutil
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib import image

from bertjax.web import make_page, pack_attention
from tests.browser import assert_quiet, browser_needed, wait_for
from tests.layering import ROOT

pytestmark = pytest.mark.integration

LAYERS, HEADS = 3, 4
EVIL = "<img src=x onerror=window.hacked=true>"
TOKENS = ["[CLS]", "the", EVIL, "a" * 60, "&amp;", "\x07\ud800", "[SEP]"]
ENTRY = """
import { readAttention } from "../shared/attention.js";
import { attentionViewer } from "../shared/attention_viewer.js";
import { pageData } from "../shared/dom.js";
import { headsMap } from "../shared/heads_map.js";
import { signed, share, withUnit } from "../shared/numbers.js";
import { inkOn, toggleTheme } from "../shared/colours.js";

window.calls = [];
const log = name => (...values) => window.calls.push([name, ...values]);
async function start() {
  const { base, ablated, values, description } = pageData();
  const map = headsMap({
    layers: values.length, heads: values[0].length, values, limit: 0.5, digits: 2, selected: [1, 2], tested: true,
    off: new Set(["0.1"]), marks: new Set(["2.3"]), describe: (layer, head) => `${description} ${layer}.${head}`,
    onSelect: log("select"), onToggle: log("toggle"), onToggleLayer: log("layer"),
  });
  const viewer = attentionViewer({
    base: await readAttention(base), ablated: await readAttention(ablated), layer: 1, head: 2, view: "head",
    captions: ["Base", description], off: new Set(["1.2"]), onChange: log("change"),
  });
  document.body.append(map.node, viewer.node);
  Object.assign(window, { map, viewer, signed, share, withUnit, inkOn, toggleTheme });
  document.body.dataset.ready = "yes";
}
start();
"""
# Values of the map; the last head of layer 1 has none.
VALUES = [[0.1 * (layer - head) for head in range(HEADS)] for layer in range(LAYERS)]
VALUES[1][3] = None


def attention(seed):
    return np.random.default_rng(seed).dirichlet(np.ones(len(TOKENS)), size=(LAYERS, HEADS, len(TOKENS)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The modules of bertjax, and one that shows the components."""
    folder = tmp_path_factory.mktemp("components")
    shutil.copytree(ROOT / "bertjax/web/assets", folder / "assets")
    (folder / "assets/test").mkdir()
    (folder / "assets/test/main.js").write_text(ENTRY)
    data = {"base": pack_attention(TOKENS, attention(0)), "ablated": pack_attention(TOKENS, attention(1))}
    page = make_page("test/main", {**data, "values": VALUES, "description": f"{EVIL} head"}, assets=folder / "assets")
    (folder / "page.html").write_text(page)
    return folder


@pytest.fixture
def page(browser, folder):
    """The page with the components; after the test nothing was asked of any host, and no token ran."""
    browser.set_window_size(1280, 1600)
    browser.get("about:blank")
    browser.get((folder / "page.html").as_uri())
    wait_for(lambda: browser.execute_script("return document.body.dataset.ready && window.map.svg()"))
    wait_for(lambda: browser.execute_script("return document.querySelectorAll('.head-item').length"))
    yield browser
    assert_quiet(browser)


def all_of(page, selector):
    from selenium.webdriver.common.by import By

    return page.find_elements(By.CSS_SELECTOR, selector)


def texts_of(page, selector):
    script = "return [...document.querySelectorAll(arguments[0])].map(one => one.textContent.toWellFormed())"
    return page.execute_script(script, selector)


def point_at(page, node):
    from selenium.webdriver.common.action_chains import ActionChains

    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", node)
    ActionChains(page).move_to_element(node).perform()


def press(page, *keys):
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(page).send_keys(*keys).perform()


def focused(page, name="data-head"):
    return page.execute_script("return document.activeElement.getAttribute(arguments[0])?.toWellFormed()", name)


def calls(page):
    return page.execute_script("return window.calls.splice(0)")


def tooltip(page):
    return page.execute_script("const one = document.querySelector('.tooltip:not([hidden])'); return one?.textContent")


@browser_needed
def test_the_map_shows_its_numbers(page):
    numbers = texts_of(page, ".map-value")
    expected = [["" if value is None else f"{value:+.2f}".replace("-", "−") for value in row] for row in VALUES]
    expected[0][1] = ""  # off
    assert [text.replace("0.00", "+0.00") if text == "0.00" else text for text in numbers] == [
        text for row in expected for text in row
    ]
    look = "return document.querySelector(`[data-head='${arguments[0]}'] ${arguments[1]}`).getAttribute('fill')"
    assert page.execute_script(look, "0.1", ".map-hatch").startswith("url(#")
    assert page.execute_script(look, "0.0", ".map-hatch") == "none"
    assert page.execute_script(look, "2.3", ".map-dot") != "none"
    assert page.execute_script(look, "2.2", ".map-dot") == "none"
    loss, gain = (page.execute_script(look, head, ".map-box") for head in ("0.3", "2.0"))
    assert loss != gain
    assert page.execute_script(look, "1.3", ".map-box") == "none"
    assert "● significant (q < 0.05)" in texts_of(page, ".map-number")


@browser_needed
def test_the_map_can_be_used_by_keyboard(page):
    from selenium.webdriver.common.keys import Keys

    page.execute_script("document.querySelector('.map-cell[tabindex=\"0\"]').focus()")
    assert focused(page) == "1.2"
    press(page, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    assert focused(page) == "2.3"
    assert tooltip(page) == f"{EVIL} head 2.3"
    press(page, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)  # there is nothing further
    assert focused(page) == "2.3"
    press(page, Keys.ENTER, Keys.SPACE, Keys.HOME)
    assert calls(page) == [["select", 2, 3], ["toggle", 2, 3]]
    assert focused(page) == "2.0"
    assert len(all_of(page, ".map-cell[tabindex='0']")) == 1


@browser_needed
def test_clicks_on_the_map_select_and_toggle(page):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    (cell,) = all_of(page, "[data-head='2.1']")
    cell.click()
    ActionChains(page).key_down(Keys.SHIFT).click(cell).key_up(Keys.SHIFT).perform()
    all_of(page, ".map-layer")[1].click()
    assert calls(page) == [["select", 2, 1], ["toggle", 2, 1], ["layer", 1]]
    page.execute_script("window.map.update({ clickToggles: true })")
    cell.click()
    assert calls(page) == [["select", 2, 1], ["toggle", 2, 1]]


@browser_needed
def test_an_update_of_the_map_keeps_the_focus(page):
    page.execute_script("document.querySelector(\"[data-head='2.1']\").focus()")
    page.execute_script("window.map.update({ values: arguments[0], selected: [0, 0] })", [[0.3] * HEADS] * LAYERS)
    assert focused(page) == "2.1"
    assert set(texts_of(page, ".map-value")) == {"+0.30", ""}
    page.execute_script("window.map.update({ layers: 1, values: [[1, 2, 3, 4]], off: new Set() })")
    assert texts_of(page, ".map-value") == ["+1.00", "+2.00", "+3.00", "+4.00"]
    assert "≥ +0.50" in texts_of(page, ".map-number")


@browser_needed
def test_pointing_at_a_token_shows_its_weights(page):
    items = all_of(page, ".head-view:first-child .head-item")
    assert len(items) == 2 * len(TOKENS)
    point_at(page, items[1])
    shown = texts_of(page, ".head-view:first-child .head-weight")
    weights = [f"{weight:.3f}" for weight in attention(0)[1, 2, 1]]
    assert shown == [""] * len(TOKENS) + weights
    other = texts_of(page, ".head-view:last-child .head-weight")[len(TOKENS) :]
    assert other == [f"{weight:.3f}" for weight in attention(1)[1, 2, 1]]
    point_at(page, items[len(TOKENS)])  # the first key: the weights of all queries
    shown = texts_of(page, ".head-view:first-child .head-weight")
    assert shown == [f"{weight:.3f}" for weight in attention(0)[1, 2, :, 0]] + [""] * len(TOKENS)
    point_at(page, all_of(page, ".map-title")[0])
    assert set(texts_of(page, ".head-weight")) == {""}


@browser_needed
def test_the_head_view_can_be_used_by_keyboard(page):
    from selenium.webdriver.common.keys import Keys

    page.execute_script("document.querySelector('.head-item[tabindex=\"0\"]').focus()")
    press(page, Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    assert focused(page, "data-side") == "key"
    assert focused(page, "aria-label").startswith(f"{EVIL}, attended to by ")
    shown = texts_of(page, ".head-view:first-child .head-weight")
    assert shown[: len(TOKENS)] == [f"{weight:.3f}" for weight in attention(0)[1, 2, :, 2]]
    press(page, Keys.ESCAPE)
    assert set(texts_of(page, ".head-weight")) == {""}


@browser_needed
def test_tokens_stay_text_and_long_ones_are_shortened(page):
    tokens = texts_of(page, ".head-view:first-child .head-token")[: len(TOKENS)]
    assert tokens[:2] == TOKENS[:2]
    assert tokens[4] == "&amp;"
    assert tokens[2].startswith("<img src=x")
    assert tokens[3].startswith("aaa")
    assert tokens[3].endswith("…")
    assert all_of(page, "img") == []
    item = all_of(page, ".head-view:first-child .head-item")[3]
    point_at(page, item)
    assert tooltip(page) == "a" * 60


@browser_needed
def test_base_and_ablated_scroll_together(page):
    shrink = "for (const one of document.querySelectorAll('.head-scroll')) one.style.setProperty('max-height', '60px')"
    page.execute_script(shrink)
    page.execute_script("document.querySelectorAll('.head-scroll')[1].scrollTop = 40")
    tops = "return [...document.querySelectorAll('.head-scroll')].map(one => one.scrollTop)"
    wait_for(lambda: page.execute_script(tops) == [40, 40])
    page.execute_script("document.querySelectorAll('.head-scroll')[0].scrollTop = 10")
    wait_for(lambda: page.execute_script(tops) == [10, 10])


@browser_needed
def test_the_matrix_shows_each_weight(page):
    from selenium.webdriver.common.keys import Keys

    all_of(page, "[data-view='matrix']")[0].click()
    assert calls(page) == [["change", {"layer": 1, "head": 2, "view": "matrix"}]]
    wait_for(lambda: all_of(page, ".matrix-area"))
    page.execute_script("document.querySelector('.matrix-area').focus()")
    press(page, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    weight = attention(0)[1, 2, 2, 1]
    assert tooltip(page) == f"{EVIL} → the: {weight:.3f}"
    assert texts_of(page, ".matrix-view .only-heard")[0] == f"{EVIL} → the: {weight:.3f}"
    point_at(page, all_of(page, ".matrix-area")[1])
    middle = len(TOKENS) // 2
    assert tooltip(page) == f"{TOKENS[middle]} → {TOKENS[middle]}: {attention(1)[1, 2, middle, middle]:.3f}"
    assert len(texts_of(page, ".matrix-view:first-child .matrix-name")) == 2 * len(TOKENS)


@browser_needed
def test_all_heads_are_thumbnails_that_open_a_head(page):
    from selenium.webdriver.common.keys import Keys

    all_of(page, "[data-view='model']")[0].click()
    assert len(all_of(page, ".model-view:first-child .model-cell")) == LAYERS * HEADS
    assert page.execute_script("return document.querySelector('.model-cell[aria-selected=true]').dataset.head") == "1.2"
    assert [one.get_attribute("data-head") for one in all_of(page, ".model-cell.is-off")] == ["1.2"]
    page.execute_script("document.querySelector('.model-cell[tabindex=\"0\"]').focus()")
    press(page, Keys.ARROW_UP, Keys.ARROW_RIGHT)
    assert focused(page) == "0.3"
    calls(page)
    press(page, Keys.ENTER)
    assert calls(page) == [["change", {"layer": 0, "head": 3, "view": "head"}]]
    assert page.execute_script("return window.viewer.state()") == {"layer": 0, "head": 3, "view": "head"}
    assert focused(page, "data-view") == "head"
    assert tooltip(page) is None
    labels = page.execute_script("return [...document.querySelectorAll('.viewer-select select')].map(one => one.value)")
    assert labels == ["0", "3"]
    all_of(page, "[data-view='model']")[0].click()
    (thumbnail,) = all_of(page, ".model-view:last-child [data-head='1.2']")
    point_at(page, thumbnail)
    assert tooltip(page) == "head 1.2 (off)"
    thumbnail.click()
    assert page.execute_script("return window.viewer.state()") == {"layer": 1, "head": 2, "view": "head"}
    assert tooltip(page) is None


@browser_needed
def test_nothing_is_cut_off_at_400_pixels(page):
    boxes = "[...document.querySelectorAll('svg')].map(one => one.getBoundingClientRect())"
    rightmost = f"return Math.max(...{boxes}.map(box => box.right))"
    for view in ("head", "matrix", "model"):
        page.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride", {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        )
        try:
            page.execute_script("window.viewer.update({ view: arguments[0] })", view)
            wait_for(lambda: page.execute_script(rightmost) <= 400)
            assert page.execute_script("return document.documentElement.scrollWidth") <= 400
            page.execute_script("document.activeElement.blur()")
            page.execute_script("document.querySelector(\"[data-head='0.0']\").focus()")
            box = page.execute_script("return document.querySelector('.tooltip').getBoundingClientRect().toJSON()")
            assert 0 <= box["left"] < box["right"] <= 400
            assert box["top"] >= 0
        finally:
            page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@browser_needed
@pytest.mark.parametrize("view", ["head", "matrix", "model"])
def test_pictures_are_saved_as_on_the_screen(page, view, tmp_path):
    page.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    page.execute_script("window.viewer.update({ view: arguments[0] })", view)
    wait_for(lambda: page.execute_script("return document.querySelectorAll('.viewer-panels svg, canvas').length"))
    for button in all_of(page, ".viewer-save button"):
        button.click()
    svg, png = (wait_for(lambda suffix=suffix: [*tmp_path.glob(f"*.{suffix}")])[0] for suffix in ("svg", "png"))
    stem = {"head": "attention-1.2-lines", "matrix": "attention-1.2-matrix", "model": "attention-all-heads"}[view]
    assert svg.stem == png.stem == stem
    root = ElementTree.fromstring(svg.read_text())
    assert f"{EVIL} head" in {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert not [one for one in root.iter() if one.get("class") or one.get("onclick")]
    parts = {"head": ("path", "stroke"), "matrix": ("path", "fill"), "model": ("image", "image-rendering")}[view]
    looks = {one.get(parts[1]) for one in root.iter(f"{{http://www.w3.org/2000/svg}}{parts[0]}")}
    assert looks == {"pixelated" if view == "model" else "rgb(33, 102, 172)"}  # of the page's stylesheet
    assert {one.get("font-family") for one in root.iter("{http://www.w3.org/2000/svg}text")} != {None}
    pixels = image.imread(png)
    assert pixels.shape[1] == 2 * float(root.get("width"))
    assert len(np.unique(pixels[..., :3].reshape(-1, 3), axis=0)) > 20
    assert pixels[0, 0, :3].tolist() == [1, 1, 1]


@browser_needed
def test_colours_follow_the_theme(page):
    look = "return document.querySelector(\"[data-head='2.0'] .map-box\").getAttribute('fill')"
    before = page.execute_script(look)
    page.execute_script("window.toggleTheme()")
    wait_for(lambda: page.execute_script(look) != before)
    page.execute_script("window.toggleTheme()")
    wait_for(lambda: page.execute_script(look) == before)


@browser_needed
def test_numbers_as_text(page):
    def shown(call):
        return page.execute_script(f"return {call}")

    assert shown("[0.254, -0.254, 0.001, -0.001, null].map(one => signed(one, 2))") == [
        *("+0.25", "−0.25", "0.00", "0.00", "–"),
    ]
    assert shown("[0.5, 0.012, 0.0012, 0.00001, 0, 1].map(share)") == [
        *("50.0 %", "1.2 %", "0.12 %", "<0.01 %", "0.0 %", "100.0 %"),
    ]
    assert shown("[withUnit(1, 1, 'points'), withUnit(-1, 1, '')]") == ["+1.0 points", "−1.0"]
    assert shown("['#fff', '#ffffff', 'rgb(0, 0, 0)', '#2166ac'].map(inkOn)") == [
        *("#111111", "#111111", "#ffffff", "#ffffff"),
    ]


@browser_needed
def test_weights_that_do_not_fit_their_tokens_are_an_error(browser, folder, tmp_path):
    packed = pack_attention(TOKENS, attention(0))
    packed["weights"] = base64.b64encode(gzip.compress(b"\0" * 10)).decode()
    page = make_page("notebook/page", {"texts": [{"base": packed, "ablated": None}]})
    (tmp_path / "broken.html").write_text(page)
    browser.get((tmp_path / "broken.html").as_uri())
    wait_for(lambda: texts_of(browser, "[role=alert]"))
    assert texts_of(browser, "[role=alert]") == [
        "This page cannot be shown: these attention weights do not fit their tokens"
    ]
    assert_quiet(browser)
