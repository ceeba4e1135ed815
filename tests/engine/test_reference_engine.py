"""The sweep equals the reference, and the reference equals single runs."""

from dataclasses import replace

import numpy as np
import pytest

import bertjax
from bertjax import BertForSentenceEmbedding, BertForSequenceClassification, BertModel
from bertjax.engine import reference
from bertjax.errors import InputError, OverrideError
from bertjax.interventions import overrides as ov
from bertjax.interventions import readouts
from tests.tiny_models import arguments, largest_difference, random_model

CLOSE = 2e-5  # float32 logits of size 1 to 10 through four layers


@pytest.fixture
def job(config, rng):
    """A classifier, five examples in two batches of other order (one index twice), and overrides of many kinds."""
    model, call = (
        random_model(BertForSequenceClassification, config),
        arguments(config, rng, batch=5, tokens=8),
    )
    rows = [(3, 0), (1, 4), (2, 2)]
    batches = [(indices, {name: value[list(indices)] for name, value in call.items()}) for indices in rows]
    last = config.num_hidden_layers - 1
    several = [
        *(ov.uniform(config, [head]) for head in ov.every_head(config)),
        ov.zero(config, ov.heads_of_layer(config, last)),
        ov.identity(config),
        ov.forbidden_edges(config, [(last, 0, 0, 1)]),
    ]
    return model, call, batches, several


@pytest.mark.parametrize("chunk_size", [1, 2, None])
def test_a_sweep_is_a_loop_of_single_runs(job, chunk_size):
    model, call, batches, several = job
    swept = reference.sweep(model, batches, several, readouts.logits, chunk_size=chunk_size)
    assert largest_difference(swept.base, model(**call).logits) < CLOSE
    for one, found in zip(several, swept.outputs, strict=True):
        assert largest_difference(found, model(**call, overrides=one).logits) < CLOSE


def test_the_reference_is_a_loop_of_single_runs(small, rng):
    model, call = random_model(BertForSequenceClassification, small), arguments(small, rng)
    several = [ov.uniform(small, ["0.1"]), ov.zero(small, ["1.2"]), ov.identity(small)]
    found = reference.run(model, model.inputs(**call), ov.stack(several), readouts.logits)
    for one, outputs in zip(several, found, strict=True):
        assert largest_difference(outputs, model(**call, overrides=one).logits) < CLOSE


def test_all_144_heads_of_a_12_by_12_model_run_in_one_call(rng):
    from bertjax import BertConfig

    sizes = {"vocab_size": 11, "hidden_size": 24, "intermediate_size": 5, "max_position_embeddings": 8}
    config = BertConfig(**sizes)
    model, call = random_model(BertModel, config), arguments(config, rng, batch=3, tokens=4)
    stacked = ov.stack([ov.uniform(config, [head]) for head in ov.every_head(config)])
    found = reference.run(model, model.inputs(**call), stacked, _pooled)
    assert found.shape == (144, 3, 24)
    assert largest_difference(found[37], model(**call, overrides=ov.uniform(config, ["3.1"])).pooler_output) < CLOSE


def _pooled(output):
    return output.pooler_output


def _state_of_first(output):
    return output.last_hidden_state[:, 0]


def test_progress_counts_the_runs_of_each_example(job):
    model, _, batches, several = job
    reports = []
    reference.sweep(model, batches, several, readouts.logits, progress=lambda *work: reports.append(work))
    assert reports == sorted(reports)
    assert reports[-1] == (6.0 * (len(several) + 1),) * 2


def test_mean_head_outputs_are_means_over_real_tokens(small, rng):
    model, call = random_model(BertModel, small), arguments(small, rng)
    outputs, real = np.asarray(model(**call).record.head_outputs), call["attention_mask"].astype(bool)
    expected = outputs[:, real].mean(axis=1)
    parts = [
        {name: value[:1] for name, value in call.items()},
        {name: value[1:] for name, value in call.items()},
    ]
    assert largest_difference(bertjax.mean_head_outputs(model, parts), expected) < 1e-6


def test_readouts_that_a_model_does_not_have_are_refused(small, rng):
    call = arguments(small, rng)
    with pytest.raises(InputError, match="no logits"):
        reference.sweep(BertModel(small), [(range(4), call)], [ov.identity(small)], readouts.logits)
    with pytest.raises(InputError, match="BertForSentenceEmbedding"):
        reference.sweep(BertModel(small), [(range(4), call)], [ov.identity(small)], readouts.sentence_embedding)


def _embeddings_output(output):
    return output.hidden_states[0]


def test_what_a_sweep_cannot_do_is_refused(small, rng):
    model, call = random_model(BertModel, small), arguments(small, rng)
    batches = [(range(4), call)]
    with pytest.raises(InputError, match="call the model instead"):
        reference.sweep(model, batches, [ov.identity(small)], _embeddings_output)
    for single in (
        ov.fixed_edges(small, {(0, 0, 0, 0): 0.5}, example=0),
        ov.patched_weights(small, ["0.0"], model(**call)),
        ov.patched_outputs(small, ["0.0"], model(**call)),
    ):
        with pytest.raises(OverrideError, match=r"reference\.run on one batch"):
            reference.sweep(model, batches, [single], _pooled)
    deeper = random_model(BertModel, replace(small, num_hidden_layers=3))
    for run in (
        lambda: reference.sweep(deeper, batches, [ov.identity(small)], _pooled),
        lambda: reference.run(deeper, deeper.inputs(**call), ov.stack([ov.identity(small)] * 2), _pooled),
    ):
        with pytest.raises(OverrideError, match=r"\(2, 3\), but the model has \(3, 3\)"):
            run()


def test_outputs_that_are_not_finite_stop_a_sweep_at_once(small, rng):
    model = random_model(BertModel, small)
    scale = model.encoder.layers[-1].output_norm.scale
    scale[...] = np.full(scale[...].shape, 3e38, np.float32)  # finite, and products with it are not
    with pytest.raises(InputError, match="not finite"):
        reference.sweep(
            model,
            [(range(4), arguments(small, rng))],
            [ov.identity(small)],
            lambda output: output.last_hidden_state[:, 0],
        )


def test_a_sentence_vector_is_the_normalised_mean_of_real_tokens(small, rng):
    call = arguments(small, rng)
    model = random_model(BertForSentenceEmbedding, small)
    output, mask = model(**call), call["attention_mask"][..., None]
    mean = (np.asarray(output.last_hidden_state) * mask).sum(1) / mask.sum(1)
    expected = mean / np.linalg.norm(mean, axis=-1, keepdims=True)
    assert largest_difference(output.sentence_embedding, expected) < 1e-6
    raw = random_model(BertForSentenceEmbedding, small, pooling="cls", normalize=False)(**call)
    assert np.array_equal(raw.sentence_embedding, raw.last_hidden_state[:, 0])
