"""Attention patterns: what the classifiers read of a map, scores, shares of both modes, the files of a run."""

import json
from argparse import Namespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from sklearn.metrics import confusion_matrix, f1_score

import bertjax
from bertjax.atomic import write_json
from experiments import attention_patterns
from experiments.attention_patterns import compute, main, read_scores, shares_of
from experiments.patterns.maps import DATA, NAMES, MapRow, MapSet, quantise, read_maps, sizes_of, write_maps
from experiments.patterns.network import SIZE, PatternNetwork, five_numbers, load_network, resize_maps, save_networks
from experiments.patterns.scores import correct_shares, f1_of, score_classes
from experiments.patterns.training import LABELS, classes_of, images_of, predict_classes, read_labels, score_fitted
from experiments.shared.program import Run
from tests.tiny import largest_difference
from tests.workshop import SENTENCES, make_embedder


def padded(rng, lengths, longest=13, layers=2, heads=3):
    """Random attention of texts of some lengths, with `keep`; padding is no key."""
    keep = (np.arange(longest) < np.array(lengths)[:, None]).astype(np.int32)
    weights = rng.dirichlet(np.full(longest, 0.4), (layers, len(lengths), heads, longest)) * keep[None, :, None, None]
    weights /= weights.sum(-1, keepdims=True)
    return jnp.asarray(weights, jnp.float32), jnp.asarray(keep)


def literal_numbers(weights, first):
    """The five numbers of one cropped map, by loops."""
    count = len(weights)
    ends = {0, first - 1, count - 1}
    special = near = own = entropy = 0.0
    for query in range(count):
        for key in range(count):
            weight = float(weights[query, key])
            special += weight * (key in ends)
            near += weight * (abs(query - key) <= 1)
            own += weight * ((query < first) == (key < first))
            entropy -= weight * np.log(weight) if weight > 0 else 0.0
    columns = [sum(float(weights[query, key]) for query in range(count)) / count for key in range(count)]
    concentration = sum(column**2 for column in columns)
    return [special / count, near / count, own / count, entropy / count / np.log(count), concentration]


def literal_image(weights, first, size):
    """One cropped map resized, by averaging a grid of so fine points that each falls into one token."""
    count = len(weights)
    points = (np.arange(size * count) + 0.5) / size  # each pixel holds `count` points, each token `size`
    token = points.astype(int)
    text = token < first
    fine = np.stack([np.sqrt(weights)[np.ix_(token, token)], text[:, None] == text[None]], axis=-1)
    return fine.reshape(size, count, size, count, 2).mean((1, 3))


def test_five_numbers_are_what_literal_loops_compute(rng):
    weights, keep = padded(rng, [13, 4, 9])
    first = jnp.array([6, 4, 2])  # the second is a single text
    found = five_numbers(weights, keep, first)
    assert found.shape == (3, 2, 3, 5)
    for example, count in enumerate([13, 4, 9]):
        for layer, head in np.ndindex(2, 3):
            one = np.asarray(weights[layer, example, head, :count, :count])
            assert largest_difference(found[example, layer, head], literal_numbers(one, int(first[example]))) < 1e-5


def test_five_numbers_of_maps_that_one_can_see():
    """A diagonal, a [CLS] column, blocks, an even map: tokens 0 1 2 | 3 4 5."""
    blocks = np.kron(np.eye(2), np.full((3, 3), 1 / 3))
    column = np.tile([1.0, 0, 0, 0, 0, 0], (6, 1))
    maps = jnp.asarray(np.stack([np.eye(6), column, blocks, np.full((6, 6), 1 / 6)]), jnp.float32)[None, None]
    found = five_numbers(maps, jnp.ones((1, 6), jnp.int32), jnp.array([3]))[0, 0]
    third = 1 / 3
    expected = [
        [0.5, 1, 1, 0, 1 / 6],
        [1, third, 0.5, 0, 1],
        [0.5, 14 / 18, 1, np.log(3) / np.log(6), 1 / 6],
        [0.5, 16 / 36, 0.5, 1, 1 / 6],
    ]
    assert largest_difference(found, expected) < 1e-6


def test_a_resized_map_is_the_average_over_each_pixel_whatever_the_padding(rng):
    weights, keep = padded(rng, [13, 4, 9])
    first = jnp.array([6, 4, 2])
    found = resize_maps(weights, keep, first, 8)
    assert found.shape == (2, 3, 3, 8, 8, 2)
    for example, count in enumerate([13, 4, 9]):
        one = np.asarray(weights[1, example, 2, :count, :count])
        assert largest_difference(found[1, example, 2], literal_image(one, int(first[example]), 8)) < 1e-5
    shorter = resize_maps(weights[:, 1:2, :, :5, :5], keep[1:2, :5], first[1:2], 8)
    assert largest_difference(shorter, found[:, 1:2]) < 1e-6


