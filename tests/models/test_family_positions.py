"""Scores by distance and windows: buckets as in transformers, DeBERTa's forms, numbers of compared keys."""

import numpy as np
import pytest

import bertjax
from bertjax import BertModel
from bertjax.checkpoints import RelativePositions, architecture
from bertjax.data import collate
from bertjax.engine import run as engine
from bertjax.interventions import ablations as ab
from bertjax.interventions import readouts
from bertjax.jobs import parity, torch_reference
from bertjax.models import packed_layer
from bertjax.models.positions import rows_of_distances
from tests.engine_checks import CLOSE, reference_outputs, sum_over_tokens
from tests.family_models import arguments, config_of, saved_by_torch, sometimes
from tests.tiny_models import encodings, largest_difference, random_model

FARTHEST = 511
DISTANCES = np.arange(-FARTHEST, FARTHEST + 1)


@pytest.mark.needs_torch
@pytest.mark.parametrize(("buckets", "largest"), [(256, 512), (4, 21), (7, 64), (32, 128)])
def test_buckets_of_position_vectors_match_deberta(buckets, largest):
    """For usual and small sizes; transformers adds the span and clips on gathering."""
    import torch
    from transformers.models.deberta_v2 import modeling_deberta_v2 as theirs

    found = rows_of_distances(RelativePositions("disentangled", buckets, largest), FARTHEST)
    whole = torch.zeros(1, 1 + FARTHEST, 1)
    apart = theirs.build_relative_position(whole, whole, buckets, largest)[0]
    expected = np.concatenate([apart[0].flip(0)[:-1], apart[:, 0]])
    assert np.array_equal(
        expected, theirs.make_log_bucket_position(torch.tensor(DISTANCES), buckets, largest).long().numpy()
    )
    assert np.array_equal(found, np.clip(expected + buckets, 0, 2 * buckets - 1))
    assert found.dtype.kind == "i"


def test_distances_without_buckets_are_table_rows():
    found = rows_of_distances(RelativePositions("disentangled", 300, 0), FARTHEST)
    assert np.array_equal(found, np.clip(DISTANCES + 300, 0, 599))


@pytest.mark.needs_torch
@pytest.mark.parametrize(("buckets", "largest"), [(32, 128), (8, 16)])
def test_buckets_of_biases_match_mpnet(buckets, largest):
    import torch
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    expected = MPNetEncoder.relative_position_bucket(torch.tensor(-DISTANCES), buckets, largest)  # key - query
    found = rows_of_distances(RelativePositions("bias", buckets, largest), FARTHEST)
    assert np.array_equal(found, expected.numpy())
    assert set(found) == set(range(buckets)) - {buckets // 2}  # no key is behind the query and at distance 0


FORMS = {
    "keys of positions": {"pos_att_type": "c2p"},
    "one kind named twice": {"pos_att_type": ("c2p", "c2p")},
    "queries of positions": {"pos_att_type": "p2c"},
    "keys by projections of their own": {"pos_att_type": "c2p", "share_att_key": False},
    "queries by projections of their own": {"pos_att_type": "p2c", "share_att_key": False},
    "neither": {"pos_att_type": ()},
    "no distances": {"relative_attention": False, "position_biased_input": True},
}


@pytest.mark.needs_torch
@pytest.mark.parametrize("name", sometimes(FORMS, "keys by projections of their own", "no distances"))
def test_each_form_of_debertas_attention_agrees_in_float64(name, tmp_path, rng, x64):
    changes = {key: list(value) if isinstance(value, tuple) else value for key, value in FORMS[name].items()}
    saved_by_torch("deberta-v2", architecture.TOKENS, tmp_path, **changes)
    model = bertjax.load(tmp_path, dtype="float64")
    reference = torch_reference.load_torch(model, tmp_path)
    rows = parity.compare(model, reference, arguments(model.config, rng))
    assert [row for row in rows if not row.passed] == []
    assert model.config.own != config_of("deberta-v2").own


@pytest.mark.parametrize("name", sometimes(FORMS, "keys by projections of their own", "no distances"))
def test_the_engine_equals_the_reference_for_deberta_attention(name, rng, x64):
    config = config_of("deberta-v2", **FORMS[name])
    model = random_model(BertModel, config, "float64")
    examples = encodings(config, rng, [3, 11, 1, 5])
    ablations = [*ab.single_heads(config), *ab.whole_layers(config, "zero")]
    found = engine.sweep(model, examples, ablations, sum_over_tokens, row_length=17, tokens_at_once=51)
    assert (
        largest_difference(found.outputs, reference_outputs(model, examples, ablations, sum_over_tokens))
        <= CLOSE["float64"]
    )


def test_compared_slots_of_windows():
    """256 queries with 64 tokens on either side in rows of 8192; short rows are not split."""
    everywhere, local = config_of("modernbert", local_attention=128).architecture.layers[:2]
    assert (everywhere.window, local.window) == (None, 64)
    assert packed_layer.compared_slots(8192, local) == 384
    assert packed_layer.compared_slots(8192, everywhere) == 8192
    assert packed_layer.compared_slots(8000, everywhere) == 8192  # blocks are filled up
    assert packed_layer.compared_slots(128, local) == packed_layer.compared_slots(128, everywhere) == 128
    assert [packed_layer.has_blocks(tokens, local) for tokens in (767, 768, 1025)] == [False, True, True]
    assert [packed_layer.has_blocks(tokens, everywhere) for tokens in (768, 1024, 1025)] == [False, False, True]
    for family in ("mpnet", "deberta-v2"):
        (kind,) = set(config_of(family).architecture.layers)
        assert not packed_layer.has_blocks(8192, kind)
        assert packed_layer.compared_slots(8192, kind) == 8192


@pytest.mark.slow
@pytest.mark.needs_torch
def test_long_texts_with_modernberts_window_agree_with_pytorch(tmp_path, rng, x64):
    """A window of 64 tokens on either side, in texts of up to 2,048 tokens, in the model and in the engine."""
    saved_by_torch(
        "modernbert", architecture.TOKENS, tmp_path, local_attention=128, max_position_embeddings=2048, num_labels=3
    )
    model = bertjax.load(tmp_path, dtype="float64")
    config, reference = model.config, torch_reference.load_torch(model, tmp_path)
    assert {kind.window for kind in config.architecture.layers} == {None, 64}
    assert all(packed_layer.has_blocks(2048, kind) for kind in config.architecture.layers)
    examples = encodings(config, rng, [2048, 777])
    batch = collate(examples)
    real = batch["attention_mask"].astype(bool)
    assert [row for row in parity.compare(model, reference, batch) if not row.passed] == []
    heads = [(layer, int(rng.integers(config.num_attention_heads))) for layer in range(config.num_hidden_layers)]
    cases = [(head, mode) for head in heads for mode in ("uniform", "zero")]
    ablations = [ab.ablation(config, [head], mode) for head, mode in cases]
    found = engine.sweep(model, examples, ablations, readouts.logits)
    for (head, mode), ours in zip(cases, found.outputs, strict=True):
        with torch_reference.overridden_head(reference, config, head, mode, real):
            theirs = torch_reference.run_torch(reference, batch).logits
        assert largest_difference(ours, theirs, real) < 1e-10, (head, mode)
        assert largest_difference(theirs, found.base, real) > 1e-4, (head, mode)
