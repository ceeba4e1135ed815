"""Claims about the tokenizers of other encoders than BERT: each gives what `transformers.AutoTokenizer` gives.

Small vocabularies are trained on lines of many scripts that are made from a seed, and put into each class of tokenizers
as transformers has it. The lines compared are others, so that they hold what no vocabulary has.
"""

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import transformers
from tokenizers import models, pre_tokenizers
from transformers import AutoTokenizer

from bertjax.data.long_texts import LONG, shorten
from bertjax.data.tokenizer import Encoding, Tokenizer
from bertjax.errors import InputError, MissingDependencyError
from experiments.patterns.maps import sizes_of
from experiments.similarity.partners import fit
from experiments.words.features import FEATURES, TEXT, no_masks
from experiments.words.spans import pieces_of
from tests.tokenizer_factories import (
    ODD_TEXTS,
    TOKENIZER_FAMILIES,
    VOCABULARY,
    case_id,
    change_tokenizer_config,
    draw_lines,
    make_tokenizer,
    write_vocabulary,
)


@functools.cache
def some_lines(count: int = 200) -> list[str]:
    """The lines that are compared, drawn when a test first needs them."""
    return draw_lines(count, 1)


@functools.cache
def other_lines(count: int = 200) -> list[str]:
    """As many others, for the second texts of pairs."""
    return draw_lines(count, 2)


def read_both(directory: Path) -> tuple[Tokenizer, Any]:
    return Tokenizer.from_pretrained(directory), AutoTokenizer.from_pretrained(directory)


def compare(ours: Tokenizer, theirs: Any, *texts: list[str], limit: int | None = None) -> list[Encoding]:
    """Both give the same tokens for the same texts or pairs."""
    strategy = "do_not_truncate" if limit is None else "longest_first"
    options = {"return_offsets_mapping": True, "return_token_type_ids": True}
    expected = theirs(*texts, truncation=strategy, max_length=limit, **options)
    found = ours.encode(*texts, max_length=limit)
    has_types = "token_type_ids" in theirs.model_input_names
    types = [types if has_types else [0] * len(types) for types in expected["token_type_ids"]]
    assert [list(one.input_ids) for one in found] == expected["input_ids"]
    assert [list(one.token_type_ids) for one in found] == types
    assert [list(one.offsets) for one in found] == expected["offset_mapping"]
    assert [list(one.tokens) for one in found] == [one.tokens for one in expected.encodings]
    return found


def compare_names(ours: Tokenizer, theirs: Any) -> None:
    """Both have the same special tokens, as many tokens, and the same limits."""
    for key in ("pad", "cls", "sep", "mask", "unk"):
        assert getattr(ours, f"{key}_token_id") == getattr(theirs, f"{key}_token_id")
    assert ours.vocab_size == len(theirs)
    assert ours.truncation_side == theirs.truncation_side
    assert ours.max_length == (theirs.model_max_length if theirs.model_max_length < 10**6 else None)
    assert ours.token_types == ("token_type_ids" in theirs.model_input_names)
    for pairs in (False, True):
        assert ours.special_tokens(pairs) == theirs.num_special_tokens_to_add(pairs)


@pytest.mark.parametrize(
    ("name", "settings"), [*((name, {}) for name in TOKENIZER_FAMILIES), ("ElectraTokenizer", {"do_lower_case": False})]
)
@pytest.mark.parametrize("count", [200, pytest.param(2_000, marks=pytest.mark.integration)])
def test_lines_of_many_scripts_are_tokenised_as_in_transformers(
    name: str, settings: dict[str, Any], count: int, tmp_path: Path
) -> None:
    ours, theirs = read_both(make_tokenizer(tmp_path, name, **settings))
    compare_names(ours, theirs)
    first, second = some_lines(count), other_lines(count)
    singles, pairs = compare(ours, theirs, first), compare(ours, theirs, first[:500], second[:500])
    seen = {number for one in singles for number in one.input_ids}
    assert len(seen) > VOCABULARY / (2 if count == 2_000 else 4)
    assert {ours.cls_token_id, ours.sep_token_id, ours.mask_token_id} <= seen
    for one in [*singles[:200], *pairs[:50]]:
        for skip in (False, True):
            assert ours.decode(one.input_ids, skip) == theirs.decode(one.input_ids, skip)


