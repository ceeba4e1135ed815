"""What is in the page of results, without a browser."""

import base64
import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest

from bertjax.errors import OutputError
from bertjax.results.directory import read_results
from bertjax.results.examples import PREDICTS, Display
from bertjax.results.page import make_page, pack_attention, page_data, write_page
from bertjax.tasks import form_named
from tests.result_factories import make_results


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return make_results(tmp_path_factory.mktemp("page") / "mrpc")


def test_the_page_is_small_and_whole(results):
    page = make_page(read_results(results))
    assert len(page) < 400_000
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert json.loads(data[1])["sentence"] == read_results(results).summary["sentence"]
    assert "<" not in data[1]


def test_outputs_with_the_default_display_are_those_of_the_tasks():
    forms = {name: form_named(name) for name in PREDICTS}
    assert {name: form.predicts for name, form in forms.items() if form.display is Display} == PREDICTS


@pytest.mark.integration
def test_a_page_of_1000_examples_and_144_heads_is_below_3_mb(tmp_path, monkeypatch):
    """As many examples, heads and kept weights as BERT-base on 1,000 pairs of 80 tokens."""
    from tests import result_factories

    config = result_factories.BertConfig(
        vocab_size=9, hidden_size=24, num_hidden_layers=12, num_attention_heads=12, intermediate_size=4
    )
    for name, value in {"CONFIG": config, "LAYERS": 12, "HEADS": 12, "EVIL_TOKENS": ("token",) * 80}.items():
        monkeypatch.setattr(result_factories, name, value)
    saved = read_results(make_results(tmp_path / "large", examples=1000))
    assert 500_000 < len(json.dumps(page_data(saved))) < 2_500_000
    packed = pack_attention(saved)
    assert 1 <= len(packed["samples"]) <= packed["kept"] == 2


def test_packed_attention_gives_back_the_weights_of_every_run(results):
    saved = read_results(results)
    packed, arrays = pack_attention(saved), saved.attention
    assert packed["first_layers"][0] == 0 < max(packed["first_layers"])
    for number, sample in enumerate(packed["samples"]):
        for text, content in enumerate(sample["texts"]):
            weights = arrays[f"weights_{number}_{text}"]
            stored = np.frombuffer(gzip.decompress(base64.b64decode(content["weights"])), np.uint8)
            stored = stored.reshape(-1, *weights.shape[2:])  # layers of all runs
            base, begin = stored[: weights.shape[1]], 0
            for run, first in enumerate(packed["first_layers"]):
                end = begin + weights.shape[1] - first
                steps = base.copy()
                if run:
                    steps[first:] += stored[begin:end]
                assert np.abs(steps / 255 - weights[run]).max() <= 0.5 / 255 + 1e-6
                begin = end
            assert begin == len(stored)


def test_attention_that_does_not_fit_is_left_out_after_the_first(results):
    saved = read_results(results)
    assert len(pack_attention(saved)["samples"]) == 2
    few = pack_attention(saved, budget=10)
    assert [one["example"] for one in few["samples"]] == [0]
    assert few["kept"] == 2


def test_the_file_is_html(results, tmp_path):
    assert write_page(read_results(results), tmp_path / "page.html") == tmp_path / "page.html"
    assert Path(tmp_path / "page.html").read_text().startswith("<!doctype html>")
    with pytest.raises(OutputError, match=r"must end in \.html"):
        write_page(read_results(results), tmp_path / "page.txt")
