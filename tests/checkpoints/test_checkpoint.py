"""Checkpoints round-trip exactly, and never result silently in a wrong model."""

import json
import warnings

import jax
import numpy as np
import pytest

import bertjax
from bertjax import (
    BertConfig,
    BertForMaskedLM,
    BertForSentenceEmbedding,
    BertForSequenceClassification,
    BertModel,
)
from bertjax.checkpoints.families import FAMILIES
from bertjax.checkpoints.tensor_names import entry_of_parameter, is_known, tensor_shape, to_parameter, to_tensor
from bertjax.checkpoints.weight_files import CheckpointWarning, read_weights, write_weights
from bertjax.errors import CheckpointError, ConfigError, InputError
from tests.tiny_models import CLASSES, arguments, random_model, tree_equal


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_load_save_load_is_exact_to_the_bit(small, name, tmp_path):
    model = random_model(CLASSES[name], small)
    model.save_pretrained(tmp_path / "first")
    first = CLASSES[name].from_pretrained(tmp_path / "first")
    first.save_pretrained(tmp_path / "second")
    second = CLASSES[name].from_pretrained(tmp_path / "second")
    assert tree_equal(model, first)
    assert tree_equal(first, second)
    files = [
        sorted((p.name, p.read_bytes()) for p in (tmp_path / d).iterdir() if p.is_file()) for d in ("first", "second")
    ]
    assert files[0] == files[1]
    assert type(bertjax.load(tmp_path / "first")) is CLASSES[name]


def test_every_layout_has_its_inverse(small, rng):
    shapes = {
        "as is": (4, 5),
        "transposed": (4, 5),
        "into heads": (12, 3, 4),
        "head bias": (3, 4),
        "out of heads": (3, 4, 12),
    }
    tables = (entry for family in FAMILIES.values() for entry in family.body)
    assert {entry.layout for entry in tables} == set(shapes)
    for layout, shape in shapes.items():
        array = rng.normal(size=shape)
        tensor = to_tensor(array, layout)
        assert tensor.shape == tensor_shape(shape, layout)
        assert np.array_equal(to_parameter(tensor, layout, small), array)


def test_every_parameter_of_every_class_has_a_tensor(small):
    for cls in CLASSES.values():
        paths = random_model(cls, small).parameters()
        tensors = [entry_of_parameter(path, small, cls.task).tensor for path in paths]
        assert len(set(tensors)) == len(tensors)
        assert all(is_known(tensor) for tensor in tensors)


@pytest.fixture
def saved(small, tmp_path):
    """A saved classifier and its tensors, to be damaged."""
    model = random_model(BertForSequenceClassification, small)
    model.save_pretrained(tmp_path)
    return model, tmp_path, dict(read_weights(tmp_path)), json.loads((tmp_path / "config.json").read_text())


QUERY = "bert.encoder.layer.1.attention.self.query.weight"

