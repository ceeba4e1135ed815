"""The explorer's page in a real browser: with a server of its own in a process, and with all kinds of answers."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from itertools import count, product
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

import bertjax
from bertjax.explorer import Explorer, subject_of_model
from bertjax.jobs import save_without_heads
from tests.browser import browser_needed, text_of, wait_for
from tests.factories import (
    make_classifier,
    make_cross_encoder,
    make_embedder,
    make_labeller,
    make_masked,
    make_reader,
    make_tagger,
)
from tests.layering import ROOT
from tests.tiny_models import comparable_environment

pytestmark = [pytest.mark.integration, browser_needed]

EVIL = '<img src=x onerror="window.hacked=1"></script><script>window.hacked=1</script> \u2028 "\' &lt;b&gt;'
TEXT = "the cat [MASK] on the mat"
LAYERS, HEADS = 2, 3
SECONDS = 60  # of waiting: other tests may take the processor
IGNORED = "Failed to load resource"  # the browser's line for a response with an error


@contextmanager
def server_process(*options):
    """A server in a process; its process and address."""
    command = [sys.executable, "-m", "bertjax", "explore", "--no-browser", *options]
    process = subprocess.Popen(
        command, cwd=ROOT, env=comparable_environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if found := re.search(r"http://\S+", line):
                break
        assert found, "".join(lines)
        yield process, found[0]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address of a server for a tiny random model of masked words."""
    directory = make_masked(tmp_path_factory.mktemp("masked"))
    with server_process("--model", str(directory)) as (_, url):
        yield url


@pytest.fixture
def page(browser, address):
    """The page with the text of the tests; after the test, requests went only to its server, and no text ran.

    It is opened once: the address resets its state.
    """
    if browser.current_url.startswith(address):
        change_address(browser, fragment(mode="uniform", view="head", change="log-probability", weights="attention"))
    else:
        open_page(browser, f"{address}#{fragment()}")
    yield browser
    assert_local(browser)


def fragment(text=TEXT, **fields):
    return urlencode({"texts": text, "layer": 0, "head": 0, **fields})


def change_address(browser, text, visits=count()):  # noqa: B008  the same counter at each call
    """Replace the fragment of the address, as a user does, and wait; each is another one, so that there is an event."""
    browser.get_log("browser")
    browser.get_log("performance")
    browser.execute_async_script(
        "const [fragment, done] = arguments; addEventListener('popstate', () => done(), { once: true });"
        "location.replace(`#${fragment}`)",
        f"{text}&visit={next(visits)}",
    )
    ready(browser)


def open_page(browser, url):
    browser.set_window_size(1280, 1400)
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(url)
    wait_for(lambda: browser.find_elements(By.CSS_SELECTOR, "#switch"), SECONDS)
    ready(browser)


def assert_local(browser, allowed=()):
    """Requests went to the page's server only, nothing went wrong, and no text ran."""
    origin = browser.execute_script("return location.origin")
    wrong = [line["message"] for line in browser.get_log("browser") if line["level"] != "INFO"]
    assert [line for line in wrong if not any(one in line for one in allowed)] == []
    messages = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
    urls = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    assert [url for url in urls if not url.startswith((f"{origin}/", "data:", "blob:", "about:"))] == []
    assert not browser.execute_script("return window.hacked")


def ready(page):
    """Wait until answer, map and attention are those of the page's state."""
    wait_for(lambda: page.execute_script("return document.body.dataset.busy === 'no'"), SECONDS)


def find(page, selector):
    return page.find_element(By.CSS_SELECTOR, selector)


def all_texts(page, selector):
    return page.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map(one => one.textContent.toWellFormed())", selector
    )


def state_of(page):
    """The state in the address: lists by name."""
    return parse_qs(urlsplit(page.current_url).fragment)


def type_text(page, text, number=1):
    """Replace a text, as a user who types, and wait."""
    box = find(page, f"#text-{number}")
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys(text)
    ready(page)


def click(page, selector):
    node = find(page, selector)
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", node)
    node.click()
    ready(page)


def cell(page, head):
    node = find(page, f'#map [data-head="{head}"]')
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", node)
    return node


def switch(page, head):
    """Shift-click a head of the map."""
    actions = ActionChains(page)
    actions.key_down(Keys.SHIFT).click(cell(page, head)).key_up(Keys.SHIFT).perform()
    ready(page)


def off(page):
    """Heads that are off, from the address."""
    return [name for names in state_of(page).get("off", []) for name in names.split(",")]


