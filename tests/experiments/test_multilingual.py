"""Training of the small multilingual model."""

import json
import sys

import numpy as np
import pytest

import bertjax
from experiments.training import multilingual

TEXTS = {"en": ("the cat sat on the mat", "who sat"), "de": ("die katze lag auf der matte", "wer lag")}


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Runs of a tiny model: the arguments of the script for an output directory."""
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
    for name, value in {"SIZES": small, "LENGTHS": (8, 8), "TOKENS": 32, "VOCABULARY": 70, "SAVED_EVERY": 2}.items():
        monkeypatch.setattr(multilingual, name, value)
    files = [tmp_path / f"x.{name}.json" for name in TEXTS]
    for path, (context, question) in zip(files, TEXTS.values(), strict=True):
        paragraph = {"context": " ".join([context] * 5), "qas": [{"id": "0", "question": question}]}
        path.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))

    def run(name):
        arguments = ["multilingual", "--data", *map(str, files), "--output", str(tmp_path / name), "--steps", "4"]
        monkeypatch.setattr(sys, "argv", arguments)
        multilingual.main()
        return (tmp_path / name / "last" / "model.safetensors").read_bytes()

    return run


def test_an_interrupted_run_gives_the_same_weights(command, tmp_path, monkeypatch):
    def interrupt(*arguments):
        save_state(*arguments)
        raise KeyboardInterrupt

    save_state = multilingual.save_state
    expected = command("whole")
    (tmp_path / "parts" / "tokenizer").mkdir(parents=True)
    for name in ("vocab.txt", "tokenizer_config.json"):
        (tmp_path / "parts" / "tokenizer" / name).write_bytes((tmp_path / "whole" / "tokenizer" / name).read_bytes())
    monkeypatch.setattr(multilingual, "save_state", interrupt)
    with pytest.raises(KeyboardInterrupt):
        command("parts")
    monkeypatch.setattr(multilingual, "save_state", save_state)
    assert command("parts") == expected
    model = bertjax.load(tmp_path / "parts" / "last")
    assert model.tokenizer is not None
    assert isinstance(model, bertjax.BertForMaskedLM)
    assert model.numerics.dtype == "float32"


def test_hidden_tokens_are_predicted_and_special_tokens_are_not():
    rng = np.random.default_rng(0)
    ids = np.concatenate([np.full((400, 1), 2), rng.integers(5, 50, (400, 18)), np.full((400, 1), 0)], axis=1)
    batch = multilingual.hide(ids, 4, 50, rng)
    assert batch["at"].shape == (400, 3)
    assert ((batch["at"] > 0) & (batch["at"] < 19)).all()
    shown = np.take_along_axis(batch["input_ids"], batch["at"], axis=1)
    np.testing.assert_array_equal(batch["targets"], np.take_along_axis(ids, batch["at"], axis=1))
    assert (batch["input_ids"] != ids).sum() == (shown != batch["targets"]).sum()
    assert 0.75 < (shown == 4).mean() < 0.85
    assert 0.06 < ((shown != 4) & (shown != batch["targets"])).mean() < 0.14


def test_windows_of_translations_are_of_the_same_part(monkeypatch, tmp_path):
    """The token at share s of paragraph p is 100 p + 10 s, plus 1,000 for each further language."""
    monkeypatch.setattr(multilingual, "PREDICTED", 0.0)
    lengths = [(40, 80, 40), (80, 160, 80), (40, 40, 80)]
    languages = [
        multilingual.Paragraphs(
            np.concatenate([100 * p + np.arange(n) * 10 // n for p, n in enumerate(sizes)]) + 1000 * language + 10,
            np.cumsum([0, *sizes]),
        )
        for language, sizes in enumerate(lengths)
    ]
    tokenizer = multilingual.make_tokenizer(["the cat sat on the mat"], tmp_path)
    for step in range(4):
        rows = multilingual.draw_batch(tokenizer, languages, 0, step, 0.5)["input_ids"]
        count, length = rows.shape
        pairs, single = rows[: count // 2], rows[count // 2 :]
        middle = 1 + (length - 3) // 2
        assert (rows[:, 0] == 2).all()
        assert (rows[:, -1] == 3).all()
        assert (pairs[:, middle] == 3).all()
        assert (single[:, 1:-1] >= 10).all()
        first, second = pairs[:, 1], pairs[:, middle + 1]
        assert (first // 1000 != second // 1000).all()
        assert (single[:, 1:-1] // 1000 == single[:, 1:2] // 1000).all()
        inside = (first % 1000 < 200) & (second % 1000 < 200)  # others end with the text
        assert np.ptp(first[inside] % 100) > 3
        np.testing.assert_allclose(first[inside] % 1000, second[inside] % 1000, atol=1)


def test_the_rate_rises_stays_and_falls():
    rates = [multilingual.rate_of(step, 1000) for step in range(1000)]
    assert rates[0] == pytest.approx(multilingual.RATE / 200)
    assert np.ptp(rates[199:801]) == 0
    assert rates[900] == pytest.approx(multilingual.RATE / 2)
    assert rates[-1] == pytest.approx(multilingual.RATE / 200)
