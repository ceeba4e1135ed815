"""JSON in users' files: read as by Python's reader, or refused in one line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.checkpoints import BertConfig
from bertjax.errors import ConfigError
from bertjax.json_files import JsonError, parse_json, read_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES)
def test_what_can_be_written_is_read_as_it_was(value):
    assert parse_json(json.dumps(value)) == value


def test_configs_with_a_key_twice_are_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert", "hidden_size": 12, "hidden_size": 24}')
    with pytest.raises(ConfigError, match=r'config.json: .*an object has the key "hidden_size" twice; keep one'):
        BertConfig.from_directory(tmp_path)


def test_an_infinite_number_is_no_setting(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert", "layer_norm_eps": 1e400}')
    with pytest.raises(ConfigError, match=r"layer_norm_eps must be .* found inf"):
        BertConfig.from_directory(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ('{"a" 1}', "not valid JSON: Expecting ':' delimiter at column 6"),
        ('{"a": 1,\n "b" 1}', "not valid JSON: Expecting ':' delimiter at line 2, column 6"),
        ("[" * 100_000, "not valid JSON: maximum recursion depth"),
        ("1" + "0" * 5_000, "not valid JSON: Exceeds the limit"),
        ("[NaN]", "NaN is not JSON"),
        ('{"a": -Infinity}', "-Infinity is not JSON"),
        ('[{"b": {"é": 1, "\\u00e9": 2}}]', r'an object has the key "\u00e9" twice'),
    ],
)
def test_what_is_not_json_is_refused_in_half_a_line(content, message):
    with pytest.raises(JsonError) as refused:
        parse_json(content)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        (b"[1]", dict, r"must hold a JSON object, found \[1\]"),
        (b"null", list, "must hold a JSON list, found null"),
        (b"\xff", dict, "cannot be read .'utf-8' codec"),
        (b"{", dict, "not valid JSON"),
    ],
)
def test_a_file_of_another_kind_is_refused_by_its_path(tmp_path, content, kind, message):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ConfigError, match=message) as refused:
        read_json(tmp_path / "a.json", ConfigError, kind)
    assert str(refused.value).startswith(str(tmp_path / "a.json"))
