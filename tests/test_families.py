"""Each family against transformers: components, heads, overrides, checkpoints both ways; and its config, key by key."""

import json
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

import bertjax
from bertjax import BertConfig
from bertjax.checkpoints import FAMILIES, architecture
from bertjax.errors import CheckpointError, ConfigError, InputError
from bertjax.model.models import CLASSES
from bertjax.study import parity, torch_reference
from tests.families import DISTINCT, HEADS, SIZES, arguments, config_of, saved_by_torch, sometimes
from tests.tiny import random_model

pytestmark = pytest.mark.needs_torch


def load_without_warnings(directory: Path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return bertjax.load(directory, **options)


# A fifth of all families, heads and sizes; each family and each head is among them.
MANY = [(family, task, size) for family, task in HEADS for size in (0, 1)]
FEW = MANY[::5]


@pytest.mark.parametrize(
    ("family", "task", "size"),
    [case if case in FEW else pytest.param(*case, marks=pytest.mark.slow) for case in MANY],
)
def test_every_component_and_head_agrees_in_float64(family, task, size, tmp_path, rng, x64):
    saved_by_torch(family, task, tmp_path, size, seed=int(rng.integers(2**31)))
    model = load_without_warnings(tmp_path, dtype="float64")
    assert (type(model), model.config.model_type) == (CLASSES[task], family)
    reference = torch_reference.load_torch(model, tmp_path)
    for left in (
        True,
        False,
    ):  # with padding on the left the first token is no [CLS], and heads of that are not compared
        rows = parity.compare(model, reference, arguments(model.config, rng, left=left))
        assert all(row.tolerance == 1e-10 for row in rows)
        failed = [row for row in rows if not row.passed]
        assert [row for row in failed if not left or row.component.startswith(("embeddings", "layer"))] == []
    heads = {architecture.BODY: model.body.pooler is not None, architecture.ANSWERS: 2, architecture.PRETRAINING: 2}
    with_pooler = task not in heads and "pooler_output" in torch_reference.run_torch(
        reference, _as_given(task, rng, model)
    )
    assert len(rows) == 1 + 2 * model.config.num_hidden_layers + int(heads.get(task, 1)) + with_pooler


def _as_given(task, rng, model):
    given = arguments(model.config, rng)
    return {name: array[:, None] for name, array in given.items()} if task == architecture.CHOICE else given


@pytest.mark.parametrize("family", sometimes(DISTINCT, "deberta-v2", "modernbert"))
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_float32_is_as_near_as_rounding(family, seed, tmp_path):
    saved_by_torch(family, architecture.SEQUENCE, tmp_path, seed=seed)
    model = load_without_warnings(tmp_path)
    reference = torch_reference.load_torch(model, tmp_path)
    rows = parity.compare(model, reference, arguments(model.config, np.random.default_rng(seed)))
    assert [row for row in rows if not row.passed] == []


@pytest.mark.parametrize("family", sometimes(DISTINCT, "albert", "mpnet", "deberta-v2", "modernbert"))
@pytest.mark.parametrize("mode", ["uniform", pytest.param("zero", marks=pytest.mark.slow)])
def test_every_heads_overrides_agree_in_float64(family, mode, tmp_path, rng, x64):
    saved_by_torch(family, architecture.TOKENS, tmp_path)
    model = load_without_warnings(tmp_path, dtype="float64")
    reference = torch_reference.load_torch(model, tmp_path)
    rows = parity.compare_overrides(model, reference, arguments(model.config, rng), mode)
    assert len(rows) == model.config.num_hidden_layers * model.config.num_attention_heads
    assert [row for row in rows if not row.passed] == []


@pytest.mark.parametrize(
    ("family", "task"), [case if case in HEADS[::3] else pytest.param(*case, marks=pytest.mark.slow) for case in HEADS]
)
def test_what_is_saved_loads_in_transformers_with_the_same_outputs(family, task, tmp_path, rng):
    import torch

    saved_by_torch(family, task, tmp_path / "theirs")
    model = load_without_warnings(tmp_path / "theirs")
    first = torch_reference.load_torch(model, tmp_path / "theirs")
    model.save_pretrained(tmp_path / "ours")
    second, report = type(first).from_pretrained(
        tmp_path / "ours", attn_implementation="eager", output_loading_info=True
    )
    assert not any(report.values())
    given = _as_given(task, rng, model)
    outputs = [torch_reference.run_torch(reference.eval(), given)[0] for reference in (first, second)]
    assert torch.equal(*outputs)
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["architectures"] == [type(first).__name__]


@pytest.mark.parametrize("family", sometimes(DISTINCT, "roberta", "electra", "modernbert"))
def test_an_untied_decoder_is_kept_and_a_tied_one_may_be_in_the_file(family, tmp_path, rng):
    saved_by_torch(family, architecture.WORDS, tmp_path / "untied", tie_word_embeddings=False)
    model = load_without_warnings(tmp_path / "untied")
    assert model.predictions.decoder is not None
    reference = torch_reference.load_torch(model, tmp_path / "untied")
    rows = parity.compare(model, reference, arguments(model.config, rng))
    assert [row for row in rows if not row.passed] == []
    model.save_pretrained(tmp_path / "again")
    again = load_without_warnings(tmp_path / "again")
    assert np.array_equal(again.predictions.decoder[...], model.predictions.decoder[...])


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_family_without_a_head_says_which_it_has(family):
    config = config_of(family)
    for task, cls in CLASSES.items():
        if task not in FAMILIES[family].heads:
            with pytest.raises(ConfigError, match=f"no head for {task}; it has those for "):
                cls(config)


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("size", [0, 1])
def test_a_config_goes_both_ways(family, size):
    import transformers

    theirs = transformers.AutoConfig.for_model(family, **SIZES[family][size])
    ours = BertConfig.from_dict(theirs.to_dict())
    assert ours == config_of(family, size)
    assert BertConfig.from_dict(json.loads(json.dumps(ours.to_dict()))) == ours
    back = type(theirs).from_dict(ours.to_dict())
    assert BertConfig.from_dict(back.to_dict()) == ours
    assert hash(ours) == hash(config_of(family, size))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_each_key_of_a_config_is_followed_harmless_or_refused(family):
    """Every key that transformers writes for the family is known, and every other is refused by its name."""
    import transformers

    settings = transformers.AutoConfig.for_model(family, **SIZES[family][0]).to_dict()
    about, fields = FAMILIES[family], {"model_type", "id2label", "label2id", "num_labels", "architectures"}
    config = BertConfig.from_dict(settings)
    followed = set(config.to_dict())
    for key in settings:
        changed = settings | {key: {"a": "value", "of": ["no", "kind"]}}
        if key in followed - fields:
            with pytest.raises(ConfigError):
                BertConfig.from_dict(changed)
        elif key in about.harmless:
            assert BertConfig.from_dict(changed) == config
        elif key in about.harmless_only_at:
            with pytest.raises(ConfigError, match=f"{key} is .*supports only"):
                BertConfig.from_dict(changed)
    with pytest.raises(ConfigError, match="does not know the key 'a_new_key'"):
        BertConfig.from_dict(settings | {"a_new_key": 1})


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_each_setting_that_is_followed_changes_the_config(family):
    settings = {"model_type": family} | SIZES[family][0]
    plain = BertConfig.from_dict(settings)
    others = {True: False, False: True}
    for name, setting in FAMILIES[family].settings.items():
        value = plain.own[name]
        choices = [others.get(value) if isinstance(value, bool) else None, "mean", "tanh", ("c2p",), 0.25, 2, 8]
        for choice in choices:
            if choice is not None and choice != value and setting.fits(choice) and name not in ("layer_types",):
                changed = plain.own | {name: choice} if hasattr(plain.own, "__or__") else {**plain.own, name: choice}
                try:
                    assert BertConfig(**{**vars_of(plain), "own": changed}) != plain
                except ConfigError:
                    continue
                break


def vars_of(config: BertConfig) -> dict:
    return {name: getattr(config, name) for name in BertConfig.__dataclass_fields__}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_another_familys_weights_are_refused(family, tmp_path):
    saved_by_torch("electra" if family != "electra" else "bert", architecture.TOKENS, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config_of(family).to_dict()))
    with pytest.raises(CheckpointError, match=f"not the weights of a {FAMILIES[family].name}|has no tensor|layers"):
        bertjax.load(tmp_path)


