"""Train and evaluate networks that classify attention patterns. (Kovaleva et al. 2019, section 4.1)

    python -m experiments.patterns.training        rebuilds the shipped files: 6 minutes on two CPU cores
    python -m experiments.patterns.training --labels MINE --output DIR        the same with other labels

Each map is classified by a network that saw no map of its example (5 folds, grouped by example). Rivals in the same
folds: two classifiers that read five numbers of each map, and `head`, the most common label of the map's head.
Intervals by bootstrap of examples. The final network is trained on all labels. A second one follows the paper: about
400 maps and one random split by map, so that maps of one example are in both parts.

The directory gets `pattern_network.safetensors`, and `pattern_scores.json` with scores, held-out predictions and their
origin. `RESULTS.md` has the scores.
"""

import argparse
import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float, Int
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedGroupKFold, cross_val_predict, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tqdm import tqdm

from experiments.patterns.maps import DATA, NAMES, MapSet, read_maps
from experiments.patterns.network import PatternNetwork, load_network, read_maps_as, save_networks, stack_maps
from experiments.patterns.scores import compare_classes, score_accuracy, score_classes
from experiments.shared.tables import format_interval

LABELS = (DATA / "patterns", DATA / "patterns_rare")
EPOCHS, BATCH, RATE, DECAY = 40, 16, 2e-3, 1e-2
PUBLISHED_MAPS, PUBLISHED_TEST = 400, 0.2
FOLDS, SEED = 5, 0
PACKAGES = ("bertjax", "jax", "jaxlib", "flax", "optax", "numpy", "scikit-learn")
Rows = Int[np.ndarray, " _"]


def read_labels(paths: Sequence[Path]) -> list[MapSet]:
    """Read labelled maps."""
    return [read_maps(path) for path in paths]


def classes_of(map_sets: Sequence[MapSet]) -> tuple[Int[np.ndarray, " maps"], list[str]]:
    """The class number of each map, and the name of its example."""
    rows = [row for map_set in map_sets for row in map_set.rows]
    return np.array([NAMES.index(row.label) for row in rows]), [f"{row.task} {row.example}" for row in rows]


def images_of(map_sets: Sequence[MapSet]) -> tuple[Float[np.ndarray, "maps row column 2"], Float[np.ndarray, "maps 5"]]:
    """The inputs of the network and of its rivals for each map."""
    rows, maps = (
        [row for map_set in map_sets for row in map_set.rows],
        [quantised for map_set in map_sets for quantised in map_set.maps],
    )
    images, numbers = read_maps_as(*stack_maps(rows, maps))
    return np.asarray(images), np.asarray(numbers)


