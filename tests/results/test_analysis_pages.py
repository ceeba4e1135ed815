"""The page of each analysis: its headings and charts, in a real browser."""

import copy
import re
from dataclasses import replace

import pytest

import bertjax
from bertjax.results import page as pages
from bertjax.results import read_results
from tests.browser import (
    assert_quiet,
    browser_needed,
    choose,
    drawn_map,
    open_page,
    rows_of,
    text_of,
    tooltip_of,
    wait_for,
)
from tests.factories import SENTENCES, make_embedder, write_lines, write_pairs

pytestmark = [pytest.mark.integration, browser_needed]

LAYERS, HEADS = 2, 3
PAIRS = LAYERS * HEADS * (LAYERS * HEADS - 1) // 2
CONTRASTS = [
    {"clean": f"the {first} sat near the door", "corrupted": f"the {second} sat near the door", "second": third}
    for first, second, third in (
        ("cat", "man", "an old man saw the cat near the door"),
        ("dog", "cat", "he ran home"),
        ("man", "dog", "cats sleep"),
    )
]
TAGGED = [{"tokens": one.split(), "tags": [word[0] for word in one.split()]} for one in SENTENCES]
TREES = [
    {
        "tokens": words,
        "lemmas": words,
        "upos": ["X"] * len(words),
        "head": [*range(len(words))],
        "deprel": [word[0] for word in words],
    }
    for words in map(str.split, SENTENCES)
]
PARALLEL = [{"en": one, "de": two} for one, two in zip(SENTENCES, reversed(SENTENCES), strict=True)]
SENSES = [
    {"sentence1": one, "sentence2": two, "start1": 0, "end1": 3, "start2": 0, "end2": 2, "label": bool(index % 3)}
    for index, (one, two) in enumerate(zip(SENTENCES, reversed(SENTENCES), strict=True))
]
# For each page: heading of the first section, a selector of the marks of its chart, and their number.
PAGES = {
    "heads": ("Effect of ablating each head", ".map-cell", LAYERS * HEADS),
    "layers": ("Effect of ablating each layer", ".bar", LAYERS),
    "pairs": ("Effect of ablating each pair of heads", ".cell", PAIRS),
    "sets": ("Effect of ablating each set of heads", ".bar", LAYERS * HEADS),
    "interactions": ("Interaction of each pair of heads", ".cell", PAIRS),
    "shapley": ("Shapley value of each head", ".map-cell", LAYERS * HEADS),
    "importance": ("Importance of each head by gradients", ".map-cell", LAYERS * HEADS),
    "roles": ("Attention of each head by role", ".map-cell", LAYERS * HEADS),
    "probe": ("Probe of each layer", ".bar", LAYERS),
    "head probes": ("Probe of each head", ".map-cell", LAYERS * HEADS),
    "edge probes": ("Probe of each layer", ".bar", LAYERS),
    "structure": ("Structural probe of each layer", ".bar", LAYERS),
    "geometry": ("Geometry of words in each layer", ".bar", LAYERS),
    "layers of a model": ("How alike two layers are", ".cell", 3),
    "layers of two models": ("Each layer, compared with that of ", ".bar", LAYERS),
    "senses": ("Senses of words in each layer", ".bar", LAYERS),
    "languages": ("Languages at each layer", ".bar", LAYERS),
    "restored": ("Effect of restoring one layer", ".bar", LAYERS),
    "restored heads": ("Effect of restoring one head", ".map-cell", LAYERS * HEADS),
    "restored chains": ("Effect of redrawing all layers up to one", ".bar", LAYERS),
    "prune": ("Score by the number of heads left", ".curve", 4),
    "patch": ("Effect of each patch of corrupted texts", ".cell", None),
    "paths": ("Effect of the paths from each head to the queries of 1.0", ".map-cell", LAYERS * HEADS),
}

