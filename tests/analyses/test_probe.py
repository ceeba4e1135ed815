"""`Study.probe` from words and tags to results."""

import numpy as np
import pytest

import bertjax
from bertjax.analyses import random_encoder
from bertjax.errors import ConfigError, InputError
from bertjax.representations import compute_activations, control_labels, fit_probe, split_texts, words_of_pieces
from tests.factories import SENTENCES, WORDS, make_masked


def tagged_rows(count=40):
    """Sentences whose tags depend on the word, so that a probe can learn them."""
    rng = np.random.default_rng(2)
    rows = []
    for _ in range(count):
        words = [word for index in rng.choice(len(SENTENCES), 2) for word in SENTENCES[index].split()]
        tags = [("N", "V", "D")[sorted(WORDS).index(word) % 3] if word in WORDS else "X" for word in words]
        rows.append({"tokens": words, "tags": tags})
    return rows


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return bertjax.load(make_masked(tmp_path_factory.mktemp("model")))


def by_hand(model, rows, seed=0):
    """Right words of each test sentence, for the embeddings and each layer, from the parts of the package."""
    texts = model.tokenizer.encode_words([row["tokens"] for row in rows])
    words = [word for row in rows for word in row["tokens"]]
    names, labels = np.unique([tag for row in rows for tag in row["tags"]], return_inverse=True)
    split = split_texts(len(rows), seed)
    control = control_labels(words, labels, seed)
    found = []
    for encoder in (model, random_encoder(model, seed)):
        active = compute_activations(encoder, texts, units=[words_of_pieces(text) for text in texts])
        parts = [active.units_of(part) for part in vars(split).values()]
        for states in active.hidden_states:
            for true in (labels, control):
                probe = fit_probe(states, true, *parts[:2], classes=len(names))
                found.append((probe.predict(states[parts[2]]) == true[parts[2]]).mean())
    return np.array(found).reshape(2, -1, 2)


@pytest.fixture(scope="module")
def results(model):
    return bertjax.probe(model, "token-classification", data=tagged_rows(), seed=0, progress=False)


def test_results_are_those_of_the_probes(model, results):
    expected = by_hand(model, tagged_rows())
    layers = model.config.num_hidden_layers
    assert results.names == [str(layer) for layer in range(layers)]
    assert results.kind == "layer"
    scores = {name: [row.score for row in results.rows_of(name)] for name in results.summary["metrics"]}
    np.testing.assert_allclose(scores["probe_accuracy"], expected[0, 1:, 0])
    np.testing.assert_allclose(scores["selectivity"], expected[0, 1:, 0] - expected[0, 1:, 1])
    np.testing.assert_allclose(scores["above_random"], expected[0, 1:, 0] - expected[1, 1:, 0])
    assert results.rows_of("probe_accuracy")[0].base == pytest.approx(expected[0, 0, 0])
    assert results.summary["probe"]["sentences"] == {"train": 24, "select": 8, "test": 8}


def test_heads_are_probed_at_their_outputs(model):
    found = bertjax.probe(
        model, "token-classification", data=tagged_rows(), of="heads", description_length=True, progress=False
    )
    config = model.config
    assert found.kind == "head"
    assert len(found.names) == config.num_hidden_layers * config.num_attention_heads
    lengths = found.summary["probe"]["description_lengths"]
    assert set(lengths) == {"embeddings", *found.names}
    assert all(length["bits"] > 0 and length["compression"] > 0 for length in lengths.values())


def test_results_are_written_read_and_drawn(model, tmp_path):
    written = bertjax.probe(
        model, "token-classification", data=tagged_rows(), output=tmp_path / "probe", progress=False
    )
    again = bertjax.read_results(tmp_path / "probe")
    assert again.names == written.names
    assert again.summary["probe"] == written.summary["probe"]
    assert again.report().exists()
    assert (tmp_path / "probe" / "layers.png").exists()


def test_texts_without_tags_are_refused(model):
    with pytest.raises(InputError, match="a probe needs words with tags"):
        bertjax.probe(model, "mlm", texts=list(SENTENCES), progress=False)


def test_tags_that_are_all_equal_are_refused(model):
    rows = [{"tokens": ["the", "cat"], "tags": ["A", "A"]}] * 6
    with pytest.raises(InputError, match="all words have the tag A"):
        bertjax.probe(model, "token-classification", data=rows, progress=False)


@pytest.mark.parametrize("analysis", ["probe", "geometry", "compare_layers", "structure", "probe_edges"])
def test_words_without_pieces_are_refused(model, analysis):
    rows = [{"tokens": ["\u200d", "\u200d"], "tags": ["A", "B"]}] * 6
    with pytest.raises(InputError, match="no sentence is left: the model has no pieces for any word"):
        getattr(bertjax, analysis)(model, "token-classification", data=rows, progress=False)


def test_a_study_of_probes_has_a_model_and_a_tokenizer(tmp_path):
    """The checkpoint has no head for tags."""
    study = bertjax.Study(make_masked(tmp_path), "ner", data=tagged_rows(6))
    tokenizer = study.tokenizer
    assert type(study.model).__name__ == "BertForMaskedLM"
    assert tokenizer.encode_words([["the", "cat"]]) == study.tokenizer.encode_words([["the", "cat"]])
    assert study.probe(progress=False).rows
    with pytest.raises(ConfigError, match="has no token-classification head"):
        study.ablate(progress=False)
