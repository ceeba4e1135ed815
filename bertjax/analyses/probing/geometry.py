"""The geometry of words in each layer: `Study.geometry`, `bertjax geometry` (Ethayarajh 2019).

The unit of intervals is the sentence. Most measurements are no means over sentences, so their outputs are contributions
of sentences (`bertjax.representations.geometry_contributions`), whose mean is the measurement.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType

from bertjax.analyses.probing.words import Words, activations_and_control, annotations_of, load_words
from bertjax.console import PlainTable
from bertjax.errors import InputError
from bertjax.formatting import count_of
from bertjax.interventions import ablations
from bertjax.jobs import Analysis, Context, DataOptions, Job, Outcome, Say, Settings, names, outcome_of_examples
from bertjax.representations import FEWEST_SENTENCES, geometry_contributions, sense_contributions
from bertjax.results import NumberDisplay, Results
from bertjax.statistics import Metric, ratios
from bertjax.tasks import OutputSpec

NUMBERS = (
    *("anisotropy", "self-similarity", "intra-sentence similarity", "explainable variance", "random variance"),
    *("effective dimension", "largest share", "separation of senses"),
)
SHARE_OF_ACTIVATIONS = 0.5  # of the progress


class GeometryDisplay(NumberDisplay):
    """Sentences with their contribution to the anisotropy."""

    value, note = "contribution", "It is what the sentence contributes to the anisotropy, which is the mean of all."


OUTPUTS = OutputSpec("geometry", called="geometry of words", numbers=NUMBERS, sized=1, display=GeometryDisplay)


def _metric(number: str, name: str, label: str, lowest: float = -2.0, highest: float = 2.0) -> tuple[int, Metric]:
    """The index of a number, and the metric that is its mean."""
    sums, compared = ratios.mean_number(NUMBERS, number), {"compared_with": "the embeddings", "unit": ""}
    return NUMBERS.index(number), Metric.of_sums(name, label, sums, lowest=lowest, highest=highest, **compared)


INFINITE = float(np.inf)
GEOMETRY_METRICS = dict(
    (
        _metric("anisotropy", "anisotropy", "Anisotropy", -1.0, 1.0),
        _metric("self-similarity", "self_similarity", "Self-similarity"),
        _metric("intra-sentence similarity", "intra_sentence_similarity", "Intra-sentence similarity"),
        _metric("explainable variance", "explainable_variance", "Maximum explainable variance", -1.0, 1.0),
        _metric("effective dimension", "effective_dimension", "Effective dimension", 1.0, INFINITE),
        _metric("largest share", "largest_share", "Largest share of a dimension", -INFINITE, INFINITE),
        _metric("separation of senses", "sense_separation", "Separation of senses"),
    )
)
"""The metrics of the geometry of words by the index of their number, the main one first."""


@dataclass(frozen=True, kw_only=True)
class Geometry(Analysis):
    """Measure the geometry of words in each layer.

    Anisotropy is the mean cosine between words of different sentences. Self-similarity (the mean cosine between
    occurrences of a word), intra-sentence similarity and maximum explainable variance are reported minus their values
    for unrelated words (Ethayarajh 2019). All are compared with the embeddings, and printed for a random encoder of the
    same shape. Words are those of --task token-classification, or the parts of texts between white space; of a pair the
    first text is read. With a CoNLL-U file, senses are the parts of speech of a word that has several.
    """

    name = word = "geometry"
    progress_text = "measuring"
    example = "bertjax geometry --task token-classification --data en_ewt-ud-dev.conllu"
    reads = names(DataOptions) | {"model", "max_length"}

    outputs = OUTPUTS
    journals = None
    float32 = True

    def load(self, settings: Settings, say: Say) -> Job:
        """Load the encoder, and tokenise the words."""
        return load_words(settings, say, OUTPUTS)

    def run(self, context: Context) -> Outcome:
        """Compute activations, and measure each layer."""
        job = context.job
        if len(job.examples) < FEWEST_SENTENCES:
            raise InputError(f"geometry needs {FEWEST_SENTENCES} or more sentences; found {len(job.examples)}")
        words = Words.of(job)
        senses = _senses(job, words)
        counted = f"{count_of(len(job.examples), 'sentence')}, {count_of(len(words.words), 'word')}"
        context.say(f"{job.model.class_name} {job.settings.model}: {counted}")
        sources = activations_and_control(job, context.progress, SHARE_OF_ACTIVATIONS)
        runs = ablations.whole_layers(job.model.config, self.mode)
        measured = np.zeros((2, len(runs) + 1, len(job.examples), len(NUMBERS)))
        for layer in range(len(runs) + 1):
            for index, source in enumerate(sources):
                measured[index, layer] = _measure(source.hidden_states[layer], words, senses, job.settings.seed)
            share = (1 - SHARE_OF_ACTIVATIONS) * (layer + 1) / (len(runs) + 1)
            context.progress(SHARE_OF_ACTIVATIONS + share, 1.0)
        defined = np.array([np.isfinite(measured[..., index]).all() for index in range(len(NUMBERS))])
        if not defined.all():
            missing = ", ".join(name for name, found in zip(NUMBERS, defined, strict=True) if not found)
            needed = f"words that are in {FEWEST_SENTENCES} sentences, effective dimension words with different vectors"
            context.say(f"not measured: {missing}; measurements need {needed}")
        metrics = {index: metric for index, metric in GEOMETRY_METRICS.items() if defined[index]}
        control = {metric.name: measured[1, :, :, index].mean(axis=1).tolist() for index, metric in metrics.items()}
        outputs = np.where(defined, measured[0], 0.0)
        return outcome_of_examples(
            job,
            OUTPUTS,
            [*metrics.values()],
            outputs[1:],
            range(len(job.examples)),
            runs,
            base=outputs[0],
            metadata={"geometry": {"words": len(words.words), "random_encoder": control}},
        )

    def show(self, results: Results) -> Sequence[RenderableType]:
        """The table of anisotropy, and a table of all measurements."""
        return [*super().show(results), geometry_table(results)]


def geometry_table(results: Results) -> PlainTable:
    """Table of all measurements of the embeddings and each layer, those of a random encoder in brackets.

    Args:
        results: results of `geometry`.
    """
    table = PlainTable(title="In brackets: a random encoder of the same shape", title_justify="left", box=SIMPLE_HEAD)
    sites = ["embeddings", *results.names]
    table.add_column("layer", no_wrap=True)
    columns = []
    for name, random in results.summary["geometry"]["random_encoder"].items():
        rows, measure = results.rows_of(name), results.measure(name)
        table.add_column(measure.label.lower(), justify="right")
        values = [rows[0].base, *(row.score for row in rows)]
        digits = 1 if name == "effective_dimension" else 2
        columns.append(
            [
                f"{value:z.{digits}f} ({other:z.{digits}f})".replace("-", "−")
                for value, other in zip(values, random, strict=True)
            ]
        )
    for site, *cells in zip(sites, *columns, strict=True):
        table.add_row(site, *cells)
    return table


def _measure(
    states: Float[np.ndarray, "units embed"], words: Words, senses: Sequence[str], seed: int
) -> Float[np.ndarray, "sentences numbers"]:
    """`NUMBERS` of each sentence in one layer; NaN for measurements that need more words."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # threads would wait for each other at hundreds of small matrices
        found = geometry_contributions(states, words.words, words.sentences, seed)
    separation = sense_contributions(states, words.words, senses, words.sentences)
    return np.concatenate([found, separation[None]]).T


def _senses(job: Job, words: Words) -> list[str]:
    """The part of speech of each word; one sense for all words of data without parts of speech."""
    annotations = annotations_of(job.examples)
    places = zip(words.sentences.tolist(), words.indices.tolist(), strict=True)
    return [annotations[sentence].upos[index] if annotations else "" for sentence, index in places]
