"""A user's paths and files: regular files alone are read, at once, and whatever else is there is told in a line."""

import os
import socket
import stat

import pytest

from bertjax import paths
from bertjax.errors import DataError, InputError


def make_fifo(path):
    os.mkfifo(path)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


ODD = {
    "directory": (lambda path: path.mkdir(), "is a directory, not a regular file"),
    "FIFO": (make_fifo, "is a named pipe"),
    "socket": (make_socket, "is a socket, not a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "is a device"),
    "nothing": (lambda path: None, "no such file or directory"),
    "below a file": (lambda path: path.parent.rmdir() or path.parent.write_text(""), "no such file or directory"),
    "a circle of links": (lambda path: path.symlink_to(path), "cannot be read (Too many levels"),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("read", [paths.read_file, paths.read_text, paths.open_file])
def test_what_is_no_regular_file_is_told_at_once(tmp_path, monkeypatch, kind, read):
    make, message = ODD[kind]
    path = tmp_path / "of" / "odd"
    path.parent.mkdir()
    monkeypatch.chdir(path.parent)  # the name of a socket is short
    make(path)
    with pytest.raises(InputError) as refused:
        read(path, InputError)
    assert message in str(refused.value)
    assert str(path) in str(refused.value)


def test_a_name_that_no_file_can_have_is_told(tmp_path):
    for name in ("a" * 300, "b\0c"):
        for look in (paths.read_file, paths.is_file, paths.is_directory, paths.is_there, paths.listing):
            with pytest.raises(DataError, match=r"cannot be (read|listed) \("):
                look(tmp_path / name)


def test_what_may_not_be_looked_at_is_not_missing(tmp_path, monkeypatch):
    """Root may look at everything, so the system's answer is made up."""

    def refuse(path, *rest, **more):
        raise PermissionError(13, "Permission denied", str(path))

    for name in ("open", "stat"):
        monkeypatch.setattr(paths.os, name, refuse)
    for look in (paths.read_file, paths.is_file, paths.is_there):
        with pytest.raises(DataError, match=r"cannot be read \(Permission denied\); ask its owner"):
            look(tmp_path)


def test_size_is_looked_at_before_reading_and_while_reading(tmp_path):
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(1 << 40)  # takes no place on the disk
    with pytest.raises(DataError, match="1,099,511,627,776 bytes, more than the 1,000"):
        paths.read_file(large, most=1000)
    growing = tmp_path / "growing"
    growing.write_bytes(b"12345")
    assert paths.read_file(growing, most=5) == b"12345"
    with pytest.raises(DataError, match="5 bytes, more than the 4"):
        paths.read_file(growing, most=4)


def test_a_file_that_grows_is_not_read_on(tmp_path, monkeypatch):
    path, sizes = tmp_path / "growing", os.fstat
    path.write_bytes(b"12345")
    empty = lambda found: os.stat_result((stat.S_IFREG, *sizes(found)[1:6], 0, *sizes(found)[7:]))  # noqa: E731
    monkeypatch.setattr(paths.os, "fstat", empty)
    with pytest.raises(DataError, match="has more than the 4 bytes"):
        paths.read_file(path, most=4)


def test_no_file_stays_open(tmp_path):
    (tmp_path / "large").write_bytes(b"12345")
    make_fifo(tmp_path / "fifo")
    before = len(os.listdir("/dev/fd"))
    for name in ("large", "fifo"):
        with pytest.raises(DataError):
            paths.open_file(tmp_path / name, most=4)
    assert len(os.listdir("/dev/fd")) == before


def test_text_that_is_not_utf8_is_told_with_its_line(tmp_path):
    (tmp_path / "text").write_bytes(b"one\ntwo \xff\n")
    with pytest.raises(DataError, match="text, line 2: not UTF-8"):
        paths.read_text(tmp_path / "text")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("~nosuchuser/data.tsv", "~nosuchuser/data.tsv: there is no home directory of that user"),
        ("", "a path is empty"),
        ("data\0.tsv", "holds a NUL character"),
        (5, "a path must be a text or a pathlib.Path, found 5"),
        (None, "found None"),
    ],
)
def test_what_is_no_path_is_told(given, message):
    with pytest.raises(InputError, match=message):
        paths.user_path(given, InputError)


def test_a_home_directory_is_meant_by_a_tilde(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.user_path("~/data.tsv") == tmp_path / "data.tsv"
    assert paths.user_path(tmp_path) == tmp_path
