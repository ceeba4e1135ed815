"""`Study.probe_edges` from labelled spans to results."""

import json

import numpy as np
import pytest

import bertjax
from bertjax.analyses import random_encoder
from bertjax.analyses.probing.edges import edges_of
from bertjax.errors import DataError, InputError
from bertjax.representations import (
    compute_activations,
    control_labels,
    edges,
    expected_layer,
    fit_edge_probe,
    split_texts,
    words_of_pieces,
)
from bertjax.tasks import Annotation, Edge, Tagged, load_examples
from tests.factories import SENTENCES, make_masked


def rows_with_targets(count=30):
    """Sentences with labelled pairs of spans: whether the first letters of the spans are equal."""
    rng = np.random.default_rng(3)
    rows = []
    for _ in range(count):
        words = [word for index in rng.choice(len(SENTENCES), 2) for word in SENTENCES[index].split()]
        targets = []
        for first, other in rng.choice(len(words) - 1, (4, 2)).tolist():
            label = "same" if words[first][0] == words[other][0] else "other"
            targets.append({"span1": [first, first + 2], "span2": [other, other + 1], "label": label})
        rows.append({"text": " ".join(words), "targets": targets})
    return rows


@pytest.fixture(autouse=True)
def small_probes(monkeypatch):
    monkeypatch.setattr(edges, "ROUNDS", 2)
    monkeypatch.setattr(edges, "STEPS", 3)
    monkeypatch.setattr(edges, "WIDTH", 8)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return bertjax.load(make_masked(tmp_path_factory.mktemp("model")))


def by_hand(model, rows, seed=0):
    """Accuracies of the probes of each layer, of the control task, of the random encoder, and of mixes of layers."""
    texts = model.tokenizer.encode_words([row["text"].split() for row in rows])
    units = [words_of_pieces(text) for text in texts]
    active, random = (compute_activations(one, texts, units=units) for one in (model, random_encoder(model, seed)))
    owners = np.repeat(np.arange(len(rows)), 4)
    targets = [target for row in rows for target in row["targets"]]
    spans = np.array([[target["span1"], target["span2"]] for target in targets]) + active.starts[owners, None, None]
    pairs = [
        "\t".join(" ".join(rows[owner]["text"].split()[slice(*target[name])]) for name in ("span1", "span2"))
        for owner, target in zip(owners, targets, strict=True)
    ]
    names, labels = np.unique([target["label"] for target in targets], return_inverse=True)
    control = control_labels(pairs, labels, seed)
    train, select, test = (
        np.flatnonzero(np.isin(owners, part)) for part in vars(split_texts(len(rows), seed)).values()
    )

    def accuracy(states, true, **options):
        probe = fit_edge_probe(states, spans, true, train, select, classes=len(names), seed=seed, **options)
        return (probe.predict(states, spans[test]) == true[test]).mean()

    layers = range(len(active.hidden_states))
    found = [[accuracy(active.hidden_states[[layer]], true) for layer in layers] for true in (labels, control)]
    found.append([accuracy(random.hidden_states[[layer]], labels) for layer in layers])
    found.append([found[0][0], *(accuracy(active.hidden_states, labels, mixed=layer + 1) for layer in layers[1:])])
    return np.array(found)


def test_results_are_those_of_the_probes(model, tmp_path):
    path = tmp_path / "edges.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows_with_targets()))
    found = bertjax.probe_edges(model, "token-classification", data=path, output=tmp_path / "out", progress=False)
    right, control, random, mixes = by_hand(model, rows_with_targets())
    scores = {name: [row.score for row in found.rows_of(name)] for name in found.summary["metrics"]}
    np.testing.assert_allclose(scores["probe_accuracy"], right[1:])
    np.testing.assert_allclose(scores["selectivity"], (right - control)[1:])
    np.testing.assert_allclose(scores["above_random"], (right - random)[1:])
    assert found.rows_of("probe_accuracy")[0].base == pytest.approx(right[0])
    described = found.summary["probe"]
    np.testing.assert_allclose(described["expected_layer"]["accuracies"], mixes)
    assert described["expected_layer"]["layer"] == (expected_layer(mixes) and pytest.approx(expected_layer(mixes)))
    weights = np.array(described["mix"]["weights"])
    assert described["mix"]["centre_of_gravity"] == pytest.approx(np.arange(len(weights)) @ weights)
    assert (described["kind"], described["tags"]) == ("targets", ["other", "same"])
    again = bertjax.read_results(tmp_path / "out")
    assert again.summary["probe"] == described
    (axes,) = again.plot("mix").axes
    np.testing.assert_allclose([bar.get_width() for bar in axes.patches], weights)
    assert axes.lines[0].get_ydata()[0] == pytest.approx(described["mix"]["centre_of_gravity"])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["emb.", "0", "1"]
    with pytest.raises(InputError, match="is of no single metric"):
        again.plot("mix", metric="selectivity")


def test_relations_and_roles_are_pairs_of_words():
    annotation = Annotation(
        lemmas=("the", "cat", "sit", "run"),
        upos=("DET", "NOUN", "VERB", "VERB"),
        heads=(2, 3, 0, 3),
        deprel=("det", "nsubj:pass", "root", "conj"),
        roles=(("_", "_"), ("ARG1", "ARG0"), ("V", "_"), ("_", "V")),
    )
    sentence = Tagged(("the", "cat", "sat", "ran"), ("DET", "NOUN", "VERB", "VERB"), annotation=annotation)
    pairs = [(edge.span1[0], edge.span2[0], edge.label) for edge in edges_of(sentence, "relations")]
    assert pairs == [(0, 1, "det"), (1, 2, "nsubj"), (2, 2, "root"), (3, 2, "conj")]
    roles = [(edge.span1, edge.span2, edge.label) for edge in edges_of(sentence, "roles")]
    assert roles == [((2, 3), (1, 2), "ARG1"), ((3, 4), (1, 2), "ARG0")]


def test_rows_of_the_edge_probing_format_are_read(tmp_path):
    rows = [
        {"text": "Ann  Lee sings", "targets": [{"span1": [0, 2], "label": ["PER"]}]},
        {"text": "she sings", "targets": []},
    ]
    examples = load_examples("token-classification", data=rows)
    assert examples.content[0].words == ("Ann", "Lee", "sings")
    assert examples.content[0].edges == (Edge((0, 2), None, "PER"),)
    assert "5 words, 1 labelled span" in examples.source
    for target, message in {
        (0, 4): r"\[0, 4\] is not a span \[first, end\) of 3 words",
        (1, 1): r"\[1, 1\] is not a span",
    }.items():
        with pytest.raises(DataError, match=message):
            load_examples("ner", data=[{"text": "a b c", "targets": [{"span1": [*target], "label": "x"}]}])
    with pytest.raises(DataError, match=r"has the label \['x', 'y'\]: an edge probe needs one string"):
        load_examples("ner", data=[{"text": "a b c", "targets": [{"span1": [0, 1], "label": ["x", "y"]}]}])


def test_data_without_labels_of_spans_are_refused(model):
    rows = [{"tokens": ["the", "cat"], "tags": ["A", "B"]}] * 6
    with pytest.raises(InputError, match="the data have no labels of spans"):
        bertjax.probe_edges(model, "ner", data=rows, progress=False)
    with pytest.raises(InputError, match="the data have no roles"):
        bertjax.probe_edges(model, "ner", data=rows, edges="roles", progress=False)
