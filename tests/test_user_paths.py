"""A user's paths and files: whatever a library raises while it reads one is one line with the path."""

import gzip
import json
import struct
import zipfile

import numpy as np
import pyarrow.parquet as pq
import pytest
import tokenizers
from safetensors.numpy import load_file

from bertjax import paths
from bertjax.errors import DataError, InputError, reading

READERS = {
    "safetensors": load_file,
    "parquet": pq.read_table,
    "npz": np.load,
    "zip": zipfile.ZipFile,
    "gzip": lambda path: paths.open_data(path.rename(path.with_suffix(".gz"))).read(),
    "json": lambda path: json.loads(path.read_text()),
    "tokenizers": lambda path: tokenizers.Tokenizer.from_file(str(path)),
    "struct": lambda path: struct.unpack("<Q", path.read_bytes()[:3]),
    "lookup": lambda path: {}["key\nof two lines"],
    "recursion": lambda path: json.loads("[" * 100_000),
}


@pytest.mark.parametrize("library", READERS)
def test_what_any_library_raises_is_one_line_with_the_path(tmp_path, library):
    path = tmp_path / "file"
    path.write_bytes(b"\xffdamaged\0")
    with pytest.raises(InputError) as refused, reading(path, InputError):
        READERS[library](path)
    assert str(refused.value).startswith(f"{path}: cannot be read (")
    assert str(refused.value).isprintable()
    assert refused.value.__cause__ is not None


def test_a_long_message_of_a_library_ends_after_a_word():
    words = [f"word-{number}" for number in range(100)]
    with pytest.raises(InputError) as refused, reading("x", InputError):
        raise ValueError(" ".join(words))
    reason = str(refused.value).removeprefix("x: cannot be read (").partition(" ...); check")[0]
    assert reason.split() == words[: len(reason.split())]
    assert 190 < len(reason) <= 200


@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt(), SystemExit(1), DataError("x: bad")])
def test_what_says_nothing_of_the_file_passes_unchanged(error):
    with pytest.raises(type(error)) as raised, reading("x", InputError):
        raise error
    assert raised.value is error


@pytest.mark.parametrize("read", [paths.read_text, paths.open_data, paths.hash_file])
def test_a_missing_file_and_a_directory_are_named(tmp_path, read):
    for path, message in ((tmp_path / "no", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(InputError) as refused:
            read(path, InputError)
        assert str(refused.value).startswith(f"{path}: cannot be read ({message}); check the path")


def test_compressed_data_is_decompressed_by_its_suffix(tmp_path):
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(b"text\n"))
    (tmp_path / "a.tsv").write_bytes(b"text\n")
    for name in ("a.tsv", "a.tsv.gz"):
        with paths.open_data(tmp_path / name) as file:
            assert file.read() == b"text\n"


def test_an_inaccessible_path_is_refused(tmp_path):
    for look in (paths.is_file, paths.is_directory, paths.is_there, paths.listing):
        with pytest.raises(DataError, match=r"cannot be read \(File name too long\)"):
            look(tmp_path / ("a" * 300))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("~nosuchuser/data.tsv", "Could not determine home directory"),
        ("", "a path is empty"),
        ("data\0.tsv", "contains a NUL character"),
        ("\ud800.tsv", "surrogates not allowed"),
        (5, "a path must be a str or a pathlib.Path, found 5"),
        (None, "found None"),
    ],
)
def test_values_that_are_no_paths_are_refused(value, message):
    with pytest.raises(InputError, match=message):
        paths.user_path(value, InputError)


def test_a_home_directory_is_meant_by_a_tilde(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.user_path("~/data.tsv") == tmp_path / "data.tsv"
    assert paths.user_path(tmp_path) == tmp_path
