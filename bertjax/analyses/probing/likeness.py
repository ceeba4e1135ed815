"""How alike layers are: `Study.compare_layers`, `bertjax compare-layers`.

The layers are those of one model, or of a model and another checkpoint. The unit of intervals is the sentence; outputs
are contributions of sentences (`bertjax.representations.likeness_contributions`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from rich.console import RenderableType

from bertjax.analyses.probing.words import Words, length_of, load_words, word_activations, words_of
from bertjax.analyses.second_model import check_second, load_second, name_of_second
from bertjax.checkpoints import locate
from bertjax.console import PlainTable
from bertjax.errors import InputError
from bertjax.formatting import count_of
from bertjax.interventions import Ablation, Change, ablations
from bertjax.jobs import (
    Analysis,
    Context,
    DataOptions,
    Job,
    Outcome,
    Positive,
    Say,
    Settings,
    hash_parameters,
    names,
    option,
    outcome_of_examples,
)
from bertjax.models import PretrainedModel, check_parameters
from bertjax.paths import hash_file
from bertjax.progress import part_of
from bertjax.representations import Centred, alignment_by_chance, likeness_contributions, permutation_tests
from bertjax.results import NumberDisplay, Results
from bertjax.statistics import Metric, ratios
from bertjax.tasks import OutputSpec, TextEncodings

NUMBERS = ("alignment", "distance")
SAMPLE = 1000  # words of the permutation tests, each of another sentence
SHARE_OF_ACTIVATIONS = 0.3  # of the progress


class LikenessDisplay(NumberDisplay):
    """Sentences with their contribution to the alignment."""

    value, note = "contribution", "It is what the sentence contributes to the alignment, which is the mean of all."


OUTPUTS = OutputSpec("likeness", called="layers", numbers=NUMBERS, sized=1, display=LikenessDisplay)


def _metric(name: str, label: str, number: str, highest: float) -> Metric:
    more: dict[str, Any] = {"of_effects": True, "tested": False, "by": "comparison", "unit": ""}
    return Metric.of_sums(name, label, ratios.mean_number(NUMBERS, number), highest=highest, **more)


LIKENESS_METRICS = (
    _metric("cka", "Linear centred kernel alignment", "alignment", 1.0),
    _metric("procrustes", "Procrustes distance", "distance", 2.0),
)
"""The metrics of comparisons of layers, the main one first."""


@dataclass(frozen=True, kw_only=True)
class CompareLayers(Analysis):
    """Compare the layers of a model with each other, or with those of another checkpoint.

    Linear centred kernel alignment (Kornblith et al. 2019) is 1, and the Procrustes distance 0, for representations
    that differ only by rotation, shift and scale. The alignment is biased upwards if there are not many more words than
    dimensions; the summary has its mean over permutations of the words, and a permutation test.

    Args:
        other: another model, such as the model after fine-tuning or of another seed: a hub id, a directory or
            'package:NAME'. In Python also a model in memory. Layers of the same index are compared, and the summary
            has all pairs.
        permutations: the number of permutations of the test.
    """

    name, word = "compare-layers", "layers"
    progress_text = "comparing"
    example = "bertjax compare-layers --task mlm --data texts.txt --other tuned-model"
    reads = names(DataOptions) | {"model", "max_length"}
    own = ("other", "permutations")

    outputs = OUTPUTS
    journals = None
    float32 = True

    other: Any = option(None, "MODEL")
    permutations: Positive = option(199, "N")

    @property
    def inputs(self) -> list[str]:
        """The directory of the other model."""
        return [self.other] if isinstance(self.other, str) else []

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "other", check_second(self.other, "other"))

    def recorded(self) -> dict[str, Any]:
        """The options, with the hashes of the other model's files of weights, or of its parameters in memory."""
        if self.other is None:
            return super().recorded()
        if isinstance(self.other, PretrainedModel):
            hashes = [hash_parameters(self.other)]
        else:
            files = sorted(path for path in locate(self.other).iterdir() if path.suffix in (".safetensors", ".bin"))
            hashes = [hash_file(path, InputError) for path in files]
        return {**super().recorded(), "other": name_of_second(self.other), "other_sha256": hashes}

    def load(self, settings: Settings, say: Say) -> Job:
        """Load the encoder, and tokenise the words."""
        return load_words(settings, say, OUTPUTS)

    def run(self, context: Context) -> Outcome:
        """Compute activations, and compare the layers."""
        job, count = context.job, len(context.job.examples)
        states, sentences = self._states(context)
        ones, others = ([Centred.of(layer) for layer in of_model] for of_model in states)
        context.say(f"{job.model.class_name} {job.settings.model}: {count_of(len(sentences), 'word')} in {count} texts")
        found = np.zeros((len(ones), len(others), count, len(NUMBERS)))
        for row, one in enumerate(ones):
            for column, other in enumerate(others):
                if self.other is None and row > column:
                    found[row, column] = found[column, row]
                elif self.other is None and row == column:
                    found[row, column] = [1.0, 0.0]
                else:
                    found[row, column] = likeness_contributions(one, other, sentences, count).T
            share = (row + 1) / len(ones)
            context.progress(SHARE_OF_ACTIVATIONS + (1 - SHARE_OF_ACTIVATIONS) * share, 1.0)
        sample = one_of_each_sentence(sentences, job.settings.seed)
        first, second = ([Centred.of(layer[sample]) for layer in of_model] for of_model in states)
        measures = found.mean(axis=2)
        likeness = {
            "words": len(sentences),
            "rows": names_of_layers(len(ones)),
            "columns": names_of_layers(len(others)),
            "cka": measures[..., 0].tolist(),
            "procrustes": measures[..., 1].tolist(),
            "chance": [[alignment_by_chance(one, other) for other in others] for one in ones],
            "p": permutation_tests(first, second, self.permutations, job.settings.seed).tolist(),
            "permutations": self.permutations,
            "sample": len(sample),
            **({} if self.other is None else {"other": name_of_second(self.other)}),
        }
        runs, places = self._rows(job, len(ones), len(others))
        outputs = np.stack([found[place] for place in places])
        return outcome_of_examples(
            job, OUTPUTS, LIKENESS_METRICS, outputs, range(count), runs, metadata={"likeness": likeness}
        )

    def _states(self, context: Context) -> tuple[list[list[np.ndarray]], Int[np.ndarray, " words"]]:
        """The states of all layers of both models, and the sentence of each word that both models read."""
        job = context.job
        jobs = [job] if self.other is None else [job, _job_of(self.other, job)]
        words = [Words.of(one) for one in jobs]
        keys = [list(zip(one.sentences.tolist(), one.indices.tolist(), strict=True)) for one in words]
        shared = sorted(set.intersection(*map(set, keys)))
        if len({sentence for sentence, _ in shared}) < 2:
            raise InputError("layers are compared over the words of several texts: give two or more")
        states = []
        for number, (one, of_job) in enumerate(zip(jobs, keys, strict=True)):
            share = SHARE_OF_ACTIVATIONS / len(jobs)
            found = word_activations(one.model, one, progress=part_of(context.progress, number * share, share, 1.0))
            index = {key: row for row, key in enumerate(of_job)}
            rows = np.array([index[key] for key in shared])
            states.append([layer[rows] for layer in found.hidden_states])
        return (states if len(states) == 2 else 2 * states), np.array([sentence for sentence, _ in shared])

    def _rows(self, job: Job, ones: int, others: int) -> tuple[list[Ablation], list[tuple[int, int]]]:
        """The rows of the results, and the indices of their layers in the matrices."""
        if self.other is not None:
            layers = range(1, min(ones, others))
            return ablations.whole_layers(job.model.config, self.mode)[: len(layers)], [(one, one) for one in layers]
        pairs, called = list(combinations(range(ones), 2)), names_of_layers(ones)
        return [
            Ablation(
                "-".join(called[place] for place in pair),
                tuple(Change(place, 0, "zero", site="hidden_states") for place in pair),
            )
            for pair in pairs
        ], pairs

    def show(self, results: Results) -> Sequence[RenderableType]:
        """The table of alignments, the matrix, and what chance gives."""
        return [*super().show(results), likeness_table(results), line_of(results)]


