"""Linear probes of layers and heads: `Study.probe`, `bertjax probe`.

The task's data are words with tags (`--task token-classification`), such as the parts of speech of a CoNLL-U file. The
activation of a word is the mean over its pieces. One part of the sentences trains the probes, another selects the
strength of regularisation, and a third tests them; the results are about the third.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int
from rich.console import RenderableType

from bertjax.analyses.probing.words import activations_and_control, load_words, sentences_of
from bertjax.errors import InputError
from bertjax.interventions import ablations
from bertjax.jobs import (
    Analysis,
    Context,
    DataOptions,
    Job,
    Outcome,
    Say,
    Settings,
    names,
    outcome_of_examples,
)
from bertjax.representations import (
    Activations,
    Split,
    control_labels,
    description_length,
    fit_probe,
    split_texts,
)
from bertjax.results import NumberDisplay, Results
from bertjax.statistics import Metric, ratios
from bertjax.tasks import OutputSpec

NUMBERS = ("correct", "targets", "selective", "above random")
SHARE_OF_ACTIVATIONS = 0.3  # of the progress
Sites = Literal["layers", "heads"]


class ProbeDisplay(NumberDisplay):
    """Sentences with the number of words that a probe tags right."""

    value, note = "right words", "It is the number of words that the probe tags right."


OUTPUTS = OutputSpec("probe", called="tags of probes", numbers=NUMBERS, sized=1, display=ProbeDisplay)


@dataclass(frozen=True, kw_only=True)
class Probe(Analysis):
    """Train linear probes that read tags of words from each layer or head.

    Args:
        of: 'layers' probes the hidden states after each layer, 'heads' the output of each head before the output
            projection.
        description_length: also compute the description length of the tags by online coding, which trains ten more
            probes for each layer or head.

    The accuracy is compared with that of a probe of the embeddings. The selectivity is the accuracy minus that on a
    control task, in which every word type has a random tag (Hewitt and Liang 2019). Above random is the accuracy minus
    that of a probe of the same layer or head in a random encoder of the same shape.
    """

    name = word = "probe"
    progress_text = "probing"
    example = "bertjax probe --task token-classification --data en_ewt-ud-dev.conllu"
    reads = names(DataOptions) | {"model", "max_length", "tags"}
    own = ("of", "description_length")

    outputs = OUTPUTS
    journals = None
    float32 = True

    of: Sites = "layers"
    description_length: bool = False

    def load(self, settings: Settings, say: Say) -> Job:
        """Load the encoder, and tokenise the sentences."""
        return load_words(settings, say, OUTPUTS, tagged="a probe")

    def run(self, context: Context) -> Outcome:
        """Compute activations, train all probes and test them."""
        job, seed = context.job, context.job.settings.seed
        words = _Words.of(job)
        split = split_texts(len(job.examples), seed)
        described = {name: len(part) for name, part in vars(split).items()}
        context.say(f"{job.model.class_name} {job.settings.model}: sentences {described}, {len(words.labels):,} words")
        heads = self.of == "heads"
        activations, random = activations_and_control(job, context.progress, SHARE_OF_ACTIVATIONS, heads=heads)
        runs = (ablations.whole_layers if self.of == "layers" else ablations.single_heads)(job.model.config, self.mode)
        prober = _Prober(words, split, activations.starts, seed, self.description_length)
        sites = ["embeddings", *(run.name for run in runs)]
        outputs = np.zeros((len(sites), len(split.test), len(NUMBERS)))
        for index, site in enumerate(sites):
            features = [_features(source, site) for source in (activations, random)]
            outputs[index] = prober.run(site, features[0], None if index == 0 else features[1])
            share = SHARE_OF_ACTIVATIONS + (1 - SHARE_OF_ACTIVATIONS) * (index + 1) / len(sites)
            context.progress(share, 1.0)
        return outcome_of_examples(
            job,
            OUTPUTS,
            PROBE_METRICS,
            outputs[1:],
            split.test.tolist(),
            runs,
            base=outputs[0],
            metadata={"probe": {"tags": list(words.names), "sentences": described, **prober.describe(sites)}},
        )

    def show(self, results: Results) -> Sequence[RenderableType]:
        """The table of accuracies, and the controls."""
        return [*super().show(results), *lines_of(results)]


def _metric(name: str, label: str, number: str, **more: Any) -> Metric:
    return Metric.of_sums(name, label, ratios.ratio_of(NUMBERS, number, "targets"), **more)


PROBE_METRICS = (
    _metric("probe_accuracy", "Accuracy of the probe", "correct", compared_with="the embeddings"),
    _metric("selectivity", "Selectivity of the probe", "selective", compared_with="the embeddings", lowest=-1.0),
    _metric("above_random", "Accuracy above a random encoder", "above random", of_effects=True, lowest=-1.0),
)
"""The metrics of probes, the main one first."""


def lines_of(results: Results) -> list[str]:
    """Lines on the best layer or head, and on the controls.

    Args:
        results: results of `probe`.
    """
    found = results.summary["probe"]
    rows = {name: results.rows_of(name) for name in ("probe_accuracy", "selectivity", "above_random")}
    best = max(rows["probe_accuracy"], key=lambda row: row.score or 0.0)
    index = results.names.index(best.name)
    points = {name: 100 * (of_metric[index].score or 0.0) for name, of_metric in rows.items()}
    counted = found.get("kind", "words")
    line = (
        f"best: {results.kind} {best.name}, {points['probe_accuracy']:.1f} % of {counted}, selectivity "
        f"{points['selectivity']:.1f} points, {points['above_random']:.1f} points above a random encoder; embeddings "
        f"{100 * (best.base or 0.0):.1f} %, the most frequent tag {100 * found['most_frequent']:.1f} %"
    )
    lengths = found.get("description_lengths")
    if not lengths:
        return [line]
    shortest = min(lengths, key=lambda site: lengths[site]["bits"])
    compression = lengths[shortest]["compression"]
    return [
        line,
        f"shortest description: {shortest}, compression {compression:.2f} ({lengths[shortest]['bits']:,.0f} bits)",
    ]


@dataclass(frozen=True)
class _Words:
    """The words with pieces of all sentences.

    Args:
        words: the str of each.
        labels: the index of each word's tag in `names`.
        names: the tags in alphabetical order.
    """

    words: Sequence[str]
    labels: Int[np.ndarray, " words"]
    names: Sequence[str]

    @classmethod
    def of(cls, job: Job) -> "_Words":
        """The words of a job's examples."""
        words, tags = [], []
        for sentence, text in zip(sentences_of(job.examples, "a probe"), job.encoded.encodings, strict=True):
            for word in dict.fromkeys(word for word in text.word_ids if word is not None):
                words.append(sentence.words[word])
                tags.append(sentence.tags[word])
        names, labels = np.unique(tags, return_inverse=True)
        if len(names) < 2:
            raise InputError(f"all words have the tag {names[0]}: there is nothing to probe")
        return cls(words, labels, [str(name) for name in names])