def chips(page):
    return page.execute_script("return [...document.querySelectorAll('.chip')].map(one => one.dataset.off)")


def values(page):
    """The descriptions of the cells of the map."""
    script = "return [...document.querySelectorAll('#map [data-head]')].map(one => one.getAttribute('aria-label'))"
    return page.execute_script(script)


def test_typing_shows_the_answer_and_the_map(page):
    assert len(all_texts(page, "#answer tbody tr")) == 5
    assert len(values(page)) == LAYERS * HEADS
    assert all("log-probability: −" in one for one in values(page))
    before = values(page)
    type_text(page, "the dog [MASK] near a door")
    assert values(page) != before
    assert state_of(page)["texts"] == ["the dog [MASK] near a door"]
    assert "6 heads" in text_of(page, ".map-status")
    assert text_of(page, "#heard").startswith("Answer: ")
    tokens = all_texts(page, "#attention .head-token")
    assert "near" in " ".join(tokens)


def test_typing_is_one_entry_of_the_history_and_one_step_of_undo(page):
    entries = page.execute_script("return history.length")
    box = find(page, "#text-1")
    box.send_keys(" a", " dog")
    ready(page)
    assert page.execute_script("return history.length") == entries < 50  # where browsers stop counting
    click(page, "#undo")
    assert box.get_attribute("value") == TEXT
    click(page, "#redo")
    assert box.get_attribute("value") == f"{TEXT} a dog"


def test_a_click_selects_a_head(page):
    cell(page, "1.2").click()
    ready(page)
    assert text_of(page, "#attention-title") == "Attention of head 1.2"
    assert state_of(page)["layer"] == ["1"]
    assert state_of(page)["head"] == ["2"]
    assert off(page) == []
    assert find(page, "#map [aria-selected=true]").get_attribute("data-head") == "1.2"


@pytest.mark.parametrize("how", ["double click", "shift", "button", "keyboard"])
def test_heads_are_switched_off_and_on(page, how):
    alone = values(page)
    if how == "double click":
        ActionChains(page).double_click(cell(page, "1.0")).perform()
    elif how == "shift":
        switch(page, "1.0")
    elif how == "button":
        cell(page, "1.0").click()
        click(page, "#switch")
    else:
        page.execute_script("arguments[0].focus()", cell(page, "0.0"))
        ActionChains(page).send_keys(Keys.ARROW_DOWN, " ").perform()
    ready(page)
    assert off(page) == ["1.0"]
    assert all_texts(page, "#answer thead th")[1:] == ["Before", "After", "Change"]
    assert "One head is off already" in text_of(page, "#map-note")
    assert values(page)[HEADS] == "head 1.0 is off"
    assert "change with no other head off" in values(page)[0]
    assert values(page)[0].split("\n")[:3] != alone[0].split("\n")[:3]
    assert text_of(page, "#heard").startswith("Before: ")
    assert all_texts(page, "#attention figcaption") == ["Before", "After: head 1.0 off"]
    assert chips(page) == ["1.0"]
    click(page, ".chip")
    assert off(page) == chips(page) == []
    assert values(page) == alone


def test_a_layer_is_switched_off_as_a_whole(page):
    labels = page.find_elements(By.CSS_SELECTOR, "#map .map-layer")
    labels[1].click()
    ready(page)
    assert off(page) == ["1.0", "1.1", "1.2"]
    assert chips(page) == ["layer 1"]
    switch(page, "1.1")
    assert off(page) == chips(page) == ["1.0", "1.2"]
    page.find_elements(By.CSS_SELECTOR, "#map .map-layer")[1].click()
    click(page, '.chip[data-off="layer 1"]')
    assert off(page) == []
    switch(page, "0.2")
    click(page, "#clear")
    assert off(page) == []


def test_all_heads_off(page):
    for label in page.find_elements(By.CSS_SELECTOR, "#map .map-layer"):
        label.click()
    ready(page)
    assert len(off(page)) == LAYERS * HEADS
    assert text_of(page, "#error") == ""
    assert all(one.endswith("is off") for one in values(page))


def test_undo_and_back(page):
    switch(page, "0.1")
    switch(page, "1.2")
    page.execute_script("document.activeElement.blur()")
    ActionChains(page).key_down(Keys.CONTROL).send_keys("z").key_up(Keys.CONTROL).perform()
    ready(page)
    assert off(page) == ["0.1"]
    ActionChains(page).key_down(Keys.CONTROL).send_keys("y").key_up(Keys.CONTROL).perform()
    ready(page)
    assert off(page) == ["0.1", "1.2"]
    page.back()
    ready(page)
    assert off(page) == ["0.1"]
    assert find(page, "#text-1").get_attribute("value") == TEXT
    page.forward()
    ready(page)
    assert off(page) == ["0.1", "1.2"]


