"""Attention patterns: what the classifiers read of a map, scores, shares of both modes, the files of a run."""

import json
from argparse import Namespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import confusion_matrix, f1_score

import bertjax
from experiments import fig2_patterns as attention_patterns
from experiments.fig2_patterns import compute, main
from experiments.patterns.classes import shares_of
from experiments.patterns.maps import DATA, NAMES, MapRow, MapSet, read_maps, sizes_of, weights_of
from experiments.patterns.network import SIZE, PatternNetwork, five_numbers, load_network, resize_maps, save_networks
from experiments.patterns.scores import correct_shares, f1_of, score_classes
from experiments.patterns.training import (
    LABELS,
    classes_of,
    hash_labels,
    images_of,
    predict_classes,
    read_labels,
    score_fitted,
)
from experiments.shared.run import Run
from experiments.words.pattern_join import DIAGONAL, diagonal_shares, read_patterns
from tests.factories import SENTENCES, make_embedder
from tests.pattern_files import quantise, write_maps
from tests.picture_checks import assert_same_pictures
from tests.tiny_models import arrays_of, largest_difference

pytestmark = pytest.mark.integration


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
    special = near = same_text = entropy = 0.0
    for query in range(count):
        for key in range(count):
            weight = float(weights[query, key])
            special += weight * (key in ends)
            near += weight * (abs(query - key) <= 1)
            same_text += weight * ((query < first) == (key < first))
            entropy -= weight * np.log(weight) if weight > 0 else 0.0
    columns = [sum(float(weights[query, key]) for query in range(count)) / count for key in range(count)]
    concentration = sum(column**2 for column in columns)
    return [special / count, near / count, same_text / count, entropy / count / np.log(count), concentration]


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


def test_a_resized_map_averages_each_pixel_and_ignores_padding(rng):
    weights, keep = padded(rng, [13, 4, 9])
    first = jnp.array([6, 4, 2])
    found = resize_maps(weights, keep, first, 8)
    assert found.shape == (2, 3, 3, 8, 8, 2)
    for example, count in enumerate([13, 4, 9]):
        one = np.asarray(weights[1, example, 2, :count, :count])
        assert largest_difference(found[1, example, 2], literal_image(one, int(first[example]), 8)) < 1e-5
    shorter = resize_maps(weights[:, 1:2, :, :5, :5], keep[1:2, :5], first[1:2], 8)
    assert largest_difference(shorter, found[:, 1:2]) < 1e-6


def test_the_network_has_eight_convolutions_and_can_be_reloaded(tmp_path, rng):
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


def test_corrected_shares_invert_the_confusion_matrix(rng):
    confusion = np.diag([60, 50, 40, 30, 70]) + rng.integers(0, 9, (5, 5))
    true = rng.dirichlet(np.full(5, 3.0))
    found = true @ (confusion / confusion.sum(1, keepdims=True))
    assert largest_difference(correct_shares(found, confusion), true) < 1e-9


def test_the_shipped_networks_are_those_that_were_scored():
    several = read_labels(LABELS)
    found = score_fitted(DATA, images_of(several)[0], classes_of(several)[0])
    assert found == pytest.approx(json.loads((DATA / "pattern_scores.json").read_text())["fitted"], abs=0.01)


def write_quoted(path):
    """MRPC's layout; a quote that is not closed swallows two rows under quote handling."""
    pairs = [(first, second) for first in SENTENCES[:4] for second in SENTENCES[3:]]
    rows = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
    for number, (first, second) in enumerate(pairs):
        quote = '"' if number in (3, 5) else ""
        rows.append(f"{number % 2}\t{number}\t{number + 100}\t{quote}{first}\t{second}")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def make_classifier(directory):
    """The shipped networks (random ones know one class alone), made-up scores, and random maps with labels: five steps
    of the weight on special tokens, so that the rival learns something."""
    shipped, rng = DATA / "pattern_network.safetensors", np.random.default_rng(7)
    networks = {name: load_network(shipped, name) for name in ("grouped", "published")}
    directory.mkdir(exist_ok=True)
    save_networks(directory / "pattern_network.safetensors", networks)
    one = {"macro_f1": 0.5, "interval": [0.4, 0.6], "confusion": np.eye(5, dtype=int).tolist()}
    scores = {kind: {"drawn_at_random": one} for kind in ("network", "logistic", "boosting", "head")}
    weights = rng.dirichlet(np.full(6, 0.4), (150, 6)) + 1e-3
    weights[:, :, [0, 2, 5]] *= np.exp(2 * rng.normal(size=(150, 1, 1)) - 1)
    weights = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
    special = weights[:, :, [0, 2, 5]].sum(-1).mean(-1)
    rows = [MapRow("mrpc", str(n), 0, 0, 3, 3, NAMES[min(int(10 * one), 4)]) for n, one in enumerate(special)]
    maps = tuple(quantise(one) for one in weights)
    write_maps(directory / "labels", MapSet(tuple(rows), maps))
    sources = {"sha256": hash_labels([directory / "labels"])}
    (directory / "pattern_scores.json").write_text(json.dumps(scores | {"as_published": one, "made_of": sources}))
    return directory


