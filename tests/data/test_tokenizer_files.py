"""Saved tokenizers: transformers and bertjax read the same tokenizer."""

import json
import shutil

import pytest
import tokenizers
from transformers import AutoTokenizer

import bertjax
from bertjax import BertConfig, BertForSequenceClassification
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import DataError, OutputError
from tests.tiny_models import SIZES, random_model
from tests.tokenizer_factories import WORD_PIECES

LETTERS = [*"aábcÉe中国 .,!'-_~", " the ", " Cat", " CATS ", "sat", " [MASK] ", " [SEP]", "<e>", "\t", "­", "ß", "İ"]
CONFIG = {"model_type": "bert", "architectures": ["BertModel"]}


def draw_texts(rng, count=12):
    return ["".join(rng.choice(LETTERS, rng.integers(0, 25)).tolist()) for _ in range(count)]


def draw_settings(rng):
    """Settings as tokenizer_config.json may have them, each there or not."""
    choices = {
        "tokenizer_class": ["BertTokenizer", "BertTokenizerFast"],
        "do_lower_case": [True, False],
        "strip_accents": [True, False, None],
        "tokenize_chinese_chars": [True, False],
        "truncation_side": ["left", "right"],
        "padding_side": ["left", "right"],
        "model_max_length": [5, 9, 512, int(1e30), None],
        "additional_special_tokens": [["<e>"], ["the", "<e>"], []],
        "mask_token": ["[MASK]", "e"],
        "sep_token": ["[SEP]", "!"],
        "cls_token": ["[CLS]", "中"],
        "do_basic_tokenize": [True],
        "never_split": [None],
        "name_or_path": ["somewhere"],
    }
    return {key: values[rng.integers(len(values))] for key, values in choices.items() if rng.random() < 0.5}