def test_ctrl_z_in_a_text_is_the_texts_own(page):
    switch(page, "0.1")
    find(page, "#text-1").send_keys(Keys.CONTROL, "z")
    ready(page)
    assert off(page) == ["0.1"]


def test_the_address_holds_the_state(page):
    switch(page, "0.2")
    cell(page, "1.1").click()
    Select(find(page, "#mode")).select_by_value("zero")
    Select(find(page, "#change")).select_by_value("probability")
    Select(find(page, "#weights")).select_by_value("norms")
    click(page, "#attention [data-view=matrix]")
    page.find_elements(By.CSS_SELECTOR, "#answer input[type=radio]")[2].click()
    ready(page)

    def shown(browser):
        ids = ("mode", "change", "weights", "text-1")
        return (
            [off(browser), values(browser), all_texts(browser, "#answer td"), text_of(browser, "#map-note")],
            [find(browser, f"#{name}").get_attribute("value") for name in ids],
            [text_of(browser, "#attention-title"), all_texts(browser, "#attention [aria-selected=true]")],
            [one.get_attribute("data-text") for one in browser.find_elements(By.CSS_SELECTOR, "input:checked")],
        )

    # A page that did not see the base before does not know the changes with no other head off.
    def plain(found):
        found[0][1] = [one.split("\nchange with")[0] for one in found[0][1]]
        return found

    expected = plain(shown(page))
    assert_local(page)
    page.execute_script("localStorage.clear(); sessionStorage.clear()")
    open_page(page, page.current_url)
    assert plain(shown(page)) == expected
    assert expected[1] == ["zero", "probability", "norms", TEXT]


@pytest.mark.parametrize(
    "damage",
    ["off=9.9,0.1,x", "layer=7&head=1", "target=%7B%22mask%22%3A%22x%22%7D", "target=x", "mode=mean&view=3&weights=y"],
)
def test_a_damaged_address_is_read_as_far_as_possible(page, damage):
    change_address(page, f"{damage}&{fragment()}")
    assert text_of(page, "#error") == ""
    assert re.fullmatch(r"Attention of head [01]\.[012]( \(off\))?", text_of(page, "#attention-title"))
    assert off(page) == (["0.1"] if "off" in damage else [])
    assert find(page, "#mode").get_attribute("value") == "uniform"


def test_texts_are_never_html(browser, address):
    open_page(browser, f"{address}#{fragment(f'[MASK] {EVIL}', target=json.dumps({'mask': 0, 'word': EVIL}))}")
    assert find(browser, "#text-1").get_attribute("value") == f"[MASK] {EVIL}"
    assert "is not one word" in text_of(browser, "#error")
    assert browser.find_elements(By.CSS_SELECTOR, "#answer img, #attention img, #error img") == []
    assert_local(browser, [IGNORED])
    type_text(browser, f"cat [MASK] {EVIL}")
    switch(browser, "0.0")
    assert_local(browser, [IGNORED])


def test_a_text_without_a_mask(page):
    type_text(page, "the cat sat")
    assert "no [MASK]" in text_of(page, "#answer-note")
    assert not find(page, "#map-body").is_displayed()
    find(page, "#text-1").send_keys(Keys.HOME)
    click(page, "#insert-mask")
    assert find(page, "#text-1").get_attribute("value") == "[MASK] the cat sat"
    assert find(page, "#map-body").is_displayed()
    assert len(all_texts(page, "#answer tbody tr")) == 5


def test_an_empty_text(page):
    type_text(page, Keys.DELETE)
    assert "Type a text" in text_of(page, "#answer-note")
    assert text_of(page, "#error") == ""
    assert not find(page, "#attention-body").is_displayed()
    type_text(page, TEXT)
    assert len(all_texts(page, "#answer tbody tr")) == 5
    assert find(page, "#attention-body").is_displayed()


def test_a_text_that_is_too_long(page):
    type_text(page, f"{TEXT} {'cat ' * 60}")
    assert "longer than the 40 tokens" in text_of(page, "#answer-note")
    assert all("log-probability" in one for one in values(page))
    type_text(page, f"{'cat ' * 60} [MASK]")
    assert "The part of the text that the model reads has no [MASK]" in text_of(page, "#answer-note")


