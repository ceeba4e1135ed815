"""`Study.geometry` and `Study.compare_layers` from texts to results."""

import shutil

import numpy as np
import pytest

import bertjax
from bertjax.analyses import random_encoder
from bertjax.errors import InputError, OutputError
from bertjax.representations import (
    compute_activations,
    linear_cka,
    measure_geometry,
    procrustes_distance,
    words_of_pieces,
)
from bertjax.results import show_text
from bertjax.results.page import _grids
from tests.factories import SENTENCES, WORDS, make_masked

TEXTS = [f"{one} {other}" for one in SENTENCES for other in SENTENCES[:5]]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return make_masked(folder / "one"), make_masked(folder / "other", seed=3)


def states_of(model, tokenizer, texts):
    """Hidden states of all layers, words, and the text of each word."""
    encodings = tokenizer.encode_words([text.split() for text in texts])
    active = compute_activations(model, encodings, units=[words_of_pieces(text) for text in encodings])
    words = [word for text in texts for word in text.split()]
    return active.hidden_states, words, active.texts


def scores(results, metric):
    rows = results.rows_of(metric)
    return [rows[0].base, *(row.score for row in rows)]


def test_geometry_is_that_of_each_layer(models):
    results = bertjax.geometry(models[0], "mlm", texts=TEXTS, progress=False)
    model = bertjax.load(models[0])
    expected = [measure_geometry(*one) for one in zip_layers(states_of(model, model.tokenizer, TEXTS))]
    for metric in ("anisotropy", "self_similarity", "intra_sentence_similarity", "explainable_variance"):
        assert scores(results, metric) == pytest.approx([getattr(layer, metric) for layer in expected])
    assert scores(results, "effective_dimension") == pytest.approx([layer.effective_dimension for layer in expected])
    assert scores(results, "largest_share") == pytest.approx([layer.rogue_share for layer in expected])
    assert "sense_separation" not in results.summary["metrics"]
    random = [measure_geometry(*one) for one in zip_layers(states_of(random_encoder(model, 0), model.tokenizer, TEXTS))]
    found = results.summary["geometry"]["random_encoder"]["self_similarity"]
    assert found == pytest.approx([layer.self_similarity for layer in random])


def zip_layers(found):
    states, words, texts = found
    return [(layer, words, texts) for layer in states]


def test_parts_of_speech_are_senses(models, tmp_path):
    word = sorted(WORDS)[3]
    path, lines = tmp_path / "senses.conllu", []
    for index, text in enumerate(SENTENCES * 3):
        for place, (form, tag) in enumerate([*((other, "X") for other in text.split()), (word, "NV"[index % 2])], 1):
            lines.append("\t".join([str(place), form, form, tag, "_", "_", str(place - 1), "dep", "_", "_"]))
        lines.append("")
    path.write_text("\n".join(lines) + "\n")
    results = bertjax.geometry(models[0], "token-classification", data=path, progress=False)
    model = bertjax.load(models[0])
    states, *_ = states_of(model, model.tokenizer, [f"{text} {word}" for text in SENTENCES * 3])
    ends = np.cumsum([len(text.split()) + 1 for text in SENTENCES * 3]) - 1
    expected = []
    for layer in states.astype(np.float64):
        units = layer[ends] / np.linalg.norm(layer[ends], axis=1, keepdims=True)
        cosines, even = units @ units.T, np.arange(len(units)) % 2 == 0
        same, different = (even[:, None] == even) & ~np.eye(len(units), dtype=bool), even[:, None] != even
        expected.append(cosines[same].mean() - cosines[different].mean())
    assert scores(results, "sense_separation") == pytest.approx(expected)


def test_layers_of_one_model_are_compared(models, tmp_path):
    results = bertjax.compare_layers(models[0], "mlm", texts=TEXTS, output=tmp_path / "out", progress=False)
    model = bertjax.load(models[0])
    states, *_ = states_of(model, model.tokenizer, TEXTS)
    assert results.names == ["embeddings-0", "embeddings-1", "0-1"]
    for index, (one, other) in enumerate(((0, 1), (0, 2), (1, 2))):
        assert results.rows_of("cka")[index].score == pytest.approx(linear_cka(states[one], states[other]))
        distance = procrustes_distance(states[one], states[other])
        assert results.rows_of("procrustes")[index].score == pytest.approx(distance)
    matrix = np.array(results.summary["likeness"]["cka"])
    np.testing.assert_allclose(matrix, matrix.T)
    np.testing.assert_allclose(np.diag(matrix), 1)
    again = bertjax.read_results(tmp_path / "out")
    (panel,) = _grids(again)["panels"]
    cells = [[None if cell is None else results.names[cell] for cell in row] for row in panel["cells"]]
    assert cells == [[None] * 3, ["embeddings-0", None, None], ["embeddings-1", "0-1", None]]
    assert again.summary["likeness"] == results.summary["likeness"]
    assert again.report().exists()
    assert show_text(again, "md").count("| pair of layers |") == 1
    with pytest.raises(InputError, match="has no single heads to map, but pairs of layers"):
        again.plot("map")


