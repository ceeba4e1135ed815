"""The attention of a text as a notebook shows it: what the page holds, files, errors, a real cell in a browser."""

import base64
import gzip
import json
import pickle
import re
import runpy

import jax
import nbformat
import numpy as np
import pytest

import bertjax
from bertjax import BertForMultipleChoice, BertModel, overrides
from bertjax.attention import norm_shares, output_products
from bertjax.attention.notebook_view import describe_ablation
from bertjax.errors import InputError, OutputError, OverrideError
from bertjax.web import AttentionView
from tests.browser import assert_quiet, browser_needed, wait_for
from tests.layering import ROOT
from tests.tiny_models import random_model

TEXTS = ["the film is good", "the very long film about nothing was bad, was it not"]


@pytest.fixture(scope="module")
def model(embedder):
    return bertjax.load(embedder)


def data_of(view):
    """The data of a page; weights as arrays."""
    written = re.search(r'<script type="application/json" id="data">(.*?)</script>', view.to_html(), re.DOTALL)[1]
    data = json.loads(written)
    for text in data["texts"]:
        for packed in filter(None, text.values()):
            count = len(packed["tokens"])
            content = np.frombuffer(gzip.decompress(base64.b64decode(packed["weights"])), "<u2")
            packed["weights"] = content.reshape(packed["layers"], packed["heads"], count, count) / 65535
    return data


def attentions_of(model, batch, text, count, **options):
    """Attention weights of a text of a batch; its tokens come first."""
    return np.asarray(model(batch, **options).attentions)[:, text, :, :count, :count]


def assert_close(packed, expected):
    np.testing.assert_allclose(packed, expected, atol=1e-5)


def test_the_view_has_the_weights_of_each_text_without_padding(model):
    data = data_of(bertjax.view(model, TEXTS))
    for number, text in enumerate(TEXTS):
        (encoding,), base = model.tokenizer.encode([text]), data["texts"][number]["base"]
        assert base["tokens"] == [*encoding.tokens]
        assert_close(base["weights"], attentions_of(model, model.tokenizer([text]), 0, len(encoding)))
        assert "ablated" not in data["texts"][number]
    assert (data["layer"], data["head"], data["view"], data["off"]) == (0, 0, "head", [])


def test_many_changed_heads_are_counted():
    names = [f"0.{head}" for head in range(9)]
    assert describe_ablation(names) == "With 0.0, 0.1, 0.2, 0.3, 0.4, 0.5 and 3 more ablated"


def test_a_pair_is_one_text(model):
    data = data_of(bertjax.view(model, *TEXTS))
    (encoding,) = model.tokenizer.encode(TEXTS[:1], TEXTS[1:])
    (text,) = data["texts"]
    assert text["base"]["tokens"] == [*encoding.tokens]
    assert_close(text["base"]["weights"], attentions_of(model, model.tokenizer(*TEXTS), 0, len(encoding)))


def test_with_overrides_base_and_ablated_are_shown(model):
    change = overrides.uniform(model.config, ["1.2"])
    data = data_of(bertjax.view(model, TEXTS[0], overrides=change))
    (text,) = data["texts"]
    batch, count = model.tokenizer(TEXTS[:1]), len(text["base"]["tokens"])
    assert_close(text["base"]["weights"], attentions_of(model, batch, 0, count))
    assert_close(text["ablated"]["weights"], attentions_of(model, batch, 0, count, overrides=change))
    assert_close(text["ablated"]["weights"][1, 2], 1 / count)
    assert (data["layer"], data["head"], data["off"]) == (1, 2, ["1.2"])
    assert data["captions"] == ["Base", "With 1.2 ablated"]


def test_captions_name_the_changed_heads(model):
    def caption(change):
        data = data_of(bertjax.view(model, TEXTS[0], overrides=change))
        return data["captions"][1], data["off"]

    config, count = model.config, len(model.tokenizer.encode(TEXTS[:1])[0])
    assert caption(overrides.identity(config)) == ("With overrides", [])
    every = [f"{layer}.{head}" for layer, head in overrides.every_head(config)]
    assert caption(overrides.zero(config, every)) == (f"With {', '.join(every)} ablated", every)
    fixed = overrides.fixed(config, {"0.1": np.eye(count, dtype=np.float32)})
    assert caption(fixed) == ("With 0.1 ablated", ["0.1"])
    assert caption(overrides.forbidden_edges(config, [(1, 0, 1, 2)])) == ("With 1.0 ablated", ["1.0"])


