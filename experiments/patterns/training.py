"""Train the classifier of attention patterns on maps labelled by eye, and say how good it is.

    python -m experiments.patterns.training        makes anew what is shipped: 6 minutes on two CPU cores
    python -m experiments.patterns.training --labels MINE --output DIR        the same with labels of your own

Each map is judged by a network that saw no map of its example (5 folds, grouped by example); the rival, trained on
five numbers of each map, by the same folds. Intervals come from drawing examples anew. The network that is kept is
trained on all labels. Beside it stands one as the paper describes it: about 400 maps, one random split by map, so that
other heads' maps of a test example are in its training part.

In the directory: `pattern_network.safetensors`, and `pattern_scores.json` with the scores and the held-out predictions.
"""

import argparse
from collections.abc import Sequence
from functools import partial
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

from bertjax.atomic import write_json
from bertjax.cli import Parser, guarded
from bertjax.errors import DataError
from bertjax.progress import ProgressBar, Report
from experiments.patterns.maps import DATA, NAMES, MapSet, read_maps
from experiments.patterns.network import PatternNetwork, load_network, read_maps_as, save_networks, stack_maps
from experiments.patterns.scores import score_classes

LABELS = (DATA / "patterns", DATA / "patterns_rare")
EPOCHS, BATCH, RATE, DECAY = 40, 16, 2e-3, 1e-2
PUBLISHED_MAPS, PUBLISHED_TEST = 400, 0.2
FOLDS = 5


def read_labels(paths: Sequence[Path]) -> list[MapSet]:
    """Labelled maps.

    Raises:
        DataError: they cannot be read, or a map has no label.
    """
    several = [read_maps(path) for path in paths]
    for path, one in zip(paths, several, strict=True):
        if missing := sum(not row.label for row in one.rows):
            raise DataError(f"{path}: {missing} of {len(one)} maps have no label; use experiments.label_maps label")
    return several


def classes_of(several: Sequence[MapSet]) -> tuple[Int[np.ndarray, " maps"], list[str]]:
    """The class of each map by number, and what names its example."""
    rows = [row for one in several for row in one.rows]
    return np.array([NAMES.index(row.label) for row in rows]), [f"{row.task} {row.example}" for row in rows]


def images_of(several: Sequence[MapSet]) -> tuple[Float[np.ndarray, "maps row column 2"], Float[np.ndarray, "maps 5"]]:
    """What the network and its rival read of each map."""
    rows, maps = [row for one in several for row in one.rows], [one for each in several for one in each.maps]
    images, numbers = read_maps_as(*stack_maps(rows, maps))
    return np.asarray(images), np.asarray(numbers)