def train_network(
    images: Float[np.ndarray, "maps row column 2"],
    classes: Int[np.ndarray, " maps"],
    seed: int = SEED,
    epochs: int = EPOCHS,
) -> PatternNetwork:
    """Train a network with AdamW on cross-entropy, with rare classes weighted by the root of their rarity.

    Half of the maps in a batch are rotated by 180 degrees, which preserves their classes: columns stay columns.
    """
    graph, params = nnx.split(PatternNetwork(nnx.Rngs(seed)))
    rng, size = np.random.default_rng(seed), min(BATCH, len(classes))
    steps = epochs * (len(classes) // size)
    counts = np.bincount(classes, minlength=len(NAMES))
    weights = jnp.asarray(np.sqrt(len(classes) / len(NAMES) / np.maximum(counts, 1)), jnp.float32)
    # optax relies on dtype promotion, which bertjax's code never does
    with jax.numpy_dtype_promotion("standard"):
        optimizer = optax.adamw(optax.warmup_cosine_decay_schedule(0.0, RATE, steps // 10, steps), weight_decay=DECAY)
        state = optimizer.init(params)
        for step in tqdm(range(steps), disable=None, leave=False):
            if step % (len(classes) // size) == 0:
                order = rng.permutation(len(classes))
            rows = order[:size]
            order = order[size:]
            turned = np.where(rng.random(size)[:, None, None, None] < 0.5, images[rows][:, ::-1, ::-1], images[rows])
            batch = turned, classes[rows].astype(np.int32), weights
            params, state = _step(graph, optimizer.update, params, state, batch)
    return nnx.merge(graph, params)


@partial(jax.jit, static_argnums=(0, 1))
def _step(graph: Any, update: Any, params: Any, state: Any, batch: tuple[Array, Array, Array]) -> tuple[Any, Any]:
    images, classes, weights = batch

    def loss(params: Any) -> Array:
        logits = nnx.merge(graph, params)(images)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, classes)
        return jnp.mean(losses * weights[classes])

    updates, state = update(jax.grad(loss)(params), state, params)
    return optax.apply_updates(params, updates), state


def predict_classes(network: Any, images: Float[np.ndarray, "maps row column 2"]) -> Int[np.ndarray, " maps"]:
    """The most probable class of each map."""
    return np.asarray(_logits(*nnx.split(network), jnp.asarray(images))).argmax(-1)


@partial(jax.jit, static_argnums=0)
def _logits(graph: Any, params: Any, images: Array) -> Array:
    logits: Array = nnx.merge(graph, params)(images)
    return logits


def rivals() -> dict[str, Any]:
    """The classifiers that read five numbers of a map."""
    linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    return {"logistic": linear, "boosting": HistGradientBoostingClassifier(random_state=SEED)}


def split_folds(map_sets: Sequence[MapSet]) -> list[tuple[Rows, Rows]]:
    """Training and test rows of each fold; all maps of an example are tested in one fold."""
    classes, groups = classes_of(map_sets)
    with warnings.catch_warnings():  # a class with fewer maps than folds is missing in some: accepted
        warnings.simplefilter("ignore")
        folds = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=SEED)
        splits = list(folds.split(classes, classes, groups))
    return splits


def most_common_of_heads(map_sets: Sequence[MapSet], folds: Sequence[tuple[Rows, Rows]]) -> Int[np.ndarray, " maps"]:
    """The most common label of each map's head in the other folds: a rival that never sees a map.

    If the head has no label there, or on a tie, the label most common among all heads decides.
    """
    classes, _ = classes_of(map_sets)
    heads = np.array([(row.layer, row.head) for map_set in map_sets for row in map_set.rows])
    most_common = np.full(len(classes), -1)
    for train, test in folds:
        overall = np.bincount(classes[train], minlength=len(NAMES))
        for place in test:
            same = train[(heads[train] == heads[place]).all(-1)]
            counts = np.bincount(classes[same], minlength=len(NAMES))
            most_common[place] = (counts * (len(train) + 1) + overall).argmax()
    return most_common


def hold_out(map_sets: Sequence[MapSet], epochs: int) -> dict[str, Int[np.ndarray, " maps"]]:
    """Predictions of the network and its rivals for each map, when trained without its example."""
    folds = split_folds(map_sets)
    classes, _ = classes_of(map_sets)
    images, numbers = images_of(map_sets)
    predicted = np.full(len(classes), -1)
    for number, (train, test) in enumerate(folds):
        network = train_network(images[train], classes[train], SEED + number, epochs)
        predicted[test] = predict_classes(network, images[test])
    rival_predictions = {name: cross_val_predict(rival, numbers, classes, cv=folds) for name, rival in rivals().items()}
    return {"network": predicted, **rival_predictions, "head": most_common_of_heads(map_sets, folds)}


def score_held_out(map_sets: Sequence[MapSet], held: Mapping[str, Int[np.ndarray, " maps"]]) -> dict[str, Any]:
    """Scores of each classifier on unseen maps: on those drawn at random, and on all.

    Args:
        held: what `hold_out` returns.

    Returns: for each classifier its F1; its accuracy where the label is not the head's most common (`off_head`); the
    lead of the network.
    """
    classes, groups = classes_of(map_sets)
    scores: dict[str, Any] = {name: {} for name in held}
    for part, count in (("drawn_at_random", len(map_sets[0])), ("all", len(classes))):
        true, names = classes[:count], groups[:count]
        off_head = np.flatnonzero(true != held["head"][:count])
        for name, predicted in held.items():
            of_part = predicted[:count]
            score = score_classes(true, of_part, names)
            score["off_head"] = score_accuracy(true[off_head], of_part[off_head], [names[place] for place in off_head])
            if name != "network":
                score["network_ahead_by"] = compare_classes(true, held["network"][:count], of_part, names)
            scores[name][part] = score
    return scores


def as_published(map_set: MapSet, epochs: int) -> tuple[PatternNetwork, dict[str, Any]]:
    """Train the network that the paper describes, and score it: 400 maps, one random split by map."""
    classes, _ = classes_of([map_set])
    images, _ = images_of([map_set])
    sample = np.random.default_rng(SEED).permutation(len(classes))[:PUBLISHED_MAPS]
    train, test = train_test_split(sample, test_size=PUBLISHED_TEST, random_state=SEED)
    network = train_network(images[train], classes[train], SEED, epochs)
    names = [str(number) for number in test]  # each map is a group, as in the split
    return network, score_classes(classes[test], predict_classes(network, images[test]), names)


def score_fitted(
    directory: Path, images: Float[np.ndarray, "maps row column 2"], classes: Int[np.ndarray, " maps"]
) -> dict[str, float]:
    """Macro F1 of the written networks on all labelled maps, their training maps included, to identify the networks."""
    path = directory / "pattern_network.safetensors"
    predictions = {name: predict_classes(load_network(path, name), images) for name in ("grouped", "published")}
    return {name: float(f1_score(classes, predicted, average="macro")) for name, predicted in predictions.items()}


def hash_labels(paths: Sequence[Path]) -> dict[str, str]:
    """A digest of each file of labelled maps, by file name."""
    files = [path.with_suffix(suffix) for path in paths for suffix in (".npz", ".tsv")]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def made_of(paths: Sequence[Path], epochs: int) -> dict[str, Any]:
    """The origin of networks and scores: settings, digests of the files of labelled maps, versions."""
    return {
        "seed": SEED,
        "seeds_of_folds": [SEED + number for number in range(FOLDS)],
        "epochs": epochs,
        "batch": BATCH,
        "rate": RATE,
        "decay": DECAY,
        "sha256": hash_labels(paths),
        "versions": {name: version(name) for name in PACKAGES},
    }


def count_maps(map_sets: Sequence[MapSet]) -> dict[str, int]:
    """The number of maps, of those drawn at random, and of examples."""
    _, groups = classes_of(map_sets)
    return {"maps": len(groups), "drawn_at_random": len(map_sets[0]), "examples": len(set(groups))}


def train(paths: Sequence[Path], output: Path, epochs: int = EPOCHS) -> dict[str, Any]:
    """Train and score all classifiers; write networks and scores to a directory."""
    map_sets = read_labels(paths)
    predictions = hold_out(map_sets, epochs)
    published, published_scores = as_published(map_sets[0], epochs)
    images, _ = images_of(map_sets)
    network = train_network(images, classes_of(map_sets)[0], SEED, epochs)
    output.mkdir(parents=True, exist_ok=True)
    save_networks(output / "pattern_network.safetensors", {"grouped": network, "published": published})
    scores = {**count_maps(map_sets), **score_held_out(map_sets, predictions), "as_published": published_scores}
    scores["fitted"] = score_fitted(output, images, classes_of(map_sets)[0])
    scores["made_of"] = made_of(paths, epochs)
    scores["held_out"] = {name: predicted.tolist() for name, predicted in predictions.items()}
    (output / "pattern_scores.json").write_text(json.dumps(scores, indent=1))
    return scores


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter, allow_abbrev=False)
    text = "names of labelled maps without suffix; the first are a random draw, others only add rare classes"
    parser.add_argument("--labels", nargs="+", type=Path, default=LABELS, metavar="MAPS", help=text)
    parser.add_argument("--output", type=Path, default=DATA, metavar="DIR", help="directory for networks and scores")
    parser.add_argument("--epochs", type=int, default=EPOCHS, metavar="N", help="of training (default %(default)s)")
    options = parser.parse_args(arguments)
    scores = train(options.labels, options.output, options.epochs)
    for kind in ("network", *rivals(), "head", "as_published"):
        found = scores[kind].get("drawn_at_random", scores[kind])
        print(f"{kind}: macro F1 {format_interval(found['macro_f1'], found['interval'])}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
