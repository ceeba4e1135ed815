"""Readouts: functions of a model's output, and of targets, that return what to keep of a run.

Any other function can be a readout. A sweep finds out which fields of the output it uses: if all of them depend only on
[CLS], the last layer is computed only there.
"""

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax import arguments
from bertjax.errors import InputError
from bertjax.models import ModelOutput, PretrainedModel

# A function of a model's output, or of that and of targets, an array with an entry for each example.
Readout = Callable[..., Array]


def _of_each_token(readout: Readout) -> Readout:
    """Mark a readout whose result at a token (`at=`) does not depend on the other tokens that it reads."""
    readout.of_each_token = True  # type: ignore[attr-defined]
    return readout


def reads_each_token(readout: Readout) -> bool:
    """Whether a readout's result at a token does not depend on the other tokens that it reads.

    Args:
        readout: the function of a `ModelOutput`.
    """
    return getattr(readout, "of_each_token", False) is True


@_of_each_token
def logits(output: ModelOutput) -> Float[Array, "batch *labels"]:
    """The logits of the task head; a masked-LM head has them for each token and word.

    Args:
        output: output of a classifier.
    """
    if output.logits is None:
        raise InputError("this model has no logits: it has no task head")
    return output.logits


def pooled(output: ModelOutput) -> Float[Array, "batch embed"]:
    """The output of the pooler.

    Args:
        output: output of a model with a pooler.
    """
    if output.pooler_output is None:
        raise InputError("this model has no pooler")
    return output.pooler_output


def score(output: ModelOutput) -> Float[Array, " batch"]:
    """The score of a text or pair by a classifier with one label, as by a cross-encoder of sentence-transformers.

    Args:
        output: output of a cross-encoder or a regression.
    """
    if output.score is None:
        raise InputError("this model has no score: it is not a classifier with one label")
    return output.score


def sentence_embedding(output: ModelOutput) -> Float[Array, "batch width"]:
    """The sentence embedding.

    Args:
        output: output of a `BertForSentenceEmbedding`.
    """
    if output.sentence_embedding is None:
        raise InputError("this model has no sentence embedding: load it as BertForSentenceEmbedding")
    return output.sentence_embedding


@_of_each_token
def hidden_state(output: ModelOutput) -> Float[Array, "batch token embed"]:
    """The output of the last layer at every token; it is undefined at padding.

    Args:
        output: output of any model.
    """
    return output.last_hidden_state


@_of_each_token
def words(output: ModelOutput, targets: Int[Array, "batch targets"]) -> Float[Array, "batch targets 2"]:
    """Log-probability (in nats, over the whole vocabulary) and rank of words (1 is the most likely word).

    A sweep reads it at the tokens of `at=`. The rank is 1 plus the number of words with higher logits.

    Args:
        output: output of a `BertForMaskedLM`.
        targets: ids of the words.
    """
    scores = logits(output)
    of_targets = jnp.take_along_axis(scores, targets[..., None], axis=-1)
    log_probability = of_targets[..., 0] - jax.nn.logsumexp(scores, axis=-1)
    rank = 1 + (scores > of_targets).sum(axis=-1)
    return jnp.stack([log_probability, rank.astype(log_probability.dtype)], axis=-1)


@_of_each_token
def log_probabilities(output: ModelOutput, targets: Int[Array, "batch targets"]) -> Float[Array, "batch targets"]:
    """Log-probability (in nats, over the whole vocabulary) of words, at the tokens of a sweep's `at=`.

    Args:
        output: output of a `BertForMaskedLM`.
        targets: ids of the words.
    """
    return words(output, targets)[..., 0]


GUESSES = 5


@_of_each_token
def guesses(output: ModelOutput, targets: Int[Array, "batch targets"]) -> Float[Array, "batch targets guess 2"]:
    """The `GUESSES` most likely words and their log-probabilities, at the tokens of a sweep's `at=`.

    Args:
        output: output of a `BertForMaskedLM`.
        targets: ignored; other readouts of words need them.
    """
    scores = jax.nn.log_softmax(logits(output), axis=-1)
    log_probabilities, best = jax.lax.top_k(scores, min(GUESSES, scores.shape[-1]))
    return jnp.stack([best.astype(log_probabilities.dtype), log_probabilities], axis=-1)