def train_network(
    images: Float[np.ndarray, "maps row column 2"],
    classes: Int[np.ndarray, " maps"],
    seed: int = 0,
    epochs: int = EPOCHS,
    report: Report = lambda done, total: None,
) -> PatternNetwork:
    """A network trained with AdamW on cross-entropy, rare classes weighted by the root of their rarity.

    Half of the maps of a batch are turned by 180 degrees, which exchanges no classes: columns stay columns.
    """
    graph, params = nnx.split(PatternNetwork(nnx.Rngs(seed)))
    rng, size = np.random.default_rng(seed), min(BATCH, len(classes))
    steps = epochs * (len(classes) // size)
    counts = np.bincount(classes, minlength=len(NAMES))
    weights = jnp.asarray(np.sqrt(len(classes) / len(NAMES) / np.maximum(counts, 1)), jnp.float32)
    # optax mixes dtypes by promotion, which bertjax's own code never does
    with jax.numpy_dtype_promotion("standard"):
        optimizer = optax.adamw(optax.warmup_cosine_decay_schedule(0.0, RATE, steps // 10, steps), weight_decay=DECAY)
        state = optimizer.init(params)
        for step in range(steps):
            if step % (len(classes) // size) == 0:
                order = rng.permutation(len(classes))
            rows = order[:size]
            order = order[size:]
            turned = np.where(rng.random(size)[:, None, None, None] < 0.5, images[rows][:, ::-1, ::-1], images[rows])
            batch = turned, classes[rows].astype(np.int32), weights
            params, state = _step(graph, optimizer.update, params, state, batch)
            report(float(step + 1), float(steps))
    return nnx.merge(graph, params)


@partial(jax.jit, static_argnums=(0, 1))
def _step(graph: Any, update: Any, params: Any, state: Any, batch: tuple[Array, Array, Array]) -> tuple[Any, Any]:
    images, classes, weights = batch

    def loss(params: Any) -> Array:
        logits = nnx.merge(graph, params)(images)
        each = optax.softmax_cross_entropy_with_integer_labels(logits, classes)
        return jnp.mean(each * weights[classes])

    updates, state = update(jax.grad(loss)(params), state, params)
    return optax.apply_updates(params, updates), state


def predict_classes(network: Any, images: Float[np.ndarray, "maps row column 2"]) -> Int[np.ndarray, " maps"]:
    """The likeliest class of each map."""
    return np.asarray(_logits(*nnx.split(network), jnp.asarray(images))).argmax(-1)


@partial(jax.jit, static_argnums=0)
def _logits(graph: Any, params: Any, images: Array) -> Array:
    logits: Array = nnx.merge(graph, params)(images)
    return logits


def rivals() -> dict[str, Any]:
    """Classifiers that read five numbers of a map."""
    linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    return {"logistic": linear, "boosting": HistGradientBoostingClassifier(random_state=0)}


def hold_out(several: Sequence[MapSet], epochs: int, report: Report) -> dict[str, Int[np.ndarray, " maps"]]:
    """What the network and its rivals say of each map when trained without its example."""
    classes, groups = classes_of(several)
    images, numbers = images_of(several)
    folds = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=0)
    found = np.full(len(classes), -1)
    for number, (train, test) in enumerate(folds.split(images, classes, groups)):
        network = train_network(images[train], classes[train], number, epochs)
        found[test] = predict_classes(network, images[test])
        report(float(number + 1), float(FOLDS))
    held = {
        name: cross_val_predict(rival, numbers, classes, groups=groups, cv=folds) for name, rival in rivals().items()
    }
    return {"network": found, **held}


def as_published(several: MapSet, epochs: int) -> tuple[PatternNetwork, dict[str, Any]]:
    """The network that the paper describes, and its scores: 400 maps, one split, random by map."""
    classes, _ = classes_of([several])
    images, _ = images_of([several])
    kept = np.random.default_rng(0).permutation(len(classes))[:PUBLISHED_MAPS]
    train, test = train_test_split(kept, test_size=PUBLISHED_TEST, random_state=0)
    network = train_network(images[train], classes[train], 0, epochs)
    names = [str(number) for number in test]  # each map for itself, as the split has it
    return network, score_classes(classes[test], predict_classes(network, images[test]), names)


def score_fitted(
    directory: Path, images: Float[np.ndarray, "maps row column 2"], classes: Int[np.ndarray, " maps"]
) -> dict[str, float]:
    """Macro F1 of the written networks on all labelled maps, their own training's among them: to know them again by."""
    path = directory / "pattern_network.safetensors"
    said = {name: predict_classes(load_network(path, name), images) for name in ("grouped", "published")}
    return {name: float(f1_score(classes, found, average="macro")) for name, found in said.items()}


def train(paths: Sequence[Path], output: Path, epochs: int = EPOCHS) -> dict[str, Any]:
    """Scores of all classifiers; writes networks and scores into a directory."""
    several = read_labels(paths)
    classes, groups = classes_of(several)
    with ProgressBar("folds") as report:
        held = hold_out(several, epochs, report)
    drawn = len(several[0])
    scores: dict[str, Any] = {"maps": len(classes), "drawn_at_random": drawn, "examples": len(set(groups))}
    for name, found in held.items():
        scores[name] = {
            "drawn_at_random": score_classes(classes[:drawn], found[:drawn], groups[:drawn]),
            "all": score_classes(classes, found, groups),
        }
    published, scores["as_published"] = as_published(several[0], epochs)
    images, _ = images_of(several)
    with ProgressBar("all labels") as report:
        network = train_network(images, classes, 0, epochs, report)
    save_networks(output / "pattern_network.safetensors", {"grouped": network, "published": published})
    scores["fitted"] = score_fitted(output, images, classes)
    scores["held_out"] = {name: found.tolist() for name, found in held.items()}
    write_json(output / "pattern_scores.json", scores)
    return scores


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    look = argparse.RawDescriptionHelpFormatter
    name = "python -m experiments.patterns.training"
    parser = Parser(prog=name, description=__doc__, formatter_class=look)
    text = "names of labelled maps without suffix; the first are a random draw, others only add rare classes"
    parser.add_argument("--labels", nargs="+", type=Path, default=LABELS, metavar="MAPS", help=text)
    parser.add_argument("--output", type=Path, default=DATA, metavar="DIR", help="where network and scores go")
    parser.add_argument("--epochs", type=int, default=EPOCHS, metavar="N", help=f"of training (default {EPOCHS})")

    def program() -> int:
        options = parser.parse_args(arguments)
        scores = train(options.labels, options.output, options.epochs)
        for kind in ("network", *rivals(), "as_published"):
            found = scores[kind].get("drawn_at_random", scores[kind])
            low, high = found["interval"]
            print(f"{kind.replace('_', ' ')}: macro F1 {found['macro_f1']:.2f}, 95 % interval {low:.2f} to {high:.2f}")
        return 0

    return guarded(name, program)


if __name__ == "__main__":
    raise SystemExit(main())
