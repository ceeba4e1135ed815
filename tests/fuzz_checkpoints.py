"""Damage to checkpoints, drawn with a seed, and what bertjax makes of it: configuration, weights, tokenizer,
embedder, or a whole model.

`cases(seed, count)` draws, `outcome(case)` does one: the directory is copied, one of its files is damaged, and all of
it is read. Where a damaged tokenizer is accepted, transformers reads the same files, and has to find the same tokens.
"""

import json
import random
import resource
import shutil
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from flax.serialization import msgpack_serialize
from flax.traverse_util import unflatten_dict
from safetensors.numpy import load_file, save_file
from transformers import AutoTokenizer

import bertjax
from bertjax import BertConfig, BertForSentenceEmbedding, Tokenizer
from bertjax.checkpoints.sentence_modules import read_pooling
from bertjax.checkpoints.tensor_names import check_layers
from bertjax.checkpoints.weight_files import find_weights, read_weights
from tests import fuzz_utilities
from tests.damage_checkpoints import ATTACKED, DAMAGES
from tests.factories import PIECES, SENTENCES, WORDS, make_config
from tests.fuzz_utilities import REFUSED, attempt, scratch
from tests.tiny_models import random_model

OUTCOMES = ("accepted", REFUSED)
BROKEN = ("silently wrong", *fuzz_utilities.BROKEN, "memory", "its code ran")
MOST_MEMORY = 2**29  # bytes

JSONS = {
    "config": ("config.json",),
    "tokenizer": ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    "slow tokenizer": ("tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"),
    "embedder": (
        "modules.json",
        "sentence_bert_config.json",
        "1_Pooling/config.json",
        "config_sentence_transformers.json",
    ),
    "index": ("model.safetensors.index.json",),
    "whole": ("config.json", "modules.json", "1_Pooling/config.json"),
}
WEIGHTS = {
    "safetensors": "model.safetensors",
    "torch": "pytorch_model.bin",
    "old torch": "pytorch_model.bin",
    "flax": "flax_model.msgpack",
    "index": "model-00002-of-00002.safetensors",
    "whole": "model.safetensors",
}


@dataclass(frozen=True)
class Case:
    """One damage.

    Args:
        base: what kind of directory, of `JSONS` or `WEIGHTS`.
        file: the file in it that is damaged.
        damage: a name of `DAMAGES`.
        seed: of what is drawn in it.
    """

    base: str
    file: str
    damage: str
    seed: int


def cases(seed: int, count: int) -> list[Case]:
    """So many cases; the same for the same seed, and the first of a larger count are those of a smaller one."""
    rng = random.Random(seed)
    drawn = []
    while len(drawn) < count:
        base = rng.choice([*JSONS, *WEIGHTS])
        in_json = base in JSONS and (base not in WEIGHTS or rng.random() < 0.5)
        file = rng.choice(JSONS[base]) if in_json else WEIGHTS[base]
        if base == "slow tokenizer" and rng.random() < 0.4:
            file, in_json = "vocab.txt", False
        own = [name for name, (suffix, _) in DAMAGES.items() if suffix and file.endswith(suffix)]
        every = [name for name, (suffix, _) in DAMAGES.items() if not suffix]
        drawn.append(Case(base, file, rng.choice(own if own and rng.random() < 0.7 else every), rng.randrange(2**32)))
    return drawn


def outcome(case: Case) -> str:
    """What is made of a damaged directory: one of `OUTCOMES`, or one of `BROKEN` with what happened."""
    _read_undamaged(case.base)
    with tempfile.TemporaryDirectory(prefix="bertjax-fuzz-") as folder:
        directory = Path(folder) / "model"
        shutil.copytree(_base(case.base), directory)
        DAMAGES[case.damage][1](directory / case.file, random.Random(case.seed))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found = attempt(lambda: _read(case, directory), Warning)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * (
            1 if sys.platform == "darwin" else 1024
        )
        if ATTACKED.exists():
            ATTACKED.rmdir()
            return "its code ran"
        return f"memory: {grown:,} bytes more" if grown > MOST_MEMORY and found in OUTCOMES else found


@cache
def _read_undamaged(base: str) -> None:
    """Read the undamaged files once: the first reading imports and compiles, and its time is not the damage's."""
    _read(Case(base, "", "", 0), _base(base))


