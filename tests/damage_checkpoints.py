"""Damage to the files of a checkpoint, drawn with a seed: to any file, to JSON, to weights of each format."""

import json
import os
import pickle
import random
import socket
import struct
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flax.serialization import msgpack_serialize

from tests.fuzz_utilities import draw, places

# What an attack makes where it is unpickled without care.
ATTACKED = Path(tempfile.gettempdir()) / f"bertjax-attacked-{os.getpid()}"

# What JSON may hold in place of a value.
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 3, 0.5, -0.25, 1.0, 10**6, 10**9, 2**31, 2**32, 2**63, 10**18, 10**300, -(10**30)),
    *(1e308, "", "x", "3", "\x1b[31m", "a\nb", "\0", "a" * 5000, "[MASK]", "the", "[/x]", "nan", "é", "../..", "/etc"),
    *(
        [],
        {},
        [1],
        [None],
        {"a": 1},
        [[]],
        {"content": "the"},
        {"type": "Lowercase"},
        ["left"],
        "left",
        "BertTokenizer",
    ),
)
# What JSON may not hold, or no reader should follow.
TEXTS = ("NaN", "Infinity", "1e400", "9" * 400, "9" * 5000, "[" * 100_000, '{"a":' * 5000, '"\\ud800"', "tru", '"\\x"')
KEYS = (
    *(
        "do_lower_case",
        "strip_accents",
        "never_split",
        "truncation_side",
        "model_max_length",
        "unk_token",
        "num_labels",
    ),
    *("num_hidden_layers", "is_decoder", "auto_map", "gguf_file", "vocab_file", "extra_special_tokens", "prompts"),
    *(
        "id2label",
        "include_prompt",
        "pooling_mode",
        "weight_map",
        "layer_norm_eps",
        "unheard_of",
        "added_tokens_decoder",
    ),
)


