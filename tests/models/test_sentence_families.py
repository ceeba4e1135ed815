"""Vectors of sentence embedders match the sentence-transformers package in every family."""

import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

import bertjax
from bertjax import BertForSentenceEmbedding, Tokenizer, collate
from bertjax.checkpoints import DensePlan
from bertjax.checkpoints.sentence_transformers import TORCH_ACTIVATIONS
from bertjax.engine import reference
from bertjax.engine import run as engine
from bertjax.errors import CheckpointError, ConfigError, InputError
from bertjax.interventions import ablations as ab
from bertjax.interventions import overrides as ov
from bertjax.interventions import readouts
from bertjax.models import ModelOutput
from bertjax.models.sentences.pooling import ACTIVATIONS, POOLINGS, pool
from tests.factories import SENTENCES, SIZES, add_tokenizer, make_config
from tests.family_models import sometimes
from tests.tiny_models import encodings, largest_difference, random_model

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

pytestmark = [
    pytest.mark.needs_torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
CLOSE = 2e-5  # vectors of size about 1 in float32, after two or three layers
JOINED = ("lasttoken", "max", "cls", "weightedmean", "mean_sqrt_len_tokens", "mean")  # in another order
TEXTS = [*SENTENCES, "cat", "red red red dog dog " * 6]
SIZES = SIZES | {"vocab_size": make_config().vocab_size, "pad_token_id": 0}
_DISTIL = {"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}
FAMILIES = {
    "BertConfig": SIZES,
    "RobertaConfig": SIZES | {"type_vocab_size": 1},
    "DistilBertConfig": {_DISTIL.get(key, key): value for key, value in SIZES.items() if key != "intermediate_size"}
    | {"hidden_dim": 7},
    "XLMRobertaConfig": SIZES | {"type_vocab_size": 1},
    "ElectraConfig": SIZES | {"embedding_size": 5},
    "AlbertConfig": SIZES | {"embedding_size": 5},
    "DebertaV2Config": SIZES
    | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 4, "type_vocab_size": 0},
    "MPNetConfig": SIZES,
    "ModernBertConfig": SIZES | {"local_attention": 6, "num_hidden_layers": 3, "cls_token_id": 2, "sep_token_id": 3},
}


def make_encoder(directory, family):
    """A random encoder saved by transformers, with a generic tokenizer."""
    directory.mkdir(exist_ok=True)
    config = getattr(transformers, family)(**FAMILIES[family])
    torch.manual_seed(0)
    transformers.AutoModel.from_config(config).save_pretrained(directory)
    inputs = ["input_ids", "attention_mask"] + (["token_type_ids"] if family == "BertConfig" else [])
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs, "model_max_length": 30}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings | names))
    return add_tokenizer(directory)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return make_encoder(tmp_path_factory.mktemp("encoder"), "BertConfig")


def packaged(*modules, directory=None):
    """An embedder of the package, optionally saved."""
    model = SentenceTransformer(modules=list(modules), device="cpu")
    if directory is not None:
        model.save(str(directory), create_model_card=False)
    return model


def open_packaged(directory):
    return SentenceTransformer(str(directory), device="cpu", local_files_only=True)


def vectors_of(directory, texts=TEXTS, prompt=None):
    """bertjax's vectors for a directory, truncated at its limit."""
    model, tokenizer = bertjax.load(directory), Tokenizer.from_pretrained(directory)
    if prompt is not None:
        tokenizer = tokenizer.with_prompt(prompt)
    return model(**tokenizer(texts, max_length=model.max_length or tokenizer.max_length)).sentence_embedding


@pytest.mark.parametrize(
    "family", sometimes(FAMILIES, "BertConfig", "DebertaV2Config", "MPNetConfig", "ModernBertConfig")
)
def test_every_pooling_matches_the_package_in_every_family(family, tmp_path):
    transformer = Transformer(str(make_encoder(tmp_path / "encoder", family)))
    theirs = packaged(transformer, Pooling(12, JOINED), directory=tmp_path / "saved").encode(TEXTS)
    ours = vectors_of(tmp_path / "saved")
    assert ours.shape == (len(TEXTS), 6 * 12)
    assert np.abs(theirs).max() > 1
    assert largest_difference(ours, theirs) < CLOSE