WITHOUT_ABLATIONS = {*("roles", "importance", "patch", "paths", "probe", "head probes"), *("structure", "geometry")}
WITHOUT_ABLATIONS |= {"edge probes", "layers of a model", "layers of two models"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The results of an analysis by name, computed once."""
    folder, found = tmp_path_factory.mktemp("analyses"), {}
    model, other = make_embedder(folder / "model"), make_embedder(folder / "other", seed=1)
    data = {"task": "mrpc", "data": write_pairs(folder / "pairs.tsv", 30)}
    makers = {
        "heads": lambda **options: bertjax.ablate(model, **data, **options),
        "layers": lambda **options: bertjax.ablate(model, **data, ablate="layers", **options),
        "pairs": lambda **options: bertjax.ablate(model, **data, ablate="pairs", **options),
        "sets": lambda **options: bertjax.ablate(model, **data, ablate="all-but-one", **options),
        "interactions": lambda **options: bertjax.interactions(model, **data, **options),
        "shapley": lambda **options: bertjax.shapley(model, **data, **options),
        "importance": lambda **options: bertjax.importance(model, **data, **options),
        "roles": lambda **options: bertjax.roles(model, "mlm", data=write_lines(folder / "lines.txt"), **options),
        "probe": lambda **options: bertjax.probe(model, "token-classification", data=TAGGED, **options),
        "edge probes": lambda **options: bertjax.probe_edges(model, "token-classification", data=TREES, **options),
        "head probes": lambda **options: bertjax.probe(
            model, "token-classification", data=TAGGED, of="heads", description_length=True, **options
        ),
        "senses": lambda **options: bertjax.senses(model, SENSES, **options),
        "languages": lambda **options: bertjax.languages(model, PARALLEL, **options),
        "prune": lambda **options: bertjax.prune(model, **data, draws=2, points=3, **options),
        "patch": lambda **options: bertjax.patch(model, CONTRASTS, **options),
        "paths": lambda **options: bertjax.patch_paths(model, CONTRASTS, receivers={"queries": ["1.0"]}, **options),
        "structure": lambda **options: bertjax.structure(model, "token-classification", data=TREES, rank=3, **options),
        "geometry": lambda **options: bertjax.geometry(model, "mlm", texts=[*SENTENCES], **options),
        "layers of a model": lambda **options: bertjax.compare_layers(model, "mlm", texts=[*SENTENCES], **options),
        "layers of two models": lambda **options: bertjax.compare_layers(
            model, "mlm", texts=[*SENTENCES], other=str(model), **options
        ),
        "restored": lambda **options: bertjax.restore(model, **data, base=other, **options),
        "restored heads": lambda **options: bertjax.restore(model, **data, base=other, of="heads", **options),
        "restored chains": lambda **options: bertjax.restore(model, **data, source="random", of="up_to", **options),
    }

    def results_of(name):
        if name not in found:
            makers[name](output=folder / name, progress=False)
            found[name] = read_results(folder / name)
        return found[name]

    return results_of


def show(browser, results, path):
    pages.write_page(results, path)
    open_page(browser, path)


def changed(results, **parts):
    """Results with other parts of their summary."""
    return replace(results, summary={**copy.deepcopy(results.summary), **parts})


@pytest.mark.parametrize("name", PAGES)
def test_each_analysis_has_its_headings_and_its_chart(browser, saved, tmp_path, name):
    results = saved(name)
    heading, selector, count = PAGES[name]
    show(browser, results, tmp_path / "page.html")
    assert text_of(browser, "#overview-heading").startswith(heading)
    assert len(browser.find_elements("css selector", f"#overview {selector}")) == (count or len(results.names))
    assert len(rows_of(browser, "table")) == len(results.names)
    if name in WITHOUT_ABLATIONS or "restored" in name:
        text = text_of(browser, "main").split("Model, data and settings")[0]
        assert not re.search("ablat", text, re.IGNORECASE), text
    assert "undefined" not in text_of(browser, "#overview-note")
    if not results.measure().tested:  # a dot means significant
        assert not browser.find_elements("css selector", "#overview .dot")
    browser.set_window_size(500, 1200)
    wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    wait_for(lambda: browser.execute_script(wide) <= 0)
    browser.set_window_size(1280, 1600)
    assert_quiet(browser)


RANKS = "return [...document.querySelectorAll('#extra .map-cell')].map(one => [one.dataset.head, one.ariaLabel])"


def texts_of(browser, selector):
    return browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map(one => one.textContent)", selector
    )


def boxes_of(browser, selector):
    script = """
    return [...document.querySelectorAll(arguments[0])].map(text => {
      const box = text.getBoundingClientRect();
      return [box.left, box.right, box.top, box.bottom];
    });
    """
    return browser.execute_script(script, selector)


@pytest.mark.parametrize("width", [500, 1280])
def test_labels_of_grids_do_not_overlap(browser, saved, tmp_path, width):
    browser.set_window_size(width, 1200)
    results = saved("patch")
    patching = results.summary["patching"]
    long = [f"{index} violin/guitar and more" for index, _ in enumerate(patching["spans"])]
    show(browser, changed(results, patching={**patching, "spans": long}), tmp_path / "page.html")
    for selector in ("#overview .tick.column", "#overview .tick:not(.column)"):
        boxes = boxes_of(browser, selector)
        assert len(boxes) > 2
        for index, (left, right, top, bottom) in enumerate(boxes):
            for other in boxes[:index]:
                assert right <= other[0] or other[1] <= left or bottom <= other[2] or other[3] <= top
    browser.set_window_size(1280, 1600)


def test_a_grid_shows_all_cells_and_the_keyboard_moves_over_it(browser, saved, tmp_path, monkeypatch):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    results = saved("interactions")
    monkeypatch.setattr(pages, "MOST_ABLATIONS", 3)
    show(browser, results, tmp_path / "page.html")
    numbers = sorted(float(text.replace("−", "-")) for text in texts_of(browser, "#overview .cell-text"))
    assert numbers == pytest.approx(sorted(results.printed()), abs=0.051)
    assert len(rows_of(browser, "table")) == 3
    shown = {row.split()[0] for row in rows_of(browser, "table")}
    without = next(index for index, name in enumerate(results.names) if name not in shown)
    cell = browser.find_element("css selector", f"#overview .cell[data-index='{without}']")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", cell)
    before = text_of(browser, "#chosen")
    ActionChains(browser).move_to_element_with_offset(cell, -20, 0).click().perform()
    wait_for(lambda: "The page has no details of this pair of heads." in tooltip_of(browser))
    assert text_of(browser, "#chosen") == before
    monkeypatch.undo()
    show(browser, results, tmp_path / "page.html")
    grid = browser.find_element("css selector", "#overview .cells")
    browser.execute_script("document.querySelector(\"tr[data-name='0.0+0.2'] button\").click()")
    grid.send_keys(Keys.ARROW_DOWN)
    wait_for(lambda: text_of(browser, "#chosen").startswith("pair of heads 0.0+1.0"))
    assert browser.current_url.endswith("#0.0%2B1.0")
    grid.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    wait_for(lambda: text_of(browser, "#chosen").startswith("pair of heads 0.2+1.0"))
    grid.send_keys(Keys.ARROW_RIGHT)  # there is no pair of a head with itself
    assert text_of(browser, "#chosen").startswith("pair of heads 0.2+1.0")
    assert_quiet(browser)


@pytest.mark.parametrize(
    ("name", "chosen", "of"),
    [
        ("layers of a model", "embeddings-1", "the embeddings and layer 1"),
        ("layers of two models", "1", "layer 1 in both models"),
    ],
)
def test_contributions_to_an_alignment_have_one_number(browser, saved, tmp_path, name, chosen, of):
    show(browser, saved(name), tmp_path / "page.html")
    browser.execute_script("document.querySelector(arguments[0]).click()", f"tr[data-name='{chosen}'] button")
    heading = f"Sentences that contribute most to the alignment of {of}"
    wait_for(lambda: text_of(browser, "#examples-heading") == heading)
    assert texts_of(browser, "#examples th") == ["id", "contribution", "text"]
    values = texts_of(browser, "#examples td.number")
    assert values
    assert all(re.fullmatch(r"[+−]\d\.\d{3}", value) for value in values)


def test_pruning_shows_curves_and_the_order_of_removal(browser, saved, tmp_path):
    results = saved("prune")
    pruning = results.summary["pruning"]
    orders = {order["name"]: order for order in pruning["orders"]}
    show(browser, results, tmp_path / "page.html")
    assert sorted(texts_of(browser, "#overview .name")) == ["gradient", "gradient reversed", "magnitude", "random (2)"]
    intervals = browser.find_elements("css selector", "#overview .interval")
    single = [row for row in results.rows_of() if not row.name.startswith("random") and row.low is not None]
    assert len(intervals) == len(single) > 0
    assert len(browser.find_elements("css selector", "#overview .band")) == 1
    assert not browser.find_elements("css selector", "#ranking svg, #overview .bar")
    for name in ("gradient", "magnitude"):
        choose(browser, "order", str([*orders].index(name)))
        shown = dict(browser.execute_script(RANKS))
        removed = orders[name]["heads"]
        assert shown[removed[0]] == f"head {removed[0]}: removed 1st"
        assert shown[removed[3]] == f"head {removed[3]}: removed 4th"
        assert text_of(browser, "#removed").startswith(f"Removed first: {removed[0]}, {removed[1]}")
    left = pruning["points"][1]
    browser.execute_script(f"document.querySelector(\"tr[data-name='magnitude {left}'] button\").click()")
    assert text_of(browser, "#examples-heading") == f"Examples that change most with {left} heads left (magnitude)"
    assert_quiet(browser)


def test_roles_are_chosen_in_their_table(browser, saved, tmp_path):
    results = saved("roles")
    show(browser, results, tmp_path / "page.html")
    roles = results.summary["roles"]
    for row in rows_of(browser, "criteria"):
        kind = row.split("\t")[0]
        expected = [head for head, kinds in roles["kinds"].items() if kind in kinds]
        assert row.split("\t")[3].split() == (expected or ["none"])
    assert len(rows_of(browser, "shares")) == len(roles["definitions"])
    browser.find_element("xpath", "//table[@id='shares']//button[text()='the next token']").click()
    assert browser.execute_script("return document.getElementById('metric').value") == "next"
    changes = dict(zip(results.names, results.printed(metric="next"), strict=True))
    for name, cell in drawn_map(browser).items():
        assert float(cell["text"].replace("−", "-")) == pytest.approx(changes[name], abs=0.0051)
    assert_quiet(browser)


def test_shapley_values_have_a_section_on_their_precision(browser, saved, tmp_path):
    results = saved("shapley")
    show(browser, results, tmp_path / "page.html")
    assert not browser.find_element("id", "extra").is_displayed()  # all sets were run
    assert "all sets of heads" in text_of(browser, "#overview-note")
    total = results.printed().sum()
    found = re.search(r"The values sum to ([+−\d.]+) points: ", text_of(browser, "#overview-note"))
    assert float(found[1].replace("−", "-")) == pytest.approx(total, abs=0.01)
    of_orders = {"exact": False, "orders": 16, "half_widths": [0.01] * len(results.names)}
    sampled = changed(results, shapley={**results.summary["shapley"], **of_orders})
    show(browser, sampled, tmp_path / "sampled.html")
    assert text_of(browser, "#extra-heading") == "Precision over orders of removal"
    assert "16 sampled orders" in text_of(browser, "#extra-note")
    assert len(browser.find_elements("css selector", "#extra .dot")) == len(results.names)
    assert_quiet(browser)


def test_an_analysis_of_the_user_has_the_page_of_ablations(browser, saved, tmp_path):
    results = saved("heads")
    other = changed(results, analysis={**results.summary["analysis"], "name": "of the user"})
    show(browser, other, tmp_path / "page.html")
    assert text_of(browser, "#overview-heading") == "Effect of ablating each head"
    assert_quiet(browser)