def test_the_user_chooses_the_word(page):
    first = values(page)
    page.find_elements(By.CSS_SELECTOR, "#answer input[type=radio]")[3].click()
    ready(page)
    word = find(page, "#answer input:checked").get_attribute("data-text")
    assert f"“{word}”" in text_of(page, "#map-note")
    assert values(page) != first
    find(page, "#answer .other-word input").send_keys("door", Keys.ENTER)
    ready(page)
    assert "“door”" in text_of(page, "#map-note")
    assert json.loads(state_of(page)["target"][0]) == {"mask": 0, "word": "door"}
    find(page, "#answer .other-word input").send_keys("zzz", Keys.ENTER)
    ready(page)
    assert "'zzz' is not one word of the model's vocabulary" in text_of(page, "#error")
    click(page, "#undo")
    assert text_of(page, "#error") == ""
    assert "“door”" in text_of(page, "#map-note")
    page.get_log("browser")


def test_two_masks(page):
    type_text(page, "the [MASK] sat on the [MASK]")
    assert all_texts(page, "#answer th[scope=col]")[::2] == ["Word at mask 1", "Word at mask 2"]
    page.find_elements(By.CSS_SELECTOR, "#answer input[type=radio]")[5].click()
    ready(page)
    assert "at mask 2" in text_of(page, "#map-note")


def test_modes_and_changes(page):
    uniform = values(page)
    Select(find(page, "#mode")).select_by_value("zero")
    ready(page)
    assert values(page) != uniform
    assert "change of log-probability" in text_of(page, "#map-body")
    Select(find(page, "#change")).select_by_value("probability")
    ready(page)
    assert "change of probability (points)" in text_of(page, "#map-body")


def test_python_and_files(page):
    click(page, "#copy-python")
    wait_for(lambda: text_of(page, "#python pre"), SECONDS)
    assert "bertjax.load" in text_of(page, "#python pre")
    click(page, "#python-close")
    assert not find(page, "#python").is_displayed()
    page.execute_script(
        "window.saved = []; const click = HTMLAnchorElement.prototype.click;"
        "HTMLAnchorElement.prototype.click = function () { window.saved.push(this.download); }"
    )
    click(page, "#save-map-svg")
    click(page, "#save-map-png")
    page.find_elements(By.CSS_SELECTOR, "#attention .viewer-save button")[0].click()
    wait_for(lambda: len(page.execute_script("return window.saved")) == 3, SECONDS)
    assert set(page.execute_script("return window.saved")) == {
        "bertjax-map.svg",
        "bertjax-map.png",
        "bertjax-attention-0.0-lines.svg",
    }


def test_requests_to_a_busy_server_are_repeated(page):
    page.execute_script(
        "const send = window.fetch; let left = 2;"
        "window.fetch = (url, options) => left-- > 0"
        " ? Promise.resolve(Response.json({ error: 'busy' }, { status: 503 })) : send(url, options);"
    )
    type_text(page, "a dog [MASK]")
    assert text_of(page, "#error") == ""
    assert all("log-probability" in one for one in values(page))


def test_a_server_that_has_stopped(browser, tmp_path):
    with server_process("--model", str(make_masked(tmp_path / "masked"))) as (process, url):
        open_page(browser, f"{url}#{fragment()}")
        switch(browser, "0.1")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        type_text(browser, "a dog [MASK]")
        error = find(browser, "#error")
        assert error.get_attribute("role") == "alert"
        assert "The server does not answer" in error.text
        assert error.text.count("does not answer") == 1
        assert find(browser, "#text-1").get_attribute("value") == "a dog [MASK]"
        assert off(browser) == ["0.1"]
        assert state_of(browser)["texts"] == ["a dog [MASK]"]
        port = re.search(r":(\d+)/", url)[1]
    with server_process("--model", str(tmp_path / "masked"), "--port", port):
        click(browser, "#retry")
        assert "a server that has ended" in text_of(browser, "#error")
    assert_local(browser, [IGNORED])


def test_the_page_fits_its_window(page):
    switch(page, "0.1")
    try:
        for width, theme in product((400, 800, 1280, 1600), ("light", "dark")):
            metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            page.execute_script(f"document.documentElement.dataset.theme = '{theme}'")
            page.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")  # is drawn
            assert page.execute_script("return document.documentElement.scrollWidth") <= width, (width, theme)
            assert find(page, "#map-body svg").is_displayed()
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_theme_changes(page):
    def paper():
        return page.execute_script("return getComputedStyle(document.body).backgroundColor")

    first = paper()
    click(page, "#theme")
    assert paper() != first


