"""Tokenising, padding and batching, compared with the tokenizer of transformers."""

import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from transformers import BertTokenizer

from bertjax.data.tokenizer import BUCKETS, Encoding, Tokenizer, batches_by_length, collate
from bertjax.errors import DataError, InputError
from tests.tokenizer_factories import WORD_PIECES

FIRST = ["The cats sat on the mat!", "Cat", "unsatable É 中國 the the", "", "zebra 'cat'", "on [MASK] mat"]
SECOND = ["the mat", "the cats sat on the matted mat ! !", "on", "cat", "the [SEP] cat", "é"]


def write_vocabulary(directory: Path, **settings: object) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "vocab.txt").write_text("\n".join(WORD_PIECES) + "\n", encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "config.json").write_text('{"model_type": "bert"}')
    return directory


def write_both_forms(directory: Path, **settings: object) -> tuple[Path, Path]:
    """A directory with `vocab.txt` only, and one with `tokenizer.json` that pads and cuts by itself."""
    slow = write_vocabulary(directory / "slow", **settings)
    fast = directory / "fast"
    fast.mkdir()
    shutil.copyfile(slow / "config.json", fast / "config.json")
    tokenizer = BertTokenizer.from_pretrained(slow)
    tokenizer.save_pretrained(fast)
    backend = tokenizer.backend_tokenizer
    backend.enable_padding(length=13)
    backend.enable_truncation(4)
    backend.save(str(fast / "tokenizer.json"))
    return slow, fast


@pytest.mark.parametrize("settings", [{}, {"do_lower_case": False}, {"strip_accents": False}])
def test_both_forms_encode_as_transformers_does(settings: dict[str, object], tmp_path: Path) -> None:
    slow, fast = write_both_forms(tmp_path, **settings)
    theirs = BertTokenizer.from_pretrained(slow)
    tokenizers = [Tokenizer.from_pretrained(directory) for directory in (slow, fast)]
    options = {"return_offsets_mapping": True, "return_token_type_ids": True}
    for texts, max_length, tokenizer in product(((FIRST,), (FIRST, SECOND)), (None, 9, 7, 6, 5, 4, 3), tokenizers):
        strategy = "do_not_truncate" if max_length is None else "longest_first"
        reference = theirs(*texts, truncation=strategy, max_length=max_length, **options)
        whole = theirs(*texts)["input_ids"]
        found = tokenizer.encode(*texts, max_length=max_length)
        assert [list(one.input_ids) for one in found] == reference["input_ids"]
        assert [list(one.token_type_ids) for one in found] == reference["token_type_ids"]
        assert [list(one.offsets) for one in found] == reference["offset_mapping"]
        assert [[WORD_PIECES[number] for number in one.input_ids] for one in found] == [
            list(one.tokens) for one in found
        ]
        assert [one.truncated for one in found] == [len(a) < len(b) for a, b in zip(found, whole, strict=True)]


def test_offsets_count_characters_of_each_tokens_text(tmp_path: Path) -> None:
    slow, _ = write_both_forms(tmp_path)
    (pair,) = Tokenizer.from_pretrained(slow).encode(["É the cats"], ["中 mat"])
    assert pair.tokens == ("[CLS]", "e", "the", "cat", "##s", "[SEP]", "中", "mat", "[SEP]")
    assert pair.offsets == ((0, 0), (0, 1), (2, 5), (6, 9), (9, 10), (0, 0), (0, 1), (2, 5), (0, 0))
    assert pair.token_type_ids == (0, 0, 0, 0, 0, 0, 1, 1, 1)


