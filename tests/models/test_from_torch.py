"""PyTorch models in memory: converted models compute the same, and nothing is written to disk."""

import builtins
import copy
import json
import os
import tempfile
import warnings

import numpy as np
import pytest

import bertjax
from bertjax import BertForSentenceEmbedding, Tokenizer
from bertjax.checkpoints import FAMILIES, CheckpointWarning, architecture
from bertjax.errors import CheckpointError, ConfigError, DataError, InputError
from bertjax.jobs import parity
from bertjax.models.task_models import CLASSES
from tests.factories import SENTENCES, add_tokenizer, make_config
from tests.factories import SIZES as SIZES_WITH_WORDS
from tests.family_models import ADAPTED_MODULES, SIZES, arguments
from tests.tiny_models import largest_difference

pytestmark = [
    pytest.mark.needs_torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
CLOSE = 2e-5  # outputs of size about 1 in float32, after two or three layers
TEXTS = [*SENTENCES, "THE CAT", "red red red dog dog " * 6]
PAIRS = [(first, second) for first in SENTENCES[:3] for second in SENTENCES[3:]]


def torch_model(family="bert", task=architecture.SEQUENCE, size=0, **changes):
    """A random model of transformers; every parameter is random, biases and norms too."""
    import torch
    import transformers

    settings = {"num_labels": 3} if task in (architecture.SEQUENCE, architecture.TOKENS) else {}
    config = transformers.AutoConfig.for_model(family, **settings | SIZES[family][size] | changes)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    return randomized(getattr(transformers, FAMILIES[family].heads[task].architecture)(config))


def randomized(model):
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model.eval()


def convert(model, *args, **options):
    """`from_torch` without warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return bertjax.from_torch(model, *args, **options)


def assert_same(ours, theirs):
    """Two models of bertjax have the same config and the same parameters, bit for bit."""
    first, second = ours.parameters(), theirs.parameters()
    assert (type(ours), ours.config, ours.numerics) == (type(theirs), theirs.config, theirs.numerics)
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[path], second[path]) for path in first)


@pytest.mark.parametrize("family", FAMILIES)
def test_converted_heads_equal_those_loaded_from_disk(family, tmp_path):
    """Loaded models compute what PyTorch does (`test_families.py`)."""
    for task, size in [(task, 0) for task in FAMILIES[family].heads] + [(architecture.BODY, 1)]:
        theirs = torch_model(family, task, size)
        assert theirs.config.architectures is None
        ours = convert(theirs)
        assert (type(ours), ours.config.model_type) == (CLASSES[task], family)
        assert ours.name == f"{type(theirs).__name__} in memory"
        theirs.save_pretrained(tmp_path / f"{task} {size}")
        assert_same(ours, bertjax.load(tmp_path / f"{task} {size}"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_weights_of_any_dtype_are_read_as_from_disk(dtype, tmp_path, rng):
    import torch

    theirs = torch_model().to(getattr(torch, dtype))
    ours = convert(theirs)
    theirs.save_pretrained(tmp_path)
    assert_same(ours, bertjax.load(tmp_path))
    inputs = arguments(ours.config, rng)
    with torch.no_grad():
        expected = theirs.float()(**{name: torch.tensor(array) for name, array in inputs.items()}).logits
    assert largest_difference(ours(inputs).logits, expected) < CLOSE


def test_later_changes_of_the_pytorch_model_change_nothing():
    import torch

    theirs = torch_model()
    ours = convert(theirs)
    before = {path: np.array(value) for path, value in ours.parameters().items()}
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.zero_()
    assert all(np.array_equal(before[path], value) for path, value in ours.parameters().items())


def test_changed_weights_and_untied_decoders_are_followed(rng):
    import torch

    theirs = torch_model(task=architecture.WORDS)
    assert convert(theirs).predictions.decoder is None
    decoder = theirs.cls.predictions.decoder
    decoder.weight = torch.nn.Parameter(decoder.weight.detach().clone() + 0.5)
    with pytest.warns(CheckpointWarning, match="it is used"):
        ours = bertjax.from_torch(theirs)
    rows = parity.compare(ours, theirs, arguments(ours.config, rng))
    assert [row for row in rows if not row.passed] == []


def test_an_encoder_without_a_pooler_has_none():
    import transformers

    theirs = transformers.BertModel(transformers.BertConfig(**SIZES["bert"][0]), add_pooling_layer=False)
    assert convert(theirs)([[2, 5, 7]]).pooler_output is None


def test_nan_in_memory_is_named():
    import torch

    theirs = torch_model()
    with torch.no_grad():
        theirs.classifier.bias[0] = torch.nan
    with pytest.warns(CheckpointWarning, match=r"BertForSequence.* in memory: NaN or infinity in classifier\.bias"):
        bertjax.from_torch(theirs)


# Tokenizers.


def transformers_tokenizer(directory, **settings):
    import transformers

    directory.mkdir(exist_ok=True)
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    written = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 30} | names | settings
    (directory / "tokenizer_config.json").write_text(json.dumps(written))
    return transformers.AutoTokenizer.from_pretrained(add_tokenizer(directory))


TYPES = ["input_ids", "token_type_ids", "attention_mask"]


def test_a_tokenizer_of_transformers_is_copied(tmp_path):
    theirs = transformers_tokenizer(tmp_path / "theirs", model_input_names=TYPES)
    model = torch_model(**SIZES_WITH_WORDS, vocab_size=make_config().vocab_size)
    theirs(TEXTS, padding=True, truncation=True)
    before = theirs.backend_tokenizer.to_str(), theirs.init_kwargs.copy()
    ours = convert(model, theirs)
    assert ours.tokenizer.digest == Tokenizer.from_pretrained(tmp_path / "theirs").digest
    ours(TEXTS[0])
    ours.save_pretrained(tmp_path / "saved")
    assert (theirs.backend_tokenizer.to_str(), theirs.init_kwargs) == before
    assert Tokenizer.from_pretrained(tmp_path / "saved").digest == ours.tokenizer.digest
    copy = Tokenizer.from_transformers(theirs)
    assert convert(model, copy).tokenizer is copy


@pytest.mark.parametrize("settings", [{}, {"model_input_names": TYPES}, {"model_input_names": TYPES[::2]}])
def test_converted_tokenizers_return_the_same_ids(settings, tmp_path):
    import torch

    theirs = transformers_tokenizer(tmp_path / "theirs", **settings)
    model = torch_model(**SIZES_WITH_WORDS, vocab_size=make_config().vocab_size)
    ours = convert(model, theirs)
    with torch.no_grad():
        expected = model(**theirs(*PAIRS[0], return_tensors="pt")).logits
    assert largest_difference(ours(ours.tokenizer(*PAIRS[0])).logits, expected) < CLOSE
    ours.save_pretrained(tmp_path / "saved")
    assert Tokenizer.from_pretrained(tmp_path / "saved").digest == ours.tokenizer.digest


def test_a_tokenizer_that_runs_in_python_is_refused():
    import transformers

    with pytest.raises(DataError, match="ByT5Tokenizer runs in Python; bertjax needs one of the tokenizers library"):
        bertjax.from_torch(torch_model(), transformers.ByT5Tokenizer())
    with pytest.raises(InputError, match=r"must be a bertjax\.Tokenizer or a fast tokenizer .* the string 'bert'"):
        bertjax.from_torch(torch_model(), "bert")


# Models of sentence-transformers.


@pytest.fixture(scope="module")
def library():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import sentence_transformers
    return sentence_transformers


@pytest.fixture
def transformer(library, tmp_path):
    """An encoder of sentence-transformers with a tokenizer."""
    encoder = torch_model(task=architecture.BODY, **SIZES_WITH_WORDS, vocab_size=make_config().vocab_size)
    encoder.save_pretrained(tmp_path / "encoder")
    transformers_tokenizer(tmp_path / "encoder")
    return library.base.modules.Transformer(str(tmp_path / "encoder"))


EMBEDDERS = {
    "mean": ("mean", [], False),
    "joined, dense and normalised": (["max", "cls"], [("Tanh", 24, 5), ("Identity", 5, 7)], True),
    "weighted": ("weightedmean", [("GELU", 12, 5)], False),
}


def embedder(library, transformer, pooling="mean", dense=(), normalize=False, **options):
    import torch

    modules = library.base.modules
    layers = [
        modules.Dense(inputs, outputs, activation_function=getattr(torch.nn, name)()) for name, inputs, outputs in dense
    ]
    pool = library.sentence_transformer.modules.Pooling(12, pooling)
    last = [modules.Normalize()] if normalize else []
    return library.SentenceTransformer(modules=[transformer, pool, *layers, *last], device="cpu", **options)


@pytest.mark.parametrize("name", EMBEDDERS)
def test_a_sentence_transformer_keeps_its_modules(name, library, transformer, tmp_path):
    theirs = embedder(library, transformer, *EMBEDDERS[name])
    ours = convert(theirs)
    assert (type(ours), ours.name) == (BertForSentenceEmbedding, "SentenceTransformer in memory")
    vectors = ours(TEXTS).sentence_embedding  # the last text is cut
    assert largest_difference(vectors, theirs.encode(TEXTS)) < CLOSE
    theirs.save(str(tmp_path / "saved"), create_model_card=False)
    again = bertjax.load(tmp_path / "saved")
    assert_same(ours, again)
    assert (ours.poolings, ours.plans, ours.normalize) == (again.poolings, again.plans, again.normalize)
    assert np.array_equal(vectors, again(TEXTS).sentence_embedding)


def test_prompts_and_the_length_limit_are_converted(library, transformer):
    prompts = {"query": "the dog: ", "passage": "Red doors "}
    theirs = embedder(library, transformer, prompts=prompts, default_prompt_name="passage")
    theirs.max_seq_length = 9
    ours = convert(theirs)
    assert ours.tokenizer.max_length == 9
    assert largest_difference(ours(TEXTS).sentence_embedding, theirs.encode(TEXTS)) < CLOSE
    for name in ("query", ""):
        ours.tokenizer = ours.tokenizer.with_prompt(name)
        expected = theirs.encode(TEXTS, prompt=prompts.get(name, ""))
        assert largest_difference(ours(TEXTS).sentence_embedding, expected) < CLOSE


def test_unsupported_sentence_modules_are_refused(library, transformer):
    import torch

    with pytest.raises(ConfigError, match="in memory: truncate_dim is 5; bertjax supports only None"):
        bertjax.from_torch(embedder(library, transformer, truncate_dim=5))
    lstm = library.sentence_transformer.modules.LSTM(12, 5)
    theirs = library.SentenceTransformer(modules=[transformer, lstm], device="cpu")
    with pytest.raises(ConfigError, match=r"bertjax knows Transformer, Pooling, .* found .*LSTM"):
        bertjax.from_torch(theirs)
    theirs = embedder(library, transformer, "mean", [("GELU", 12, 5)])
    theirs[2].activation_function = torch.nn.GELU("tanh")
    with pytest.raises(ConfigError, match=r"Dense: activation_function is \"torch\.nn\..*GELU\(tanh\)\""):
        bertjax.from_torch(theirs)


def test_prompts_excluded_from_the_pooling_are_refused(library, transformer):
    theirs = embedder(library, transformer)
    theirs.set_pooling_include_prompt(False)
    with pytest.raises(InputError, match="include_prompt false, which excludes the prompt 'a dog '"):
        bertjax.from_torch(theirs).tokenizer.with_prompt("a dog ")


@pytest.mark.parametrize("activation", ["Sigmoid", "Identity", "Tanh"])
def test_a_cross_encoder_keeps_its_activation(activation, library, tmp_path):
    import torch

    sizes = SIZES_WITH_WORDS | {"vocab_size": make_config().vocab_size, "num_labels": 1}
    torch_model(**sizes).save_pretrained(tmp_path)
    transformers_tokenizer(tmp_path, model_input_names=TYPES)
    theirs = library.CrossEncoder(str(tmp_path), device="cpu", activation_fn=getattr(torch.nn, activation)())
    ours = convert(theirs)
    assert ours.name == "CrossEncoder in memory"
    scores = ours(ours.tokenizer(*map(list, zip(*PAIRS, strict=True)))).score
    assert largest_difference(scores, theirs.predict(PAIRS)) < CLOSE
    theirs.save(str(tmp_path / "saved"), create_model_card=False)
    again = bertjax.load(tmp_path / "saved")
    assert_same(ours, again)
    assert ours.tokenizer.digest == again.tokenizer.digest
    theirs.activation_fn = torch.nn.Mish()
    with pytest.raises(ConfigError, match=r"CrossEncoder in memory: activation_fn is .*Mish"):
        bertjax.from_torch(theirs)


# Models of peft.


def random_adapter(model, **settings):
    """peft's model with a random adapter."""
    import peft
    import torch

    torch.manual_seed(1)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, **settings))
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn_like(parameter)
    return adapted.eval()