def test_everything_is_reached_by_keyboard(page):
    page.execute_script("document.activeElement.blur()")
    reached = []
    for _ in range(60):
        ActionChains(page).send_keys(Keys.TAB).perform()
        reached.append(
            page.execute_script(
                "const one = document.activeElement;"
                "return one.id || one.dataset.head || one.dataset.view || one.className.baseVal || one.type"
            )
        )
    buttons = {"copy-link", "copy-python", "theme", "insert-mask", "switch", "save-map-svg", "map-layer map-button"}
    assert buttons | {"text-1", "radio", "0.0", "mode", "change", "weights", "head"} <= set(reached)


KINDS = {
    "classes": (make_classifier, ["the cat sat on the mat", ""], "#answer input[type=radio]:not(:checked)"),
    "labels": (
        lambda folder: make_labeller(folder, ("anger", "joy", "calm")),
        ["he ran home", ""],
        "#answer input[type=radio]:not(:checked)",
    ),
    "score": (make_cross_encoder, ["a dog ran", "cats sleep"], None),
    "similarity": (make_embedder, ["a dog ran", "cats sleep"], None),
    "entities": (make_tagger, ["an old man saw the cat"], "#answer [data-word='4']"),
    "answer": (make_reader, ["he ran home", "the dog sat near a red door"], "#answer tr:nth-child(3) input"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_answer(browser, tmp_path, kind):
    make, texts, other = KINDS[kind]
    model = bertjax.load(str(make(tmp_path / kind)))
    with Explorer(subject_of_model(model, "model")) as explorer:
        open_page(browser, f"{explorer.url}#{urlencode([('texts', text) for text in texts])}")
        assert text_of(browser, "#error") == ""
        assert text_of(browser, "#answer-body")
        assert not any("not computed" in one for one in values(browser))
        assert re.fullmatch(r"Attention of head \d\.\d", text_of(browser, "#attention-title"))
        if other:
            first = values(browser)
            click(browser, other)
            assert values(browser) != first
        switch(browser, "1.1")
        assert "Before" in text_of(browser, "#heard")
        assert text_of(browser, "#error") == ""
        assert "After" in text_of(browser, "#answer-body")
        assert values(browser)[HEADS + 1] == "head 1.1 is off"
        assert_local(browser)


def test_the_model_that_comes_with_bertjax(browser):
    with server_process() as (_, url):
        open_page(browser, url)
        assert len(values(browser)) == 72
        assert "similarity" in text_of(browser, "#map-note")
        type_text(browser, "A man is playing a guitar.")
        type_text(browser, "Somebody makes music.", 2)
        number = float(text_of(browser, ".answer-figure strong"))
        assert 0.2 < number < 1
        for _ in range(2):
            before = find(browser, "#text-1").get_attribute("value")
            click(browser, "#next-example")
            wait_for(lambda: find(browser, "#text-1").get_attribute("value") != before, SECONDS)  # noqa: B023
        click(browser, "#examples summary")
        find(browser, "#search").send_keys("Temüjin")
        wait_for(lambda: ["emüjin" in one for one in all_texts(browser, ".example")[:1]] == [True], SECONDS)
        click(browser, ".example")
        assert "emüjin" in "".join(find(browser, f"#text-{one}").get_attribute("value") for one in (1, 2))
        Select(find(browser, "#mode")).select_by_value("zero")
        ready(browser)
        assert text_of(browser, "#error") == ""
        click(browser, "#attention [data-view=model]")
        assert len(browser.find_elements(By.CSS_SELECTOR, "#attention .model-cell")) == 72
        assert_local(browser)


def test_heads_that_a_checkpoint_lacks_are_not_switched(browser, tmp_path):
    (tmp_path / "whole").mkdir()
    heads = ["1.0", "0.0", "0.1", "0.2"]
    save_without_heads(make_masked(tmp_path / "whole"), heads, tmp_path / "smaller", smaller=True)
    with Explorer(subject_of_model(bertjax.load(tmp_path / "smaller"), "model")) as explorer:
        open_page(browser, f"{explorer.url}#{fragment(off='1.0,1.1')}")
        assert off(browser) == ["1.1"]
        for label in browser.find_elements(By.CSS_SELECTOR, "#map .map-layer"):
            label.click()
        ready(browser)
        assert off(browser) == ["1.1", "1.2"]
        assert chips(browser) == ["layer 1"]
        assert text_of(browser, "#error") == ""