@pytest.mark.parametrize("mask", ["right", "left", "both"])
def test_padding_on_either_side_is_excluded(mask, rng):
    hidden, places = rng.normal(size=(4, 7, 5)).astype(np.float32), np.arange(7)[None]
    first, last = rng.integers(1, 3, (4, 1)), rng.integers(4, 6, (4, 1))
    real = (places >= first * (mask != "right")) & (places <= (last if mask != "left" else 6))
    features = {"token_embeddings": torch.tensor(hidden), "attention_mask": torch.tensor(real).long()}
    theirs = Pooling(5, JOINED)(features)["sentence_embedding"]
    keep = jnp.asarray(real[:, None], jnp.float32)
    assert largest_difference(pool(ModelOutput(jnp.asarray(hidden), None), keep, JOINED), theirs) < 1e-6


def test_a_text_of_only_padding_has_a_finite_vector_and_gradient():
    keep = jnp.zeros((1, 1, 3))

    def total(hidden):
        return pool(ModelOutput(hidden, None), keep, JOINED).sum()

    assert np.isfinite(total(jnp.ones((1, 3, 2))))
    assert np.isfinite(jax.grad(total)(jnp.ones((1, 3, 2)))).all()


def test_dense_layers_match_the_package(encoder, tmp_path):
    assert set(ACTIVATIONS) == set(TORCH_ACTIVATIONS)
    torch.manual_seed(1)
    widths, dense = [12, 9, 7, 11, 5, 8, 6], []
    for number, name in enumerate(["tanh", "identity", "relu", "gelu", "silu", "sigmoid"]):
        activation = getattr(torch.nn, TORCH_ACTIVATIONS[name].rsplit(".", 1)[1])()
        layer = Dense(widths[number], widths[number + 1], bias=number % 2 == 0, activation_function=activation)
        torch.nn.init.normal_(layer.linear.weight)
        dense.append(layer)
    modules = (Transformer(str(encoder)), Pooling(12, "mean"), *dense)
    for last in ([], [Normalize()]):
        directory = tmp_path / str(len(last))
        theirs = packaged(*modules, *last, directory=directory).encode(TEXTS)
        assert largest_difference(vectors_of(directory), theirs) < CLOSE
    model = bertjax.load(tmp_path / "1")
    assert [layer.bias is None for layer in model.dense] == [False, True] * 3
    assert model.plans[0] == DensePlan(12, 9, True, "tanh")


@pytest.mark.parametrize("family", ["BertConfig", "MPNetConfig"])
def test_the_poolers_vector_matches_the_package(family, tmp_path):
    gives = {"text": {"method": "forward", "method_output_name": "pooler_output"}}
    path = str(make_encoder(tmp_path / "encoder", family))
    transformer = Transformer(path, modality_config=gives, module_output_name="sentence_embedding")
    theirs = packaged(transformer, Dense(12, 5), Normalize(), directory=tmp_path / "saved").encode(TEXTS)
    model = bertjax.load(tmp_path / "saved")
    assert model.pooling == "pooler"
    assert "sentence_embedding" in model.fields_of_first_token
    assert largest_difference(vectors_of(tmp_path / "saved"), theirs) < CLOSE


@pytest.mark.parametrize("family", ["DistilBertConfig", "ModernBertConfig"])
def test_a_missing_pooler_is_refused(family, tmp_path):
    directory = make_encoder(tmp_path, family)
    with pytest.raises(ConfigError, match="has no pooler: choose another pooling"):
        BertForSentenceEmbedding.from_pretrained(directory, pooling="pooler")