def test_layers_of_two_models_are_compared(models):
    results = bertjax.compare_layers(models[0], "mlm", texts=TEXTS, other=models[1], permutations=19, progress=False)
    first, second = (states_of(model, model.tokenizer, TEXTS)[0] for model in map(bertjax.load, models))
    assert results.names == ["0", "1"]
    expected = [[linear_cka(one, other) for other in second] for one in first]
    np.testing.assert_allclose(results.summary["likeness"]["cka"], expected)
    assert [row.score for row in results.rows_of("cka")] == pytest.approx([expected[1][1], expected[2][2]])
    same = bertjax.compare_layers(models[0], "mlm", texts=TEXTS, other=models[0], permutations=19, progress=False)
    assert [row.score for row in same.rows_of("cka")] == pytest.approx([1, 1])


def test_the_other_model_is_in_memory(models, tmp_path):
    options = {"texts": TEXTS[:5], "permutations": 1, "progress": False}
    expected = bertjax.compare_layers(models[0], "mlm", other=models[1], **options)
    other, output = bertjax.load(models[1]), tmp_path / "out"
    for _ in range(2):  # the second call reads the finished results
        found = bertjax.compare_layers(models[0], "mlm", other=other, output=output, **options)
        assert found.summary["likeness"] == expected.summary["likeness"] | {"other": str(models[1])}
        assert found.rows == expected.rows
    other.body.encoder.layers[0].output.bias[...] += 1.0
    with pytest.raises(OutputError, match="already has results"):
        bertjax.compare_layers(models[0], "mlm", other=other, output=output, **options)


@pytest.mark.needs_torch
def test_the_other_model_is_a_converted_pytorch_model(models):
    import transformers

    options = {"texts": TEXTS[:5], "permutations": 1, "progress": False}
    theirs = transformers.BertForMaskedLM.from_pretrained(models[1])
    other = bertjax.from_torch(theirs)
    with pytest.raises(InputError, match="BertForMaskedLM in memory has no tokenizer: set its attribute"):
        bertjax.compare_layers(models[0], "mlm", other=other, **options)
    other.tokenizer = bertjax.Tokenizer.from_pretrained(models[1])
    found = bertjax.compare_layers(models[0], "mlm", other=other, **options)
    assert found.summary["likeness"]["other"] == "BertForMaskedLM in memory"
    assert found.rows == bertjax.compare_layers(models[0], "mlm", other=models[1], **options).rows
    with pytest.raises(InputError, match=r"other must be .* model of bertjax .bertjax.from_torch makes one"):
        bertjax.compare_layers(models[0], "mlm", other=theirs, **options)


def test_the_other_model_in_memory_has_the_same_dtype(models):
    other = bertjax.load(models[1], dtype="bfloat16")
    with pytest.raises(InputError, match=r"computes in bfloat16, .* in float32: load it with that dtype"):
        bertjax.compare_layers(models[0], "mlm", texts=TEXTS[:5], other=other, progress=False)


def test_another_checkpoint_with_other_weights_is_noticed(models, tmp_path):
    shutil.copytree(models[0], tmp_path / "other")
    options = {"texts": TEXTS[:5], "permutations": 1, "output": tmp_path / "out", "progress": False}
    found = bertjax.compare_layers(models[0], "mlm", other=tmp_path / "other", **options)
    assert bertjax.compare_layers(models[0], "mlm", other=tmp_path / "other", **options).names == found.names
    shutil.copy(models[1] / "model.safetensors", tmp_path / "other")
    with pytest.raises(OutputError, match="already has results"):
        bertjax.compare_layers(models[0], "mlm", other=tmp_path / "other", **options)


def test_too_few_texts_are_refused(models):
    with pytest.raises(InputError, match="two or more"):
        bertjax.compare_layers(models[0], "mlm", texts=TEXTS[:1], progress=False)
    with pytest.raises(InputError, match="geometry needs 5 or more sentences; found 4"):
        bertjax.geometry(models[0], "mlm", texts=TEXTS[:4], progress=False)