def logits_of(model, batch):
    import torch

    tensors = {name: torch.tensor(batch[name]) for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        return model(**tensors)[0]


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_an_adapter_is_merged_in_a_copy(family, rng):
    import torch

    targets = ADAPTED_MODULES.get(family, ["query", "dense"])
    theirs = random_adapter(torch_model(family), target_modules=targets, task_type="SEQ_CLS")
    before = copy.deepcopy(theirs.state_dict())
    ours = convert(theirs)
    assert ours.name == "PeftModelForSequenceClassification in memory"
    inputs = arguments(ours.config, rng) | {"token_type_ids": None}
    assert largest_difference(ours(inputs).logits, logits_of(theirs, inputs)) < CLOSE
    after = theirs.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_an_adapter_in_memory_is_merged_as_from_disk(tmp_path):
    torch_model().save_pretrained(tmp_path / "base")
    theirs = random_adapter(torch_model(), target_modules=["query", "value"], task_type="SEQ_CLS")
    theirs.save_pretrained(tmp_path / "adapter")
    path = tmp_path / "adapter" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": str(tmp_path / "base")}))
    assert_same(convert(theirs), bertjax.load(tmp_path / "adapter"))


def test_adapters_that_transformers_added_are_merged(rng):
    import peft

    theirs = torch_model()
    theirs.add_adapter(peft.LoraConfig(r=2, target_modules=["query", "dense"], init_lora_weights=False))
    ours = convert(theirs.eval())
    inputs = arguments(ours.config, rng) | {"token_type_ids": None}
    assert largest_difference(ours(inputs).logits, logits_of(theirs, inputs)) < CLOSE
    assert largest_difference(ours(inputs).logits, logits_of(torch_model(), inputs)) > 1e-2
    theirs.disable_adapters()
    with pytest.raises(CheckpointError, match=r"cannot be merged \(they are disabled: enable them"):
        bertjax.from_torch(theirs)


def test_adapters_that_cannot_be_merged_are_refused():
    import peft

    settings = peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3)
    with pytest.raises(ConfigError, match='in memory: peft_type is "PROMPT_TUNING", which cannot be merged'):
        bertjax.from_torch(peft.get_peft_model(torch_model(), settings))
    tied = random_adapter(torch_model(task=architecture.WORDS), target_modules=["decoder"])
    with pytest.raises(CheckpointError, match=r"it changes a weight that .*word_embeddings.* share"):
        bertjax.from_torch(tied)
    copies = {"layer_replication": [[0, 2], [1, 3]], "task_type": "FEATURE_EXTRACTION"}
    copied = random_adapter(torch_model(task=architecture.BODY), target_modules=["query"], **copies)
    with pytest.raises(CheckpointError, match="in memory: its adapters cannot be merged"):
        bertjax.from_torch(copied)


