"""Words of examples and their activations, as the analyses of representations read them.

Sentences with tags have words. Other texts are split at white space; of a pair only the first text is read. The
activation of a word is the mean over its pieces.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Int

from bertjax.analyses.roles import encoder_of
from bertjax.data import Examples
from bertjax.errors import InputError
from bertjax.formatting import count_of
from bertjax.jobs import Job, Say, Settings, load_tokenizer, read_examples
from bertjax.models import BertModel, PretrainedModel
from bertjax.progress import Progress, part_of, silent
from bertjax.representations import Activations, compute_activations, words_of_pieces
from bertjax.tasks import Annotation, OutputSpec, Tagged, Task, TextEncodings


def load_words(settings: Settings, say: Say, form: OutputSpec, *, tagged: str = "") -> Job:
    """Load the encoder, and tokenise the words of the examples; examples without pieces are left out.

    Args:
        settings: the options of the study.
        say: called with a line about examples that are left out.
        form: the specification of the outputs.
        tagged: the name of an analysis that needs words with tags, for errors; empty if any texts will do.

    Raises:
        InputError: the examples have no tags, are neither words nor texts, or have no pieces.
    """
    model = encoder_of(settings)
    examples = read_examples(settings, model)
    words = [sentence.words for sentence in sentences_of(examples, tagged)] if tagged else words_of(examples)
    tokenizer = load_tokenizer(settings)
    encodings = tokenizer.encode_words(words, length_of(settings, model))
    kept = [index for index, text in enumerate(encodings) if any(word is not None for word in text.word_ids)]
    if not kept:
        raise InputError("no sentence is left: the model has no pieces for any word")
    if len(kept) < len(encodings):
        say(f"{count_of(len(encodings) - len(kept), 'sentence')} without pieces left out")
        examples, encodings = examples.take(kept), [encodings[index] for index in kept]
    encoded = TextEncodings(form, tuple(encodings), tokenizer.pad_id, len(examples), np.zeros(len(examples)))
    return Job(settings, model, tokenizer, examples, encoded)


def length_of(settings: Settings, model: PretrainedModel) -> int:
    """The largest number of tokens of a text."""
    return min(settings.max_length or model.config.max_tokens, model.config.max_tokens)


def sentences_of(examples: Examples, analysis: str) -> list[Tagged]:
    """The sentences of examples. Raises `InputError` if the examples are not words with tags."""
    sentences = [content for content in examples.content or () if isinstance(content, Tagged)]
    if len(sentences) < len(examples):
        raise InputError(f"{analysis} needs words with tags: --task token-classification with --data FILE")
    return sentences


def annotations_of(examples: Examples) -> list[Annotation]:
    """The annotation of each sentence of CoNLL-U; empty for other data.

    Args:
        examples: the examples of any task.
    """
    found = [content.annotation for content in examples.content or () if isinstance(content, Tagged)]
    present = [annotation for annotation in found if annotation is not None]
    return present if len(present) == len(examples) else []


def words_of(examples: Examples) -> list[tuple[str, ...]]:
    """The words of each example: those with tags, or the parts of the first text between white space.

    Args:
        examples: the examples of any task with texts.

    Raises:
        InputError: the task has no plain texts.
    """
    sentences = [content for content in examples.content or () if isinstance(content, Tagged)]
    if len(sentences) == len(examples):
        return [sentence.words for sentence in sentences]
    if not (isinstance(examples.task, Task) and examples.task.is_plain):
        raise InputError(f"the examples of {examples.task.name} are not texts: --task mlm reads lines of text")
    return [tuple(text.split()) for text in examples.first]


@dataclass(frozen=True)
class Words:
    """The words with pieces of all sentences.

    Args:
        words: the str of each word.
        indices: the index of each word in its sentence.
        sentences: the sentence of each word.
    """

    words: Sequence[str]
    indices: Int[np.ndarray, " words"]
    sentences: Int[np.ndarray, " words"]

    @classmethod
    def of(cls, job: Job) -> "Words":
        """The words of a job's examples.

        Args:
            job: the result of `load_words`.
        """
        found = [
            (words[index], index, sentence)
            for sentence, (words, text) in enumerate(zip(words_of(job.examples), job.encoded.encodings, strict=True))
            for index in dict.fromkeys(index for index in text.word_ids if index is not None)
        ]
        words, indices, sentences = zip(*found, strict=True)
        return cls(words, np.array(indices), np.array(sentences))


def word_activations(
    model: PretrainedModel, job: Job, *, heads: bool = False, progress: Progress = silent
) -> Activations:
    """The activations of a job's words in a model.

    Args:
        model: the model of the job, or another of the same tokenizer.
        job: the result of `load_words`.
        heads: whether to compute the outputs of heads too.
        progress: called with the number of texts done and in total.
    """
    texts = job.encoded.encodings
    return compute_activations(
        model, texts, units=[words_of_pieces(text) for text in texts], heads=heads, progress=progress
    )


def activations_and_control(
    job: Job, progress: Progress, share: float, *, heads: bool = False
) -> tuple[Activations, Activations]:
    """The activations of the words in the model, and in a random encoder of the same shape.

    Args:
        job: the result of `load_words`.
        progress: called with the share of the work that is done.
        share: the share of the activations in the work of the analysis.
        heads: whether to compute the outputs of heads too.
    """
    models = (job.model, random_encoder(job.model, job.settings.seed))
    shares = (part_of(progress, start, share / 2, 1.0) for start in (0.0, share / 2))
    of_model, of_random = (
        word_activations(encoder, job, heads=heads, progress=part) for encoder, part in zip(models, shares, strict=True)
    )
    return of_model, of_random


def random_encoder(model: PretrainedModel, seed: int = 0) -> BertModel:
    """An encoder of the same shape as a model, with the parameters that training starts from.

    Args:
        seed: seed of the random draw.
    """
    return BertModel(model.config, jax.random.key(seed), model.numerics, add_pooling_layer=False)
