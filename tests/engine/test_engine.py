"""The engine equals the reference, whatever the model, the plan, the packing and the size of its steps."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bertjax
from bertjax import (
    BertConfig,
    BertForPreTraining,
    BertModel,
)
from bertjax.engine import run as engine
from bertjax.engine.reference import SweepResult
from bertjax.engine.sizes import Blocks, choose_blocks
from bertjax.errors import InputError, OverrideError
from bertjax.interventions import MODES, readouts
from bertjax.interventions import ablations as ab
from bertjax.interventions.readouts import inspect_readout
from tests.engine_checks import CLOSE, READOUTS, change_of, change_sets, draw_spans, model_of, reference_outputs
from tests.tiny_models import SIZES, encodings, fixed_lengths, largest_difference, random_model


def _state_of_first(output):
    return output.last_hidden_state[:, 0]


@pytest.mark.integration
@settings(max_examples=5, deadline=None)
@given(st.data())
def test_the_engine_equals_the_reference(data):
    check_engine_equals_reference(data)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_the_engine_equals_the_reference_a_hundred_times(data):
    check_engine_equals_reference(data)


def check_engine_equals_reference(data):
    """Any model, plan, packing and size of steps."""
    size, name = data.draw(st.sampled_from(sorted(SIZES))), data.draw(st.sampled_from(sorted(READOUTS)))
    dtype = data.draw(st.sampled_from(sorted(CLOSE)))
    with jax.enable_x64(dtype == "float64"):
        model = model_of(size, name, dtype)
        rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
        lengths = data.draw(st.lists(st.integers(1, 11), min_size=1, max_size=7))
        examples = encodings(model.config, rng, lengths)
        spans = draw_spans(rng, lengths) if data.draw(st.booleans()) else None
        ablations = [
            ab.Ablation(str(number), tuple(change_of(*where, *how) for where, how in one.items()))
            for number, one in enumerate(data.draw(change_sets(model.config, 0 if spans is None else 3)))
        ]
        shape = (model.config.num_hidden_layers, model.config.num_attention_heads, model.config.head_dim)
        means = rng.normal(size=shape).astype(model.numerics.wide)
        sources = encodings(model.config, rng, lengths)
        found = engine.sweep(
            model,
            examples,
            ablations,
            READOUTS[name][1],
            means=means,
            sources=sources,
            spans=spans,
            row_length=data.draw(st.sampled_from([11, 16, 24])),
            one_per_row=data.draw(st.booleans()),
            tokens_at_once=data.draw(st.sampled_from([1, 48, 96])),
        )
        expected = reference_outputs(model, examples, ablations, READOUTS[name][1], means, sources, spans)
    assert largest_difference(found.outputs, expected) <= CLOSE[dtype]


@pytest.mark.parametrize(
    ("name", "modes"),
    [*(("logits", [mode]) for mode in sorted(MODES)), *((name, sorted(MODES)) for name in sorted(READOUTS))],
)
def test_all_heads_and_layers_in_every_mode_and_readout(small, rng, name, modes):
    model = model_of("three heads", name, "float32")
    examples = encodings(small, rng, [3, 9, 1, 5, 5, 2])
    ablations = [one for mode in modes for one in (*ab.single_heads(small, mode), *ab.whole_layers(small, mode))]
    ablations.append(ab.Ablation("base", ()))
    means = rng.normal(size=(2, 3, 4)).astype(np.float32)
    sources = encodings(small, rng, [3, 9, 1, 5, 5, 2])
    options = {"means": means, "sources": sources, "row_length": 16, "tokens_at_once": 48}
    found = engine.sweep(model, examples, ablations, READOUTS[name][1], **options)
    expected = reference_outputs(model, examples, ablations, READOUTS[name][1], means, sources)
    assert largest_difference(found.outputs, expected) < CLOSE["float32"]
    assert np.array_equal(found.base, found.outputs[-1])
    assert all(largest_difference(outputs, found.base) > 1e-4 for outputs in found.outputs[:-1])


@pytest.mark.parametrize("name", sorted(READOUTS))
def test_bfloat16_is_near_float32(small, rng, name):
    examples, ablations = encodings(small, rng, [3, 9, 1, 5]), ab.single_heads(small)
    exact, coarse = (
        engine.sweep(model_of("three heads", name, dtype), examples, ablations, READOUTS[name][1], row_length=12)
        for dtype in ("float32", "bfloat16")
    )
    apart = largest_difference(exact.outputs, coarse.outputs) / np.abs(exact.outputs).max()
    assert 1e-5 < apart < 0.1


def test_order_packing_and_step_size_change_only_rounding(small, rng):
    model = model_of("three heads", "logits", "float32")
    examples = encodings(small, rng, fixed_lengths(1, 10, 20))
    ablations = [*ab.single_heads(small), *ab.head_pairs(small, "zero")]
    first = engine.sweep(model, examples, ablations, readouts.logits)
    order = rng.permutation(20)
    second = engine.sweep(
        model, [examples[i] for i in order], ablations[::-1], readouts.logits, row_length=19, tokens_at_once=60
    )
    assert largest_difference(first.outputs[::-1][:, order], second.outputs) < CLOSE["float32"]
    again = engine.sweep(model, examples, ablations, readouts.logits)
    assert np.array_equal(first.outputs, again.outputs)


def test_only_readouts_of_cls_are_computed_at_cls_alone():
    expected = {"logits": True, "pooled": True, "mean": False, "cls": True, "words": False, "hidden": False}
    for name, alone in expected.items():
        assert inspect_readout(model_of("three heads", name, "float32"), READOUTS[name][1], 5).first_only == alone
    both = random_model(BertForPreTraining, BertConfig(**SIZES["three heads"]))
    assert inspect_readout(both, lambda output: output.seq_relationship_logits, 5).first_only
    assert not inspect_readout(both, lambda output: output.prediction_logits[:, 0], 5).first_only
    assert not inspect_readout(both, lambda output: output.pooler_output + output.logits[:, 0, :12], 5).first_only


def test_blocks_hold_whole_layers_of_heads_and_waste_no_rows():
    assert choose_blocks(1000, 128, 16, 1536) == Blocks(rows=2, runs=8)
    assert choose_blocks(175, 128, 12, 65536) == Blocks(rows=35, runs=12)
    assert choose_blocks(3, 512, 12, 256) == Blocks(rows=1, runs=1)


def test_progress_counts_every_layer_of_every_run_on_every_chunk(small, rng):
    reports = []
    examples = encodings(small, rng, [7] * 5)
    model = model_of("three heads", "logits", "float32")
    sizes = {"row_length": 8, "tokens_at_once": 24}
    engine.sweep(
        model, examples, ab.single_heads(small), readouts.logits, **sizes, progress=lambda *both: reports.append(both)
    )
    work = 5 * (1 + 3 + 1 + 3 + 3)  # a chunk for each example; the base and three heads, then three heads more
    assert [total for _, total in reports] == [work] * len(reports)
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)
    assert reports[0][0] == 0
    assert reports[-1][0] == work


@pytest.mark.parametrize("name", ["logits", "hidden"])
def test_every_form_of_attention_gives_the_same(small, rng, name):
    cls, readout, options = READOUTS[name]
    models = {form: random_model(cls, small, attention=form, **options) for form in ("explicit", "fused", "pallas")}
    examples = encodings(small, rng, [5, 9, 2, 16, 7])
    heads = [
        *ab.single_heads(small, "uniform"),
        *ab.whole_layers(small, "zero"),
        ab.ablation(small, ["0.1"], "patched"),
    ]
    sources = encodings(small, rng, [5, 9, 2, 16, 7])
    settings = {"readout": readout, "sources": sources, "row_length": 16, "progress": False}
    explicit = engine.sweep(models["explicit"], examples, heads, **settings)
    assert explicit.attention == "explicit"
    for form in ("fused", "pallas"):
        swept = engine.sweep(models["explicit"], examples, heads, attention=form, **settings)
        from_model = engine.sweep(models[form], examples, heads, **settings)
        assert (swept.attention, from_model.attention) == (form, form)
        assert (swept.outputs == from_model.outputs).all()
        assert 0 < largest_difference(swept.outputs, explicit.outputs) < 1e-5
    assert engine.sweep(models["pallas"], examples, heads, attention="explicit", **settings).attention == "explicit"
    with pytest.raises(InputError, match="attention 'flash' is not one of explicit, fused, pallas"):
        engine.sweep(models["explicit"], examples, heads, attention="flash", **settings)


def test_what_cannot_be_swept_is_refused(small, rng):
    model, examples = model_of("three heads", "logits", "float32"), encodings(small, rng, [3, 5])
    with pytest.raises(InputError, match=r"20 tokens, .* max_position_embeddings 19: truncate .* --max-length 19"):
        engine.sweep(model, encodings(small, rng, [20]), ab.single_heads(small), readouts.logits)
    wrong = replace(examples[0], input_ids=(1, 41, 2))
    with pytest.raises(InputError, match="41, outside 0 to 40"):
        engine.sweep(model, [wrong], ab.single_heads(small), readouts.logits)


def test_outputs_that_are_not_finite_stop_a_sweep(small, rng):
    model = random_model(BertModel, small)
    scale = model.encoder.layers[-1].output_norm.scale
    scale[...] = np.full(scale[...].shape, 3e38, np.float32)  # finite, and products with it are not
    with pytest.raises(InputError, match="not finite"):
        engine.sweep(
            model, encodings(small, rng, [3, 5]), ab.single_heads(small), lambda output: output.last_hidden_state[:, 0]
        )


def test_an_example_of_two_texts_gives_one_output(small, rng):
    model = model_of("three heads", "mean", "float32")
    first, second = encodings(small, rng, fixed_lengths(1, 8, 9)), encodings(small, rng, fixed_lengths(1, 8, 9)[::-1])
    ablations = ab.single_heads(small)
    found = engine.sweep(
        model,
        list(zip(first, second, strict=True)),
        ablations,
        readouts.sentence_embedding,
        combine=lambda left, right: (left * right).sum(-1),
        row_length=17,
        tokens_at_once=51,
    )
    apart = [reference_outputs(model, texts, ablations, readouts.sentence_embedding) for texts in (first, second)]
    assert found.base.shape == (9,)
    assert largest_difference(found.outputs, (apart[0] * apart[1]).sum(-1)) < CLOSE["float32"]


def test_a_source_equal_to_its_example_changes_nothing(small, rng):
    model = model_of("three heads", "mean", "float32")
    examples = encodings(small, rng, fixed_lengths(1, 9, 11))
    ablations = [*ab.single_heads(small, "patched"), *ab.whole_layers(small, "patched")]
    options = {"row_length": 17, "tokens_at_once": 51}
    same = engine.sweep(model, examples, ablations, readouts.sentence_embedding, sources=examples, **options)
    assert largest_difference(same.outputs, np.broadcast_to(same.base, same.outputs.shape)) < CLOSE["float32"]
    others = encodings(small, rng, [len(one) for one in examples])
    other = engine.sweep(model, examples, ablations, readouts.sentence_embedding, sources=others, **options)
    assert largest_difference(other.outputs, same.outputs) > 1e-2


def test_readouts_at_chosen_tokens(small, rng):
    model = model_of("three heads", "words", "float32")
    examples, ablations = encodings(small, rng, [3, 9, 4, 5, 7]), ab.single_heads(small)
    at = [sorted(rng.choice(len(one), 2, replace=False).tolist()) for one in examples]
    found = engine.sweep(model, examples, ablations, readouts.logits, at=at, row_length=12, tokens_at_once=36)
    assert found.outputs.shape == (6, 5, 2, small.vocab_size)
    expected = reference_outputs(model, examples, ablations, readouts.logits)
    chosen = np.stack([np.asarray(expected)[:, number, places] for number, places in enumerate(at)], axis=1)
    assert largest_difference(found.outputs, chosen) < CLOSE["float32"]


@pytest.mark.parametrize("shape", [(2, 3, 1), (2, 1, 4), (1, 3, 4)])
def test_means_of_another_shape_are_refused(small, rng, shape):
    model, examples = model_of("three heads", "logits", "float32"), encodings(small, rng, [3, 4])
    heads = ab.single_heads(small, "mean")
    with pytest.raises(OverrideError, match="expected"):
        engine.sweep(model, examples, heads, readouts.logits, means=np.zeros(shape, np.float32))
    with pytest.raises(OverrideError, match="not finite"):
        engine.sweep(model, examples, heads, readouts.logits, means=np.full((2, 3, 4), np.nan, np.float32))


def test_positions_may_be_an_array(small, rng):
    model, examples = model_of("three heads", "words", "float32"), encodings(small, rng, [3, 4])
    heads = ab.single_heads(small)[:2]
    found = [
        engine.sweep(model, examples, heads, readouts.logits, at=at)
        for at in ([[0, 2], [0, 2]], np.array([[0, 2]] * 2))
    ]
    assert np.array_equal(found[0].outputs, found[1].outputs)


def test_sources_and_positions_that_do_not_fit_are_refused(small, rng):
    model, heads = model_of("three heads", "words", "float32"), ab.single_heads(small, "patched")
    examples = encodings(small, rng, [3, 9, 4])
    with pytest.raises(InputError, match=r"source 1 has \[4\] tokens, its example \[9\]"):
        engine.sweep(model, examples, heads, readouts.logits, sources=[examples[0], examples[2], examples[2]])
    uniform = ab.single_heads(small)
    for at, message in (([[0], [1]], "same number"), ([[0], [1], [2, 3]], "same number"), ([[], [], []], "at least")):
        with pytest.raises(InputError, match=message):
            engine.sweep(model, examples, uniform, readouts.logits, at=at)
    with pytest.raises(InputError, match="pooler_output, which single tokens do not have"):
        engine.sweep(random_model(BertModel, small), examples, uniform, readouts.pooled, at=[[0], [1], [1]])
    pairs = [(one, one) for one in examples]
    with pytest.raises(InputError, match="of a single text"):
        engine.sweep(model, pairs, uniform, readouts.logits, at=[[0], [1], [1]], combine=np.subtract)


def test_modes_that_the_engine_lacks_name_the_form_that_has_them():
    with pytest.raises(InputError, match="--engine reference"):
        ab.Change(0, 0, "fixed")


def test_a_sweep_is_a_data_frame(small, rng):
    several = [*ab.single_heads(small)[:2], ab.ablation(small, ["1.2", "0.1"], name="both")]
    outputs = rng.normal(size=(3, 5, 2)).astype(np.float32)
    found = SweepResult(outputs[0], outputs, tuple(several), "explicit", 1.0)
    frame = found.to_pandas()
    assert list(frame.columns) == ["ablation", "heads", "example", "base_0", "base_1", "output_0", "output_1"]
    assert frame.heads.unique().tolist() == ["L0H0", "L0H1", "L0H1 L1H2"]
    one = frame[(frame.ablation == "both") & (frame.example == 3)]
    assert one[["output_0", "output_1"]].to_numpy().tolist() == [outputs[2, 3].tolist()]
    assert one[["base_0", "base_1"]].to_numpy().tolist() == [outputs[0, 3].tolist()]
    values = replace(found, base=outputs[0, :, 0], outputs=outputs[..., 0]).to_pandas()
    assert list(values.columns) == ["ablation", "heads", "example", "base", "output"]
    assert (
        values.pivot(index="ablation", columns="example", values="output").loc["L0H1"].tolist()
        == outputs[1, :, 0].tolist()
    )


def test_a_sweep_changes_no_setting_of_jax(small, rng):
    model, examples = model_of("three heads", "logits", "float32"), encodings(small, rng, [3, 9])
    directory = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", None)  # as users have it
    try:
        before = dict(jax.config.values)
        bertjax.sweep(model, examples, ab.single_heads(small), READOUTS["logits"][1], progress=False)
        bertjax.plan_sweep(model, examples, ab.single_heads(small), READOUTS["logits"][1])
        assert dict(jax.config.values) == before
    finally:
        jax.config.update("jax_compilation_cache_dir", directory)


def test_more_texts_compile_nothing_more(rng, caplog):
    """The size of programs is that of a step, for any number of rows."""
    model = model_of("three heads", "logits", "float32")

    def run(count, row_length=10):
        texts = encodings(model.config, rng, [9] * count)
        options = {"row_length": row_length, "tokens_at_once": 60}
        return engine.sweep(model, texts, ab.single_heads(model.config), readouts.logits, **options).outputs

    assert run(12).shape[1] == 12
    with jax.log_compiles():
        run(24)
        assert [record.message for record in caplog.records if "Compiling" in record.message] == []
        run(24, row_length=14)  # in no other test
    assert [record.message for record in caplog.records if "Compiling jit(embed)" in record.message]
