"""Language neutrality of each layer (Libovický, Rosa and Fraser 2019): `Study.languages`, `bertjax languages`.

The vector of a sentence is the mean over its tokens without special tokens. One part of the sentences estimates the
centroids of the languages and trains the probe of the language, another selects the strength of its regularisation,
and a third tests; the results are about the third.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from rich.console import RenderableType

from bertjax.analyses.probing.parallel_texts import read_parallel
from bertjax.analyses.probing.words import length_of, random_encoder
from bertjax.analyses.roles import encoder_of
from bertjax.data import CommonTexts, Encoding, Examples, is_path
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
    Split,
    compute_activations,
    fit_probe,
    language_centroids,
    language_distances,
    nearest_centroids,
    retrieval_accuracy,
    retrieval_hits,
    split_texts,
)
from bertjax.results import NumberDisplay, Results
from bertjax.statistics import Metric, ratios
from bertjax.tasks import OutputSpec, TextEncodings

NUMBERS = ("centred retrieval", "retrieval", "identified", "nearest centroid", "above random")
SHARE_OF_VECTORS = 0.6  # of the progress


class LanguagesDisplay(NumberDisplay):
    """Sentences with the share of language pairs in which the translation is retrieved."""

    value, note = "retrieval", "It is the share of pairs of languages in which the translation is the nearest sentence."


OUTPUTS = OutputSpec("languages", called="translations", numbers=NUMBERS, sized=1, display=LanguagesDisplay)


@dataclass(frozen=True, kw_only=True)
class LanguagesJob(Job):
    """A job with parallel texts.

    Args:
        languages: the names of the languages.
        translations: the tokenised sentences of each language.
    """

    languages: tuple[str, ...]
    translations: Sequence[Sequence[Encoding]]


@dataclass(frozen=True, kw_only=True)
class Languages(Analysis):
    """Measure how far the sentence vectors of each layer depend on the language.

    Args:
        parallel: files with the same sentences, one for each language: in SQuAD's format, such as xquad.de.json, whose
            questions with equal ids are translations of each other, or .txt with a sentence in each line; or one table
            with a column for each language. In Python also a DataFrame or a list of dicts.

    The vector of a sentence is the mean over its tokens. Translations are retrieved by cosine similarity among the test
    sentences of another language, without and with the centroid of each language subtracted, which other sentences
    estimate. The language of a sentence is identified by a linear probe and by the nearest centroid. Above random is
    the centred retrieval minus that of a random encoder of the same shape.
    """

    name = word = "languages"
    progress_text = "comparing languages"
    example = "bertjax languages --model bert-base-multilingual-cased --data xquad.en.json xquad.de.json xquad.es.json"
    reads = frozenset({"model", "max_length", "limit", "seed"})

    outputs = OUTPUTS
    journals = None
    float32 = True

    parallel: Any = option(None, "FILE", positional=True, flag="--data", nargs="*", recorded=False)

    @cached_property
    def files(self) -> list[str] | None:
        """The files of the sentences; None if they are in memory."""
        paths = [self.parallel] if is_path(self.parallel) else self.parallel
        is_list = isinstance(paths, Sequence) and len(paths) > 0 and all(map(is_path, paths))
        return [str(path) for path in paths] if is_list else None

    @cached_property
    def texts(self) -> tuple[tuple[str, ...], Examples]:
        """The languages and the sentences."""
        return read_parallel(self.files or self.parallel)

    @property
    def inputs(self) -> list[str]:
        """The files of the sentences."""
        return self.files or []

    def recorded(self) -> dict[str, Any]:
        """The paths and hashes of the sentences."""
        if self.files is None:
            return {"parallel_sha256": [self.texts[1].sha256]}
        hashes = [hash_if_file(user_path(path, InputError)) for path in self.files]
        return {"parallel": self.files, "parallel_sha256": hashes}

    def check(self, settings: Settings) -> None:
        """Raise `InputError` if there are no sentences."""
        super().check(settings)
        if self.parallel is None or (isinstance(self.parallel, Sequence) and not len(self.parallel)):
            raise InputError("give parallel texts: a file for each language, or a table with a column for each")

    def load(self, settings: Settings, say: Say) -> Job:
        """Load the encoder, and tokenise the sentences of all languages."""
        languages, examples = self.texts
        examples, model = examples.limited(settings.limit, settings.seed), encoder_of(settings)
        tokenizer, length = load_tokenizer(settings), length_of(settings, model)
        texts = [examples.first, *zip(*map(_translations, examples.content or ()), strict=True)]
        encoded = [tokenizer.encode(of_language, None, length, word_ids=True) for of_language in texts]
        empty = [any(not (_units(text) >= 0).any() for text in texts) for texts in zip(*encoded, strict=True)]
        if any(empty):
            say(f"{count_of(sum(empty), 'sentence')} without tokens in some language left out")
            kept = np.flatnonzero(~np.array(empty)).tolist()
            examples, encoded = examples.take(kept), [[of[index] for index in kept] for of in encoded]
        first = TextEncodings(OUTPUTS, tuple(encoded[0]), tokenizer.pad_id, len(examples), np.zeros(len(examples)))
        return LanguagesJob(settings, model, tokenizer, examples, first, languages=languages, translations=encoded)

    def run(self, context: Context) -> Outcome:
        """Compute the vectors of all sentences, and measure each layer."""
        job, seed = context.job, context.job.settings.seed
        assert isinstance(job, LanguagesJob)
        split = split_texts(len(job.examples), seed)
        described = {name: len(part) for name, part in vars(split).items()}
        context.say(f"{job.model.class_name} {job.settings.model}: {', '.join(job.languages)}; sentences {described}")
        states, random = (
            _vectors(model, job.translations, part_of(context.progress, start, SHARE_OF_VECTORS / 2, 1.0))
            for model, start in ((job.model, 0.0), (random_encoder(job.model, seed), SHARE_OF_VECTORS / 2))
        )
        runs = ablations.whole_layers(job.model.config, self.mode)
        sites = ["embeddings", *(run.name for run in runs)]
        outputs, found = np.zeros((len(sites), len(split.test), len(NUMBERS))), {}
        for index, site in enumerate(sites):
            outputs[index], found[site] = _measure(states[index], random[index], split, seed, job.languages)
            context.progress(SHARE_OF_VECTORS + (1 - SHARE_OF_VECTORS) * (index + 1) / len(sites), 1.0)
        outputs[0, :, -1] = 0  # the base of a difference
        details = {"names": [*job.languages], "sentences": described, "chance": 1 / len(split.test), "layers": found}
        return outcome_of_examples(
            job,
            OUTPUTS,
            LANGUAGE_METRICS,
            outputs[1:],
            split.test.tolist(),
            runs,
            base=outputs[0],
            metadata={"languages": details},
        )

    def show(self, results: Results) -> Sequence[RenderableType]:
        """The table of retrieval, and the controls."""
        return [*super().show(results), *lines_of(results)]


def _metric(name: str, label: str, number: str, **more: Any) -> Metric:
    return Metric.of_sums(name, label, ratios.mean_number(NUMBERS, number), **more)


LANGUAGE_METRICS = (
    _metric("retrieval_centred", "Centred retrieval", "centred retrieval", compared_with="the embeddings"),
    _metric("retrieval", "Retrieval", "retrieval", compared_with="the embeddings"),
    _metric("language_identification", "Language identification", "identified", compared_with="the embeddings"),
    _metric("nearest_centroid", "Language of the nearest centroid", "nearest centroid", compared_with="the embeddings"),
    _metric("above_random", "Retrieval above a random encoder", "above random", of_effects=True, lowest=-1.0),
)
"""The metrics of languages, the main one first."""


def lines_of(results: Results) -> list[str]:
    """Lines on the best layer, and on the controls.

    Args:
        results: results of `languages`.
    """
    found = results.summary["languages"]
    best = max(results.rows_of("retrieval_centred"), key=lambda row: row.score or 0.0).name
    of_best, chance = found["layers"][best], 100 * found["chance"]
    pairs = ", ".join(f"{pair} {100 * value:.1f}" for pair, value in of_best["pairs"].items())
    between, within = of_best["distance"], of_best["spread"]
    return [
        f"best: layer {best}; by query and language of the candidates: {pairs} %",
        f"controls: chance {chance:.2f} %, shuffled translations {100 * of_best['shuffled']:.2f} %, random encoder "
        f"{100 * of_best['random']['retrieval_centred']:.1f} %; centroids are {between:.3g} apart, and sentences "
        f"{within:.3g} from their centroid",
    ]


def _translations(content: Any) -> tuple[str, ...]:
    """The translations of a sentence."""
    assert isinstance(content, CommonTexts)
    return tuple(content.texts.values())


def _units(text: Encoding) -> Int[np.ndarray, " _"]:
    """One unit of all tokens except special tokens."""
    return np.array([-1 if word is None else 0 for word in text.word_ids])


def _vectors(
    model: PretrainedModel, translations: Sequence[Sequence[Encoding]], progress: Progress
) -> Float[np.ndarray, "layers_plus_1 languages sentences embed"]:
    """The mean over the tokens of each sentence, in the embeddings and after each layer."""
    texts = [text for of_language in translations for text in of_language]
    active = compute_activations(model, texts, units=[_units(text) for text in texts], progress=progress)
    states = active.hidden_states
    return states.reshape(len(states), len(translations), -1, states.shape[-1])


Vectors = Float[np.ndarray, "languages sentences embed"]


def _measure(
    vectors: Vectors, random: Vectors, split: Split, seed: int, languages: Sequence[str]
) -> tuple[Float[np.ndarray, "test numbers"], dict[str, Any]]:
    """`NUMBERS` of each test sentence at one layer, and what the summary has about the layer.

    Args:
        vectors: the vectors of the model.
        random: the vectors of the random encoder.
    """
    test, labels = vectors[:, split.test], np.arange(len(vectors))[:, None]
    centroids = language_centroids(vectors[:, split.train])
    hits = retrieval_hits(test, centroids)
    by_random = retrieval_accuracy(retrieval_hits(random[:, split.test], language_centroids(random[:, split.train])))
    identified, random_identified = (_identified(values, split) for values in (vectors, random))
    numbers = np.stack(
        [
            retrieval_accuracy(hits),
            retrieval_accuracy(retrieval_hits(test)),
            identified,
            (nearest_centroids(test, centroids) == labels).mean(axis=0),
            retrieval_accuracy(hits) - by_random,
        ],
        axis=1,
    )
    rng = np.random.default_rng(seed)
    shuffled = np.stack([of_language[rng.permutation(len(of_language))] for of_language in test])
    between, within = language_distances(vectors[:, split.train])
    pairs = permutations(range(len(languages)), 2)
    return numbers, {
        "distance": between,
        "spread": within,
        "shuffled": float(retrieval_accuracy(retrieval_hits(shuffled, centroids)).mean()),
        "random": {
            "retrieval_centred": float(by_random.mean()),
            "language_identification": float(random_identified.mean()),
        },
        "pairs": {f"{languages[one]}-{languages[other]}": float(hits[one, other].mean()) for one, other in pairs},
    }


def _identified(vectors: Vectors, split: Split) -> Float[np.ndarray, " test"]:
    """The share of the languages of each test sentence in which a linear probe names the language."""
    languages, sentences, _ = vectors.shape
    features, labels = vectors.reshape(languages * sentences, -1), np.repeat(np.arange(languages), sentences)
    offsets = sentences * np.arange(languages)[:, None]
    train, select, test = ((offsets + part).ravel() for part in vars(split).values())
    probe = fit_probe(features, labels, train, select, classes=languages)
    right = probe.predict(features[test]) == labels[test]
    return np.asarray(right.reshape(languages, -1).mean(axis=0))