def mostly_slow(cases: list[Any], *always: Any) -> list[Any]:
    """Cases of two parameters for a test: some always run, and the others in `make test-slow`."""
    assert set(always) <= set(cases)
    return [case if case in always else pytest.param(*case, marks=pytest.mark.slow) for case in cases]


# One class for each kind of model, and for each way of naming the ends of texts.
SOME = ("DistilBertTokenizer", "RobertaTokenizer", "XLMRobertaTokenizer", "AlbertTokenizer")


@pytest.mark.parametrize(
    ("name", "side"),
    mostly_slow(
        [(name, side) for name in TOKENIZER_FAMILIES for side in ("right", "left")],
        *[(name, "right") for name in TOKENIZER_FAMILIES],
        *[(name, "left") for name in SOME],
    ),
)
def test_long_texts_are_cut_at_the_same_tokens(name: str, side: str, tmp_path: Path) -> None:
    ours, theirs = read_both(make_tokenizer(tmp_path, name, truncation_side=side, model_max_length=9))
    compare_names(ours, theirs)
    whole = ours.encode(some_lines()[:60])
    for limit in (2, 3, 8, 13):
        cut = compare(ours, theirs, some_lines()[:60], limit=limit)
        assert [one.truncated for one in cut] == [len(one) > limit for one in whole]
    for limit in (4, 5, 11, 24):
        compare(ours, theirs, some_lines()[:30], other_lines()[:30], limit=limit)
    if ours.special_tokens(pairs=True) == 4:
        with pytest.raises(InputError, match="max_length is 3; the special tokens alone are 4"):
            ours.encode(["a"], ["b"], max_length=3)


@pytest.mark.parametrize("name", TOKENIZER_FAMILIES)
@pytest.mark.parametrize("side", ["right", "left"])
def test_words_become_the_tokens_of_run_ner(name: str, side: str, tmp_path: Path) -> None:
    """Words as transformers' run_ner.py encodes them: with spaces inside, of white space, of nothing, odd ones."""
    directory = make_tokenizer(tmp_path, name, truncation_side=side)
    prefix = {"add_prefix_space": True} if name == "RobertaTokenizer" else {}
    ours, theirs = Tokenizer.from_pretrained(directory), AutoTokenizer.from_pretrained(directory, **prefix)
    rng, words = np.random.default_rng(4), np.array(" ".join(draw_lines(300, 5)).split(" "))
    odd = np.array([*ODD_TEXTS, "New York", " 1\u00a0000 ", "", " ", "\u200b", "\u2028", "\u00a0", ".", "("])
    sentences = [
        [str(rng.choice(odd if rng.random() < 0.3 else words)) for _ in range(rng.integers(1, 12))] for _ in range(300)
    ]
    before = ours.encode(["New York"])
    for limit in (None, 3, 9):
        strategy = "do_not_truncate" if limit is None else "longest_first"
        expected = theirs(sentences, is_split_into_words=True, truncation=strategy, max_length=limit)
        found = ours.encode_words(sentences, limit)
        assert [list(one.input_ids) for one in found] == expected["input_ids"]
        assert [list(one.word_ids) for one in found] == [expected.word_ids(row) for row in range(len(sentences))]
    assert ours.encode(["New York"]) == before  # the space before words is theirs alone


@pytest.mark.parametrize("name", TOKENIZER_FAMILIES)
def test_of_very_long_texts_only_beginnings_are_cut(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = read_both(make_tokenizer(tmp_path, name))
    monkeypatch.setattr("bertjax.data.long_texts.LONG", 30)
    texts = ["".join(some_lines()[place : place + 1 + place % 3]) for place in range(24)]
    others = ["".join(other_lines()[place : place + 1 + place % 4]) for place in range(24)]
    for limit in (12, 40):
        compare(ours, theirs, texts, limit=limit)
        compare(ours, theirs, texts, others, limit=limit)


def test_a_pair_of_very_long_texts_reaches_the_library_short(tmp_path: Path) -> None:
    """It would make a pair of each part that it cuts off the one and each of the other, until memory is full."""
    tokenizer = Tokenizer.from_pretrained(make_tokenizer(tmp_path, "RobertaTokenizer"))
    text = " ".join(some_lines(2_000))[: LONG + 1_000]
    (cut,) = tokenizer._shorten([(text, text)], 64)
    assert [text.startswith(beginning) and 64 < len(beginning) < 1_000 for beginning in cut] == [True, True]
    (one,) = tokenizer.encode([text], [text], max_length=64)
    assert one.truncated
    assert one.input_ids == tokenizer.encode([text[:300]], [text[:300]], max_length=64)[0].input_ids


def test_texts_stay_whole_where_the_end_changes_the_first_tokens() -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "z": 1, "?": 2}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex("a(?=a*z)"), "isolated")
    text = "a" * LONG + "z"
    assert shorten((text,), 10, backend.encode) == (text,)