@_of_each_token
def tags(output: ModelOutput, targets: Int[Array, "batch targets"]) -> Float[Array, "batch targets 2"]:
    """Log-probability (in nats) of the true tag, and the id of the most likely tag, at the tokens of a sweep's `at=`.

    Args:
        output: output of a `BertForTokenClassification`.
        targets: ids of the true tags.
    """
    scores = logits(output)
    of_targets = jnp.take_along_axis(scores, targets[..., None], axis=-1)[..., 0]
    log_probability = of_targets - jax.nn.logsumexp(scores, axis=-1)
    return jnp.stack([log_probability, scores.argmax(axis=-1).astype(log_probability.dtype)], axis=-1)


LONGEST_ANSWER = 30  # tokens, as in the reference programs of transformers


def answers(output: ModelOutput, targets: Int[Array, "batch targets"]) -> Float[Array, "batch 4"]:
    """The best span of at most `LONGEST_ANSWER` tokens: first and last index, its score, and the score of no answer.

    A sweep reads it at the tokens of `at=`: [CLS], whose score is that of no answer, and the tokens of the context in
    order; indices are among these. The score of a span is the start logit of its first token plus the end logit of its
    last token (Devlin et al. 2019, section 4.2).

    Args:
        output: output of a `BertForQuestionAnswering`.
        targets: 1 at tokens of the context, 0 elsewhere.
    """
    start, end = _answer_logits(output)
    lowest = jnp.finfo(start.dtype).min / 4
    first, last = (jnp.where(targets > 0, scores, lowest) for scores in (start, end))
    width = min(LONGEST_ANSWER, first.shape[1])
    padded = jnp.pad(last, ((0, 0), (0, width)), constant_values=lowest)
    ends = jnp.stack([padded[:, shift : shift + first.shape[1]] for shift in range(width)], axis=-1)
    spans = (first[..., None] + ends).reshape(len(first), -1)
    best = spans.argmax(axis=1)
    index = best // width
    score = jnp.take_along_axis(spans, best[:, None], axis=1)[:, 0]
    columns = (index, index + best % width, score, start[:, 0] + end[:, 0])
    return jnp.stack([column.astype(start.dtype) for column in columns], axis=-1)


def _answer_logits(output: ModelOutput) -> tuple[Float[Array, "batch token"], Float[Array, "batch token"]]:
    if output.start_logits is None or output.end_logits is None:
        raise InputError("this model has no scores of answers: it has no head for questions")
    return output.start_logits, output.end_logits


def span_logits(
    output: ModelOutput, targets: Int[Array, "batch targets"] | None = None
) -> Float[Array, "batch token 2"]:
    """The start and end logits of answers, at the tokens of a sweep's `at=`.

    Args:
        output: output of a `BertForQuestionAnswering`.
        targets: ignored; `answers` needs them.
    """
    return jnp.stack(_answer_logits(output), axis=-1)


# What a readout must be, for error messages.
READOUT = "a function of a model's output (bertjax.readouts)"


def read(readout: Readout, output: ModelOutput, targets: Array | None = None, *, of_each: bool = True) -> Array:
    """Apply a readout to a batch, and check its result. Called inside `jax.jit`, where checks run only once.

    Args:
        readout: the function of a `ModelOutput`, and of targets if there are any.
        output: output of a model.
        targets: second argument of the readout, if it has one.
        of_each: whether the result must have an entry for each example, as in a sweep.

    Raises:
        InputError: the result is not one array with an entry for each example, or depends on values while it is traced.
    """
    try:
        result = readout(output) if targets is None else readout(output, targets)
    except jax.errors.JAXTypeError as error:
        raise InputError(
            "the readout depends on values while it is compiled: use jax.numpy, not NumPy, float(...) or if"
        ) from error
    batch = vars(output)["last_hidden_state"].shape[0]  # (attribute access would be recorded)
    expected = "one array [batch, ...], with an entry for each example" if of_each else "one array"
    if not isinstance(result, jax.Array | np.ndarray):
        arguments.refuse("what the readout returns", expected, result)
    if of_each and result.shape[:1] != (batch,):
        raise InputError(
            f"what the readout returns must be {expected}, found shape {result.shape} for {batch} "
            f"example{'s' * (batch > 1)}: keep the first axis (output.last_hidden_state[:, 0] is [CLS] of each)"
        )
    return jnp.asarray(result)


