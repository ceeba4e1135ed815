"""Files are written atomically, and transformers reads the weights."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from bertjax.atomic_files import atomic_write, staged, write_json
from bertjax.checkpoints.weight_files import hash_weights, read_weights, write_weights
from bertjax.errors import OutputError
from tests.tiny_models import arrays_of

WORDS, QUERY = "bert.embeddings.word_embeddings.weight", "bert.encoder.layer.0.attention.self.query.weight"
DECODER = "cls.predictions.decoder.weight"
CONFIG = {"model_type": "bert", "hidden_size": 12}


def random_weights(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {WORDS: rng.normal(size=(31, 12)).astype(np.float32), QUERY: rng.normal(size=(12, 12))}


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@pytest.mark.needs_torch
@pytest.mark.parametrize("tied", [True, False])
def test_transformers_loads_written_weights_without_missing_keys(tmp_path: Path, tied: bool) -> None:
    import torch
    import transformers

    config = transformers.BertConfig(
        vocab_size=31,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=7,
        max_position_embeddings=11,
        tie_word_embeddings=tied,
    )
    model = transformers.BertForPreTraining(config).eval()
    for parameter in model.parameters():
        parameter.data.normal_()
    model.save_pretrained(tmp_path / "theirs")
    weights = read_weights(tmp_path / "theirs")
    assert (DECODER in weights) != tied
    write_weights(tmp_path / "ours", weights, config.to_dict())
    load: Any = transformers.BertForPreTraining.from_pretrained
    back, report = load(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values())
    ids = torch.tensor([[1, 7, 30, 2, 5]])
    torch.testing.assert_close(back.eval()(ids).prediction_logits, model(ids).prediction_logits, rtol=0, atol=0)
    again = read_weights(tmp_path / "ours")
    assert again.keys() == weights.keys()
    assert hash_weights(again) == hash_weights(weights)


def test_any_layout_and_dtype_comes_back_bit_for_bit(tmp_path: Path) -> None:
    weights = random_weights() | {"classifier.weight": np.arange(12.0).reshape(3, 4).T[::-1]}
    weights["classifier.bias"] = np.array([1.5, np.pi, -0.0]).astype(ml_dtypes.bfloat16)
    write_weights(tmp_path / "new" / "folder", weights, CONFIG)
    back = read_weights(tmp_path / "new" / "folder")
    assert back.keys() == weights.keys()
    for name, array in weights.items():
        assert back[name].dtype == array.dtype
        assert back[name].tobytes() == array.tobytes()
    assert names(tmp_path / "new" / "folder") == {"model.safetensors", "config.json"}
    assert json.loads((tmp_path / "new" / "folder" / "config.json").read_text()) == CONFIG


def test_weights_are_readable_by_whom_new_files_are(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_weights(tmp_path, random_weights(), CONFIG)
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "model.safetensors", "config.json")}
    assert len(modes) == 1


def test_weights_can_be_written_over_the_file_they_are_views_of(tmp_path: Path) -> None:
    write_weights(tmp_path, random_weights(), CONFIG)
    weights = read_weights(tmp_path)
    write_weights(tmp_path, weights, CONFIG)
    assert hash_weights(read_weights(tmp_path)) == hash_weights(random_weights())


def test_where_the_config_cannot_go_the_weights_do_not_either(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(OutputError, match=r"config\.json is a directory"):
        write_weights(tmp_path, random_weights(), CONFIG)
    assert names(tmp_path) == {"config.json"}


def test_a_file_in_place_of_the_directory_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(OutputError) as caught:
        write_weights(tmp_path / "taken", random_weights(), CONFIG)
    assert "\n" not in str(caught.value)
    assert "taken" in str(caught.value)
    assert (tmp_path / "taken").read_text() == "mine"


FULL_DISK = """
import resource, sys
import numpy as np
from bertjax.errors import OutputError
from bertjax.checkpoints.weight_files import write_weights
from bertjax.atomic_files import atomic_write
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
try:
    if sys.argv[2] == "weights":
        write_weights(sys.argv[1], {"classifier.weight": np.zeros((97, 89))}, {"new": 1})
    else:
        atomic_write(sys.argv[1] + "/report.html", b"x" * 9000)
except OutputError as error:
    print(error)
"""


@pytest.mark.integration
@pytest.mark.parametrize("what", ["weights", "report"])
def test_a_full_disk_leaves_the_files_as_they_were(tmp_path: Path, what: str) -> None:
    before = {"model.safetensors": "old weights", "config.json": "old config", "report.html": "old report"}
    for name, text in before.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path), what]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    assert result.stdout.startswith("cannot write")
    assert result.stdout.count("\n") == 1
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


def test_an_error_while_writing_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atomic_write(tmp_path / "figure.png", fail)
    assert names(tmp_path) == set()


def test_writers_that_go_by_the_suffix_are_served(tmp_path: Path) -> None:
    atomic_write(tmp_path / "outputs.npz", lambda path: np.savez(path, logits=np.arange(3)))
    assert names(tmp_path) == {"outputs.npz"}
    np.testing.assert_array_equal(arrays_of(tmp_path / "outputs.npz")["logits"], [0, 1, 2])


def test_several_files_move_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[str] = []
    monkeypatch.setattr(os, "replace", lambda _, new: moved.append(Path(new).name))
    with staged(tmp_path / "b", tmp_path / "a") as temporaries:
        for temporary in temporaries:
            temporary.write_text("new")
        assert not moved
    assert moved == ["b", "a"]


@pytest.mark.parametrize("value", [float("nan"), [1.0, float("inf")]])
def test_json_is_strict(tmp_path: Path, value: Any) -> None:
    write_json(tmp_path / "summary.json", {"score": 0.25, "text": "naïve"})
    with pytest.raises(OutputError, match="NaN"):
        write_json(tmp_path / "summary.json", {"score": value})
    assert (tmp_path / "summary.json").read_text(encoding="utf-8") == '{\n  "score": 0.25,\n  "text": "naïve"\n}\n'


def test_the_hash_ignores_order_and_memory_layout() -> None:
    weights = random_weights()
    same = {name: np.asfortranarray(array) for name, array in reversed(weights.items())}
    assert hash_weights(same) == hash_weights(weights)
    assert hash_weights(weights | {DECODER: weights[WORDS]}) == hash_weights(weights)
    others = [
        random_weights(seed=1),
        {QUERY: weights[QUERY], "x": weights[WORDS]},
        weights | {QUERY: weights[QUERY].T},
        weights | {QUERY: weights[QUERY].reshape(4, 36)},
        weights | {QUERY: weights[QUERY].view(np.int64)},
        weights | {DECODER: weights[WORDS] + 1},
        weights | {DECODER: weights[WORDS].astype(np.float64)},
    ]
    assert len({hash_weights(other) for other in [weights, *others]}) == 1 + len(others)
