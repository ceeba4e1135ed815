"""Each family against transformers: components, heads and checkpoints both ways."""

import json
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

import bertjax
from bertjax.checkpoints import FAMILIES, architecture
from bertjax.errors import CheckpointError, InputError
from bertjax.jobs import parity, torch_reference
from bertjax.models.task_models import CLASSES
from tests.family_models import DISTINCT, FEW, HEADS, arguments, config_of, saved_by_torch, sometimes
from tests.tiny_models import random_model

pytestmark = pytest.mark.needs_torch


def load_without_warnings(directory: Path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return bertjax.load(directory, **options)


MANY = [(family, task, size) for family, task in HEADS for size in (0, 1)]


def test_the_few_cases_cover_every_family_head_and_size():
    assert set(FEW) <= set(MANY)
    assert {family for family, _, _ in FEW} == set(FAMILIES)
    assert {task for _, task, _ in FEW} == {task for _, task in HEADS}
    assert {(family, size) for family, _, size in FEW} >= {(family, size) for family in DISTINCT for size in (0, 1)}
    plans = {config_of(family, size).architecture.heads.get(task) for family, task, size in FEW}
    assert {plan.reads for plan in plans if plan} == {"pooler", "cls", "mean", "tokens"}


def _of_first_token(model):
    """Components that read the first token, which is padding if padding is on the left."""
    plan = model.config.architecture.heads.get(model.task)
    from_first = plan is not None and plan.reads in ("cls", "pooler")
    return {"pooler", "next-sentence logits", *(["logits"] if from_first else [])}


@pytest.mark.parametrize(
    ("family", "task", "size"),
    [case if case in FEW else pytest.param(*case, marks=pytest.mark.slow) for case in MANY],
)
def test_every_component_and_head_agrees_in_float64(family, task, size, tmp_path, rng, x64):
    saved_by_torch(family, task, tmp_path, size, seed=int(rng.integers(2**31)))
    model = load_without_warnings(tmp_path, dtype="float64")
    assert (type(model), model.config.model_type) == (CLASSES[task], family)
    reference = torch_reference.load_torch(model, tmp_path)
    for left in (True, False):
        rows = parity.compare(model, reference, arguments(model.config, rng, left=left))
        assert all(row.tolerance == 1e-10 for row in rows)
        exempt = _of_first_token(model) if left else ()
        assert [row for row in rows if not row.passed and row.component not in exempt] == []
    heads = {architecture.BODY: model.body.pooler is not None, architecture.ANSWERS: 2, architecture.PRETRAINING: 2}
    with_pooler = task not in heads and "pooler_output" in torch_reference.run_torch(
        reference, _call_arguments(task, rng, model)
    )
    assert len(rows) == 1 + 2 * model.config.num_hidden_layers + int(heads.get(task, 1)) + with_pooler


def _call_arguments(task, rng, model):
    inputs = arguments(model.config, rng)
    return {name: array[:, None] for name, array in inputs.items()} if task == architecture.CHOICE else inputs


ROUNDED = [(family, architecture.SEQUENCE, size) for family in ("deberta-v2", "modernbert") for size in (0, 1)]


@pytest.mark.parametrize(
    ("family", "task", "size"),
    [*ROUNDED, *(pytest.param(*case, marks=pytest.mark.slow) for case in MANY if case not in ROUNDED)],
)
def test_float32_agrees_up_to_rounding(family, task, size, tmp_path):
    seed = 5 + size  # the bound depends on the size of the weights
    saved_by_torch(family, task, tmp_path, size, seed=seed)
    model = load_without_warnings(tmp_path)
    reference = torch_reference.load_torch(model, tmp_path)
    rows = parity.compare(model, reference, arguments(model.config, np.random.default_rng(seed)))
    assert [row for row in rows if not row.passed] == []


SAVED = {(family, task) for family, task, _ in FEW}


@pytest.mark.parametrize(
    ("family", "task"),
    [case if case in SAVED else pytest.param(*case, marks=pytest.mark.slow) for case in HEADS],
)
def test_saved_models_give_the_same_outputs_in_transformers(family, task, tmp_path, rng):
    import torch

    saved_by_torch(family, task, tmp_path / "theirs")
    model = load_without_warnings(tmp_path / "theirs")
    first = torch_reference.load_torch(model, tmp_path / "theirs")
    model.save_pretrained(tmp_path / "ours")
    second, report = type(first).from_pretrained(
        tmp_path / "ours", attn_implementation="eager", output_loading_info=True
    )
    assert not any(report.values())
    inputs = _call_arguments(task, rng, model)
    outputs = [torch_reference.run_torch(reference.eval(), inputs)[0] for reference in (first, second)]
    assert torch.equal(*outputs)
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["architectures"] == [type(first).__name__]


@pytest.mark.parametrize("family", sometimes(DISTINCT, "roberta", "electra", "modernbert"))
def test_untied_decoders_are_kept_and_tied_ones_may_be_saved(family, tmp_path, rng, x64):
    saved_by_torch(family, architecture.WORDS, tmp_path / "untied", tie_word_embeddings=False)
    model = load_without_warnings(tmp_path / "untied", dtype="float64")
    assert model.predictions.decoder is not None
    reference = torch_reference.load_torch(model, tmp_path / "untied")
    rows = parity.compare(model, reference, arguments(model.config, rng))
    assert [row for row in rows if not row.passed] == []
    model.save_pretrained(tmp_path / "again")
    again = load_without_warnings(tmp_path / "again", dtype="float64")
    assert np.array_equal(again.predictions.decoder[...], model.predictions.decoder[...])


@pytest.mark.parametrize(
    ("family", "missing"),
    [
        ("bert", "BERT: no bert.embeddings"),
        ("roberta", "RoBERTa: no roberta.embeddings"),
        ("xlm-roberta", "XLM-R: no roberta.embeddings"),
        ("camembert", "CamemBERT: no roberta.embeddings"),
        ("distilbert", "DistilBERT: no distilbert.embeddings"),
        ("electra", "ELECTRA: no electra.embeddings"),
        ("mpnet", "MPNet: no mpnet.embeddings"),
        ("albert", "ALBERT: no albert.embeddings"),
        ("deberta-v2", "DeBERTa-v2 or -v3: no deberta.embeddings"),
        ("modernbert", "ModernBERT: no model.embeddings"),
    ],
)
def test_another_familys_weights_are_refused(family, missing, tmp_path):
    other = "electra" if family != "electra" else "bert"
    saved_by_torch(other, architecture.TOKENS, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config_of(family).to_dict()))
    message = rf"these are not weights of {missing}\.\*, found {other}\., classifier\.$"
    with pytest.raises(CheckpointError, match=message):
        bertjax.load(tmp_path)


