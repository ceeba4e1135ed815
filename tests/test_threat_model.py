"""The claims of docs/explanation/threat-model.md about what was downloaded or sent: nothing runs, nothing is silently
wrong, and whatever is damaged is one line with a path. Kills are in test_fuzz_kills.py, the page's texts in
test_html_page.py, files of the user in test_output_directories.py."""

import json
import os
import random
import shutil

import numpy as np
import pytest
from flax.serialization import msgpack_serialize
from flax.traverse_util import unflatten_dict
from safetensors.numpy import load_file

import bertjax
from bertjax import BertConfig, Tokenizer, read_results
from bertjax.checkpoints.tensor_names import check_layers
from bertjax.checkpoints.weight_files import read_weights
from bertjax.errors import BertjaxError, OutputError
from bertjax.plots.canvas import save_page
from bertjax.tasks import load_examples
from tests.factories import SENTENCES, make_classifier, write_pairs
from tests.result_factories import make_results

pytestmark = [
    pytest.mark.needs_torch,
    pytest.mark.filterwarnings("ignore::bertjax.checkpoints.weight_files.CheckpointWarning"),
]

CASES = 8  # of each damage of each file


class Attack:
    """Unpickled without care, it makes a directory."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


# ---- damage ----------------------------------------------------------------------------------------------------------
def cut(rng, content):
    return content[: rng.randrange(len(content))]


def flip(rng, content):
    changed = bytearray(content)
    for _ in range(rng.choice((1, 2, 20))):
        changed[rng.randrange(min(len(changed), rng.choice((2000, 10**9))))] = rng.randrange(256)  # headers are first
    return bytes(changed)


def insert(rng, content):
    place = rng.randrange(len(content))
    return content[:place] + rng.choice((b"\0", b"\xff\xfe", b"[" * 5000, b"NaN", rng.randbytes(50))) + content[place:]


def change_value(rng, content):
    """Another value at some place of a JSON file; of other files, a part that is left out."""
    try:
        whole = json.loads(content)
    except ValueError:
        start, end = sorted(rng.sample(range(len(content)), 2))
        return content[:start] + content[end:]
    inner = whole
    while True:
        key = rng.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
        if not isinstance(inner[key], dict | list) or not inner[key] or rng.random() < 0.2:
            break
        inner = inner[key]
    inner[key] = rng.choice((None, True, -1, 3, 0.5, 10**30, 1e308, "", "x", "\ud800", "../..", [], {}, [[1]]))
    return json.dumps(whole).encode()


DAMAGES = (cut, flip, insert, change_value)


def outcome(read, *arguments):
    """The result of reading; None if it is refused in one line. Any other exception fails the test."""
    try:
        return read(*arguments)
    except MemoryError:  # a damaged file may say that it holds more than the memory
        return None
    except BertjaxError as error:
        return None if str(error).isprintable() else f"more than a line: {error}"


def damaged(path, damage):
    """A damage of a file, several times; the file is undamaged afterwards."""
    content = path.read_bytes()
    for seed in range(CASES):
        path.unlink()  # arrays may still be views of it
        path.write_bytes(damage(random.Random(seed), content))
        yield
    path.write_bytes(content)


# ---- checkpoints -----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A classifier with its weights in each format."""
    import torch

    root = tmp_path_factory.mktemp("checkpoints")
    classifier = make_classifier(root / "safetensors")
    (classifier / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": true}')
    arrays = load_file(classifier / "model.safetensors")
    for form, name in (("torch", "pytorch_model.bin"), ("flax", "flax_model.msgpack")):
        shutil.copytree(classifier, root / form)
        (root / form / "model.safetensors").unlink()
        if form == "torch":
            torch.save({key: torch.from_numpy(array.copy()) for key, array in arrays.items()}, root / form / name)
        else:
            tree = {key.replace(".weight", ".scale"): array for key, array in arrays.items()}
            (root / form / name).write_bytes(msgpack_serialize(unflatten_dict(tree, sep=".")))
    return root


def read_checkpoint(directory):
    config = BertConfig.from_directory(directory)
    weights = read_weights(directory)
    check_layers(weights, config)
    return weights


def shapes(weights):
    return {name: array.shape for name, array in weights.items()}


@pytest.mark.integration  # fuzzing
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    ("form", "file"),
    [
        ("safetensors", "config.json"),
        ("safetensors", "model.safetensors"),
        ("torch", "pytorch_model.bin"),
        ("flax", "flax_model.msgpack"),
    ],
)
def test_damaged_weights_are_refused_or_whole(checkpoints, form, file, damage):
    """No hash protects a checkpoint's values; but no tensor is missing, of another shape or at another name."""
    whole = read_weights(checkpoints / form)
    for _ in damaged(checkpoints / form / file, damage):
        found = outcome(read_checkpoint, checkpoints / form)
        if found is not None and shapes(found) != shapes(whole):  # the model knows which tensors it needs
            assert outcome(bertjax.load, checkpoints / form) is None
    assert read_checkpoint(checkpoints / form).keys() == whole.keys()