def _features(activations: Activations, site: str) -> Float[np.ndarray, "units width"]:
    """The activations of a site: 'embeddings', a layer such as '3', or a head such as '3.1'."""
    if site == "embeddings":
        return activations.hidden_states[0]
    layer, _, head = site.partition(".")
    if not head:
        return activations.hidden_states[int(layer) + 1]
    assert activations.head_outputs is not None
    return activations.head_outputs[int(layer), :, int(head)]


class _Prober:
    """Trains and tests the probes of one site after another."""

    def __init__(self, words: _Words, split: Split, starts: Int[np.ndarray, " _"], seed: int, lengths: bool):
        self.words, self.lengths = words, lengths
        units = [np.arange(start, end) for start, end in pairwise(starts.tolist())]
        self.parts = {name: np.concatenate([units[text] for text in part]) for name, part in vars(split).items()}
        order = np.random.default_rng(seed).permutation(split.train)
        self.order = [units[text] for text in order.tolist()]
        sizes = np.diff(starts)[split.test]
        self.sentence = np.repeat(np.arange(len(split.test)), sizes)
        self.sizes = sizes
        self.control = control_labels(words.words, words.labels, seed)
        self.found: dict[str, Any] = {}

    def run(
        self,
        site: str,
        features: Float[np.ndarray, "units width"],
        random: Float[np.ndarray, "units width"] | None,
    ) -> Float[np.ndarray, "sentences numbers"]:
        """`NUMBERS` of each test sentence; embeddings, which are the base, are not compared with random ones."""
        labels, test = self.words.labels, self.parts["test"]
        fit = partial(fit_probe, train=self.parts["train"], select=self.parts["select"], classes=len(self.words.names))
        hits = []
        for values, true in ((features, labels), (features, self.control), (random, labels)):
            found = values is not None and fit(values, true).predict(values[test]) == true[test]
            hits.append(np.bincount(self.sentence, np.broadcast_to(found, test.shape), len(self.sizes)))
        if self.lengths:
            length = description_length(
                features, labels, self.order, self.parts["select"], classes=len(self.words.names)
            )
            self.found[site] = {"bits": length.bits, "compression": length.compression}
        return numbers_of(self.sizes, hits, random is not None)

    def describe(self, sites: Sequence[str]) -> dict[str, Any]:
        """The share of the most frequent tag of training among test words, and the description lengths."""
        labels = self.words.labels
        frequent = np.bincount(labels[self.parts["train"]]).argmax()
        described: dict[str, Any] = {"most_frequent": float((labels[self.parts["test"]] == frequent).mean())}
        return described | ({"description_lengths": self.found} if self.found else {})


def numbers_of(
    sizes: Int[np.ndarray, " sentences"], hits: Sequence[Float[np.ndarray, " sentences"]], has_random: bool
) -> Float[np.ndarray, "sentences numbers"]:
    """`NUMBERS` of each test sentence.

    Args:
        sizes: the number of targets of each sentence.
        hits: the numbers of right targets by the probe, by that of the control task, and by that of a random encoder.
        has_random: whether there is a probe of a random encoder.
    """
    right, by_control, by_random = hits
    above = right - by_random if has_random else np.zeros(len(sizes))
    return np.stack([right, sizes, right - by_control, above], axis=1)