def test_norms_are_shown_on_request(model):
    data = data_of(bertjax.view(model, TEXTS[0], weights="norms", show="matrix", head="1.0"))
    output, count = model(TEXTS[0]), len(data["texts"][0]["base"]["tokens"])
    expected = np.asarray(norm_shares(output.attentions, output.record.values, output_products(model)))
    assert_close(data["texts"][0]["base"]["weights"], expected[:, 0, :, :count, :count])
    assert (data["quantity"], data["view"], data["layer"]) == ("share of norms", "matrix", 1)


def test_an_output_shows_the_texts_of_its_call(model):
    expected = data_of(bertjax.view(model, TEXTS))
    for output in (model(TEXTS), model(model.tokenizer(TEXTS)), pickle.loads(pickle.dumps(model(TEXTS)))):
        data = data_of(output.view())
        for text, other in zip(data["texts"], expected["texts"], strict=True):
            assert text["base"]["tokens"] == other["base"]["tokens"]
            assert_close(text["base"]["weights"], other["base"]["weights"])
    assert data_of(model(TEXTS).view(head=(1, 1), show="model"))["head"] == 1


def test_padding_on_the_left_is_cut_off_too(model):
    batch = model.tokenizer(TEXTS)
    left = {
        name: np.stack([np.roll(row, -sum(mask)) for row, mask in zip(array, batch["attention_mask"], strict=True)])
        for name, array in batch.items()
    }
    data = data_of(model(left).view())
    assert [text["base"]["tokens"] for text in data["texts"]] == [
        [*encoding.tokens] for encoding in model.tokenizer.encode(TEXTS)
    ]
    np.testing.assert_allclose(data["texts"][0]["base"]["weights"].sum(axis=-1), 1, atol=1e-3)


def test_an_output_can_get_tokens(small):
    output = random_model(BertModel, small)(np.array([[1, 2, 3], [4, 5, 6]]))
    with pytest.raises(InputError, match="this output has no tokenizer: pass the tokens"):
        output.view()
    names = [["a", "b", "c"], ["d", "e", "f"]]
    assert [text["base"]["tokens"] for text in data_of(output.view(names))["texts"]] == names
    one = random_model(BertModel, small)(np.array([[1, 2, 3]]))
    assert data_of(one.view(["a", "b", "c"]))["texts"][0]["base"]["tokens"] == ["a", "b", "c"]
    with pytest.raises(InputError, match="its texts have 3, 3 tokens without padding, found 2"):
        output.view(["a", "b"])


def test_transformed_outputs_know_no_tokens(model):
    with pytest.raises(InputError, match="this output has no tokenizer"):
        jax.tree.map(lambda array: array, model(TEXTS)).view()


def test_the_tokens_of_a_call_are_no_field(model):
    output = model(TEXTS)
    assert [*output] == ["last_hidden_state", "sentence_embedding", "hidden_states", "attentions"]
    assert "_call" not in repr(output)


def test_choices_are_texts(small, model):
    chooser = random_model(BertForMultipleChoice, small)
    chooser.tokenizer = model.tokenizer
    ids = np.array([[[1, 2, 3], [4, 5, 6]]])
    tokens = [text["base"]["tokens"] for text in data_of(chooser(ids).view())["texts"]]
    assert tokens == [model.tokenizer.pieces([1, 2, 3]), model.tokenizer.pieces([4, 5, 6])]


def test_wrong_arguments_are_one_line(model, small, unchecked):
    bare = random_model(BertModel, small)
    for call, message in [
        (lambda: bertjax.view("model", "a"), "model must be a model of bertjax"),
        (lambda: bertjax.view(bare, "a"), "the model has no tokenizer: pass tokenizer="),
        (lambda: bertjax.view(bare, "a", tokenizer="b"), "tokenizer must be a bertjax.Tokenizer"),
        (lambda: bertjax.view(model, []), "there is no text to show"),
        (lambda: bertjax.view(model, "a", show="lines"), "show 'lines' is not one of head"),
        (lambda: bertjax.view(model, "a", weights="values"), "weights 'values' is not one of attention, norms"),
        (lambda: model(TEXTS).view(head=(9, 9)), "there is no head 9.9"),
        (lambda: random_model(BertModel, small, attention="fused")(np.array([[1]])).view(["a"]), "explicit"),
    ]:
        with pytest.raises(InputError, match=message) as raised:
            call()
        assert "\n" not in str(raised.value)
    with pytest.raises(OverrideError, match="9"):
        bertjax.view(model, "a", head="9.9")