def test_tokenizer_config_overrides_tokenizer_json(tmp_path: Path) -> None:
    _, fast = write_both_forms(tmp_path, do_lower_case=True)
    (fast / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    (found,) = Tokenizer.from_pretrained(fast).encode(["Cat"])
    assert list(found.input_ids) == BertTokenizer.from_pretrained(fast)("Cat")["input_ids"] == [2, 7, 3]


def test_a_class_that_contradicts_tokenizer_json_is_refused(tmp_path: Path) -> None:
    _, fast = write_both_forms(tmp_path)
    path = fast / "tokenizer.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}}))
    (fast / "tokenizer_config.json").unlink()
    refuse(fast, "tokenizer.json and the class BertTokenizer give different tokens; .*PreTrainedTokenizerFast")
    (fast / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    assert Tokenizer.from_pretrained(fast).encode(["The cat"])[0].input_ids[1] == 1  # unknown: not lower-cased
    (fast / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RobertaTokenizer"}))
    refuse(fast, "class RobertaTokenizer give different tokens")


def test_a_limit_of_one_call_does_not_cut_the_next(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_pretrained(write_vocabulary(tmp_path))
    before = tokenizer.encode(FIRST)
    tokenizer.encode(FIRST, max_length=3)
    assert tokenizer.encode(FIRST) == before


def test_threads_do_not_change_the_limits_of_each_other(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_pretrained(write_vocabulary(tmp_path))
    limits, interval = [4, 6, None], sys.getswitchinterval()
    expected = [tokenizer.encode(FIRST, max_length=limit) for limit in limits]
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as pool:
            found = [pool.submit(tokenizer.encode, FIRST, max_length=limit) for _ in range(200) for limit in limits]
            assert [one.result() for one in found] == expected * 200
    finally:
        sys.setswitchinterval(interval)


def test_a_large_data_set_is_encoded_in_parts_with_shared_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer.from_pretrained(write_vocabulary(tmp_path))
    expected = tokenizer.encode(FIRST, SECOND, 7)
    monkeypatch.setattr("bertjax.data.tokenizer.TEXTS_AT_ONCE", 2)
    found = tokenizer.encode(FIRST, SECOND, 7)
    assert found == expected
    assert any(one.truncated for one in found)
    assert len({id(offset) for one in found for offset in one.offsets}) == len(
        {o for one in found for o in one.offsets}
    )


def test_special_tokens_are_found_by_their_names(tmp_path: Path) -> None:
    directory = write_vocabulary(tmp_path / "plain")
    plain = Tokenizer.from_pretrained(directory)
    assert (plain.pad_id, plain.cls_id, plain.sep_id, plain.vocab_size) == (0, 2, 3, len(WORD_PIECES))
    _, fast = write_both_forms(tmp_path)
    (fast / "special_tokens_map.json").write_text(json.dumps({"pad_token": "the"}))
    (fast / "tokenizer_config.json").write_text(json.dumps({"sep_token": "on"}))
    renamed = Tokenizer.from_pretrained(fast)
    assert (renamed.pad_id, renamed.cls_id, renamed.sep_id) == (5, 2, 12)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"vocab.txt": None}, "no tokenizer; looked for tokenizer.json and vocabulary files"),
        ({"vocab.txt": None, "vocab.json": "{}"}, "its vocabulary is empty, or not in a file that BertT"),
        ({"vocab.txt": ""}, "its vocabulary is empty"),
        ({"tokenizer.json": '{"model": {"vo'}, "transformers cannot read a tokenizer from it"),
        ({"tokenizer.json": '{"model":' * 100_000}, "transformers cannot read a tokenizer from it"),
        (
            {"tokenizer.json": '{"model": {"type": "WordPiece", "vocab": {"a": -1}}}'},
            "transformers cannot read a tokenizer",
        ),
        ({"tokenizer_config.json": "{"}, "tokenizer_config.json: cannot be read .not valid JSON"),
        (
            {"config.json": '{"model_type": "bert", "auto_map": {"AutoModel": "x.Y"}}'},
            "config.json: auto_map names",
        ),
    ],
)
def test_tokenizer_files_that_cannot_be_read_are_refused(
    files: dict[str, str | None], message: str, tmp_path: Path
) -> None:
    write_vocabulary(tmp_path)
    for name, content in files.items():
        (tmp_path / name).unlink() if content is None else (tmp_path / name).write_text(content)
    refuse(tmp_path, message)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"do_lower_case": "false"}, "transformers cannot read a tokenizer from it .*'bool'"),
        ({"do_basic_tokenize": False}, "do_basic_tokenize is false; bertjax supports only True"),
        ({"never_split": ["the"]}, "never_split is"),
        ({"wordpieces_prefix": "@@"}, 'wordpieces_prefix is "@@"'),
        ({"clean_text": False}, "clean_text is false"),
        ({"remove_space": False}, "remove_space is false"),
        ({"sp_model_kwargs": {"enable_sampling": True}}, "sp_model_kwargs is"),
        ({"gguf_file": "model.gguf"}, 'gguf_file is "model.gguf"; bertjax supports only None'),
        (
            {"tokenizer_class": "BertJapaneseTokenizer"},
            "a BertJapaneseTokenizer runs in Python; bertjax needs",
        ),
        ({"truncation_side": "middle"}, "transformers cannot read a tokenizer from it .*middle"),
        ({"model_max_length": "128"}, 'model_max_length must be a positive integer, found "128"'),
        ({"model_max_length": 0}, "model_max_length must be a positive integer, found 0"),
        ({"pad_token": 3}, "transformers cannot read a tokenizer from it .*pad_token"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(
    settings: dict[str, object], message: str, tmp_path: Path
) -> None:
    refuse(write_vocabulary(tmp_path, **settings), message)


def refuse(directory: Path, message: str) -> None:
    with pytest.raises(DataError, match=message) as raised:
        Tokenizer.from_pretrained(directory)
    assert "\n" not in str(raised.value)
    assert str(directory) in str(raised.value)


@pytest.mark.parametrize("form", [["code.Mine", None], {"AutoTokenizer": ["code.Mine", "code.Mine"]}])
def test_code_of_a_checkpoint_never_runs(form: object, tmp_path: Path) -> None:
    directory = write_vocabulary(tmp_path, tokenizer_class="Mine", auto_map=form)
    ran = tmp_path / "ran"
    (directory / "code.py").write_text(f"open({str(ran)!r}, 'w')\nclass Mine: pass\n")
    refuse(directory, "tokenizer_config.json: auto_map names custom Python code of the checkpoint, .* never runs")
    assert not ran.exists()


def test_special_tokens_can_be_split_as_other_text_is(tmp_path: Path) -> None:
    plain = Tokenizer.from_pretrained(write_vocabulary(tmp_path / "plain"))
    split = Tokenizer.from_pretrained(write_vocabulary(tmp_path / "split", split_special_tokens=True))
    (found,) = split.encode(["[SEP]"])
    theirs = BertTokenizer.from_pretrained(tmp_path / "split")
    assert list(found.input_ids) == theirs("[SEP]")["input_ids"]
    assert found.input_ids != plain.encode(["[SEP]"])[0].input_ids
    assert split.digest != plain.digest


def test_wrong_calls_of_encode_are_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_pretrained(write_vocabulary(tmp_path))
    with pytest.raises(InputError, match="these texts cannot be tokenised"):
        tokenizer.encode(["\ud800"])
    with pytest.raises(InputError, match="max_length is 2; the special tokens alone are 3"):
        tokenizer.encode(["the"], ["cat"], max_length=2)
    assert tokenizer.encode([]) == []


def encoding(length: int) -> Encoding:
    ids = tuple(range(4, 4 + length))
    return Encoding(ids, (1,) * length, ("x",) * length, ((0, 1),) * length, False)


def test_collate_pads_on_the_right_with_the_padding_token() -> None:
    batch = collate([encoding(2), encoding(3)], length=5, pad_id=9)
    assert batch["input_ids"].tolist() == [[4, 5, 9, 9, 9], [4, 5, 6, 9, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0]]
    assert batch["token_type_ids"].tolist() == [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0]]
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int32)}
    assert collate([encoding(2), encoding(3)])["input_ids"].shape == (2, 3)
    with pytest.raises(InputError, match="has 3 tokens, but the batch only 2; encode with max_length=2"):
        collate([encoding(3)], length=2)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 100, 333])