def write_files(directory, rng, settings, form):
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    end = "\r\n" if form == "CRLF" else "\n"
    (directory / "vocab.txt").write_bytes((end.join(WORD_PIECES) + end * int(rng.integers(2))).encode())
    if form == "added":
        (directory / "added_tokens.json").write_text(
            json.dumps({"zebra": len(WORD_PIECES), "unsat": len(WORD_PIECES) + 1})
        )
    if form == "json":
        AutoTokenizer.from_pretrained(directory).save_pretrained(directory)
        (directory / "vocab.txt").unlink()
    if form == "json of old":  # as transformers 4 wrote it: no added tokens in the settings
        AutoTokenizer.from_pretrained(directory).save_pretrained(directory)
        (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def compare(tokenizer, directory, rng):
    """Both readers give the same tokens for random texts and pairs, at random limits."""
    theirs = AutoTokenizer.from_pretrained(directory)
    assert tokenizer.truncation_side == theirs.truncation_side
    assert (tokenizer.max_length or int(1e30)) == theirs.model_max_length
    assert tokenizer.vocab_size == len(theirs)
    first, second = draw_texts(rng), draw_texts(rng)
    for texts in ((first,), (first, second)):
        for limit in (None, int(rng.integers(4, 20))):
            strategy = "do_not_truncate" if limit is None else "longest_first"
            options = {"truncation": strategy, "max_length": limit, "return_offsets_mapping": True}
            expected = theirs(*texts, return_token_type_ids=True, **options)
            found = tokenizer.encode(*texts, max_length=limit)
            assert [list(one.input_ids) for one in found] == expected["input_ids"]
            assert [list(one.token_type_ids) for one in found] == expected["token_type_ids"]
            assert [list(one.offsets) for one in found] == expected["offset_mapping"]


FORMS = ["plain", "CRLF", "added", "json", "json of old"]


def test_cutting_at_the_left_keeps_the_end(tmp_path, rng):
    directory = write_files(tmp_path / "left", rng, {"truncation_side": "left"}, "plain")
    (found,) = Tokenizer.from_pretrained(directory).encode(["the cats sat on the mat"], max_length=5)
    assert found.tokens == ("[CLS]", "on", "the", "mat", "[SEP]")
    assert found.truncated


@pytest.mark.parametrize("times", [1, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("form", FORMS)
def test_saved_tokenizers_are_read_the_same_by_transformers(form, times, rng, tmp_path):
    for number in range(times):
        settings = draw_settings(rng)
        print(settings)
        tokenizer = Tokenizer.from_pretrained(write_files(tmp_path / f"{number}", rng, settings, form))
        saved = tmp_path / f"{number} saved"
        tokenizer.save_pretrained(saved)
        (saved / "config.json").write_text(json.dumps(CONFIG))
        compare(tokenizer, saved, rng)
        assert type(AutoTokenizer.from_pretrained(saved)).__name__ == "BertTokenizer"
        again = Tokenizer.from_pretrained(saved)
        assert again.digest == tokenizer.digest
        assert (again.max_length, again.truncation_side) == (tokenizer.max_length, tokenizer.truncation_side)
        assert (again.pad_id, again.cls_id, again.sep_id) == (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id)


def test_a_tokenizer_saved_over_another_is_not_mixed_with_it(rng, tmp_path):
    other = write_files(tmp_path / "other", rng, {"do_lower_case": False, "truncation_side": "left"}, "added")
    (other / "special_tokens_map.json").write_text(json.dumps({"sep_token": "the"}))
    tokenizer = Tokenizer.from_pretrained(write_files(tmp_path / "one", rng, {}, "plain"))
    before = {path.name: path.read_bytes() for path in other.iterdir()}
    with pytest.raises(OutputError, match="is not a checkpoint that bertjax saved"):
        tokenizer.save_pretrained(other)
    assert {path.name: path.read_bytes() for path in other.iterdir()} == before
    for one in (Tokenizer.from_pretrained(other), tokenizer):
        one.save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "config.json").write_text(json.dumps(CONFIG))
    compare(tokenizer, tmp_path / "saved", rng)
    assert Tokenizer.from_pretrained(tmp_path / "saved").digest == tokenizer.digest


def test_transformers_reads_a_saved_model_and_its_tokenizer(rng, tmp_path):
    """Without one, transformers makes a tokenizer that takes every word for the unknown one."""
    settings = {"do_lower_case": False, "truncation_side": "left", "model_max_length": 9}
    tokenizer = Tokenizer.from_pretrained(write_files(tmp_path / "first", rng, settings, "plain"))
    model = random_model(BertForSequenceClassification, BertConfig(**SIZES["three heads"]))
    model.save_pretrained(tmp_path / "saved", tokenizer)
    compare(tokenizer, tmp_path / "saved", rng)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")
    texts = ["The cats sat on the mat!", "Cat", "the CAT sat on the mat and on the mat"]
    ours = [list(one.input_ids) for one in tokenizer.encode(texts, max_length=tokenizer.max_length)]
    assert theirs(texts, truncation=True)["input_ids"] == ours
    assert len({number for row in ours for number in row} - {0, 1, 2, 3}) > 5
    assert isinstance(bertjax.load(tmp_path / "saved"), BertForSequenceClassification)


def test_a_tokenizer_that_cannot_be_written_changes_nothing(rng, tmp_path):
    tokenizer = Tokenizer.from_pretrained(write_files(tmp_path / "one", rng, {}, "json"))
    directory = tmp_path / "saved"
    tokenizer.save_pretrained(directory)
    before = (directory / "tokenizer.json").read_bytes()
    (directory / "tokenizer_config.json").unlink()
    (directory / "tokenizer_config.json").mkdir()
    with pytest.raises(OutputError, match=r"tokenizer_config\.json is a directory"):
        tokenizer.save_pretrained(directory)
    assert (directory / "tokenizer.json").read_bytes() == before
    with pytest.raises(OutputError, match="Could not determine home directory"):
        tokenizer.save_pretrained("~nosuchuser/model")


def make_other(directory):
    """A tokenizer that is not BERT's: letters, with names of RoBERTa's kind."""
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(dict(zip("<>?abc", range(6), strict=True)), unk_token="?")
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    backend.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Lowercase(), tokenizers.normalizers.NFD()]
    )
    ends = [("<", 0), (">", 1)]
    backend.post_processor = tokenizers.processors.TemplateProcessing("< $A >", "< $A > $B:1 >:1", ends)
    directory.mkdir()
    backend.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text(json.dumps(CONFIG))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "truncation_side": "left", "model_max_length": 7}
    settings |= {"cls_token": "<", "sep_token": ">", "pad_token": ">", "unk_token": "?", "mask_token": "c"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def test_another_kind_of_tokenizer_is_what_its_file_says(rng, tmp_path):
    directory = make_other(tmp_path / "other")
    tokenizer = Tokenizer.from_pretrained(directory)
    assert tokenizer.encode(["ABba"])[0].input_ids == (0, 3, 4, 4, 3, 1)
    compare(tokenizer, directory, rng)
    tokenizer.save_pretrained(tmp_path / "saved")
    shutil.copyfile(directory / "config.json", tmp_path / "saved" / "config.json")
    compare(tokenizer, tmp_path / "saved", rng)
    assert Tokenizer.from_pretrained(tmp_path / "saved").digest == tokenizer.digest
    (directory / "tokenizer.json").unlink()
    with pytest.raises(DataError, match="no tokenizer; looked for"):
        Tokenizer.from_pretrained(directory)


def test_a_digest_tells_all_that_tokens_depend_on(rng, tmp_path):
    settings = [{}, {"do_lower_case": False}, {"truncation_side": "left"}, {"additional_special_tokens": ["the"]}]
    directories = [write_files(tmp_path / str(number), rng, each, "plain") for number, each in enumerate(settings)]
    assert len({Tokenizer.from_pretrained(directory).digest for directory in directories}) == len(settings)