@pytest.mark.parametrize("name", TOKENIZER_FAMILIES)
def test_tokens_know_their_text_of_a_pair_without_token_types(name: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_pretrained(make_tokenizer(tmp_path, name))
    first, second = ["ab", "", "a b c", ""], ["c", "b", "", ""]
    for limit in (None, 5):
        for one in tokenizer.encode(first, second, max_length=limit):
            parts = [one.tokens[: one.segments.index(1)], one.tokens[one.segments.index(1) :]]
            separator = one.tokens[-1]
            assert one.tokens[0] == parts[0][0]
            assert [parts[0][-1], parts[1][-1]] == [separator, separator]
            assert parts[0].count(separator) == 1
            assert parts[1].count(separator) == tokenizer.special_tokens(pairs=True) - 2
            assert sorted(one.segments) == list(one.segments)
    assert all(set(one.segments) == {0} for one in tokenizer.encode(first))


SETTINGS = [
    ("DistilBertTokenizer", {"model_input_names": ["input_ids", "token_type_ids"]}),
    ("ElectraTokenizer", {"bos_token": "<s>", "extra_special_tokens": {"e_token": "<e>"}}),
    ("MPNetTokenizer", {"do_lower_case": False}),
    ("MPNetTokenizer", {"mask_token": "[MASK]", "sep_token": "e", "new_token": "<e>"}),
    ("RobertaTokenizer", {"add_prefix_space": True, "trim_offsets": False}),
    ("XLMRobertaTokenizer", {"add_prefix_space": False}),
    ("CamembertTokenizer", {"unk_token": "▁", "extra_special_tokens": ["<e>"]}),
    ("AlbertTokenizer", {"keep_accents": True}),
    ("DebertaV2Tokenizer", {"split_by_punct": True}),
    ("PreTrainedTokenizerFast", {"model_input_names": ["token_type_ids", "input_ids"]}),
]


@pytest.mark.parametrize(("name", "settings"), SETTINGS, ids=case_id)
def test_settings_in_other_files_have_the_same_effect(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    plain = Tokenizer.from_pretrained(make_tokenizer(tmp_path, name))
    ours, theirs = read_both(change_tokenizer_config(tmp_path, **settings))
    first, second = some_lines()[:120], other_lines()[:120]
    assert compare(ours, theirs, first, second) != plain.encode(first, second)
    compare(ours, theirs, first)
    saved = tmp_path / "saved"
    ours.save_pretrained(saved)
    shutil.copyfile(tmp_path / "config.json", saved / "config.json")
    theirs_again = AutoTokenizer.from_pretrained(saved)
    compare(ours, theirs_again, first, second)
    assert theirs_again.special_tokens_map == theirs.special_tokens_map
    assert theirs_again.extra_special_tokens == theirs.extra_special_tokens
    assert Tokenizer.from_pretrained(saved).digest == ours.digest != plain.digest


@pytest.mark.parametrize("name", TOKENIZER_FAMILIES)
def test_a_saved_tokenizer_is_read_under_the_same_class(name: str, tmp_path: Path) -> None:
    ours, theirs = read_both(make_tokenizer(tmp_path / "first", name, truncation_side="left", model_max_length=33))
    ours.save_pretrained(tmp_path / "saved")
    shutil.copyfile(tmp_path / "first" / "config.json", tmp_path / "saved" / "config.json")
    again, theirs_again = read_both(tmp_path / "saved")
    assert type(theirs_again) is type(theirs)
    assert theirs_again.special_tokens_map == theirs.special_tokens_map
    assert theirs_again.extra_special_tokens == theirs.extra_special_tokens
    compare_names(ours, theirs_again)
    compare_names(again, theirs_again)
    compare(ours, theirs_again, some_lines()[:150])
    compare(again, theirs_again, some_lines()[:150], other_lines()[:150])
    assert again.digest == ours.digest


def test_a_tokenizer_its_class_cannot_rebuild_is_saved_unchanged(tmp_path: Path) -> None:
    """Here for a tokenizer that the settings of sentence-transformers make lower-case."""
    directory = make_tokenizer(tmp_path / "first", "RobertaTokenizer")
    (directory / "modules.json").write_text("[]")
    (directory / "sentence_bert_config.json").write_text('{"max_seq_length": 12, "do_lower_case": true}')
    ours = Tokenizer.from_pretrained(directory)
    ours.save_pretrained(tmp_path / "saved")
    shutil.copyfile(directory / "config.json", tmp_path / "saved" / "config.json")
    again, theirs = read_both(tmp_path / "saved")
    assert type(theirs).__name__ == "TokenizersBackend"
    compare_names(again, theirs)
    assert ours.encode(["ÄB"]) == again.encode(["äb"])
    compare(ours, theirs, some_lines()[:100], other_lines()[:100])


@pytest.mark.parametrize("name", [name for name in TOKENIZER_FAMILIES if name != "PreTrainedTokenizerFast"])
def test_a_vocabulary_in_separate_files_gives_the_same_tokens(name: str, tmp_path: Path) -> None:
    ours, theirs = read_both(write_vocabulary(tmp_path, name))
    assert type(theirs).__name__ in (name, "BertTokenizer")
    compare_names(ours, theirs)
    compare(ours, theirs, some_lines()[:150])
    compare(ours, theirs, some_lines()[:100], other_lines()[:100])


@pytest.mark.parametrize("package", ["sentencepiece", "protobuf"])
def test_a_sentencepiece_model_names_the_extra_that_reads_it(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers.utils, f"is_{package}_available", lambda: False)
    with pytest.raises(MissingDependencyError, match=r"spiece.model: .*: pip install 'bertjax\[sentencepiece\]'"):
        Tokenizer.from_pretrained(write_vocabulary(tmp_path / "pieces", "AlbertTokenizer"))
    Tokenizer.from_pretrained(make_tokenizer(tmp_path / "file", "AlbertTokenizer"))


def test_the_class_may_stand_in_the_models_config(tmp_path: Path) -> None:
    """Of multilingual sentence embedders, which are BERTs with the tokenizer of an XLM-R."""
    directory = make_tokenizer(tmp_path, "XLMRobertaTokenizer")
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    del settings["tokenizer_class"]
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "config.json").write_text('{"model_type": "bert", "tokenizer_class": "XLMRobertaTokenizer"}')
    ours, theirs = read_both(directory)
    compare_names(ours, theirs)
    compare(ours, theirs, some_lines()[:200], other_lines()[:200])


@pytest.mark.parametrize("name", TOKENIZER_FAMILIES)
def test_token_types_are_returned_if_the_settings_name_them(name: str, tmp_path: Path) -> None:
    directory = make_tokenizer(tmp_path, name)
    digests = set()
    for inputs in (["input_ids"], ["input_ids", "token_type_ids"]):
        tokenizer = Tokenizer.from_pretrained(change_tokenizer_config(directory, model_input_names=inputs))
        digests.add(tokenizer.digest)
        if name not in ("MPNetTokenizer", "RobertaTokenizer", "XLMRobertaTokenizer", "CamembertTokenizer"):
            assert tokenizer(["a"], ["b"])["token_type_ids"].any() == tokenizer.token_types
    assert len(digests) == 2


@pytest.mark.parametrize("name", ["RobertaTokenizer", "XLMRobertaTokenizer", "PreTrainedTokenizerFast"])
def test_programs_distinguish_paired_texts_without_token_types(name: str, tmp_path: Path) -> None:
    ours = Tokenizer.from_pretrained(make_tokenizer(tmp_path, name))
    (one,) = ours.encode(["one two"], ["three"])
    doubled = ours.special_tokens(pairs=True) - 3
    first = len(ours.encode(["one two"])[0])
    second = len(one) - first
    assert set(one.token_type_ids) == {0}
    assert sizes_of(one) == sizes_of(one) == (first, second)
    pieces = [one.tokens[token] for token in pieces_of(one, (0, 5), segment=1)]
    assert pieces == list(ours.encode(["three"])[0].tokens[1:-1])
    (masks,) = no_masks([one])
    ends = [first - 1, *[first] * doubled, len(one) - 1]
    assert np.flatnonzero(masks[FEATURES.index("[SEP]")]).tolist() == ends
    assert np.flatnonzero(masks[FEATURES.index(TEXT)]).tolist() == sorted({*range(1, len(one))} - {*ends})
    assert sizes_of(fit(one, (first - 1, second))) == (first - 1, second)
