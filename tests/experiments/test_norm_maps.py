"""Maps of norms in place of weights: shares of lengths by their definition, and what the programs make of them."""

import json

import numpy as np
import pytest

import bertjax
from bertjax import BertModel
from experiments import fig3_frames as frame_semantics
from experiments.shared.attention import reduce_attention, whole_maps
from tests.factories import make_encoder
from tests.family_models import DISTINCT, config_of, sometimes
from tests.tiny_models import encodings, random_model

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("family", sometimes(DISTINCT, "roberta", "albert", "modernbert"))
def test_maps_are_shares_of_lengths(family):
    rng, config = np.random.default_rng(2), config_of(family, 0)
    model = random_model(BertModel, config)
    texts = encodings(config, rng, [7, 4])
    found = reduce_attention(model, texts, whole_maps, norms=True)
    plain = reduce_attention(model, texts, whole_maps)
    for number, text in enumerate(texts):
        n = len(text)
        record = model.forward(model.inputs(bertjax.collate([text], None, config.pad_token_id or 0))).inside
        for layer, application in enumerate(model.body.encoder.applications()):
            kernel = np.asarray(application.attention.output.kernel[...], np.float64)
            values = np.asarray(record.values[layer, 0], np.float64)
            lengths = np.linalg.norm(np.einsum("khd,hde->hke", values, kernel), axis=-1)
            added = np.asarray(record.weights[layer, 0], np.float64) * lengths[:, None]
            expected = added / added.sum(-1, keepdims=True)
            np.testing.assert_allclose(found[number, layer, :, :n, :n], expected, atol=2e-5)
            assert not found[number, layer, :, :n, n:].any()  # padding has no share
    assert np.abs(found - plain).max() > 1e-3


def test_heads_that_are_gone_have_no_maps(tmp_path):
    config = config_of("bert", 0)
    model = random_model(BertModel, config)
    model.save_pretrained(tmp_path / "smaller", without=[(0, 1)])
    smaller = bertjax.load(tmp_path / "smaller")
    texts = encodings(config, np.random.default_rng(0), [6, 5])
    found = reduce_attention(smaller, texts, whole_maps, norms=True)
    assert not found[:, 0, 1].any()
    assert found[:, 0, 0].any()
    whole = reduce_attention(model, texts, whole_maps, norms=True)
    np.testing.assert_allclose(found[:, 0, [0, 2]], whole[:, 0, [0, 2]], atol=1e-5)


def test_a_program_takes_norms_and_says_so(tmp_path):
    encoder = make_encoder(tmp_path / "encoder")
    options = ["--model", str(encoder), "--limit", "12"]
    for name in ("weights", "norms"):
        more = ["--norms"] if name == "norms" else []
        assert frame_semantics.main([*options, *more, "--output", str(tmp_path / name)]) == 0
    both = {name: json.loads((tmp_path / name / "numbers.json").read_text()) for name in ("weights", "norms")}
    assert both["norms"]["settings"]["norms"] is True
    maps = [np.array(one["results"]["maps"]["element_to_predicate"]) for one in both.values()]
    assert np.abs(maps[0] - maps[1]).max() > 1e-4