def test_positions_of_roberta_count_tokens_that_are_not_padding(rng):
    """Hand-made: the first token has position 2, padding 1, whatever the mask says."""
    model = random_model(bertjax.BertModel, config_of("roberta"))
    ids = np.array([[5, 1, 6, 1, 1], [1, 1, 7, 8, 9]])
    expected = [[2, 1, 3, 1, 1], [1, 1, 2, 3, 4]]
    assert model.inputs(ids, np.ones_like(ids)).position_ids.tolist() == expected
    assert model.config.max_tokens == 19
    with pytest.raises(
        InputError, match="20 tokens, but the model has max_position_embeddings 21, which are 19 tokens"
    ):
        model(rng.integers(3, 41, (1, 20)))


def test_convolution_of_deberta_v2_xlarge_is_refused_by_name():
    with pytest.raises(ConfigError, match="conv_kernel_size is 3; bertjax supports only 0"):
        BertConfig.from_dict({"model_type": "deberta-v2", "conv_kernel_size": 3})


def test_microsofts_own_masked_lm_head_is_read(tmp_path):
    """transformers looks for it under this name where the config says `legacy: false`, and computes the same."""
    saved_by_torch("deberta-v2", architecture.WORDS, tmp_path, legacy=False)
    model = load_without_warnings(tmp_path)
    reference = torch_reference.load_torch(model, tmp_path)
    assert any("lm_predictions" in name for name in reference.state_dict())
    rows = parity.compare(model, reference, arguments(model.config, np.random.default_rng(0)))
    assert [row for row in rows if not row.passed] == []