OPTIONS = {
    "mean": {"normalize": True},
    "in the older order": {"pooling": ("cls", "max", "mean"), "normalize": False},
    "in another order": {"pooling": JOINED},
    "pooler": {"pooling": "pooler", "normalize": False},
    "dense": {"pooling": ("mean", "cls"), "dense": (DensePlan(24, 9), DensePlan(9, 5, False, "identity"))},
    "pooler and dense": {"pooling": "pooler", "dense": (DensePlan(12, 7, activation="gelu"),)},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_saved_embedders_are_read_by_the_package(name, tmp_path):
    model = random_model(BertForSentenceEmbedding, make_config(), **OPTIONS[name])
    tokenizer = Tokenizer.from_pretrained(add_tokenizer(tmp_path))
    model.save_pretrained(tmp_path / "saved", tokenizer)
    ours = model(**tokenizer(TEXTS)).sentence_embedding
    assert largest_difference(ours, open_packaged(tmp_path / "saved").encode(TEXTS)) < CLOSE
    again = bertjax.load(tmp_path / "saved")
    assert (again.pooling, again.plans, again.normalize) == (model.pooling, model.plans, model.normalize)
    assert np.array_equal(again(**tokenizer(TEXTS)).sentence_embedding, ours)


def test_truncation_case_and_prompts_match_sentence_transformers(encoder, tmp_path):
    theirs = packaged(Transformer(str(encoder)), Pooling(12, "mean"), directory=tmp_path)
    settings = {"max_seq_length": 9, "do_lower_case": True}
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps(settings))  # as older versions have it
    prompts = {"query": "the dog: ", "passage": "Red doors "}
    config = {"prompts": prompts, "default_prompt_name": "passage"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(config))
    theirs, texts = open_packaged(tmp_path), [*TEXTS, "THE CAT sat"]
    for name, options in ((None, {}), ("query", {"prompt_name": "query"}), ("a man ", {"prompt": "a man "}), ("", {})):
        expected = theirs.encode(texts, **({"prompt": ""} if name == "" else options))
        assert largest_difference(vectors_of(tmp_path, texts, name), expected) < CLOSE, name
    model, tokenizer = bertjax.load(tmp_path), Tokenizer.from_pretrained(tmp_path)
    assert tokenizer.prompts == prompts
    assert len({tokenizer.with_prompt(name).digest for name in (*prompts, "")}) == 3
    assert tokenizer.with_prompt("passage").digest == tokenizer.digest
    with pytest.raises(InputError, match="there is no prompt 'qeury': this checkpoint's prompts are query, passage"):
        tokenizer.with_prompt("qeury")
    model.save_pretrained(tmp_path / "saved", tokenizer)
    again = open_packaged(tmp_path / "saved")
    assert (again.default_prompt_name, again.prompts["query"]) == ("passage", "the dog: ")
    assert largest_difference(again.encode(texts), theirs.encode(texts)) < CLOSE


def test_prompts_are_refused_if_the_pooling_excludes_them(encoder, tmp_path):
    packaged(Transformer(str(encoder)), Pooling(12, "mean", include_prompt=False), directory=tmp_path)
    model, tokenizer = bertjax.load(tmp_path), Tokenizer.from_pretrained(tmp_path)
    assert tokenizer.with_prompt("").prompt == ""
    with pytest.raises(InputError, match="include_prompt false, which excludes the prompt 'the dog '"):
        tokenizer.with_prompt("the dog ")
    model.save_pretrained(tmp_path / "saved")
    assert not bertjax.load(tmp_path / "saved").include_prompt


SWEPT = {
    "joined": {"pooling": JOINED},
    "cls and dense": {"pooling": "cls", "dense": (DensePlan(12, 5),)},
    "pooler": {"pooling": "pooler"},
    **{name: {"pooling": name, "normalize": False} for name in ("max", "lasttoken", "weightedmean")},
}


