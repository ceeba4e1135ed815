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

    return WebDriverWait(condition, seconds).until(lambda check: check())


def assert_quiet(browser):
    """Nothing was asked of any host since this was last asked, nothing went wrong, and no text of data ran."""
    assert [line for line in browser.get_log("browser") if line["level"] != "INFO"] == []
    messages = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
    urls = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    assert {url.split(":")[0] for url in urls} <= {"file", "data", "blob"}
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


def cell_of(page, layer, head):
    """The cell of a head in the first map."""
    from selenium.webdriver.common.by import By

    return page.find_element(By.CSS_SELECTOR, f"#overview [data-head='{layer}.{head}']")


def go_to(page, layer, head):
    """Actions that move the pointer to a cell of the map."""
    from selenium.webdriver.common.action_chains import ActionChains

    where = cell_of(page, layer, head)
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", where)
    return ActionChains(page).move_to_element(where)


def focus_on(page, layer, head):
    """Give a cell of the map the focus of the keyboard."""
    page.execute_script("arguments[0].focus()", cell_of(page, layer, head))
    return page.switch_to.active_element


def drawn_map(page):
    """The cells of the first map by head: text, colour, and whether they have the dot of significant effects."""
    script = """
    const cells = [...document.querySelectorAll('#overview [data-head]')];
    return Object.fromEntries(cells.map(cell => [cell.dataset.head, {
      text: cell.querySelector('.map-value').textContent,
      colour: cell.querySelector('.map-box').getAttribute('fill'),
      opacity: getComputedStyle(cell.querySelector('.map-box')).fillOpacity,
      marked: cell.querySelector('.map-dot').getAttribute('fill') !== 'none',
    }]));
    """
    return page.execute_script(script)


def has_colour_bar(page):
    """Whether the map has its scale of colours."""
    return page.execute_script("return document.querySelectorAll('#overview .map-scale rect').length") > 1


def tooltip_of(page):
    """The text of the tooltip; empty if there is none."""
    return page.execute_script(
        "const tip = document.querySelector('.tooltip'); return tip && !tip.hidden ? tip.textContent : ''"
    )


def weights_in(page, panel):
    """The weights of a panel of the viewer that shows lines, as it writes them next to the tokens.

    A panel is drawn when its width is known, a frame after the viewer shows it: wait for that.
    """
    script = """
    const view = document.querySelectorAll('#viewer .head-view')[arguments[0]];
    const [queries, keys] = view ? view.querySelectorAll('[role=listbox]') : [];
    if (!keys) return null;
    return [...queries.querySelectorAll('.head-item')].map(query => {
      query.dispatchEvent(new Event('focus'));
      const weights = [...keys.querySelectorAll('.head-weight')].map(weight => Number(weight.textContent));
      query.dispatchEvent(new Event('blur'));
      return weights;
    });
    """
    return wait_for(lambda: page.execute_script(script, panel))


def open_page(browser, path):
    """Open a page of results and wait until it is drawn."""
    browser.get(path.as_uri())
    wait_for(lambda: browser.execute_script("return document.body.dataset.ready"))


def choose_head(page, layer, head):
    """Choose layer and head in the viewer of attention."""
    script = """
    const selects = document.querySelectorAll('#viewer .viewer-select select');
    [arguments[0], arguments[1]].forEach((value, index) => {
      selects[index].value = value;
      selects[index].dispatchEvent(new Event('change'));
    });
    """
    page.execute_script(script, str(layer), str(head))
