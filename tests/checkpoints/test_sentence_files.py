"""Settings of sentence-transformers directories are followed, or refused by name."""

import json
import warnings

import numpy as np
import pytest
from transformers import AutoTokenizer

import bertjax
from bertjax import BertForSentenceEmbedding, Tokenizer, collate
from bertjax.checkpoints.sentence_modules import read_pooling
from bertjax.checkpoints.sentence_transformers import SentenceSettingsWarning, read_text_settings
from bertjax.data import Examples
from bertjax.errors import ConfigError
from bertjax.tasks import TASKS, encode_examples
from tests.factories import PIECES, SENTENCES, WORDS, make_config
from tests.tiny_models import random_model

MODELS = "sentence_transformers.models"
# As version 6.2 writes them.
NEW = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
        {
            "idx": 1,
            "name": "1",
            "path": "1_Pooling",
            "type": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
        },
        {
            "idx": 2,
            "name": "2",
            "path": "2_Normalize",
            "type": "sentence_transformers.base.modules.normalize.Normalize",
        },
    ],
    "sentence_bert_config.json": {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
        "module_output_name": "token_embeddings",
    },
    "1_Pooling/config.json": {"embedding_dimension": 12, "pooling_mode": "mean", "include_prompt": True},
    "2_Normalize/config.json": {
        "module_input_name": "sentence_embedding",
        "module_output_name": "sentence_embedding",
    },
    "config_sentence_transformers.json": {
        "__version__": {"sentence_transformers": "6.2.0"},
        "default_prompt_name": None,
        "model_type": "SentenceTransformer",
        "prompts": {"document": "", "query": ""},
        "similarity_fn_name": "cosine",
    },
}


def write_files(directory, changes=None):
    """A directory of sentence-transformers; `changes` replace files, or keys of them where the file is a table."""
    for name, content in NEW.items():
        change = (changes or {}).get(name, {})
        content = {**content, **change} if isinstance(content, dict) and isinstance(change, dict) else change or content
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    return directory


def modules(*types, **changes):
    """A modules.json of these types; `changes` are of the first or of the one that is named."""
    return [
        {"idx": i, "name": str(i), "path": "" if kind.endswith("Transformer") else f"{i}_{kind.split('.')[-1]}"}
        | {"type": kind}
        | changes.get(kind.split(".")[-1], {})
        for i, kind in enumerate(types)
    ]


THREE = (f"{MODELS}.Transformer", f"{MODELS}.Pooling", f"{MODELS}.Normalize")


def test_what_version_6_writes_is_read(tmp_path):
    expected = {"pooling": "mean", "normalize": True, "dense": (), "max_length": None, "include_prompt": True}
    assert read_pooling(write_files(tmp_path)) == expected


@pytest.mark.parametrize(
    ("types", "normalize"),
    [
        (THREE, True),
        (THREE[:2], False),
        (
            ("sentence_transformers.models.Transformer.Transformer", "sentence_transformers.models.Pooling.Pooling"),
            False,
        ),
        (
            (
                "sentence_transformers.base.modules.Transformer",
                "sentence_transformers.sentence_transformer.modules.Pooling",
                "sentence_transformers.sentence_transformer.modules.normalize.Normalize",
            ),
            True,
        ),
    ],
)
def test_modules_of_every_version_are_known(types, normalize, tmp_path):
    assert read_pooling(write_files(tmp_path, {"modules.json": modules(*types)}))["normalize"] is normalize


