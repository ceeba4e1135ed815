"""Claims about tokenizers that bertjax does not read: damaged files and settings are told by name, in one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import DataError
from tests.tokenizer_factories import (
    case_id,
    change_tokenizer_config,
    make_tokenizer,
    sentence_pieces,
    write_vocabulary,
)

REFUSED = [
    (
        "RobertaTokenizer",
        {"tokenizer_class": "BertweetTokenizer"},
        'tokenizer_class is "BertweetTokenizer"; bertjax makes',
    ),
    ("RobertaTokenizer", {"add_prefix_space": "yes"}, 'add_prefix_space must be true or false, found "yes"'),
    ("RobertaTokenizer", {"trim_offsets": None}, "trim_offsets must be true or false, found null"),
    ("AlbertTokenizer", {"keep_accents": 1}, "keep_accents must be true or false, found 1"),
    ("AlbertTokenizer", {"remove_space": False}, "remove_space is false; bertjax supports only True"),
    ("XLMRobertaTokenizer", {"sp_model_kwargs": {"enable_sampling": True}}, "sp_model_kwargs is"),
    ("XLMRobertaTokenizer", {"eos_token": None}, "eos_token is null, but a XLMRobertaTokenizer needs one"),
    ("DebertaV2Tokenizer", {"unk_id": -1}, "a token's number must be from 0 to 2147483647, found -1"),
    ("DebertaV2Tokenizer", {"split_by_punct": "no"}, 'split_by_punct must be true or false, found "no"'),
    ("MPNetTokenizer", {"do_lower_case": None}, "do_lower_case must be true or false, found null"),
    ("MPNetTokenizer", {"sep_token": "absent"}, "its vocabulary lacks absent; is this a MPNet's"),
    ("CamembertTokenizer", {"model_input_names": "input_ids"}, "model_input_names must be a list of names"),
    ("CamembertTokenizer", {"extra_special_tokens": "<e>"}, "additional_special_tokens must be a list of tokens"),
]


@pytest.mark.parametrize(("name", "settings", "message"), REFUSED, ids=case_id)
def test_settings_that_cannot_be_followed_are_refused_by_name(
    name: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    refuse(change_tokenizer_config(make_tokenizer(tmp_path, name), **settings), message)


def refuse(directory: Path, message: str) -> None:
    with pytest.raises(DataError, match=message) as raised:
        Tokenizer.from_pretrained(directory)
    assert str(directory) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("XLMRobertaTokenizer", {"type": "BPE"}, 'its model is "BPE", but a XLMRobertaTokenizer has Unigram'),
        (
            "XLMRobertaTokenizer",
            {"vocab": {"a": 0}},
            'its vocabulary is {"a": 0}, not tokens with scores; is this a XLM-R',
        ),
        ("XLMRobertaTokenizer", {"vocab": [["a", 0.0]]}, "no tokenizer can be made of it .*unk_id"),
        ("XLMRobertaTokenizer", {"vocab": [["a"]]}, "no tokenizer can be made of it"),
        ("RobertaTokenizer", {"vocab": [["a", 0.0]]}, "not numbers by token; is this a RoBERTa's"),
        ("RobertaTokenizer", {"merges": ["a b c"]}, "no tokenizer can be made of it"),
        ("RobertaTokenizer", {"merges": [["a", "none"]]}, "no tokenizer can be made of it .*out of vocabulary"),
        (
            "AlbertTokenizer",
            {"vocab": [["a", 0.0], ["b", 0.0]]},
            r"vocabulary lacks \[CLS\], \[SEP\]; is this a ALBERT's",
        ),
        (
            "MPNetTokenizer",
            {"max_input_chars_per_word": 5},
            "max_input_chars_per_word is 5, but a MPNetTokenizer has 100",
        ),
    ],
)
def test_a_tokenizer_json_that_is_not_of_the_class_is_refused(
    name: str, changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = make_tokenizer(tmp_path, name) / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"] |= changed
    path.write_text(json.dumps(content | {"added_tokens": []}))
    refuse(tmp_path, message)


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        (
            "RobertaTokenizer",
            "merges.txt",
            None,
            "no tokenizer; looked for tokenizer.json and vocab.json and merges.txt",
        ),
        ("RobertaTokenizer", "merges.txt", "#version: 0.2\na b\na b c\n", "merges.txt, line 3: must be two tokens"),
        ("RobertaTokenizer", "vocab.json", '{"a": -1}', 'vocab.json: the number of "a" must be from 0'),
        ("AlbertTokenizer", "spiece.model", b"\xff" * 99, "spiece.model: not a SentencePiece model"),
        ("AlbertTokenizer", "spiece.model", b"\x0a\x7f", "spiece.model: not a SentencePiece model"),
        ("AlbertTokenizer", "spiece.model", b"", "spiece.model: is no Unigram model of SentencePiece"),
        ("DebertaV2Tokenizer", "spm.model", 2, "spm.model: is no Unigram model of SentencePiece"),
        (
            "AlbertTokenizer",
            "tokenizer_config.json",
            '{"add_eos_token": false}',
            "add_eos_token is given, which without",
        ),
        (
            "AlbertTokenizer",
            "config.json",
            '{"model_type": "gpt2"}',
            'config.json: the model_type is "gpt2"; bertjax makes',
        ),
        ("AlbertTokenizer", "config.json", '{"model_type": "modernbert"}', "no tokenizer; looked for tokenizer.json$"),
        (
            "AlbertTokenizer",
            "config.json",
            '{"model_type": ["albert"]}',
            "config.json: model_type must be a name, found",
        ),
        (
            "AlbertTokenizer",
            "config.json",
            '{"tokenizer_class": 3}',
            "config.json: tokenizer_class must be a name, found 3",
        ),
    ],
)
def test_damaged_vocabulary_files_are_refused(name: str, file: str, content: Any, message: str, tmp_path: Path) -> None:
    directory = write_vocabulary(tmp_path, name)
    if file == "config.json":
        (directory / "tokenizer_config.json").unlink()
    if isinstance(content, int):
        content = sentence_pieces(name, algorithm=content)
    (directory / file).unlink()
    if content is not None:
        (directory / file).write_bytes(content.encode() if isinstance(content, str) else content)
    refuse(directory, message)