@pytest.mark.integration  # fuzzing
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_tokenizer_is_refused_or_as_transformers(checkpoints, file, damage):
    from transformers import AutoTokenizer

    def expected():
        try:
            return AutoTokenizer.from_pretrained(directory)(SENTENCES)["input_ids"]
        except BaseException as error:  # it raises whatever its parts do
            if isinstance(error, KeyboardInterrupt):
                raise
            return None

    directory = checkpoints / "safetensors"
    for _ in damaged(directory / file, damage):
        found = outcome(lambda: Tokenizer.from_pretrained(directory).encode(SENTENCES))
        if found is not None and (theirs := expected()) is not None:
            assert [list(one.input_ids) for one in found] == theirs


# ---- data and results ------------------------------------------------------------------------------------------------
@pytest.mark.integration  # fuzzing
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["dev.tsv", "dev.csv", "dev.jsonl", "dev.parquet", "dev.tsv.gz"])
def test_damaged_data_is_refused_or_has_all_rows(tmp_path, name, damage):
    """Accepted files have as many rows as before, or as after a removed or added line feed; never an empty row."""
    import pandas

    table = pandas.read_csv(write_pairs(tmp_path / "pairs.tsv", 12), sep="\t")
    path = tmp_path / name
    if ".tsv" in name or ".csv" in name:
        table.to_csv(path, sep="\t" if ".tsv" in name else ",", index=False)
    elif name.endswith("jsonl"):
        table.to_json(path, orient="records", lines=True)
    else:
        table.to_parquet(path)
    for _ in damaged(path, damage):
        found = outcome(lambda: load_examples("mrpc", data=path))
        assert found is None or (1 <= len(found) <= 13 and set(found.labels.tolist()) <= {0, 1})


FILES = ("summary.json", "results.parquet", "outputs.npz", "examples.jsonl", "attention.npz")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return make_results(tmp_path_factory.mktemp("results") / "results", examples=12)


def contents(directory):
    saved = read_results(directory)
    arrays = {name: array.tolist() for name, array in {**saved.outputs, **saved.attention}.items()}
    return saved.rows, arrays, list(saved.examples)


@pytest.mark.integration  # fuzzing
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_damaged_results_are_refused_or_unchanged(results, name, damage):
    whole = contents(results)
    for _ in damaged(results / name, damage):
        assert outcome(contents, results) in (None, whole)


@pytest.mark.parametrize("name", ["outputs.npz", "attention.npz"])
@pytest.mark.parametrize("changed", ["names", "examples", "base", "tokens_0_0"])
def test_objects_in_arrays_of_results_do_not_run(results, tmp_path, name, changed):
    """Even where the hashes fit, as they do in results that somebody forged: those of version 1 have none."""
    copied, target = shutil.copytree(results, tmp_path / "copy"), tmp_path / "made by the attack"
    summary = json.loads((copied / "summary.json").read_text())
    kept = {key: value for key, value in summary.items() if key not in ("files", "sha256", "positive_label")}
    (copied / "summary.json").write_text(json.dumps(kept | {"schema": 1}))
    with np.load(copied / name) as file:
        arrays = dict(file)
    arrays[changed] = np.array([Attack(target), *[None] * 11], object)
    np.savez(copied / name, **arrays)
    with pytest.warns(UserWarning, match="without hashes"):
        assert outcome(contents, copied) is None
    assert not target.exists()
    with np.load(copied / name, allow_pickle=True) as file:
        assert file[changed] is not None
    assert target.exists()  # the attack is one


def test_a_directory_for_an_unwritable_file_is_removed_again(results, tmp_path):
    with pytest.raises(OutputError, match="File name too long"):
        save_page(read_results(results).plot(), tmp_path / "new" / "deeper" / f"{'n' * 300}.svg")
    assert list(tmp_path.iterdir()) == []