@pytest.fixture
def classifier(tmp_path):
    """What `make_classifier` makes, for one test to spoil."""
    return make_classifier(tmp_path / "classifier")


def arguments_for(embedder, classifier, data, output):
    paths = ["--data", str(data), "--classifier", str(classifier), "--labels", str(classifier / "labels")]
    return ["--model", str(embedder), "--task", "mrpc", *paths, "--output", str(output)]


def literal_maps(embedder, first, second):
    """Every head's map of each pair, map by map, without padding or batches, with the tokens of its first text."""
    model, tokenizer = bertjax.load(embedder), bertjax.Tokenizer.from_pretrained(embedder)
    return [
        (one, sizes_of(text)[0])
        for text in tokenizer.encode(first, second)
        for layer in model(**bertjax.collate([text])).attentions
        for one in np.asarray(layer)[0]
    ]


def literal_classes(embedder, classifier, name, first, second):
    """The class of every head of each pair by a network."""
    network = load_network(classifier / "pattern_network.safetensors", name)
    images = [literal_image(*one, SIZE) for one in literal_maps(embedder, first, second)]
    found = predict_classes(network, np.array(images, np.float32)).reshape(len(first), 2, 3)
    assert len(np.unique(found)) > 1, "these maps tell nothing"
    return found


def literal_rival(embedder, classifier, first, second):
    """The class of every head of each pair by a rival that learned from the labels' five numbers."""
    labelled = read_maps(classifier / "labels")
    known = [literal_numbers(weights_of(one), row.first) for row, one in zip(labelled.rows, labelled.maps, strict=True)]
    rival = HistGradientBoostingClassifier(random_state=0)
    rival.fit(np.array(known, np.float32), [NAMES.index(row.label) for row in labelled.rows])
    numbers = [literal_numbers(*one) for one in literal_maps(embedder, first, second)]
    found = rival.predict(np.array(numbers, np.float32)).reshape(len(first), 2, 3)
    assert len(np.unique(found)) > 2, "these maps tell nothing"
    return found


@pytest.fixture(scope="module")
def finished(embedder, tmp_path_factory):
    """A run in both modes: where it is, how it was called, and the pairs that it read in the corrected mode."""
    place = tmp_path_factory.mktemp("finished")
    data = write_quoted(place / "dev.tsv")
    arguments = arguments_for(embedder, make_classifier(place / "classifier"), data, place / "out")
    assert main([*arguments, "--as-published"]) == 0
    lines = [line.split("\t") for line in data.read_text().splitlines()[1:]]
    pairs = [row[3] for row in lines], [row[4] for row in lines]
    results = json.loads((place / "out" / "numbers.json").read_text())["results"]
    return Namespace(
        **{"classifier": place / "classifier", "directory": place / "out", "arguments": arguments, "pairs": pairs},
        **{"results": results, "values": arrays_of(place / "out" / "values.npz")},
    )


def test_a_run_in_both_modes_leaves_its_files(embedder, finished, tmp_path):
    files = {path.name for path in finished.directory.iterdir()}
    pictures = {f"{name}.{kind}" for name in ("figure", "corrected") for kind in ("png", "pdf")}
    assert files == {"numbers.json", "values.npz", *pictures}
    results, found = finished.results, finished.values["corrected_mrpc_classes"][0]
    assert results["corrected"]["mrpc"]["examples"] == 16
    assert results["as_published"]["mrpc"]["examples"] < 16
    expected = literal_classes(embedder, finished.classifier, "grouped", *finished.pairs)
    assert (found == expected).mean() > 0.98  # ties may fall to either side
    shares = [results["corrected"]["mrpc"]["shares"][name] for name in NAMES]
    assert largest_difference(shares, shares_of(expected).mean(0)) < 0.03
    assert sum(shares) == pytest.approx(1, abs=1e-3)
    assert results["corrected"]["mrpc"]["published"]["heterogeneous"] == 0.233
    assert "largest_difference_of_shares" in results["published_against_corrected"]
    numbers = json.loads((finished.directory / "numbers.json").read_text())
    joined = diagonal_shares(read_patterns(str(finished.directory / "numbers.json")))
    assert largest_difference(joined, np.isin(found, [NAMES.index(name) for name in DIAGONAL]).mean(0)) < 1e-3
    apart = results["published_against_corrected"]["largest_difference_of_shares"]
    assert attention_patterns.tables({"": numbers}).endswith(
        f"shares by task differ by up to {100 * apart:.1f} points."
    )
    alone = numbers | {"results": {name: one for name, one in results.items() if name != "as_published"}}
    drawn, expected = (attention_patterns.figures(some) for some in (numbers, alone))
    assert_same_pictures(tmp_path, drawn, "corrected", expected["figure"])