# ---- damages of any file -------------------------------------------------------------------------------------------
def _replace(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def _cut(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    _replace(path, content[: rng.randrange(len(content) + 1)])


def _flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    front = len(content) if rng.random() < 0.5 else min(len(content), 2000)  # headers are in front
    for _ in range(rng.choice((1, 1, 2, 20))):
        content[rng.randrange(front)] = rng.randrange(256)
    _replace(path, bytes(content))


def _insert(path: Path, rng: random.Random) -> None:
    content, place = path.read_bytes(), rng.randrange(path.stat().st_size + 1)
    _replace(path, content[:place] + rng.randbytes(rng.choice((1, 7, 300))) + content[place:])


def _drop(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    start, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    _replace(path, content[:start] + content[end:])


def _other_content(path: Path, rng: random.Random) -> None:
    contents = (
        b"",
        b"\0" * 1000,
        b"\xff" * 40,
        b"PK\x03\x04",
        b"\x80\x02}q\x00.",
        b"{}",
        b"[]",
        b"null",
        rng.randbytes(500),
    )
    _replace(path, rng.choice(contents))


def _other_kind(path: Path, rng: random.Random) -> None:
    path.unlink()
    kind = rng.choice(("FIFO", "folder", "zero", "random", "loop", "nowhere", "socket", "sparse", "gone", "terminal"))
    links = {"zero": "/dev/zero", "random": "/dev/urandom", "loop": path, "nowhere": "/nowhere", "terminal": "/dev/tty"}
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(2**40)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
    elif kind in links:
        path.symlink_to(links[kind])


# ---- damages of JSON -----------------------------------------------------------------------------------------------
def _change_json(value: Any, rng: random.Random) -> Any:
    spots = places(value)
    container, key = rng.choice(spots) if spots else ([value], 0)
    what = rng.choice(("value", "value", "value", "gone", "rename", "key", "wrap", "swap"))
    if what == "gone":
        container.pop(key)
    elif what == "rename" and isinstance(container, dict):
        container[rng.choice((*KEYS, "", "x" * 3000, "\0"))] = container.pop(key)
    elif what == "key" and isinstance(container, dict):
        container[rng.choice(KEYS)] = draw(rng, VALUES)
    elif what == "wrap":
        container[key] = rng.choice(([container[key]], {"content": container[key]}, str(container[key])))
    elif what == "swap" and spots:
        other, there = rng.choice(spots)
        container[key] = json.loads(json.dumps(other[there]))
    else:
        container[key] = draw(rng, VALUES)
    return value


def _json_value(path: Path, rng: random.Random) -> None:
    value = json.loads(path.read_bytes())
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        value = _change_json(value, rng)
    _replace(path, json.dumps(value).encode())


def _json_text(path: Path, rng: random.Random) -> None:
    value = json.loads(path.read_bytes())
    container, key = rng.choice(places(value))
    container[key] = "HERE"
    _replace(path, json.dumps(value).replace('"HERE"', rng.choice(TEXTS), 1).encode())


def _header(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = _change_json(json.loads(content[8 : 8 + length]), rng)
    written = json.dumps(header).encode()
    claimed = rng.choice((len(written), len(written), len(written), 2**63, 2**31, 0))
    _replace(path, struct.pack("<Q", claimed) + written + content[8 + length :])


# ---- damages of weights --------------------------------------------------------------------------------------------
class _Attack:
    """Unpickled without care, it makes a directory."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (ATTACKED,)


def _torch_values(path: Path, rng: random.Random) -> None:
    tensors = torch.load(path, weights_only=True)
    name = rng.choice(list(tensors))
    huge = torch.zeros(1)
    odd = (
        *(
            huge.expand(10**6, 10**6),
            huge.expand(2**31, 2**31),
            huge.expand(3 * 10**9),
            huge.as_strided((10**5,) * 2, (0, 0)),
        ),
        *(torch.zeros(2, 3).to_sparse(), torch.zeros(5, device="meta"), torch.zeros(3, dtype=torch.complex64)),
        *(torch.zeros(3, dtype=torch.int8), torch.zeros(0), torch.zeros(()), torch.full((3,), float("nan"))),
        *(
            None,
            3,
            "x",
            [1],
            {"a": torch.zeros(3)},
            _Attack(),
            tensors,
            torch.nn.Parameter(torch.zeros(3)),
            b"x" * 1000,
        ),
    )
    if rng.random() < 0.3:
        names = (3, "", "a\nb", "\ud800", "x" * 5000, "bert.encoder.layer." + "9" * 400 + ".x", ("a",), None)
        tensors[rng.choice(names)] = torch.zeros(3)
    else:
        tensors[name] = rng.choice(odd)
    torch.save(tensors, path, _use_new_zipfile_serialization=rng.random() < 0.7)


def _torch_other(path: Path, rng: random.Random) -> None:
    huge = {f"bert.{n}": tensor for n, tensor in enumerate([torch.zeros(1000)] * 50)}
    torch.save(rng.choice(([1, 2], "text", torch.zeros(3), {}, huge, _Attack(), {"state_dict": {}})), path)


def _plain_pickle(path: Path, rng: random.Random) -> None:
    _replace(path, pickle.dumps(rng.choice(({"a": 1}, _Attack(), [], bytearray(100), {"a": np.zeros(3)}))))


def _compress(path: Path, rng: random.Random) -> None:
    """Another archive: compressed, with parts of zeros, left out, twice, or with other names."""
    if not zipfile.is_zipfile(path):
        return _flip(path, rng)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(parts))
    what = rng.choice(("bomb", "left out", "empty", "moved", "compressed"))
    if what == "bomb":
        parts[name] = b"\0" * 5_000_000
    elif what == "empty":
        parts[name] = b""
    elif what in ("left out", "moved"):
        content = parts.pop(name)
        parts |= {"../" + name: content} if what == "moved" else {}
    method = zipfile.ZIP_DEFLATED if what in ("bomb", "compressed") else zipfile.ZIP_STORED
    path.unlink()
    with zipfile.ZipFile(path, "w", method) as archive:
        for part, content in parts.items():
            archive.writestr(part, content)
    return None


def _msgpack(path: Path, rng: random.Random) -> None:
    arrays: tuple[Any, ...] = (
        3,
        None,
        "x",
        b"x",
        [1.0],
        {},
        {"a": 3},
        np.zeros(0),
        np.zeros((2, 0, 10**9)),
        np.int8(3),
    )
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"a": deep}
    tree = {"bert": {"embeddings": {"x": np.zeros(3)}, "encoder": {"layer": {"0": {"x": rng.choice((*arrays, deep))}}}}}
    content = msgpack_serialize(rng.choice((tree, tree, [tree], deep, {3: tree}, {"": tree})))
    bombs = (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01", b"\x91" * 5000)
    _replace(path, content if rng.random() < 0.7 else rng.choice(bombs) + content)


def _lines(path: Path, rng: random.Random) -> None:
    lines = path.read_bytes().split(b"\n")
    odd = (
        b"",
        b"the",
        b"[PAD]",
        b" ",
        b"\xff",
        b"\0",
        b"x" * 10_000,
        b"##",
        b"\xef\xbb\xbf[PAD]",
        b"a\r",
        b"\xe2\x80\xa8",
    )
    for _ in range(rng.choice((1, 2, 5))):
        lines[rng.randrange(len(lines))] = rng.choice(odd)
    _replace(path, rng.choice((b"\n", b"\n", b"\r\n", b"\r")).join(lines))


DAMAGES: dict[str, tuple[str, Callable[[Path, random.Random], None]]] = {
    "cut": ("", _cut),
    "flip": ("", _flip),
    "insert": ("", _insert),
    "drop": ("", _drop),
    "other content": ("", _other_content),
    "other kind": ("", _other_kind),
    "json value": (".json", _json_value),
    "json text": (".json", _json_text),
    "header": (".safetensors", _header),
    "torch values": (".bin", _torch_values),
    "torch other": (".bin", _torch_other),
    "plain pickle": (".bin", _plain_pickle),
    "compress": (".bin", _compress),
    "msgpack": (".msgpack", _msgpack),
    "lines": (".txt", _lines),
}