def test_the_network_has_eight_convolutions_and_comes_back_from_its_file(tmp_path, rng):
    network = PatternNetwork(nnx.Rngs(int(rng.integers(99))))
    kernels = [leaf.shape for leaf in jax.tree.leaves(nnx.state(network)) if leaf.ndim == 4]
    widths = [(2, 16), (16, 16), (16, 32), (32, 32), (32, 64), (64, 64), (64, 16), (16, 5)]
    assert sorted(kernels) == sorted([(3, 3, *w) for w in widths[:6]] + [(1, 1, *w) for w in widths[6:]])
    save_networks(tmp_path / "n.safetensors", {"grouped": network})
    back = load_network(tmp_path / "n.safetensors", "grouped")
    for one, other in zip(jax.tree.leaves(nnx.state(back)), jax.tree.leaves(nnx.state(network)), strict=True):
        assert largest_difference(one, other) < 2e-3
    images = jnp.asarray(rng.random((3, SIZE, SIZE, 2)), jnp.float32)
    assert largest_difference(network(images), back(images)) < 0.05


def test_scores_of_labels_that_one_can_count():
    true, found = np.array([0, 0, 0, 1, 1, 2, 3, 4]), np.array([0, 0, 1, 1, 1, 2, 3, 3])
    scores = score_classes(true, found, [str(n) for n in range(8)])
    assert scores["f1"] == pytest.approx(dict(zip(NAMES, [0.8, 0.8, 1.0, 2 / 3, 0.0], strict=True)))
    assert scores["macro_f1"] == pytest.approx((0.8 + 0.8 + 1 + 2 / 3) / 5)
    assert scores["confusion"][0] == [2, 1, 0, 0, 0]
    assert scores["interval"][0] < scores["macro_f1"] < scores["interval"][1]


def test_f1_is_sklearns(rng):
    true, found = rng.integers(0, 5, 60), rng.integers(0, 5, 60)
    assert largest_difference(f1_of(confusion_matrix(true, found)), f1_score(true, found, average=None)) < 1e-12


def test_corrected_shares_are_those_that_the_confusion_turns_into_the_found_ones(rng):
    confusion = np.diag([60, 50, 40, 30, 70]) + rng.integers(0, 9, (5, 5))
    true = rng.dirichlet(np.full(5, 3.0))
    found = true @ (confusion / confusion.sum(1, keepdims=True))
    assert largest_difference(correct_shares(found, confusion), true) < 1e-9


def test_the_shipped_scores_are_those_of_the_shipped_labels_and_predictions():
    scores, several = read_scores(DATA), read_labels(LABELS)
    classes, groups = classes_of(several)
    assert len(classes) == scores["maps"]
    assert len(several[0]) == scores["drawn_at_random"] == 540
    held = {name: np.array(found) for name, found in scores["held_out"].items()}
    assert set(held) == {"network", "logistic", "boosting"}
    for name, found in held.items():
        again = score_classes(classes[:540], found[:540], groups[:540])
        assert again["confusion"] == scores[name]["drawn_at_random"]["confusion"]
        assert again["macro_f1"] == pytest.approx(scores[name]["drawn_at_random"]["macro_f1"])
        assert again["interval"] == pytest.approx(scores[name]["drawn_at_random"]["interval"])


def test_the_shipped_networks_are_those_that_were_scored():
    several = read_labels(LABELS)
    found = score_fitted(DATA, images_of(several)[0], classes_of(several)[0])
    assert found == pytest.approx(read_scores(DATA)["fitted"], abs=0.01)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    return make_embedder(tmp_path_factory.mktemp("embedder"))


def write_quoted(path):
    """MRPC's layout; a quote that is not closed swallows two rows under quote handling."""
    pairs = [(first, second) for first in SENTENCES[:4] for second in SENTENCES[3:]]
    rows = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
    for number, (first, second) in enumerate(pairs):
        quote = '"' if number in (3, 5) else ""
        rows.append(f"{number % 2}\t{number}\t{number + 100}\t{quote}{first}\t{second}")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def classifier(tmp_path, rng):
    """The shipped networks (random ones know one class alone), made-up scores, and random maps with labels."""
    directory = tmp_path / "classifier"
    shipped = DATA / "pattern_network.safetensors"
    networks = {name: load_network(shipped, name) for name in ("grouped", "published")}
    save_networks(directory / "pattern_network.safetensors", networks)
    one = {"macro_f1": 0.5, "interval": [0.4, 0.6], "confusion": np.eye(5, dtype=int).tolist()}
    scores = {kind: {"drawn_at_random": one} for kind in ("network", "logistic", "boosting")}
    write_json(directory / "pattern_scores.json", scores | {"as_published": one})
    weights = rng.dirichlet(np.full(6, 0.4), (30, 6)).astype(np.float32)
    rows = tuple(MapRow("mrpc", str(n), 0, 0, 3, 3, NAMES[n % 5]) for n in range(30))
    write_maps(directory / "labels", MapSet(rows, tuple(np.asarray(quantise(jnp.asarray(one))) for one in weights)))
    return directory