class _Recording(ModelOutput):
    """A model's output that records which of its fields are used."""

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__"):
            object.__getattribute__(self, "used").add(name)
        return object.__getattribute__(self, name)


_Recording.__name__ = ModelOutput.__name__  # for the message about a misspelt field


@dataclass(frozen=True)
class Inspected:
    """The fields that a readout uses, and the shape of its result.

    Args:
        fields: the fields of `ModelOutput` that it uses.
        first_only: whether the model computes all of these fields from [CLS].
        result: shape and dtype of its result for a single text, `[1, *readout]`.
        read_bytes: bytes of these fields for a single text.
    """

    fields: frozenset[str]
    first_only: bool
    result: jax.ShapeDtypeStruct
    read_bytes: int


def inspect_readout(
    model: PretrainedModel, readout: Readout, tokens: int, targets: jax.ShapeDtypeStruct | None = None
) -> Inspected:
    """Find the fields that a readout uses and the shape of its result, without running it.

    Args:
        model: the model.
        readout: the function of a `ModelOutput`.
        tokens: number of tokens that it reads.
        targets: shape of its second argument for one example, `[1, ...]`.
    """
    arguments.check_function(readout, "readout", READOUT)
    _check_arguments(readout, 1 if targets is None else 2)
    used: set[str] = set()
    sizes: dict[str, int] = {}

    def probe(hidden: Array, targets: Array | None) -> Array:
        output = model.finish(hidden, jnp.ones((len(hidden), 1, tokens), model.numerics.wide))
        watched = object.__new__(_Recording)
        object.__setattr__(watched, "used", used)
        for name, value in vars(output).items():
            object.__setattr__(watched, name, value)
            sizes[name] = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(value))
        return read(readout, watched, targets)

    # (Two examples first: with a single one, the axis of tokens could pass for that of examples.)
    _, result = (
        jax.eval_shape(
            probe,
            jax.ShapeDtypeStruct((batch, tokens, model.config.hidden_size), model.numerics.dtype),
            targets and jax.ShapeDtypeStruct((batch, *targets.shape[1:]), targets.dtype),
        )
        for batch in (2, 1)
    )
    fields = frozenset(used & {field.name for field in dataclasses.fields(ModelOutput)})
    read_bytes = sum(sizes.get(name, 0) for name in fields)
    return Inspected(fields, fields <= model.fields_of_first_token, result, read_bytes)


def _check_arguments(readout: Readout, count: int) -> None:
    """Raise `InputError` unless a readout takes this number of arguments."""
    try:
        signature = inspect.signature(readout)
    except (ValueError, TypeError):  # some built-in functions have none
        return
    try:
        signature.bind(*[None] * count)
    except TypeError as error:
        if count == 1:
            raise InputError("the readout needs targets as its second argument: give targets=") from error
        raise InputError("the readout takes only a model's output: leave out targets=") from error


def check_at_positions(model: PretrainedModel, inspected: Inspected) -> None:
    """Raise `InputError` if a readout at single tokens uses fields of whole texts.

    Args:
        model: the model.
        inspected: the fields and the shape of a readout (`inspect_readout`).
    """
    other = inspected.fields & (model.fields_of_first_token | {"sentence_embedding"})
    if other:
        raise InputError(
            f"the readout uses {', '.join(sorted(other))}, which single tokens do not have: leave out `at`"
        )
