"""Edge probes of layers: `Study.probe_edges`, `bertjax probe-edges` (Tenney et al. 2019).

The data are words with tags (`--task token-classification`): a CoNLL-U file with dependency relations or semantic
roles, entities in BIO tags, or JSON lines in the edge-probing format. `bertjax.representations.edges` describes the
network.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int
from rich.console import RenderableType

from bertjax.analyses.probing.probe import (
    NUMBERS,
    PROBE_METRICS,
    SHARE_OF_ACTIVATIONS,
    ProbeDisplay,
    lines_of,
    numbers_of,
)
from bertjax.analyses.probing.words import activations_and_control, load_words, sentences_of
from bertjax.data import Encoding
from bertjax.errors import InputError
from bertjax.formatting import count_of
from bertjax.interventions import ablations
from bertjax.jobs import Analysis, Context, DataOptions, Job, Outcome, Say, Settings, names, outcome_of_examples
from bertjax.progress import Progress
from bertjax.representations import (
    Activations,
    EdgeClassifier,
    Split,
    centre_of_gravity,
    control_labels,
    expected_layer,
    fit_edge_probe,
    split_texts,
)
from bertjax.results import Results
from bertjax.statistics import bootstrap_counts
from bertjax.tasks import Edge, OutputSpec, Tagged, spans_of

Kind = Literal["targets", "entities", "relations", "roles"]
DRAWS = 2000  # of test sentences, for the interval of the expected layer
FORMAT = "lines of JSON with text and targets, words with BIO tags, or CoNLL-U"


class EdgesDisplay(ProbeDisplay):
    """Sentences with the number of spans or pairs that a probe labels right."""

    value, note = "right labels", "It is the number of spans or pairs that the probe labels right."


EDGES = OutputSpec("edges", called="labels of spans", numbers=NUMBERS, sized=1, display=EdgesDisplay)


@dataclass(frozen=True, kw_only=True)
class EdgeProbe(Analysis):
    """Train edge probes that read the label of a span, or of a pair of spans, from each layer.

    Args:
        edges: the labels: 'targets' of the edge-probing format, 'entities' of BIO tags, 'relations' of CoNLL-U (from a
            word to its head), or 'roles' of Universal Propositions (of an argument's head for a predicate). By default
            the first of these that the data have.
        linear: read the pooled spans with a linear classifier, without a hidden layer.

    The accuracy is compared with that of a probe of the embeddings. The selectivity is the accuracy minus that on a
    control task, in which all spans or pairs of the same words have one random label. Above random is the accuracy
    minus that of a probe of the same layer in a random encoder. A probe of a weighted sum of all layers gives the
    centre of gravity of the weights; probes of sums of the first layers give the expected layer (Tenney et al. 2019).
    """

    name = "edges"
    word = "edge-probe"
    progress_text = "probing"
    example = "bertjax probe-edges --task token-classification --data en_ewt-ud-dev.conllu"
    reads = names(DataOptions) | {"model", "max_length"}
    own = ("edges", "linear")

    outputs = EDGES
    journals = None
    float32 = True

    edges: Kind | None = None
    linear: bool = False

    def load(self, settings: Settings, say: Say) -> Job:
        """Load the encoder, and tokenise the sentences."""
        job = load_words(settings, say, EDGES, tagged="an edge probe")
        sentences = zip(sentences_of(job.examples, "an edge probe"), job.encoded.encodings, strict=True)
        kept = [index for index, pair in enumerate(sentences) if edges_in(*pair, self.edges)]
        if not kept:
            raise InputError(f"the data have no {self.edges or 'labels of spans'}: give {FORMAT}")
        if len(kept) == len(job.examples):
            return job
        say(f"{count_of(len(job.examples) - len(kept), 'sentence')} without labels left out")
        texts = tuple(job.encoded.encodings[index] for index in kept)
        encoded = replace(job.encoded, encodings=texts, examples=len(kept), labels=np.zeros(len(kept)))
        return replace(job, examples=job.examples.take(kept), encoded=encoded)

    def run(self, context: Context) -> Outcome:
        """Compute activations, train all probes and test them."""
        job, seed = context.job, context.job.settings.seed
        activations, random = activations_and_control(job, context.progress, SHARE_OF_ACTIVATIONS)
        split = split_texts(len(job.examples), seed)
        targets = Targets.of(job, activations.starts, self.edges)
        context.say(
            f"{job.model.class_name} {job.settings.model}: {len(targets.labels):,} {targets.kind} with "
            f"{len(targets.names)} labels, sentences { {name: len(part) for name, part in vars(split).items()} }"
        )
        prober = _Prober(targets, split, seed, self.linear, context.progress, len(activations.hidden_states))
        outputs, metadata = prober.run(activations, random)
        return outcome_of_examples(
            job,
            EDGES,
            PROBE_METRICS,
            outputs[1:],
            split.test.tolist(),
            ablations.whole_layers(job.model.config, self.mode),
            base=outputs[0],
            metadata={"probe": metadata},
        )

    def show(self, results: Results) -> Sequence[RenderableType]:
        """The table of accuracies, the controls, and the mix of layers."""
        return [*super().show(results), *lines_of(results), *_mix_lines(results)]


def _mix_lines(results: Results) -> list[str]:
    """Lines on the scalar mix and the expected layer."""
    found = results.summary["probe"]
    mix, expected = found["mix"], found["expected_layer"]
    line = (
        f"mix of all layers: {100 * mix['accuracy']:.1f} % of {found['kind']}, centre of gravity "
        f"{mix['centre_of_gravity']:.2f} (0 are the embeddings, 1 is the output of layer 0)"
    )
    if expected["layer"] is None:
        return [f"{line}; the layers add nothing to the embeddings"]
    interval = "no interval: in some draws the layers add nothing"
    if expected["interval"]:
        interval = "95 % CI {:.2f} to {:.2f}".format(*expected["interval"])
    return [f"{line}; expected layer {expected['layer']:.2f} ({interval})"]


def kind_of(sentence: Tagged) -> Kind:
    """The labels that a sentence has: targets, else entities, else relations.

    Args:
        sentence: a sentence.
    """
    return "targets" if sentence.edges else "entities" if sentence.scheme else "relations"


def edges_of(sentence: Tagged, kind: Kind) -> list[Edge]:
    """The labelled spans and pairs of a sentence.

    A relation is that of a word (the first span) to its head (the second span), without the subtype; the root is its
    own head, as in the data of Tenney et al. 2019. A role is that of a word (the second span) for a predicate (the
    first).

    Args:
        sentence: a sentence.
        kind: the kind of labels.

    >>> sentence = Tagged(("Ann", "Lee", "sings"), ("B-PER", "I-PER", "O"))
    >>> edges_of(sentence, "entities")
    [Edge(span1=(0, 2), span2=None, label='PER')]
    """
    if kind == "targets":
        return list(sentence.edges)
    if kind == "entities":
        return [Edge((start, end), None, label) for label, start, end in spans_of(sentence.tags)]
    if sentence.annotation is None:
        return []
    if kind == "relations":
        heads = [head - 1 if head else word for word, head in enumerate(sentence.annotation.heads)]
        relations = [relation.partition(":")[0] for relation in sentence.annotation.deprel]
        return [
            Edge(_word(word), _word(head), label)
            for word, (head, label) in enumerate(zip(heads, relations, strict=True))
        ]
    found = []
    for roles in zip(*sentence.annotation.roles, strict=True):
        predicate = roles.index("V") if "V" in roles else -1
        found += [
            Edge(_word(predicate), _word(word), role)
            for word, role in enumerate(roles)
            if predicate >= 0 and role not in ("_", "V")
        ]
    return found


def _word(index: int) -> tuple[int, int]:
    return index, index + 1


def word_order(text: Encoding) -> dict[int, int]:
    """The unit of each word with pieces: its index among the words with pieces.

    Args:
        text: a tokenised sentence.
    """
    return {word: unit for unit, word in enumerate(dict.fromkeys(word for word in text.word_ids if word is not None))}


def edges_in(sentence: Tagged, text: Encoding, kind: Kind | None) -> list[Edge]:
    """The labelled spans and pairs of a sentence whose words all have pieces.

    Args:
        sentence: a sentence.
        text: the tokens of the sentence.
        kind: the kind of labels; None for the kind that the sentence has.
    """
    units = word_order(text)
    spans = [(edge, (edge.span1, edge.span2 or edge.span1)) for edge in edges_of(sentence, kind or kind_of(sentence))]
    return [edge for edge, pair in spans if all(word in units for span in pair for word in range(*span))]


@dataclass(frozen=True)
class Targets:
    """The labelled spans and pairs of all sentences.

    Args:
        kind: the kind of the labels.
        spans: the first unit of each span of each target, and one past its last.
        labels: the index of each target's label in `names`.
        names: the labels in alphabetical order.
        words: the words of each target's spans.
        sentences: the sentence of each target.
    """

    kind: Kind
    spans: Int[np.ndarray, "targets slots 2"]
    labels: Int[np.ndarray, " targets"]
    names: Sequence[str]
    words: Sequence[str]
    sentences: Int[np.ndarray, " targets"]

    @classmethod
    def of(cls, job: Job, starts: Int[np.ndarray, " _"], kind: Kind | None) -> "Targets":
        """The targets of a job's sentences.

        Args:
            job: the encoded sentences.
            starts: the index of each sentence's first unit.
            kind: the kind of labels; None for the kind that the data have.

        Raises:
            InputError: all labels are equal, or some targets have two spans and some one.
        """
        sentences = sentences_of(job.examples, "an edge probe")
        spans, labels, words, owners = [], [], [], []
        for index, (sentence, text) in enumerate(zip(sentences, job.encoded.encodings, strict=True)):
            units, start = word_order(text), int(starts[index])
            for edge in edges_in(sentence, text, kind):
                pair = [span for span in (edge.span1, edge.span2) if span is not None]
                spans.append([(start + units[first], start + units[end - 1] + 1) for first, end in pair])
                words.append("\t".join(" ".join(sentence.words[slice(*span)]) for span in pair))
                labels.append(edge.label)
                owners.append(index)
        if len({len(pair) for pair in spans}) > 1:
            raise InputError("some targets have two spans and some have one: make a file of each kind")
        found, indices = np.unique(labels, return_inverse=True)
        if len(found) < 2:
            raise InputError(f"all spans have the label {found[0]}: there is nothing to probe")
        used = kind or kind_of(sentences[0])
        return cls(used, np.array(spans), indices, [str(name) for name in found], words, np.array(owners))


class _Prober:
    """Trains and tests all probes."""

    def __init__(self, targets: Targets, split: Split, seed: int, linear: bool, progress: Progress, sites: int):
        self.targets, self.split, self.seed, self.progress = targets, split, seed, progress
        self.parts = {name: np.flatnonzero(np.isin(targets.sentences, part)) for name, part in vars(split).items()}
        self.fit = partial(fit_edge_probe, spans=targets.spans, classes=len(targets.names), linear=linear, seed=seed)
        self.test = self.parts["test"]
        self.owners = np.searchsorted(split.test, targets.sentences[self.test])
        self.sizes = np.bincount(self.owners, minlength=len(split.test))
        self.fits, self.done = 4 * sites - 2, 0  # labels, control task, random encoder; mixes of two layers and more

    def run(self, activations: Activations, random: Activations) -> tuple[np.ndarray, dict[str, Any]]:
        """`NUMBERS` of each layer and test sentence, and the description for the summary."""
        targets, states = self.targets, activations.hidden_states
        control = control_labels(targets.words, targets.labels, self.seed)
        outputs = []
        for layer, one in enumerate(states):
            of_layer, of_random = one[None], random.hidden_states[layer][None]
            hits = [self.hits(of_layer, targets.labels)[0], self.hits(of_layer, control)[0]]
            hits.append(self.hits(of_random, targets.labels)[0] if layer else np.zeros(len(self.sizes)))
            outputs.append(numbers_of(self.sizes, hits, layer > 0))
        mixes = [self.hits(states, targets.labels, mixed=count) for count in range(2, len(states) + 1)]
        cumulative = np.stack([outputs[0][:, 0], *(hits for hits, _ in mixes)])
        return np.stack(outputs), self.describe(cumulative, mixes[-1][1])

    def hits(
        self, states: Float[np.ndarray, "layers units embed"], labels: Int[np.ndarray, " targets"], **options: Any
    ) -> tuple[Float[np.ndarray, " sentences"], EdgeClassifier]:
        """The number of right targets of each test sentence, and the probe."""
        probe = self.fit(states, labels=labels, train=self.parts["train"], select=self.parts["select"], **options)
        right = probe.predict(states, self.targets.spans[self.test]) == labels[self.test]
        self.done += 1
        self.progress(SHARE_OF_ACTIVATIONS + (1 - SHARE_OF_ACTIVATIONS) * self.done / self.fits, 1.0)
        return np.bincount(self.owners, right, len(self.sizes)), probe

    def describe(self, cumulative: Float[np.ndarray, "layers sentences"], mix: EdgeClassifier) -> dict[str, Any]:
        """The entries of the summary."""
        labels, weights = self.targets.labels, mix.mix_weights.astype(np.float64)
        frequent = np.bincount(labels[self.parts["train"]]).argmax()
        scores = cumulative.sum(axis=1) / self.sizes.sum()
        counts = np.concatenate([*bootstrap_counts(len(self.sizes), DRAWS, self.seed)]).astype(np.float64)
        drawn = [expected_layer(draw) for draw in (counts @ cumulative.T) / (counts @ self.sizes)[:, None]]
        ends = None if None in drawn else np.quantile(np.array(drawn, np.float64), (0.025, 0.975)).tolist()
        return {
            "kind": self.targets.kind,
            "tags": list(self.targets.names),
            "sentences": {name: len(part) for name, part in vars(self.split).items()},
            "targets": {name: len(part) for name, part in self.parts.items()},
            "most_frequent": float((labels[self.test] == frequent).mean()),
            "mix": {
                "weights": weights.tolist(),
                "scale": float(mix.parameters["scale"]),
                "accuracy": float(scores[-1]),
                "centre_of_gravity": centre_of_gravity(weights),
            },
            "expected_layer": {"layer": expected_layer(scores), "interval": ends, "accuracies": scores.tolist()},
        }