DAMAGE = {
    "missing layer": (
        lambda w, c: [w.pop(k) for k in list(w) if ".layer.1." in k],
        r"has 1 layers, but num_hidden_layers is 2",
    ),
    "missing layer in between": (
        lambda w, c: [w.pop(k) for k in list(w) if ".layer.0." in k],
        r"has only 1 of its layers, but num_hidden_layers is 2",
    ),
    "a part of a layer": (
        lambda w, c: [w.pop(k) for k in list(w) if ".layer.1.output" in k],
        r"no tensor bert.encoder.layer.1.output.*and 3 more",
    ),
    "wrong shape": (
        lambda w, c: w.update({QUERY: w[QUERY][:, :7]}),
        r"query.weight has shape \(12, 7\).*\(12, 12\)",
    ),
    "fewer layers in the config": (
        lambda w, c: c.update(num_hidden_layers=1),
        "2 layers, but num_hidden_layers is 1",
    ),
    "more layers in the config": (
        lambda w, c: c.update(num_hidden_layers=3),
        "has 2 layers, but num_hidden_layers is 3",
    ),
    "a thousand million layers in the config": (
        lambda w, c: c.update(num_hidden_layers=10**9),
        "has 2 layers, but num_hidden_layers is 1000000000",
    ),
    "a thousand million layers in config and file": (
        lambda w, c: w.update({"bert.encoder.layer.999999999.x": w[QUERY]}) or c.update(num_hidden_layers=10**9),
        "has only 3 of its layers, but num_hidden_layers is 1000000000",
    ),
    "sizes beyond all memory": (
        lambda w, c: c.update(hidden_size=3 * 2**28, intermediate_size=2**30, vocab_size=2**30),
        r"has shape \(12,\), but the config requires \(805306368,\)",
    ),
    "labels beyond all memory": (
        lambda w, c: c.update(num_labels=10**5) or c.pop("id2label"),
        r"classifier.* has shape \(2.*\(100000",
    ),
    "another width": (lambda w, c: c.update(intermediate_size=8), "intermediate"),
    "another vocabulary": (
        lambda w, c: c.update(vocab_size=40),
        r"word_embeddings.weight has shape \(41, 12\)",
    ),
    "another number of labels": (
        lambda w, c: c.update(id2label={"0": "a", "1": "b", "2": "c"}, label2id={"a": 0, "b": 1, "c": 2}),
        "tensor classifier",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_weights_that_do_not_fit_the_config_are_refused(saved, name):
    _, directory, weights, config = saved
    damage, message = DAMAGE[name]
    damage(weights, config)
    write_weights(directory, weights, config)
    with pytest.raises(CheckpointError, match=message) as caught:
        bertjax.load(directory)
    assert "\n" not in str(caught.value)
    assert str(directory) in str(caught.value)


def test_a_missing_head_is_initialised_and_named(saved, rng):
    model, directory, weights, config = saved
    write_weights(directory, {k: v for k, v in weights.items() if "classifier" not in k and "pooler" not in k}, config)
    with pytest.warns(CheckpointWarning, match=r"newly initialised: bert.pooler.*classifier.weight"):
        first = bertjax.load(directory, seed=1)
    with pytest.warns(CheckpointWarning, match="newly initialised"):
        again, other = bertjax.load(directory, seed=1), bertjax.load(directory, seed=2)
    assert tree_equal(first, again)
    assert not tree_equal(first, other)
    assert np.abs(first.classifier.kernel[...]).max() > 0
    call = arguments(model.config, rng)
    assert tree_equal(first(**call).hidden_states, model(**call).hidden_states)


def test_heads_that_the_class_does_not_use_are_ignored_silently(saved):
    _, directory, _, _ = saved
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(BertModel.from_pretrained(directory), BertModel)


@pytest.mark.parametrize(
    "name", ["adapter.down.weight", f"bert.encoder.layer.1{'0' * 400}.output.dense.bias", "bert.a\nb"]
)
def test_unknown_tensors_are_named(saved, name):
    _, directory, weights, config = saved
    write_weights(directory, weights | {name: np.ones((2, 3), np.float32)}, config)
    with pytest.warns(CheckpointWarning, match=name[:6]) as warned:
        bertjax.load(directory)
    assert len(str(warned[0].message)) < 300
    assert "\n" not in str(warned[0].message)


def test_a_differing_decoder_is_used_although_the_config_ties_it(small, tmp_path, rng):
    model = random_model(BertForMaskedLM, small)
    decoder = rng.normal(size=(41, 12)).astype(np.float32)
    weights = model.weights() | {"cls.predictions.decoder.weight": decoder}
    write_weights(tmp_path, weights, model.config.to_dict() | {"architectures": ["BertForMaskedLM"]})
    with pytest.warns(CheckpointWarning, match="ties cls.predictions.decoder.weight"):
        loaded = bertjax.load(tmp_path)
    assert np.array_equal(loaded.predictions.decoder[...], decoder)
    BertModel.from_pretrained(tmp_path, add_pooling_layer=False)  # it has no decoder: nothing to warn about


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_files_are_computed_in_float32(small, tmp_path, dtype):
    model = random_model(BertModel, small)
    halves = {name: jax.numpy.asarray(value, dtype) for name, value in model.weights().items()}
    write_weights(
        tmp_path,
        {k: np.asarray(v) for k, v in halves.items()},
        small.to_dict() | {"architectures": ["BertModel"]},
    )
    loaded = bertjax.load(tmp_path)
    assert {str(x.dtype) for x in jax.tree.leaves(loaded)} == {"float32"}
    expected = {name: np.asarray(value, np.float32) for name, value in halves.items()}
    assert all(np.array_equal(expected[name], value) for name, value in loaded.weights().items())


def test_options_of_from_pretrained_that_do_not_exist_are_errors(saved):
    with pytest.raises(InputError, match=r"no option output_attention: it takes dtype, .*add_pooling_layer"):
        BertModel.from_pretrained(saved[1], output_attention=True)


def test_a_model_can_be_loaded_without_its_pooler(saved, rng):
    model = BertModel.from_pretrained(saved[1], add_pooling_layer=False)
    assert model([[1, 2]]).pooler_output is None


def test_sentence_transformers_directories_keep_their_pooling(small, tmp_path):
    model = random_model(BertForSentenceEmbedding, small, pooling="cls", normalize=False, max_length=13)
    model.save_pretrained(tmp_path)
    loaded = bertjax.load(tmp_path)
    assert (loaded.pooling, loaded.normalize, loaded.max_length) == ("cls", False, 13)
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules.append({"idx": 2, "name": "2", "path": "2_LayerNorm", "type": "sentence_transformers.models.LayerNorm"})
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ConfigError, match=r"LayerNorm"):
        bertjax.load(tmp_path)
    for broken in ('["x"]', '[{"path": ""}]', "{}", "[", "3"):
        (tmp_path / "modules.json").write_text(broken)
        with pytest.raises(ConfigError, match=r"modules\.json"):
            bertjax.load(tmp_path)


def test_a_revision_is_resolved_once(saved, monkeypatch):
    calls = []

    def locate(name, **options):
        calls.append((name, options))
        return saved[1]

    monkeypatch.setattr("bertjax.models.task_models.locate", locate)
    assert isinstance(bertjax.load("some/model", revision="v2"), BertForSequenceClassification)
    assert calls == [("some/model", {"revision": "v2"})]


def test_an_unknown_architecture_is_refused(saved):
    _, directory, weights, config = saved
    write_weights(directory, weights, config | {"architectures": ["BertLMHeadModel"]})
    with pytest.raises(ConfigError, match="BertLMHeadModel"):
        bertjax.load(directory)


def test_another_number_of_labels_can_be_requested(saved):
    model, directory, *_ = saved
    four = {i: f"LABEL_{i}" for i in range(4)}
    config = BertConfig(
        **{**{f: getattr(model.config, f) for f in model.config.__dataclass_fields__}, "id2label": four}
    )
    with pytest.raises(CheckpointError, match=r"classifier.* has shape \(2.*\(4"):
        BertForSequenceClassification.from_pretrained(directory, config=config)
