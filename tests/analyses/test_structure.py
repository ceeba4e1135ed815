"""`Study.structure` from CoNLL-U to results, against the parts of the package and scores by hand."""

import numpy as np
import pytest

import bertjax
from bertjax.analyses import random_encoder
from bertjax.errors import InputError
from bertjax.representations import compute_activations, fit_structural_probe, split_texts, words_of_pieces
from tests.factories import SENTENCES, WORDS, make_masked

KNOWN = [word for word in SENTENCES[0].split() if word in WORDS] + sorted(WORDS)[:9]


def random_trees(count=30):
    """Words, tags and heads of random sentences; every sentence has punctuation at the end."""
    rng = np.random.default_rng(5)
    rows = []
    for length in rng.integers(4, 9, count).tolist():
        order = rng.permutation(length)
        heads = np.zeros(length, int)
        for place in range(1, length):
            heads[order[place]] = order[rng.integers(place)] + 1
        words = [*rng.choice(KNOWN, length).tolist(), "."]
        rows.append((words, ["NOUN"] * length + ["PUNCT"], [*heads.tolist(), int(order[0]) + 1]))
    return rows


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return bertjax.load(make_masked(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "trees.conllu"
    lines = []
    for words, tags, heads in random_trees():
        for index, (word, tag, head) in enumerate(zip(words, tags, heads, strict=True), 1):
            columns = [index, word, word, tag, "_", "_", head, "dep" if head else "root", "_", "_"]
            lines.append("\t".join(map(str, columns)))
        lines.append("")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def results(model, data):
    return bertjax.structure(model, "token-classification", data=data, rank=5, seed=0, progress=False)


def edges_of(distances):
    """The edges of the minimum spanning tree of all words but the last, by Kruskal's algorithm."""
    count, edges = len(distances) - 1, set()
    groups = {word: {word} for word in range(count)}
    for _, one, other in sorted((distances[i, j], i, j) for i in range(count) for j in range(i + 1, count)):
        if other not in groups[one]:
            edges.add((one, other))
            joined = groups[one] | groups[other]
            groups |= dict.fromkeys(joined, joined)
    return edges


def by_hand(encoder, tokenizer, layer):
    """UUAS and the accuracy of the root, of test sentences."""
    rows = random_trees()
    texts = tokenizer.encode_words([words for words, *_ in rows])
    active = compute_activations(encoder, texts, units=[words_of_pieces(text) for text in texts])
    units, split = [active.units_of([text]) for text in range(len(rows))], split_texts(len(rows), 0)
    heads, states = [heads for *_, heads in rows], active.hidden_states[layer]
    common = (states, units, heads, split.train, split.select)
    distance, depth = (fit_structural_probe(*common, target=target, rank=5) for target in ("distance", "depth"))
    right = edges = roots = 0
    for text in split.test.tolist():
        true = {tuple(sorted((word, head - 1))) for word, head in enumerate(heads[text][:-1]) if head}
        projected = states[units[text]] @ distance.projection
        found = edges_of(((projected[:, None] - projected[None]) ** 2).sum(axis=-1))
        right, edges = right + len(true & found), edges + len(true)
        norms = ((states[units[text]] @ depth.projection) ** 2).sum(axis=-1)
        roots += heads[text][int(np.argmin(norms[:-1]))] == 0
    return right / edges, roots / len(split.test)


def test_results_are_those_of_the_probes(model, results):
    random = random_encoder(model, 0)
    for name, place in (("uuas", 0), ("root_accuracy", 1)):
        of_model = [by_hand(model, model.tokenizer, layer)[place] for layer in range(3)]
        of_random = [by_hand(random, model.tokenizer, layer)[place] for layer in range(3)]
        rows = results.rows_of(name)
        assert [row.score for row in rows] == pytest.approx(of_model[1:])
        assert rows[0].base == pytest.approx(of_model[0])
        above = results.rows_of({"uuas": "uuas_above_random"}.get(name, "roots_above_random"))
        assert [row.score for row in above] == pytest.approx(np.subtract(of_model, of_random)[1:])


def test_the_linear_chain_is_a_baseline(results):
    test = split_texts(30, 0).test.tolist()
    counted = [heads for index, (_, _, heads) in enumerate(random_trees()) if index in test]
    right = sum(abs(word + 1 - head) == 1 for heads in counted for word, head in enumerate(heads[:-1]) if head)
    found = results.summary["structure"]
    assert found["linear_chain"]["uuas"] == pytest.approx(right / sum(len(heads) - 2 for heads in counted))
    assert found["sentences"] == {"train": 18, "select": 6, "test": 6}
    assert set(found["by_length"]["depth_correlation"]) == {"embeddings", "0", "1"}


def test_results_are_written_read_and_drawn(model, data, tmp_path):
    options = {"data": data, "target": "depth", "rank": 3, "progress": False}
    bertjax.structure(model, "token-classification", output=tmp_path / "out", **options)
    again = bertjax.read_results(tmp_path / "out")
    assert again.summary["metrics"] == ["root_accuracy", "depth_correlation", "roots_above_random"]
    assert "linear_chain" not in again.summary["structure"]
    assert (tmp_path / "out" / "layers.png").exists()
    assert again.report().exists()


def test_sentences_that_are_cut_in_their_last_word_are_left_out(model, tmp_path):
    """'dogs' has two pieces, so that every word keeps a piece."""
    lines = []
    for last in ["sat"] * 6 + ["dogs"]:
        for index, word in enumerate(("the", "cat", last), 1):
            lines.append(f"{index}\t{word}\t{word}\tNOUN\t_\t_\t{index - 1}\tdep\t_\t_")
        lines.append("")
    path = tmp_path / "cut.conllu"
    path.write_text("\n".join(lines) + "\n")
    options = {"data": path, "target": "depth", "rank": 2, "max_length": 5, "progress": False}
    found = bertjax.structure(model, "token-classification", **options)
    assert sum(found.summary["structure"]["sentences"].values()) == 6


def test_words_without_trees_are_refused(model):
    rows = [{"tokens": ["the", "cat"], "tags": ["A", "B"]}] * 6
    with pytest.raises(InputError, match="needs dependency trees"):
        bertjax.structure(model, "token-classification", data=rows, progress=False)


def test_heads_that_are_no_tree_name_the_sentence(model, tmp_path):
    path = tmp_path / "cycle.conllu"
    sentence = "1\tthe\t_\tDET\t_\t_\t2\tdep\t_\t_\n2\tcat\t_\tNOUN\t_\t_\t{}\troot\t_\t_\n\n"
    path.write_text(sentence.format(0) * 6 + sentence.format(1))
    with pytest.raises(InputError, match=r"cycle\.conllu.*, sentence 6: the heads \[2, 1\] are no tree"):
        bertjax.structure(model, "token-classification", data=path, progress=False)