def names_of_layers(count: int) -> list[str]:
    """The names of hidden states: 'embeddings', '0', '1' and so on."""
    return ["embeddings", *map(str, range(count - 1))]


def one_of_each_sentence(sentences: Int[np.ndarray, " words"], seed: int = 0) -> Int[np.ndarray, " some"]:
    """A random word of each of at most `SAMPLE` sentences: words of one sentence cannot be exchanged for a test.

    Args:
        sentences: the sentence of each word.
        seed: seed of the random choice.
    """
    order = np.random.default_rng(seed).permutation(len(sentences))
    _, first = np.unique(sentences[order], return_index=True)
    chosen = order[np.sort(first)[:SAMPLE]]
    return np.sort(chosen)


def likeness_table(results: Results) -> PlainTable:
    """The matrix of alignments.

    Args:
        results: results of `compare_layers`.
    """
    found = results.summary["likeness"]
    other = f", columns: layers of {found['other']}" if "other" in found else ""
    table = PlainTable(title=f"Alignment of layers{other}", title_justify="left")
    for name in ("", *found["columns"]):
        table.add_column(name, justify="right", no_wrap=True)
    for name, values in zip(found["rows"], found["cka"], strict=True):
        table.add_row(name, *(f"{value:z.2f}".replace("-", "−") for value in values))
    return table


def line_of(results: Results) -> str:
    """A line about chance.

    Args:
        results: results of `compare_layers`.
    """
    found = results.summary["likeness"]
    chance: Float[np.ndarray, "rows columns"] = np.array(found["chance"])
    return (
        f"{found['words']:,} words; unrelated words have an alignment of {chance.min():.3f} to {chance.max():.3f}; "
        f"largest p of {found['permutations']} permutations of {count_of(found['sample'], 'word')}: "
        f"{np.max(found['p']):.2g}"
    )


def _job_of(other: str | PretrainedModel, job: Job) -> Job:
    """The job of another model on the same examples."""
    model, name = check_parameters(load_second(other, job.settings)), name_of_second(other)
    found, expected = model.numerics.dtype, job.model.numerics.dtype
    if found != expected:
        raise InputError(f"{name} computes in {found}, {job.settings.model} in {expected}: load it with that dtype")
    if model.tokenizer is None:
        raise InputError(f"{name} has no tokenizer: set its attribute tokenizer (bertjax.Tokenizer.from_pretrained)")
    encodings = model.tokenizer.encode_words(words_of(job.examples), length_of(job.settings, model))
    encoded = TextEncodings(OUTPUTS, tuple(encodings), model.tokenizer.pad_id, len(encodings), np.zeros(len(encodings)))
    return replace(job, model=model, tokenizer=model.tokenizer, encoded=encoded)
