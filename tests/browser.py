"""The page in a real browser, as a user reads it and drives it."""

import json
import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
browser_needed = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no chromium and chromedriver here; .ci/run installs them"
)


def start_browser():
    """Headless Chromium that logs what it asks for."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument("--window-size=1280,1600")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(DRIVER))


def wait_for(condition, seconds=10):
    """Until a condition holds; what it gave."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(condition, seconds).until(lambda given: given())


def assert_quiet(browser):
    """Nothing was asked of any host since this was last asked, nothing went wrong, and no text of data ran."""
    assert [line for line in browser.get_log("browser") if line["level"] != "INFO"] == []
    messages = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
    asked = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    assert {url.split(":")[0] for url in asked} <= {"file", "data", "blob"}
    assert not browser.execute_script("return window.hacked")


def text_of(page, selector):
    from selenium.webdriver.common.by import By

    return page.find_element(By.CSS_SELECTOR, selector).text


def is_shown(page, name):
    from selenium.webdriver.common.by import By

    return page.find_element(By.ID, name).is_displayed()


def choose(page, control, value):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    Select(page.find_element(By.ID, control)).select_by_value(value)


def rows_of(page, table):
    script = "return [...document.querySelectorAll(arguments[0] + ' tbody tr')].map(row => row.innerText)"
    return page.execute_script(script, f"#{table}")


def cell(page, layer, head):
    """Where a cell of the map is, from its middle: offsets for the mouse."""
    return page.execute_script(
        "const map = document.getElementById('map'), layout = map._fullLayout, box = map.getBoundingClientRect();"
        "return [layout.xaxis._offset + layout.xaxis.d2p(arguments[1]) - box.width / 2,"
        "layout.yaxis._offset + layout.yaxis.d2p(arguments[0]) - box.height / 2]",
        layer,
        head,
    )


def go_to(page, layer, head):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    where = page.find_element(By.ID, "map")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", where)
    x, y = cell(page, layer, head)
    return ActionChains(page).move_to_element_with_offset(where, round(x), round(y))


def drawn_map(page):
    """The three layers of cells of the map: of those that are more than chance, of the others, of the means."""
    script = (
        "return document.getElementById('map').data.slice(0, 3).map(({z, opacity}) => ({z, opacity: opacity ?? null}))"
    )
    return page.execute_script(script)


def has_colour_bar(page):
    """Whether the map has its scale of colours."""
    return page.execute_script("return document.querySelectorAll('#map .cbfill').length") > 0
