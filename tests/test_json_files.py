"""Claims about JSON in users' files: read as Python's own reader does, or refused in one line."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.checkpoints import BertConfig
from bertjax.errors import ConfigError
from bertjax.json_files import DEEPEST, JsonError, parse_json, read_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES)
def test_what_can_be_written_is_read_as_it_was(value):
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value, ensure_ascii=False)) == value


@given(st.text())
def test_any_text_is_read_or_refused(text):
    try:
        value = parse_json(text)
    except JsonError:
        return
    assert value == json.loads(text)


def test_configs_with_a_key_twice_are_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert", "hidden_size": 12, "hidden_size": 24}')
    with pytest.raises(ConfigError, match=r'config.json: an object has the key "hidden_size" twice; keep one'):
        BertConfig.from_directory(tmp_path)


LARGEST = str(int(1.7976931348623157e308))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "nested deeper than"),
        ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "nested deeper than"),
        ('{"a":' * 5_000 + "1" + "}" * 5_000, "nested deeper than"),
        ("1e400", "the number 1e400 is too large"),
        ("[-1e999]", "the number -1e999 is too large"),
        ("1" + "0" * 400, "a number of 401 digits is too large"),
        ("-1" + "0" * 5_000, "a number of 5001 digits is too large"),
        ("1" + "0" * 308, None),
        ("2" + "0" * 308, "a number of 309 digits is too large"),
        (LARGEST, None),
        ("-" + LARGEST, None),
        ("NaN", "NaN is not JSON"),
        ("[Infinity]", "Infinity is not JSON"),
        ('{"a": -Infinity}', "-Infinity is not JSON"),
        (r'"\ud800"', "half of a surrogate pair"),
        (r'{"\udfff": 1}', "half of a surrogate pair"),
        (r'"\ud83d\ude00"', None),
        ("[" * DEEPEST + "]" * DEEPEST, None),
        ('{"a": 1, "b": 2, "a": 1}', 'an object has the key "a" twice'),
        ('[{"b": {"é": 1, "\\u00e9": 2}}]', r'an object has the key "\u00e9" twice'),
        ('{"a": {"a": 1}, "b": [{"a": 2}, {"a": 3}]}', None),
    ],
)
def test_what_nobody_should_meet_is_refused_in_half_a_line(content, message):
    if message is None:
        assert parse_json(content) == json.loads(content)
        return
    with pytest.raises(JsonError) as refused:
        parse_json(content)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 150


def test_every_number_that_is_read_is_a_float_too():
    assert math.isfinite(float(parse_json(LARGEST)))


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        (b"[1]", dict, "must hold a JSON object, found a list"),
        (b"null", list, "must hold a JSON list, found null"),
        (b'"x"', dict, "found a text"),
        (b"3", dict, "found a number"),
        (b"\xff", dict, "line 1: not UTF-8"),
        (b"{", dict, "not valid JSON"),
    ],
)
def test_a_file_of_another_kind_is_refused_by_its_path(tmp_path, content, kind, message):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ConfigError, match=message) as refused:
        read_json(tmp_path / "a.json", ConfigError, kind)
    assert str(refused.value).startswith(str(tmp_path / "a.json"))


def test_a_file_is_read(tmp_path):
    (tmp_path / "a.json").write_text('{"labels": ["é", 1]}', encoding="utf-8")
    assert read_json(tmp_path / "a.json") == {"labels": ["é", 1]}
    (tmp_path / "a.json").write_text(" 3\n")
    assert read_json(tmp_path / "a.json", kind=None) == 3