ODD_MODULES = {
    "another package": (modules(THREE[0], "evil_module.Pooling"), "found evil_module.Pooling"),
    "a package that begins alike": (
        modules(THREE[0], "sentence_transformers.models.Pooling.evil.Pooling"),
        r"found sentence_transformers\.models\.Pooling\.evil\.Pooling",
    ),
    "another order": (modules(THREE[0], THREE[2], THREE[1]), "found Transformer, Normalize, Pooling"),
    "two Transformers": (modules(THREE[0], *THREE), "found Transformer, Transformer, Pooling, Normalize"),
    "two Normalize": (modules(*THREE, THREE[2]), "found Transformer, Pooling, Normalize, Normalize"),
    "no Pooling": (modules(THREE[0]), 'without Pooling .* but its module_output_name is "token_embeddings"'),
    "Pooling alone": (modules(THREE[1]), "found Pooling"),
    "Dense before Pooling": (modules(THREE[0], f"{MODELS}.Dense", THREE[1]), "found Transformer, Dense, Pooling"),
    "Dense after Normalize": (modules(*THREE, f"{MODELS}.Dense"), "found Transformer, Pooling, Normalize, Dense"),
    **{
        kind: (modules(*THREE[:2], f"{MODELS}.{kind}"), rf"found sentence_transformers\.models\.{kind}")
        for kind in ("LayerNorm", "Dropout", "CNN", "LSTM", "WeightedLayerPooling", "Router", "BoW")
    },
    "Transformer elsewhere": (
        modules(*THREE, Transformer={"path": "0_Transformer"}),
        'the Transformer is in "0_Transformer", but bertjax reads the model from the directory of modules.json',
    ),
    "a path upwards": (
        modules(*THREE, Pooling={"path": "../../1_Pooling"}),
        'the path of Pooling must be a directory in this one, found "../../1_Pooling"',
    ),
    "an absolute path": (modules(*THREE, Pooling={"path": "/etc"}), 'the path of Pooling must be .* found "/etc"'),
    "a path of Windows": (modules(*THREE, Pooling={"path": "..\\1"}), "the path of Pooling must be"),
    "a drive": (modules(*THREE, Normalize={"path": "C:1"}), "the path of Normalize must be"),
    "a path with NUL": (modules(*THREE, Pooling={"path": "1\0"}), "the path of Pooling must be"),
    "a path that is no text": (modules(*THREE, Pooling={"path": 1}), "the path of Pooling must be .* found 1"),
    "a path of Transformer that is no text": (modules(*THREE, Transformer={"path": None}), "the path of Transformer"),
    "a long path": (modules(*THREE, Pooling={"path": "x" * 300}), "cannot be read .File name too long"),
    "a type that is no text": (modules(*THREE, Pooling={"type": 3}), "must be a list of modules, each with a type"),
}


@pytest.mark.parametrize("name", ODD_MODULES)
def test_other_modules_are_refused_by_name(name, tmp_path):
    content, message = ODD_MODULES[name]
    directory = write_files(tmp_path, {"modules.json": content})
    with pytest.raises(ConfigError, match=message) as refused:
        read_pooling(directory)
    assert "\n" not in str(refused.value)


TEXT, POOLING, PROMPTS = "sentence_bert_config.json", "1_Pooling/config.json", "config_sentence_transformers.json"
ODD_SETTINGS = [
    (TEXT, {"max_seq_length": "128"}, "max_seq_length must be an integer from 1 to 2147483647 or null, found '128'"),
    (TEXT, {"max_seq_length": True}, "max_seq_length must be an integer from 1 to 2147483647 or null, found True"),
    (TEXT, {"max_seq_length": 0}, "max_seq_length must be"),
    (TEXT, {"max_seq_length": 12.5}, "max_seq_length must be"),
    (TEXT, {"max_seq_length": [12]}, r"max_seq_length must be .* found \[12\]"),
    (TEXT, {"do_lower_case": "true"}, "do_lower_case must be true or false, found 'true'"),
    (TEXT, {"do_lower_case": 1}, "do_lower_case must be true or false, found 1"),
    (TEXT, {"transformer_task": "fill-mask"}, 'transformer_task is "fill-mask"; bertjax supports only'),
    (TEXT, {"module_output_name": "sentence_embedding"}, "module_output_name is"),
    (TEXT, {"modality_config": {"image": {}}}, "modality_config is"),
    (TEXT, {"processing_kwargs": {"text": {"max_length": 3}}}, "processing_kwargs is"),
    (TEXT, {"tokenizer_args": {"do_lower_case": False}}, "tokenizer_args is"),
    (TEXT, {"do_upper_case": True}, 'bertjax does not know the key "do_upper_case"'),
    (POOLING, {"pooling_mode": "sum"}, r'pooling \["sum"\] is not supported, only cls, max, mean'),
    (POOLING, {"pooling_mode": []}, r"pooling \[\] is not supported"),
    (POOLING, {"pooling_mode": ["cls", "cls"]}, r"pooling \[\"cls\", \"cls\"\] is not supported, .*, each once"),
    (POOLING, {"pooling_mode": {"mean": 1}}, "only cls, max, mean"),
    (POOLING, {"pooling_mode_mean_tokens": "false"}, "pooling_mode_mean_tokens must be true or false"),
    (POOLING, {"include_prompt": "no"}, "include_prompt must be true or false"),
    (POOLING, {"pooling": "mean"}, 'bertjax does not know the key "pooling"'),
    (PROMPTS, {"default_prompt_name": "passage"}, 'default_prompt_name is "passage", but the prompts are query'),
    (PROMPTS, {"default_prompt_name": ["query"]}, "default_prompt_name is"),
    (PROMPTS, {"prompts": ["query: "]}, "prompts must be a dict of strings"),
    (PROMPTS, {"prompts": {"query": 3}}, "prompts must be a dict of strings"),
    (PROMPTS, {"model_type": "SparseEncoder"}, 'model_type is "SparseEncoder"'),
    (PROMPTS, {"truncate_dim": 8}, "truncate_dim is 8"),
    ("2_Normalize/config.json", {"module_input_name": "token_embeddings"}, "module_input_name is"),
]


