"""Structural probes of layers: `Study.structure`, `bertjax structure` (Hewitt and Manning 2019).

The data are the sentences of a CoNLL-U file. One part of the sentences trains the probes, another ends their training,
and a third tests them; the results are about the third.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int
from rich.console import RenderableType

from bertjax.analyses.probing.words import activations_and_control, annotations_of, load_words
from bertjax.errors import InputError
from bertjax.formatting import count_of, finite
from bertjax.interventions import ablations
from bertjax.jobs import (
    Analysis,
    Context,
    DataOptions,
    Job,
    Outcome,
    Positive,
    Say,
    Settings,
    names,
    option,
    outcome_of_examples,
)
from bertjax.representations import (
    Split,
    attachment_counts,
    fit_structural_probe,
    mean_rank_correlation,
    rank_correlations,
    split_texts,
    tree_depths,
    tree_distances,
)
from bertjax.results import NumberDisplay, Results
from bertjax.statistics import Metric, ratios
from bertjax.tasks import Annotation, OutputSpec

NUMBERS = (
    *("attached", "edges", "attached above random", "correlation of distances", "with distances"),
    *("right roots", "sentences", "right roots above random", "correlation of depths", "with depths"),
)
OF_A_TARGET = len(NUMBERS) // 2
SHARE_OF_ACTIVATIONS = 0.1  # of the progress
PUNCTUATION = "PUNCT"
OneTarget = Literal["distance", "depth"]
Target = Literal["distance", "depth", "both"]


class StructureDisplay(NumberDisplay):
    """Sentences with the number of edges that a probe finds."""

    value, note = "edges", "It is the number of edges of the tree that the probe finds."


OUTPUTS = OutputSpec("structure", called="trees of probes", numbers=NUMBERS, sized=1, display=StructureDisplay)


def _metric(name: str, label: str, number: str, count: str, **more: Any) -> Metric:
    more = {"compared_with": "the embeddings"} | more
    return Metric.of_sums(name, label, ratios.ratio_of(NUMBERS, number, count), **more)


OF_CONTROL: dict[str, Any] = {"of_effects": True, "compared_with": "", "lowest": -1.0}
METRICS = {
    "distance": (
        _metric("uuas", "UUAS", "attached", "edges"),
        _metric("distance_correlation", "Correlation of distances", *NUMBERS[3:5], lowest=-1.0),
        _metric("uuas_above_random", "UUAS above a random encoder", "attached above random", "edges", **OF_CONTROL),
    ),
    "depth": (
        _metric("root_accuracy", "Accuracy of the root", "right roots", "sentences"),
        _metric("depth_correlation", "Correlation of depths", *NUMBERS[8:], lowest=-1.0),
        _metric("roots_above_random", "Roots above a random encoder", *NUMBERS[7:5:-1], **OF_CONTROL),
    ),
}
"""The metrics of structural probes, by target."""


@dataclass(frozen=True, kw_only=True)
class Structure(Analysis):
    """Train structural probes, which find dependency trees in the geometry of each layer.

    Args:
        target: 'distance' trains probes whose squared distances between words are path lengths in the tree, 'depth'
            probes whose squared norms are depths of words.
        rank: the number of dimensions of the projection; Hewitt and Manning (2019) find no gain above 64 or 128.

    UUAS is the share of the tree's edges, without punctuation, in the minimum spanning tree of the distances. Scores
    are compared with those of probes of the embeddings. Above random is the score minus that of a probe of the same
    layer in a random encoder of the same shape.
    """

    name = word = "structure"
    progress_text = "probing"
    example = "bertjax structure --task token-classification --data en_ewt-ud-dev.conllu --limit 2000"
    reads = names(DataOptions) | {"model", "max_length"}
    own = ("target", "rank")

    outputs = OUTPUTS
    journals = None
    float32 = True

    target: Target = "both"
    rank: Positive = option(64, "N")

    def load(self, settings: Settings, say: Say) -> Job:
        """Load the encoder and the sentences in which every word has all its pieces within the length of the model."""
        job = load_words(settings, say, OUTPUTS, tagged="a structural probe")
        texts, sentences = job.encoded.encodings, _annotations(job)
        counts = [len({word for word in text.word_ids if word is not None}) for text in texts]
        whole = [not text.truncated for text in texts]  # else the last word may lack pieces
        kept = [index for index, count in enumerate(counts) if whole[index] and count == len(sentences[index].heads)]
        if len(kept) < len(counts):
            say(f"{count_of(len(counts) - len(kept), 'sentence')} with words without all their pieces left out")
        return take_sentences(job, kept)

    def run(self, context: Context) -> Outcome:
        """Compute activations, train all probes and test them."""
        job, seed = context.job, context.job.settings.seed
        trees = _Trees.of(_annotations(job))
        split = split_texts(len(trees.heads), seed)
        described = {name: len(part) for name, part in vars(split).items()}
        context.say(f"{job.model.class_name} {job.settings.model}: sentences {described}, {trees.words:,} words")
        activations, random = activations_and_control(job, context.progress, SHARE_OF_ACTIVATIONS)
        runs = ablations.whole_layers(job.model.config, self.mode)
        sites = ["embeddings", *(run.name for run in runs)]
        rows = [activations.units_of([text]) for text in range(len(trees.heads))]
        prober = _Prober(trees, rows, split, min(self.rank, job.model.config.hidden_size), seed)
        targets: tuple[OneTarget, ...] = ("distance", "depth") if self.target == "both" else (self.target,)
        outputs, found = np.zeros((len(sites), len(split.test), len(NUMBERS))), dict[str, dict[str, float | None]]()
        for index, site in enumerate(sites):
            states, of_random = activations.hidden_states[index], random.hidden_states[index]
            for target in targets:
                numbers, found.setdefault(f"{target}_correlation", {})[site] = prober.run(
                    states, of_random, target, index == 0
                )
                start = OF_A_TARGET * (target == "depth")
                outputs[index, :, start : start + OF_A_TARGET] = numbers
            context.progress(SHARE_OF_ACTIVATIONS + (1 - SHARE_OF_ACTIVATIONS) * (index + 1) / len(sites), 1.0)
        chain = {"linear_chain": trees.score_chain(split.test)} if "distance" in targets else {}
        metadata = {"sentences": described, "rank": prober.rank, "by_length": found, **chain}
        return outcome_of_examples(
            job,
            OUTPUTS,
            [metric for target in targets for metric in METRICS[target]],
            outputs[1:],
            split.test.tolist(),
            runs,
            base=outputs[0],
            metadata={"structure": metadata},
        )

    def show(self, results: Results) -> Sequence[RenderableType]:
        """The table of the main metric, and the baselines."""
        return [*super().show(results), *lines_of(results)]


def lines_of(results: Results) -> list[str]:
    """Lines on the best layers, and on the baselines.

    Args:
        results: results of `structure`.
    """
    found, lines = results.summary["structure"], []
    for target, chosen in METRICS.items():
        if f"{target}_correlation" not in found["by_length"]:
            continue
        score, _, above = (results.rows_of(metric.name) for metric in chosen)
        best = max(range(len(score)), key=lambda index: score[index].score or 0.0)
        layer, by_length = score[best].name, found["by_length"][f"{target}_correlation"]
        line = (
            f"{target}: layer {layer}, {chosen[0].label} {100 * (score[best].score or 0.0):.1f} %, embeddings "
            f"{100 * (score[best].base or 0.0):.1f} %, {100 * (above[best].score or 0.0):.1f} points above a random "
            f"encoder; Spearman correlation by sentence length {_text(by_length[layer])}, embeddings "
            f"{_text(by_length['embeddings'])}"
        )
        if target == "distance":
            line += f"; UUAS of the linear chain {100 * (found['linear_chain']['uuas'] or 0.0):.1f} %"
        lines.append(line)
    return lines


def _text(correlation: float | None) -> str:
    return "undefined" if correlation is None else f"{correlation:z.2f}".replace("-", "−")


def take_sentences(job: Job, kept: Sequence[int]) -> Job:
    """A job with some of its sentences.

    Args:
        job: the result of `load_words`.
        kept: the indices of the sentences.

    Raises:
        InputError: no sentence is left.
    """
    if not kept:
        raise InputError("no sentence is left: the model has no pieces for words of each of them")
    encoded = job.encoded
    encodings = tuple(encoded.encodings[index] for index in kept)
    encoded = replace(encoded, encodings=encodings, examples=len(kept), labels=np.zeros(len(kept)))
    return replace(job, examples=job.examples.take(kept), encoded=encoded)


def _annotations(job: Job) -> list[Annotation]:
    """The annotation of each sentence. Raises `InputError` if there is none, or the heads of a sentence are no tree."""
    found, examples = annotations_of(job.examples), job.examples
    if not found:
        raise InputError("a structural probe needs dependency trees: give a file of CoNLL-U with heads")
    for name, annotation in zip(examples.ids, found, strict=True):
        try:
            tree_distances(annotation.heads)
        except InputError as error:
            raise InputError(f"{examples.source}, sentence {name}: {error}") from error
    return found


@dataclass(frozen=True)
class _Trees:
    """The dependency trees of all sentences.

    Args:
        heads: the head of each word of each sentence, counted from 1; 0 for the root.
        keep: the words that count, which are all but punctuation.
    """

    heads: Sequence[Sequence[int]]
    keep: Sequence[np.ndarray]

    @classmethod
    def of(cls, annotations: Sequence[Annotation]) -> "_Trees":
        keep = [np.array([tag != PUNCTUATION for tag in annotation.upos]) for annotation in annotations]
        return cls([annotation.heads for annotation in annotations], keep)

    @property
    def words(self) -> int:
        """The number of words."""
        return sum(map(len, self.heads))

    def score_chain(self, test: Int[np.ndarray, " sentences"]) -> dict[str, float | None]:
        """UUAS and rank correlation of a tree that joins each word with the next."""
        chains = [np.abs(np.subtract.outer(*2 * [np.arange(len(self.heads[index]))])) for index in test.tolist()]
        counts = [
            attachment_counts(chain, self.heads[index], self.keep[index])
            for chain, index in zip(chains, test.tolist(), strict=True)
        ]
        right, edges = np.sum(counts, axis=0)
        true = [tree_distances(self.heads[index]) for index in test.tolist()]
        correlation = mean_rank_correlation([chain.astype(np.float64) for chain in chains], true)
        return {"uuas": float(right / edges) if edges else None, "distance_correlation": finite(correlation)}


class _Prober:
    """Trains and tests the probes of one layer after another."""

    def __init__(self, trees: _Trees, rows: Sequence[Int[np.ndarray, " _"]], split: Split, rank: int, seed: int):
        self.trees, self.rows, self.split, self.rank, self.seed = trees, rows, split, rank, seed
        self.test = split.test.tolist()

    def run(
        self,
        states: Float[np.ndarray, "units embed"],
        random: Float[np.ndarray, "units embed"],
        target: OneTarget,
        is_base: bool,
    ) -> tuple[Float[np.ndarray, "sentences five"], float | None]:
        """The numbers of each test sentence for a target, and the mean correlation by sentence length."""
        predicted = self._predict(states, target)
        measured = self._score(predicted, target)
        control = measured[0] if is_base else self._score(self._predict(random, target), target)[0]
        true = [self._true(index, target) for index in self.test]
        right, counted = measured
        each = [rank_correlations(found, gold) for found, gold in zip(predicted, true, strict=True)]
        correlation = np.array([np.mean(values) if values else 0.0 for values in each])
        defined = np.array([float(bool(values)) for values in each])
        numbers = np.stack([right, counted, right - control, correlation, defined], axis=1)
        return numbers, finite(mean_rank_correlation(predicted, true))

    def _true(self, index: int, target: str) -> np.ndarray:
        return (tree_distances if target == "distance" else tree_depths)(self.trees.heads[index])

    def _predict(self, states: np.ndarray, target: OneTarget) -> list[np.ndarray]:
        """Train a probe; the distances or depths that it predicts for each test sentence."""
        probe = fit_structural_probe(
            states,
            self.rows,
            self.trees.heads,
            self.split.train,
            self.split.select,
            target=target,
            rank=self.rank,
            seed=self.seed,
        )
        read = probe.distances if target == "distance" else probe.depths
        return [read(states[self.rows[index]]) for index in self.test]

    def _score(self, predicted: Sequence[np.ndarray], target: str) -> tuple[np.ndarray, np.ndarray]:
        """Right edges and all edges of each test sentence; or whether its root is right, and whether it has one."""
        found = []
        for index, values in zip(self.test, predicted, strict=True):
            heads, keep = self.trees.heads[index], self.trees.keep[index]
            if target == "distance":
                found.append(attachment_counts(values, heads, keep))
            else:
                words = np.flatnonzero(keep)
                right = len(words) > 0 and heads[words[np.argmin(values[words])]] == 0
                found.append((int(right), int(len(words) > 0)))
        right, counted = np.array(found, np.float64).T
        return right, counted