# Refused inputs, and ignored ones.


def of_an_unknown_class():
    import transformers

    class Mine(transformers.BertModel):
        pass

    return Mine(transformers.BertConfig(**SIZES["bert"][0]))


def of_an_unknown_family():
    import transformers

    return transformers.T5EncoderModel(transformers.T5Config(d_model=12, num_layers=1, num_heads=3, vocab_size=20))


def of_an_unknown_head():
    import transformers

    return transformers.ElectraForCausalLM(transformers.ElectraConfig(**SIZES["electra"][0]))


def with_another_head():
    import torch

    model = torch_model()
    model.classifier = torch.nn.Sequential(torch.nn.Linear(12, 5), torch.nn.Linear(5, 3))
    return model


def without_a_pooler():
    model = torch_model()
    model.bert.pooler = None
    return model


def without_values():
    return torch_model().to("meta")


def of_no_library():
    import torch

    return torch.nn.Linear(2, 3)


REFUSED = [
    (of_no_library, InputError, "model must be a PyTorch model: one of transformers, .* found a Linear"),
    (lambda: "bert-base-uncased", InputError, "model must be a PyTorch model: .* found the string 'bert-base-uncased'"),
    (lambda: None, InputError, "model must be a PyTorch model: .* found None"),
    (of_an_unknown_class, ConfigError, "Mine in memory: Mine is not a class of transformers"),
    (of_an_unknown_family, ConfigError, "T5EncoderModel in memory: model_type is 't5'; bertjax loads only bert, "),
    (
        of_an_unknown_head,
        ConfigError,
        r"architectures \['ElectraForCausalLM'\] in \w+ in memory are not supported, only Electra",
    ),
    (with_another_head, CheckpointError, r"has no tensor classifier\.0\.bias, classifier\.0\.weight and 2 more; undo"),
    (without_a_pooler, CheckpointError, r"in memory: the model has no tensor bert\.pooler\.dense\.bias"),
    (without_values, CheckpointError, r"^\w+ in memory: .* is not a plain array \(Cannot copy out of meta tensor"),
]


@pytest.mark.parametrize(("make", "error", "message"), REFUSED)
def test_unsupported_models_are_refused_in_one_line(make, error, message):
    with pytest.raises(error, match=message) as refused:
        bertjax.from_torch(make())
    assert "\n" not in str(refused.value)


def test_nothing_is_written_to_disk(library, transformer, tmp_path, monkeypatch):
    models = [torch_model(), embedder(library, transformer), random_adapter(torch_model(), target_modules=["query"])]
    for model in models:
        bertjax.from_torch(model)  # what JAX compiles, it writes to the tests' cache
    place = tmp_path / "empty"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    opened, system = builtins.open, os.open

    def read_only(file, mode="r", *args, **options):
        assert not set(mode) & set("wax+"), file
        return opened(file, mode, *args, **options)

    def read_only_too(file, flags, *args, **options):
        assert not flags & (os.O_WRONLY | os.O_RDWR), file
        return system(file, flags, *args, **options)

    monkeypatch.setattr(builtins, "open", read_only)
    monkeypatch.setattr(os, "open", read_only_too)
    for model in models:
        bertjax.from_torch(model)
    assert list(place.iterdir()) == []