@pytest.mark.parametrize(("file", "change", "message"), ODD_SETTINGS)
def test_unsupported_sentence_settings_are_refused_by_name(file, change, message, tmp_path):
    directory = write_files(tmp_path, {file: change})
    with pytest.raises(ConfigError, match=message) as refused:
        read_pooling(directory)
    assert "\n" not in str(refused.value)
    assert str(directory / file) in str(refused.value)


@pytest.mark.parametrize(
    ("flags", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False}, "mean"),
        ({"pooling_mode_cls_token": False}, "mean"),  # as in sentence-transformers where none is on
        ({"pooling_mode": ["cls"]}, "cls"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, ("cls", "mean")),  # in another order
        ({"pooling_mode": ["mean", "cls"]}, ("mean", "cls")),
    ],
)
def test_a_pooling_is_read_in_both_forms(flags, pooling, tmp_path):
    write_files(tmp_path)
    (tmp_path / POOLING).write_text(json.dumps({"word_embedding_dimension": 12} | flags))
    assert read_pooling(tmp_path)["pooling"] == pooling


def test_a_prompt_excluded_from_the_mean_is_refused(tmp_path):
    prompt = {"default_prompt_name": "query", "prompts": {"query": "query: "}}
    write_files(tmp_path, {PROMPTS: prompt, POOLING: {"include_prompt": False}})
    with pytest.raises(ConfigError, match='would exclude the prompt "query: " from the pooling'):
        read_pooling(tmp_path)
    write_files(tmp_path, {POOLING: {"include_prompt": False}})
    assert read_pooling(tmp_path)["pooling"] == "mean"


def test_another_similarity_causes_a_warning(tmp_path):
    write_files(tmp_path, {PROMPTS: {"similarity_fn_name": "dot"}})
    with pytest.warns(
        SentenceSettingsWarning, match='similarity_fn_name is "dot"; bertjax compares vectors by their cos'
    ):
        read_text_settings(tmp_path)


def test_a_prompt_without_a_text_is_empty(tmp_path):
    write_files(tmp_path, {PROMPTS: {"default_prompt_name": "document", "prompts": {}}})
    assert read_text_settings(tmp_path).prompt == ""