def test_positions_of_roberta_count_tokens_that_are_not_padding(rng):
    """The first token has position 2 and padding 1, for any mask."""
    model = random_model(bertjax.BertModel, config_of("roberta"))
    ids = np.array([[5, 1, 6, 1, 1], [1, 1, 7, 8, 9]])
    expected = [[2, 1, 3, 1, 1], [1, 1, 2, 3, 4]]
    assert model.inputs(ids, np.ones_like(ids)).position_ids.tolist() == expected
    assert model.config.max_tokens == 19
    with pytest.raises(
        InputError,
        match=r"20 tokens, .* max_position_embeddings 21, which are 19 tokens: .* max_length=19 of",
    ):
        model(rng.integers(3, 41, (1, 20)))


def test_microsofts_masked_lm_head_is_read(tmp_path):
    """transformers reads this name if the config has `legacy: false`, and computes the same."""
    saved_by_torch("deberta-v2", architecture.WORDS, tmp_path, legacy=False)
    model = load_without_warnings(tmp_path)
    reference = torch_reference.load_torch(model, tmp_path)
    assert any("lm_predictions" in name for name in reference.state_dict())
    rows = parity.compare(model, reference, arguments(model.config, np.random.default_rng(0)))
    assert [row for row in rows if not row.passed] == []


def test_heads_of_albert_are_applications(rng):
    """A gate of one application does not affect other applications of the same parameters."""
    config = config_of("albert", 1)
    assert (config.num_hidden_layers, config.parameter_sets) == (6, 2)
    assert config.architecture.parameters_of == (0, 1, 0, 1, 0, 1)
    model, batch = random_model(bertjax.BertModel, config), arguments(config, rng)
    inputs = model.inputs(**batch)

    def total(gates):
        return model.forward(inputs, bertjax.overrides.factor(config, gates)).last_hidden_state[:, 0].sum()

    gradient = np.asarray(jax.jit(jax.grad(total))(np.ones((6, 5), np.float32)))
    assert np.isfinite(gradient).all()
    assert (np.abs(gradient) > 1e-6).all()
    assert len({round(float(value), 6) for value in gradient.ravel()}) == gradient.size
    changed = model(**batch, overrides=bertjax.overrides.zero(config, ["2.1"]))
    same = model(**batch)
    assert np.array_equal(changed.hidden_states[2], same.hidden_states[2])
    assert not np.array_equal(changed.hidden_states[3], same.hidden_states[3])


@pytest.mark.parametrize(
    ("family", "what"),
    [("modernbert", "windows"), ("mpnet", "scores by distance"), ("deberta-v2", "scores by distance")],
)
def test_unsupported_features_of_pallas_are_refused_by_name(family, what):
    with pytest.raises(InputError, match=f"'pallas' does not support the {what} of {FAMILIES[family].name}"):
        random_model(bertjax.BertModel, config_of(family), attention="pallas")


@pytest.mark.parametrize(
    ("family", "form"), [("roberta", "pallas"), ("mpnet", "fused"), ("deberta-v2", "fused"), ("modernbert", "fused")]
)
def test_all_attention_implementations_agree(family, form, rng):
    config = config_of(family)
    explicit, other = (random_model(bertjax.BertModel, config, attention=which) for which in ("explicit", form))
    inputs = arguments(config, rng)
    change = bertjax.overrides.uniform(config, ["1.2", "0.0"], gate=0.3)
    first, second = (np.asarray(model(**inputs, overrides=change).last_hidden_state) for model in (explicit, other))
    assert np.abs(first - second)[inputs["attention_mask"].astype(bool)].max() < 2e-5
