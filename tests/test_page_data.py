"""What is in the page of results, without a browser."""

import json
import re
from pathlib import Path

import pytest

from bertjax.errors import OutputError
from bertjax.results.directory import read_results
from bertjax.results.page import make_page, pack_attention, page_data, write_page
from tests.made_up import make_results


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return make_results(tmp_path_factory.mktemp("page") / "mrpc")


def test_the_page_is_small_and_whole(results):
    page = make_page(read_results(results))
    from plotly.offline import get_plotlyjs

    assert len(page) - len(get_plotlyjs()) < 300_000
    assert "/*" + "DATA" not in page
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert json.loads(data[1])["sentence"] == read_results(results).summary["sentence"]
    assert "<" not in data[1]


def test_a_page_of_a_thousand_examples_and_144_heads_stays_below_5_mb(tmp_path, monkeypatch):
    """As many examples, heads and kept weights as BERT-base on 1,000 pairs of 80 tokens."""
    from tests import made_up

    config = made_up.BertConfig(
        vocab_size=9, hidden_size=24, num_hidden_layers=12, num_attention_heads=12, intermediate_size=4
    )
    for name, value in {"CONFIG": config, "LAYERS": 12, "HEADS": 12, "EVIL_TOKENS": ("token",) * 80}.items():
        monkeypatch.setattr(made_up, name, value)
    saved = read_results(make_results(tmp_path / "large", examples=1000))
    size = len(json.dumps(page_data(saved)))
    assert 1_000_000 < size < 5_000_000
    packed = pack_attention(saved)
    assert 1 <= len(packed["samples"]) <= packed["kept"] == 2


def test_attention_that_does_not_fit_is_left_out_but_for_the_first(results):
    saved = read_results(results)
    assert len(pack_attention(saved)["samples"]) == 2
    few = pack_attention(saved, budget=10)
    assert [one["example"] for one in few["samples"]] == [0]
    assert few["kept"] == 2


def test_the_file_is_html(results, tmp_path):
    assert write_page(read_results(results), tmp_path / "page.html") == tmp_path / "page.html"
    assert Path(tmp_path / "page.html").read_text().startswith("<!doctype html>")
    with pytest.raises(OutputError, match=r"ends in \.html"):
        write_page(read_results(results), tmp_path / "page.txt")