def test_batches_hold_all_examples_in_one_shape_per_length(count: int) -> None:
    lengths = np.random.default_rng(count).integers(3, 200, count).tolist()
    batches = batches_by_length(lengths, batch_size=16)
    assert {index for indices, _ in batches for index in indices} == set(range(count))
    shapes = {(len(indices), padded) for indices, padded in batches}
    assert len(shapes) == len({padded for _, padded in batches})
    assert {padded for _, padded in batches} <= set(BUCKETS)
    assert all(lengths[index] <= padded for indices, padded in batches for index in indices)
    repeats = sum(len(indices) for indices, _ in batches) - count
    assert repeats == (-count % 16 if count > 16 else 0)


def test_short_examples_are_not_padded_to_long_ones() -> None:
    batches = batches_by_length([90, 5, 6, 89, 7, 88], batch_size=3)
    assert batches == [((0, 3, 5), 96), ((4, 2, 1), 8)]


def test_padding_goes_beyond_buckets_up_to_the_models_positions() -> None:
    assert batches_by_length([18], 4, max_length=19) == [((0,), 19)]
    assert batches_by_length([21], 4, buckets=(8, 10)) == [((0,), 30)]
    assert batches_by_length([], 4) == []
    with pytest.raises(InputError, match="has 20 tokens; there must be from 1 to 19: encode with max_length=19"):
        batches_by_length([18, 20], 4, max_length=19)
    with pytest.raises(InputError, match="batch_size is 0"):
        batches_by_length([1], 0)