def test_large_weights_are_refused_before_they_are_packed():
    weights = np.broadcast_to(np.float32(0), (12, 12, 500, 500))
    with pytest.raises(InputError, match="take 72 MB, and a page at most 64 MB"):
        AttentionView([["a"] * 500], [weights])


def test_the_page_is_written_and_no_other_file_replaced(model, tmp_path):
    view = bertjax.view(model, TEXTS[0])
    path = view.save(tmp_path / "attention.html")
    assert path.read_text() == view.to_html()
    changed = bertjax.view(model, TEXTS[1])
    changed.save(path)
    assert path.read_text() == changed.to_html()
    other = tmp_path / "mine.html"
    other.write_text("<title>mine</title>")
    with pytest.raises(OutputError, match="exists, and this method did not write it"):
        view.save(other)
    assert other.read_text() == "<title>mine</title>"
    with pytest.raises(OutputError, match=r"must end in \.html"):
        view.save(tmp_path / "attention.png")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["attention.html", "mine.html"]


def test_a_cell_shows_a_frame_without_rights(model):
    view = bertjax.view(model, TEXTS[0])
    cell = view._repr_html_()
    assert re.match(r'<iframe title="[^"]*" sandbox="allow-scripts allow-downloads" srcdoc="', cell)
    assert cell.count("<") == 2  # the frame's tags; its page is escaped
    assert repr(view).startswith("AttentionView(")
    assert not re.search(r"(src|href)=(&quot;|\")?https?:", cell)


CELLS = """\
import bertjax
from bertjax import overrides
model = bertjax.load({path!r})
bertjax.view(model, "the <b>film</b> is good", overrides=overrides.uniform(model.config, ["1.2"]))"""


@pytest.fixture(scope="module")
def cell(embedder, tmp_path_factory):
    """The HTML that a real notebook saves with a cell."""
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell(CELLS.format(path=str(embedder))),
            nbformat.v4.new_code_cell("model(['the film', 'is good']).view()"),
        ]
    )
    runpy.run_path(str(ROOT / "docs/tutorials/execute.py"))["run"](notebook, folder)
    outputs = [one["data"] for cell in notebook.cells for one in cell.outputs if "data" in one]
    assert [one["text/plain"].startswith("AttentionView(") for one in outputs] == [True, True]
    page = folder / "cell.html"
    page.write_text("<!doctype html><meta charset='utf-8'>" + "".join(one["text/html"] for one in outputs))
    return page


@browser_needed
@pytest.mark.integration
def test_a_saved_cell_works_in_a_browser(browser, cell, embedder):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    browser.get(cell.as_uri())
    first, second = browser.find_elements(By.TAG_NAME, "iframe")
    browser.switch_to.frame(first)
    wait_for(lambda: browser.find_elements(By.CSS_SELECTOR, ".head-item"))
    captions = [one.text for one in browser.find_elements(By.TAG_NAME, "figcaption")]
    assert captions == ["Base", "With 1.2 ablated"]
    tokens = browser.find_elements(By.CSS_SELECTOR, ".head-view:last-child .head-item")
    ActionChains(browser).move_to_element(tokens[1]).perform()
    count = len(tokens) // 2
    weights = [one.text for one in browser.find_elements(By.CSS_SELECTOR, ".head-view:last-child .head-weight")]
    assert weights[count:] == [f"{1 / count:.3f}"] * count
    with_origin = "try { return parent.document.title } catch { return 'none' }"
    assert browser.execute_script(with_origin) == "none"
    browser.switch_to.default_content()
    browser.switch_to.frame(second)
    wait_for(lambda: browser.find_elements(By.CSS_SELECTOR, ".head-item"))
    (select,) = browser.find_elements(By.CSS_SELECTOR, ".notebook-text select")
    browser.execute_script("arguments[0].value = '1'; arguments[0].dispatchEvent(new Event('change'))", select)
    (encoding,) = bertjax.Tokenizer.from_pretrained(embedder).encode(["is good"])
    tokens = "return [...document.querySelectorAll('.head-token')].map(one => one.textContent)"
    wait_for(lambda: browser.execute_script(tokens) == [*encoding.tokens] * 2)
    browser.switch_to.default_content()
    assert_quiet(browser)