def test_heads_of_albert_are_applications(rng):
    """A gate of one application leaves the others of the same parameters alone, and has a gradient of its own."""
    config = config_of("albert", 1)
    assert (config.num_hidden_layers, config.parameter_sets) == (6, 2)
    assert config.architecture.parameters_of == (0, 1, 0, 1, 0, 1)
    model, given = random_model(bertjax.BertModel, config), arguments(config, rng)
    inputs = model.inputs(**given)

    def total(gates):
        return model.forward(inputs, bertjax.overrides.factor(config, gates)).last_hidden_state[:, 0].sum()

    gradient = np.asarray(jax.grad(total)(np.ones((6, 5), np.float32)))
    assert np.isfinite(gradient).all()
    assert (np.abs(gradient) > 1e-6).all()
    assert len({round(float(value), 6) for value in gradient.ravel()}) == gradient.size
    changed = model(**given, overrides=bertjax.overrides.zero(config, ["2.1"]))
    same = model(**given)
    assert np.array_equal(changed.hidden_states[2], same.hidden_states[2])
    assert not np.array_equal(changed.hidden_states[3], same.hidden_states[3])


@pytest.mark.parametrize(
    ("family", "what"),
    [("modernbert", "windows"), ("mpnet", "scores by distance"), ("deberta-v2", "scores by distance")],
)
def test_what_pallas_cannot_do_is_refused_by_name(family, what):
    with pytest.raises(InputError, match=f"'pallas' cannot compute the {what} of {FAMILIES[family].name}"):
        random_model(bertjax.BertModel, config_of(family), attention="pallas")


@pytest.mark.parametrize(
    ("family", "form"), [("roberta", "pallas"), ("mpnet", "fused"), ("deberta-v2", "fused"), ("modernbert", "fused")]
)
def test_other_forms_of_attention_agree(family, form, rng):
    config = config_of(family)
    explicit, other = (random_model(bertjax.BertModel, config, attention=which) for which in ("explicit", form))
    given = arguments(config, rng)
    change = bertjax.overrides.uniform(config, ["1.2", "0.0"], gate=0.3)
    first, second = (np.asarray(model(**given, overrides=change).last_hidden_state) for model in (explicit, other))
    assert np.abs(first - second)[given["attention_mask"].astype(bool)].max() < 2e-5