def test_a_task_may_have_a_fine_tuned_model_of_its_own(embedder, finished, tmp_path):
    """What is found is the same as with that model for all."""
    make_embedder(tmp_path / "other", seed=5)
    arguments = [*finished.arguments[:-1], str(tmp_path / "tuned")]
    assert main([*arguments, "--tuned", str(tmp_path / "other")]) == 0
    assert main([*arguments[:1], str(tmp_path / "other"), *arguments[2:-1], str(tmp_path / "alone")]) == 0
    tuned, alone = (arrays_of(tmp_path / name / "values.npz") for name in ("tuned", "alone"))
    assert np.array_equal(tuned["corrected_mrpc_classes"], alone["corrected_mrpc_classes"])
    assert not np.array_equal(tuned["corrected_mrpc_classes"], finished.values["corrected_mrpc_classes"])


def test_models_of_several_seeds_are_averaged(embedder, finished, tmp_path):
    make_embedder(tmp_path / "other", seed=5)
    arguments = [*finished.arguments[:-1], str(tmp_path / "tuned")]
    assert main([*arguments, "--tuned", str(tmp_path / "other"), "--tuned", str(embedder)]) == 0
    classes = arrays_of(tmp_path / "tuned" / "values.npz")["corrected_mrpc_classes"]
    numbers = json.loads((tmp_path / "tuned" / "numbers.json").read_text())
    found = numbers["results"]["corrected"]["mrpc"]
    assert np.array_equal(classes[1], finished.values["corrected_mrpc_classes"][0])
    assert not np.array_equal(classes[0], classes[1])
    for number, name in enumerate(NAMES):
        seeds = [(one == number).mean() for one in classes]
        assert [seed[name] for seed in found["seeds"]] == pytest.approx(seeds, abs=1e-4)
        assert found["shares"][name] == pytest.approx(np.mean(seeds), abs=1e-4)
        assert found["by_head"][name][1][2] == pytest.approx((classes[:, :, 1, 2] == number).mean(), abs=1e-3)
    base = json.loads((finished.directory / "numbers.json").read_text())
    line = attention_patterns.tables({"base": base, "tuned": numbers}).splitlines()[2]
    shares = [one["shares"]["vertical"] for one in (finished.results["corrected"]["mrpc"], found)]
    assert line.startswith(f"| mrpc (16) | {100 * shares[0]:.1f}; {100 * shares[1]:.1f} (14.4) |")
    attention_patterns.figures(numbers)["figure"](tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "tuned" / "figure.png").read_bytes()


def test_share_intervals_equal_a_loop_over_bootstrap_draws(finished):
    for mode in ("corrected", "as_published"):
        found, of_task = finished.values[f"{mode}_mrpc_classes"][0], finished.results[mode]["mrpc"]
        count = len(found)
        draws = np.random.default_rng(0).integers(0, count, (1000, count))
        for number, name in enumerate(NAMES):
            each = [np.mean([(found[example] == number).mean() for example in drawn]) for drawn in draws]
            assert of_task["low"][name] == pytest.approx(np.percentile(each, 2.5), abs=1e-4)
            assert of_task["high"][name] == pytest.approx(np.percentile(each, 97.5), abs=1e-4)
        assert any(of_task["low"][name] < of_task["shares"][name] < of_task["high"][name] for name in NAMES)


def test_what_the_rival_says_and_how_often_it_agrees_are_counts(embedder, finished):
    expected = literal_rival(embedder, finished.classifier, *finished.pairs)
    for mode, least in (("corrected", 0.98), ("as_published", None)):
        rival_classes, found = (finished.values[f"{mode}_mrpc_{kind}"][0] for kind in ("rival", "classes"))
        assert least is None or (rival_classes == expected).mean() > least
        of_task = finished.results[mode]["mrpc"]
        for number, name in enumerate(NAMES):
            assert of_task["by_five_numbers"][name] == pytest.approx(
                (rival_classes == number).sum() / rival_classes.size, abs=1e-4
            )
        equal = sum(one == other for one, other in zip(rival_classes.ravel(), found.ravel(), strict=True))
        assert of_task["agreement_with_five_numbers"] == pytest.approx(equal / rival_classes.size, abs=1e-4)


def test_published_shares_equal_a_loop_over_rows_with_quotes(embedder, classifier, tmp_path):
    data = write_quoted(tmp_path / "dev.tsv")
    options = Namespace(
        name="attention_patterns",
        **{"model": str(embedder), "task": ["mrpc"], "data": str(data), "data_dir": None, "split": "validation"},
        **{"limit": None, "seed": 0, "max_length": 40, "as_published": True, "classifier": classifier},
        labels=[classifier / "labels"],
        tuned=[],
    )
    model = bertjax.load(embedder)
    _, values = compute(Run(options, model))
    task = Namespace(**vars(options) | {"task": "mrpc"})
    sample = attention_patterns.read_sample(Run(options, model), task, published=True)
    expected = literal_classes(embedder, classifier, "published", sample.examples.first, sample.examples.second)
    assert (values["as_published_mrpc_classes"][0] == expected).mean() > 0.98