def make_directory(directory, changes, cased):
    """An embedder with a cased or uncased tokenizer, and settings of sentence-transformers."""
    random_model(BertForSentenceEmbedding, make_config()).save_pretrained(directory)
    write_files(directory, changes)
    (directory / "vocab.txt").write_text("\n".join([*PIECES, *WORDS]) + "\n")
    (directory / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": not cased}))
    return directory


def ids(tokenizer, texts):
    return [list(one.input_ids) for one in tokenizer.encode(texts)]


def test_lower_casing_comes_first_and_keeps_accents(tmp_path):
    texts = [*SENTENCES, *(text.upper() for text in SENTENCES), "Thé CAT", "[CLS] The"]
    plain = Tokenizer.from_pretrained(make_directory(tmp_path / "plain", {}, cased=True))
    lower = Tokenizer.from_pretrained(make_directory(tmp_path / "lower", {TEXT: {"do_lower_case": True}}, cased=True))
    assert ids(lower, texts) == ids(plain, [text if "[CLS]" in text else text.lower() for text in texts[:-1]]) + ids(
        plain, ["[CLS] the"]
    )
    assert ids(lower, texts) != ids(plain, texts)
    uncased = Tokenizer.from_pretrained(make_directory(tmp_path / "un", {TEXT: {"do_lower_case": True}}, cased=False))
    assert ids(uncased, ["Thé CAT"]) == ids(uncased, ["the cat"]) != ids(lower, ["Thé CAT"])


def test_the_default_prompt_does_not_shift_offsets(tmp_path):
    prompt = {PROMPTS: {"default_prompt_name": "query", "prompts": {"query": "the dog "}}}
    tokenizer = Tokenizer.from_pretrained(make_directory(tmp_path / "prompt", prompt, cased=False))
    plain = Tokenizer.from_pretrained(make_directory(tmp_path / "plain", {}, cased=False))
    assert ids(tokenizer, SENTENCES) == ids(plain, [f"the dog {text}" for text in SENTENCES])
    (found,) = tokenizer.encode(["a cat"])
    assert found.tokens == ("[CLS]", "the", "dog", "a", "cat", "[SEP]")
    assert found.offsets == ((0, 0), (0, 0), (0, 0), (0, 1), (2, 5), (0, 0))
    (pair,) = tokenizer.encode(["a cat"], ["the man ran"])
    assert pair.offsets[-4:] == ((0, 3), (4, 7), (8, 11), (0, 0))
    assert tokenizer.digest != plain.digest


def make_examples(texts):
    labels = np.zeros(len(texts), np.float32)
    return Examples(TASKS["stsb"], tuple(range(len(texts))), tuple(texts), tuple(texts), labels, "made up", "test")


@pytest.mark.parametrize(
    ("longest", "settings", "length"),
    [(5, {}, 5), (None, {"model_max_length": 6}, 6), (None, {}, 40), (9, {"model_max_length": 6}, 9)],
)
def test_texts_are_truncated_at_the_directorys_limit(longest, settings, length, tmp_path):
    """sentence-transformers 6 stores the limit in the tokenizer; that of an older file takes precedence."""
    directory = make_directory(tmp_path, {TEXT: {"max_seq_length": longest}}, cased=False)
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    model, tokenizer = bertjax.load(directory), Tokenizer.from_pretrained(directory)
    encoded = encode_examples(model, tokenizer, make_examples(["the cat " * 50]))
    assert set(encoded.lengths.tolist()) == {length}


@pytest.mark.needs_torch
@pytest.mark.parametrize(
    ("longest", "settings"), [(5, {}), (9, {"model_max_length": 6}), (None, {"model_max_length": 6})]
)
def test_max_length_is_that_of_sentence_transformers(longest, settings, tmp_path):
    """The limit of the first module takes precedence over the tokenizer's, as there."""
    import sentence_transformers

    directory = make_directory(tmp_path, {TEXT: {"max_seq_length": longest}}, cased=False)
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = sentence_transformers.SentenceTransformer(str(directory), device="cpu")
    ours = Tokenizer.from_pretrained(directory)
    assert ours.max_length == theirs.tokenizer.model_max_length == theirs.max_seq_length
    ours.save_pretrained(tmp_path / "again")
    assert Tokenizer.from_pretrained(tmp_path / "again").max_length == ours.max_length


def test_an_embedder_is_saved_with_its_text_settings(tmp_path):
    changes = {TEXT: {"do_lower_case": True, "max_seq_length": 11}}
    changes[PROMPTS] = {"default_prompt_name": "query", "prompts": {"query": "The dog: "}}
    directory = make_directory(tmp_path / "first", changes, cased=True)
    model, tokenizer = bertjax.load(directory), Tokenizer.from_pretrained(directory)
    model.save_pretrained(tmp_path / "second", tokenizer)
    again, reread = bertjax.load(tmp_path / "second"), Tokenizer.from_pretrained(tmp_path / "second")
    assert again.max_length == 11
    assert reread.prompt == "The dog: "
    assert reread.digest == tokenizer.digest
    texts = [*SENTENCES, "A CAT", "Thé MAN"]
    first, second = (m(**collate(t.encode(texts))) for m, t in ((model, tokenizer), (again, reread)))
    assert np.array_equal(first.sentence_embedding, second.sentence_embedding)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "second")
    assert theirs([f"The dog: {text}" for text in texts])["input_ids"] == ids(tokenizer, texts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.save_pretrained(tmp_path / "second")  # with another tokenizer
        assert Tokenizer.from_pretrained(tmp_path / "second").prompt == "The dog: "
        model.tokenizer = None
        model.save_pretrained(tmp_path / "second")  # without a tokenizer there is no prompt
    assert Tokenizer.from_pretrained(tmp_path / "second").prompt == ""
