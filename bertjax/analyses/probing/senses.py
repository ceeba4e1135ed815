"""Senses of words in each layer (Pilehvar and Camacho-Collados 2019): `Study.senses`, `bertjax senses`.

The unit of intervals is the pair. AUC and separation are no means over pairs, so their outputs are contributions of
pairs (`bertjax.representations.auc_contributions`), whose mean is the measurement.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from rich.console import RenderableType

from bertjax.analyses.probing.sense_pairs import SensePair, read_sense_pairs
from bertjax.analyses.probing.words import length_of, random_encoder
from bertjax.analyses.roles import encoder_of
from bertjax.data import Encoding, Examples, is_path
from bertjax.errors import InputError
from bertjax.formatting import count_of
from bertjax.interventions import ablations
from bertjax.jobs import (
    Analysis,
    Context,
    Job,
    Outcome,
    Say,
    Settings,
    hash_if_file,
    load_tokenizer,
    option,
    outcome_of_examples,
)
from bertjax.models import PretrainedModel
from bertjax.paths import user_path
from bertjax.progress import Progress, part_of
from bertjax.representations import (
    auc_contributions,
    compute_activations,
    pair_cosines,
    separation_contributions,
    threshold_hits,
)
from bertjax.results import LONGEST, TRUE, Line, NumberDisplay, Results, cut_out
from bertjax.statistics import Metric, ratios
from bertjax.tasks import OutputSpec, TextEncodings

NUMBERS = ("cosine", "AUC", "separation", "correct", "above random")
TARGET, OTHERS = 0, 1  # the units of a sentence


class SensesDisplay(NumberDisplay):
    """Pairs of sentences with the marked word, and the cosine of its vectors."""

    value, note = "cosine", "It is the cosine between the vectors of the two marked words."

    def lines(self, example: int) -> list[Line]:
        """The sentences with the marked word."""
        row = self.saved.examples[example]
        texts = zip((row["first"], row["second"]), row["targets"], strict=True)
        return [cut_out(text, start, end, TRUE, around=LONGEST // 2) for text, (start, end) in texts]


OUTPUTS = OutputSpec("senses", called="pairs of words", numbers=NUMBERS, sized=1, display=SensesDisplay)


@dataclass(frozen=True, kw_only=True)
class Senses(Analysis):
    """Measure how far each layer separates the senses of a word (WiC).

    Args:
        pairs: a file with pairs of sentences that have a word in common: SuperGLUE's val.jsonl, a table with its
            columns, or dev.data.txt of the original distribution with dev.gold.txt in the same directory. In Python
            also a DataFrame or a list of dicts.

    The vector of the word is the mean over its pieces. AUC is the probability that two occurrences with the same sense
    have a larger cosine than two with different senses, separation the difference of the mean cosines, and accuracy
    that of the threshold on the cosine that is best for other pairs. Above random is the AUC minus that of a random
    encoder of the same shape.
    """

    name = word = "senses"
    progress_text = "comparing senses"
    example = "bertjax senses --data WiC/val.jsonl"
    reads = frozenset({"model", "max_length", "limit", "seed"})

    outputs = OUTPUTS
    journals = None
    float32 = True

    pairs: Any = option(None, "FILE", positional=True, flag="--data", recorded=False)

    @cached_property
    def examples(self) -> Examples:
        """The pairs of sentences."""
        return read_sense_pairs(self.pairs)

    @property
    def inputs(self) -> list[str]:
        """The file of the pairs."""
        return [str(self.pairs)] if is_path(self.pairs) else []

    def recorded(self) -> dict[str, Any]:
        """The path and the hash of the pairs."""
        if not is_path(self.pairs):
            return {"pairs_sha256": self.examples.sha256}
        return {"pairs": str(self.pairs), "pairs_sha256": hash_if_file(user_path(self.pairs, InputError))}

    def check(self, settings: Settings) -> None:
        """Raise `InputError` if there are no pairs."""
        super().check(settings)
        if self.pairs is None:
            raise InputError("give pairs of sentences, such as WiC/val.jsonl or dev.data.txt (--data FILE)")

    def load(self, settings: Settings, say: Say) -> Job:
        """Load the encoder, and tokenise the pairs; pairs without a piece of the word are left out."""
        examples, model = self.examples.limited(settings.limit, settings.seed), encoder_of(settings)
        tokenizer, length = load_tokenizer(settings), length_of(settings, model)
        sides = [tokenizer.encode(texts, None, length) for texts in (examples.first, examples.second or ())]
        found = [(units == TARGET).any() for units in _units([*sides[0], *sides[1]], examples)]
        kept = np.flatnonzero(np.reshape(found, (2, -1)).all(axis=0)).tolist()
        if len(kept) < len(examples):
            say(f"{count_of(len(examples) - len(kept), 'pair')} whose word has no piece left out")
            examples, sides = examples.take(kept), [[side[index] for index in kept] for side in sides]
        if len({*examples.labels.tolist()}) < 2:
            raise InputError(
                f"{examples.source}: senses need pairs with the same sense and pairs with different senses"
            )
        encoded = TextEncodings(
            OUTPUTS, (*sides[0], *sides[1]), tokenizer.pad_id, len(examples), examples.labels, copies=2
        )
        return Job(settings, model, tokenizer, examples, encoded)

    def run(self, context: Context) -> Outcome:
        """Compute the cosines of all pairs, and measure each layer."""
        job, seed = context.job, context.job.settings.seed
        same = job.examples.labels == 1
        counted = f"{count_of(len(same), 'pair')}, {same.sum()} with the same sense"
        context.say(f"{job.model.class_name} {job.settings.model}: {counted}")
        (cosines, others), (random, _) = (
            _cosines(model, job, part_of(context.progress, start, 0.5, 1.0))
            for model, start in ((job.model, 0.0), (random_encoder(job.model, seed), 0.5))
        )
        runs = ablations.whole_layers(job.model.config, self.mode)
        sites = ["embeddings", *(run.name for run in runs)]
        outputs, layers = np.zeros((len(sites), len(same), len(NUMBERS))), {}
        for index, site in enumerate(sites):
            area, by_random = (auc_contributions(found[index], same) for found in (cosines, random))
            hits = threshold_hits(cosines[index], same, seed)
            separation = separation_contributions(cosines[index], same)
            outputs[index] = np.stack([cosines[index], area, separation, hits, area - by_random], axis=1)
            layers[site] = {"random_auc": float(by_random.mean()), "context_auc": _auc(others[index], same)}
        outputs[0, :, -1] = 0  # the base of a difference
        details = {"pairs": len(same), "majority": float(max(same.mean(), 1 - same.mean())), "layers": layers}
        return outcome_of_examples(
            job,
            OUTPUTS,
            SENSE_METRICS,
            outputs[1:],
            range(len(same)),
            runs,
            base=outputs[0],
            metadata={"senses": details},
        )

    def show(self, results: Results) -> Sequence[RenderableType]:
        """The table of AUC, and the controls."""
        return [*super().show(results), controls_of(results)]


def _metric(name: str, label: str, number: str, **more: Any) -> Metric:
    return Metric.of_sums(name, label, ratios.mean_number(NUMBERS, number), **more)


SENSE_METRICS = (
    _metric("auc", "AUC of senses", "AUC", compared_with="the embeddings"),
    _metric(
        "separation",
        "Separation of senses",
        "separation",
        compared_with="the embeddings",
        unit="",
        lowest=-2.0,
        highest=2.0,
    ),
    _metric("accuracy", "Accuracy of a threshold", "correct", compared_with="the embeddings"),
    _metric("above_random", "AUC above a random encoder", "above random", of_effects=True, lowest=-1.0),
)
"""The metrics of senses, the main one first."""


def controls_of(results: Results) -> str:
    """A line on the controls.

    Args:
        results: results of `senses`.
    """
    found = results.summary["senses"]
    best = max(results.rows_of("auc"), key=lambda row: row.score or 0.0).name
    random, others = (
        "undefined" if value is None else f"{100 * value:.1f}" for value in found["layers"][best].values()
    )
    return (
        f"controls: the most frequent label has {100 * found['majority']:.1f} % of the pairs; AUC in layer {best}: "
        f"random encoder {random}, mean of all other tokens of each sentence {others}"
    )


def _units(encodings: Sequence[Encoding], examples: Examples) -> list[Int[np.ndarray, " _"]]:
    """The unit of each token of all first sentences, then of all second ones: `TARGET`, `OTHERS`, or -1.

    Special tokens and those of a prompt have no characters.
    """
    pairs = [content for content in examples.content or () if isinstance(content, SensePair)]
    spans = [pair.targets[side] for side in (0, 1) for pair in pairs]
    found = []
    for text, (start, end) in zip(encodings, spans, strict=True):
        first, last = np.reshape(text.offsets, (-1, 2)).T
        inside = np.minimum(last, end) > np.maximum(first, start)
        found.append(np.where(inside, TARGET, np.where(last > first, OTHERS, -1)))
    return found


def _cosines(
    model: PretrainedModel, job: Job, progress: Progress
) -> tuple[Float[np.ndarray, "layers_plus_1 pairs"], Float[np.ndarray, "layers_plus_1 pairs"]]:
    """The cosines of the word, and those of the mean of all other tokens, NaN if a sentence has no others."""
    texts = job.encoded.encodings
    active = compute_activations(model, texts, units=_units(texts, job.examples), progress=progress)
    target = active.starts[:-1].reshape(2, -1)
    has_others = (np.diff(active.starts) > 1).reshape(2, -1).all(axis=0)
    words = np.array([pair_cosines(*states[target]) for states in active.hidden_states])
    others = np.full(words.shape, np.nan)
    for layer, states in enumerate(active.hidden_states):
        others[layer, has_others] = pair_cosines(*states[target[:, has_others] + 1])
    return words, others


def _auc(cosines: Float[np.ndarray, " pairs"], same: Bool[np.ndarray, " pairs"]) -> float | None:
    """The AUC of pairs that have a cosine; None if these have one label."""
    cosines, same = cosines[np.isfinite(cosines)], same[np.isfinite(cosines)]
    return float(auc_contributions(cosines, same).mean()) if same.any() and not same.all() else None