def arguments_for(embedder, classifier, data, output):
    paths = ["--data", str(data), "--classifier", str(classifier), "--labels", str(classifier / "labels")]
    return ["--model", str(embedder), "--task", "mrpc", *paths, "--output", str(output)]


def literal_classes(embedder, classifier, name, first, second):
    """The class of every head of each pair, map by map, without padding or batches."""
    model, tokenizer = bertjax.load(embedder), bertjax.Tokenizer.from_pretrained(embedder)
    network = load_network(classifier / "pattern_network.safetensors", name)
    images = []
    for text in tokenizer.encode(first, second):
        for maps in np.asarray(model(**bertjax.collate([text])).attentions)[:, 0]:
            images += [literal_image(one, sizes_of(text)[0], SIZE) for one in maps]
    found = predict_classes(network, np.array(images, np.float32)).reshape(len(first), 2, 3)
    assert len(np.unique(found)) > 1, "these maps tell nothing"
    return found


def test_a_run_in_both_modes_leaves_its_files(embedder, classifier, tmp_path, capsys):
    data = write_quoted(tmp_path / "dev.tsv")
    arguments = arguments_for(embedder, classifier, data, tmp_path / "out")
    assert main([*arguments, "--as-published"]) == 0
    assert "macro F1 on maps not seen: network 0.50 (0.40 to 0.60)" in capsys.readouterr().out
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"numbers.json", "values.npz", "figure.png", "figure.pdf"}
    results = json.loads((tmp_path / "out" / "numbers.json").read_text())["results"]
    values = np.load(tmp_path / "out" / "values.npz")
    lines = [line.split("\t") for line in data.read_text().splitlines()[1:]]
    assert results["corrected"]["mrpc"]["examples"] == 16
    assert results["as_published"]["mrpc"]["examples"] < 16
    expected = literal_classes(embedder, classifier, "grouped", [row[3] for row in lines], [row[4] for row in lines])
    assert (values["corrected_mrpc_classes"] == expected).mean() > 0.98  # ties may fall to either side
    shares = [results["corrected"]["mrpc"]["shares"][name] for name in NAMES]
    assert largest_difference(shares, shares_of(expected).mean(0)) < 0.03
    assert sum(shares) == pytest.approx(1, abs=1e-3)
    assert results["corrected"]["mrpc"]["published"]["heterogeneous"] == 0.233
    assert "largest_difference_of_shares" in results["published_against_corrected"]
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_published_shares_are_a_literal_loops_over_the_rows_that_quotes_leave(embedder, classifier, tmp_path):
    data = write_quoted(tmp_path / "dev.tsv")
    options = Namespace(
        **{"model": str(embedder), "task": ["mrpc"], "data": str(data), "data_dir": None, "split": "validation"},
        **{"limit": None, "seed": 0, "max_length": 40, "as_published": True, "classifier": str(classifier)},
        labels=[str(classifier / "labels")],
    )
    model, tokenizer = bertjax.load(embedder), bertjax.Tokenizer.from_pretrained(embedder)
    values = compute(Run(options, model, tokenizer, lambda done, total: None)).values
    run = Run(Namespace(**vars(options) | {"task": "mrpc"}), model, tokenizer, lambda done, total: None)
    sample = attention_patterns.read_published_sample(run)
    expected = literal_classes(embedder, classifier, "published", sample.first, sample.second)
    assert (values["as_published_mrpc_classes"] == expected).mean() > 0.98


@pytest.mark.parametrize("wrong", ["task", "classifier", "labels", "scores"])
def test_mistakes_are_one_line_and_leave_nothing(embedder, classifier, tmp_path, capsys, wrong):
    arguments = arguments_for(embedder, classifier, write_quoted(tmp_path / "dev.tsv"), tmp_path / "out")
    if wrong == "task":
        arguments += ["--task", "nothing"]
    elif wrong == "classifier":
        arguments += ["--classifier", str(tmp_path)]
    elif wrong == "scores":
        (classifier / "pattern_scores.json").write_text("{}")
    else:
        found = read_maps(classifier / "labels")
        bare = tuple(MapRow(row.task, row.example, 0, 0, 3, 3) for row in found.rows)
        write_maps(classifier / "labels", MapSet(bare, found.maps))
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()