# Poolings that are parts of the joined one by themselves are tried by `make test-slow`.
@pytest.mark.parametrize("name", sometimes(SWEPT, "joined", "cls and dense", "pooler"))
def test_sweeps_equal_single_runs_for_every_pooling(name, rng):
    model = random_model(BertForSentenceEmbedding, make_config(), **SWEPT[name])
    texts, heads = encodings(model.config, rng, [5, 1, 9, 3, 12]), ab.single_heads(model.config, "zero")
    found = engine.sweep(model, texts, heads, readouts.sentence_embedding, row_length=16)
    overrides = ov.stack([ab.to_overrides(model.config, head) for head in heads])
    expected = reference.run(model, model.inputs(**collate(texts)), overrides, readouts.sentence_embedding)
    assert largest_difference(found.outputs, expected) < CLOSE
    assert np.abs(found.outputs - found.base[None]).max() > 1e-2
    first = readouts.inspect_readout(model, readouts.sentence_embedding, 4).first_only
    assert first == (name in ("cls and dense", "pooler"))


BAD = [
    ({"pooling": "sum"}, "pooling 'sum' is not one of cls, max, mean"),
    ({"pooling": ()}, "pooling must be one or several of"),
    ({"pooling": ("mean", "mean")}, "each once"),
    ({"pooling": ("mean", "pooler")}, "pooling 'pooler' cannot be combined"),
    ({"dense": (DensePlan(13, 5),)}, "dense layer 0 has input width 13, but its input has width 12"),
    ({"pooling": ("cls", "max"), "dense": (DensePlan(24, 5), DensePlan(4, 5))}, "layer 1 has input width 4"),
    ({"dense": (DensePlan(12, 5, activation="swish"),)}, "activation of a dense layer 'swish' is not one of"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_options_that_do_not_fit_are_refused_by_name(options, message):
    with pytest.raises(ConfigError, match=message):
        BertForSentenceEmbedding(make_config(), **options)
    assert set(JOINED) | {"pooler"} == set(POOLINGS)


DENSE = [
    ({"use_residual": True}, "use_residual is true"),
    ({"module_input_name": "token_embeddings"}, 'module_input_name is "token_embeddings"'),
    ({"activation_function": "torch.nn.modules.activation.Mish"}, r'activation_function is "torch\.nn\..*Mish"'),
    ({"activation_function": "own.Tanh"}, 'activation_function is "own.Tanh"; bertjax knows torch'),
    ({"in_features": 0}, "in_features must be an integer from 1 to 2147483647, found 0"),
    ({"bias": "no"}, "bias must be true or false, found 'no'"),
    ({"rank": 3}, 'bertjax does not know the key "rank"'),
    ({"out_features": 6}, r"the tensors must be .*\(6, 12\)"),
    ({"bias": False}, "the tensors must be"),
    ({"in_features": 13}, "the tensors must be"),
]


@pytest.mark.parametrize(("change", "message"), DENSE)
def test_an_unsupported_dense_layer_is_refused_by_name(change, message, tmp_path):
    model = random_model(BertForSentenceEmbedding, make_config(), dense=(DensePlan(12, 5),))
    model.save_pretrained(tmp_path)
    path = tmp_path / "2_Dense" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises((ConfigError, CheckpointError), match=message) as refused:
        bertjax.load(tmp_path)
    assert "\n" not in str(refused.value)


def test_dense_weights_of_an_older_version_are_read(tmp_path):
    model = random_model(BertForSentenceEmbedding, make_config(), dense=(DensePlan(12, 5),))
    model.save_pretrained(tmp_path)
    layer = model.dense[0]
    state = {"linear.weight": layer.kernel[...].T, "linear.bias": layer.bias[...]}
    torch.save({key: torch.tensor(np.asarray(value)) for key, value in state.items()}, tmp_path / "2_Dense" / "m.bin")
    (tmp_path / "2_Dense" / "m.bin").rename(tmp_path / "2_Dense" / "pytorch_model.bin")
    (tmp_path / "2_Dense" / "model.safetensors").unlink()
    assert np.array_equal(bertjax.load(tmp_path).dense[0].kernel[...], layer.kernel[...])
    (tmp_path / "2_Dense" / "pytorch_model.bin").unlink()
    with pytest.raises(CheckpointError, match="2_Dense: has no weights"):
        bertjax.load(tmp_path)