# ---- what is read --------------------------------------------------------------------------------------------------
def _read(case: Case, directory: Path) -> str:
    if "tokenizer" in case.base:
        return _read_tokenizer(directory)
    if case.base == "whole":
        bertjax.load(directory)
        return "accepted"
    config = BertConfig.from_directory(directory)
    if case.base == "embedder":
        read_pooling(directory)
        Tokenizer.from_pretrained(directory).encode(SENTENCES)
    if case.base in WEIGHTS:
        find_weights(directory)
        check_layers(read_weights(directory), config)
    return "accepted"


TYPED = [*SENTENCES, "The CAT [MASK] é unsaid", "", "the door, and [SEP] !"]


def _read_tokenizer(directory: Path) -> str:
    """Read a tokenizer; where it is accepted, and transformers accepts it, both have to find the same tokens."""
    tokenizer = Tokenizer.from_pretrained(directory)
    ours = [list(one.input_ids) for one in tokenizer.encode(TYPED, max_length=7)]
    try:
        theirs = AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
        expected = theirs(TYPED, truncation="longest_first", max_length=7)["input_ids"]
    except BaseException as error:  # it raises whatever its parts do
        if isinstance(error, KeyboardInterrupt | TimeoutError):
            raise
        return "accepted"
    return "accepted" if ours == expected else f"silently wrong: {ours} and not {expected}"[:500]


# ---- the directories that are damaged --------------------------------------------------------------------------------
@cache
def _model() -> Path:
    """A whole embedder with its tokenizer."""
    directory = scratch() / "model"
    random_model(BertForSentenceEmbedding, make_config()).save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join([*PIECES, *WORDS]) + "\n")
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    tokenizer = Tokenizer.from_pretrained(directory)
    for name in ("vocab.txt", "tokenizer_config.json"):
        (directory / name).unlink()
    tokenizer.save_pretrained(directory)
    return directory


@cache
def _base(name: str) -> Path:
    """A directory with the files that this kind of damage is about."""
    directory = scratch() / name
    if name in ("embedder", "whole"):
        shutil.copytree(_model(), directory)
        (directory / "config_sentence_transformers.json").write_text(
            json.dumps({"prompts": {"query": "the dog "}, "default_prompt_name": "query"})
        )
        return directory
    directory.mkdir()
    shutil.copyfile(_model() / "config.json", directory / "config.json")
    if "tokenizer" in name:
        settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 30}
        settings |= {"truncation_side": "right", "additional_special_tokens": ["the"], "strip_accents": None}
        (directory / "tokenizer_config.json").write_text(json.dumps(settings))
        (directory / "special_tokens_map.json").write_text(json.dumps({"mask_token": "[MASK]"}))
        (directory / "added_tokens.json").write_text(json.dumps({"unsaid": len(PIECES) + len(WORDS)}))
        if name == "tokenizer":
            shutil.copyfile(_model() / "tokenizer.json", directory / "tokenizer.json")
        else:
            (directory / "vocab.txt").write_text("\n".join([*PIECES, *WORDS]) + "\n")
    if name in WEIGHTS:
        _write_weights(name, directory)
    return directory


def _write_weights(name: str, directory: Path) -> None:
    arrays = load_file(_model() / "model.safetensors")
    if name == "index":
        names = sorted(arrays)
        parts = {f"model-0000{n}-of-00002.safetensors": names[n - 1 :: 2] for n in (1, 2)}
        for shard, some in parts.items():
            save_file({key: arrays[key] for key in some}, directory / shard)
        places = {key: shard for shard, some in parts.items() for key in some}
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    elif name == "flax":
        tree = unflatten_dict({key.replace(".weight", ".scale"): array for key, array in arrays.items()}, sep=".")
        (directory / WEIGHTS[name]).write_bytes(msgpack_serialize(tree))
    elif "torch" in name:
        tensors = {key: torch.from_numpy(array.copy()) for key, array in arrays.items()}
        torch.save(tensors, directory / WEIGHTS[name], _use_new_zipfile_serialization=name == "torch")
    else:
        save_file(arrays, directory / WEIGHTS[name])
