"""What to keep of a run: functions of a model's output, and of what is known of each example where it takes that too.

Any other function will do as well.

A sweep finds out which fields a readout asks for: where all of them are computed from [CLS] alone, the last layer is
computed at [CLS] alone.
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

# Of a model's output; or of that and of targets, an array with an entry for each example.
Readout = Callable[..., Array]


def _of_each_token(readout: Readout) -> Readout:
    """Mark a readout that at chosen tokens (`at=`) gives of each what it would give of it alone."""
    readout.of_each_token = True  # type: ignore[attr-defined]
    return readout


def reads_each_token(readout: Readout) -> bool:
    """Whether a readout at chosen tokens gives of each what it would give of it alone: one of these, so marked."""
    return getattr(readout, "of_each_token", False) is True


@_of_each_token
def logits(output: ModelOutput) -> Float[Array, "batch *labels"]:
    """The task head's logits; of a masked-LM head those of every token and word."""
    if output.logits is None:
        raise InputError("this model has no logits: it has no task head")
    return output.logits


def pooled(output: ModelOutput) -> Float[Array, "batch embed"]:
    """The pooler's vector."""
    if output.pooler_output is None:
        raise InputError("this model has no pooler")
    return output.pooler_output


def score(output: ModelOutput) -> Float[Array, " batch"]:
    """The number that a classifier with one label gives a text or pair, as a cross-encoder of sentence-transformers."""
    if output.score is None:
        raise InputError("this model has no score: it is no classifier with one label")
    return output.score


def sentence_embedding(output: ModelOutput) -> Float[Array, "batch width"]:
    """The sentence vector."""
    if output.sentence_embedding is None:
        raise InputError("this model has no sentence embedding: load it as BertForSentenceEmbedding")
    return output.sentence_embedding


@_of_each_token
def hidden_state(output: ModelOutput) -> Float[Array, "batch token embed"]:
    """The last layer's output at every token; what lies beyond an example's own tokens is of no meaning."""
    return output.last_hidden_state


@_of_each_token
def words(output: ModelOutput, targets: Int[Array, "batch wanted"]) -> Float[Array, "batch wanted 2"]:
    """Log-probability (nats, over the whole vocabulary) and rank (1 is the likeliest) of wanted words.

    A sweep takes it at the tokens that `at=` names. A rank counts the words whose logits are higher.

    Args:
        targets: the words' ids.
    """
    scores = logits(output)
    wanted = jnp.take_along_axis(scores, targets[..., None], axis=-1)
    log_probability = wanted[..., 0] - jax.nn.logsumexp(scores, axis=-1)
    rank = 1 + (scores > wanted).sum(axis=-1)
    return jnp.stack([log_probability, rank.astype(log_probability.dtype)], axis=-1)


@_of_each_token
def log_probabilities(output: ModelOutput, targets: Int[Array, "batch wanted"]) -> Float[Array, "batch wanted"]:
    """Log-probability (nats, over the whole vocabulary) of wanted words, at the tokens that a sweep's `at=` names.

    Args:
        targets: the words' ids.
    """
    return words(output, targets)[..., 0]


GUESSES = 5


@_of_each_token
def guesses(output: ModelOutput, targets: Int[Array, "batch wanted"]) -> Float[Array, "batch wanted guess 2"]:
    """The `GUESSES` likeliest words and their log-probabilities, at the tokens that a sweep's `at=` names.

    Args:
        targets: taken by the likes of `words`; of no meaning here.
    """
    scores = jax.nn.log_softmax(logits(output), axis=-1)
    chances, best = jax.lax.top_k(scores, min(GUESSES, scores.shape[-1]))
    return jnp.stack([best.astype(chances.dtype), chances], axis=-1)


@_of_each_token
def tags(output: ModelOutput, targets: Int[Array, "batch wanted"]) -> Float[Array, "batch wanted 2"]:
    """Log-probability (nats) of true tags, and the likeliest tag, at the tokens that a sweep's `at=` names.

    Args:
        targets: the true tags' numbers.
    """
    scores = logits(output)
    wanted = jnp.take_along_axis(scores, targets[..., None], axis=-1)[..., 0]
    log_probability = wanted - jax.nn.logsumexp(scores, axis=-1)
    return jnp.stack([log_probability, scores.argmax(axis=-1).astype(log_probability.dtype)], axis=-1)


LONGEST_ANSWER = 30  # tokens, as in the reference programs of transformers


def answers(output: ModelOutput, targets: Int[Array, "batch wanted"]) -> Float[Array, "batch 4"]:
    """The best span of at most `LONGEST_ANSWER` tokens: its first and last place, its score, and that of no answer.

    A sweep takes it at the tokens that `at=` names: [CLS], whose score is that of no answer, and those of the context,
    in their order; places are among these. A span's score is the sum of its first token's start logit and its last
    one's end logit (Devlin et al. 2019, section 4.2).

    Args:
        targets: 1 at tokens of the context, 0 elsewhere.
    """
    start, end = output.start_logits, output.end_logits
    if start is None or end is None:
        raise InputError("this model has no scores of answers: it has no head for questions")
    lowest = jnp.finfo(start.dtype).min / 4
    first, last = (jnp.where(targets > 0, scores, lowest) for scores in (start, end))
    width = min(LONGEST_ANSWER, first.shape[1])
    padded = jnp.pad(last, ((0, 0), (0, width)), constant_values=lowest)
    ends = jnp.stack([padded[:, shift : shift + first.shape[1]] for shift in range(width)], axis=-1)
    spans = (first[..., None] + ends).reshape(len(first), -1)
    best = spans.argmax(axis=1)
    place = best // width
    score = jnp.take_along_axis(spans, best[:, None], axis=1)[:, 0]
    numbers = (place, place + best % width, score, start[:, 0] + end[:, 0])
    return jnp.stack([number.astype(start.dtype) for number in numbers], axis=-1)


def span_logits(output: ModelOutput, targets: Int[Array, "batch wanted"]) -> Float[Array, "batch wanted 2"]:
    """The logits of an answer's first and of its last token, at the tokens that a sweep's `at=` names.

    Args:
        targets: taken by the likes of `answers`; of no meaning here.
    """
    start, end = output.start_logits, output.end_logits
    if start is None or end is None:
        raise InputError("this model has no scores of answers: it has no head for questions")
    return jnp.stack([start, end], axis=-1)


# What a readout must be, for messages.
READOUT = "a function of a model's output (bertjax.readouts)"


def read(readout: Readout, output: ModelOutput, targets: Array | None = None, *, of_each: bool = True) -> Array:
    """What a readout gives for a batch; inside `jax.jit`, where checks cost nothing later.

    Args:
        targets: what it takes beside the output, if there is any.
        of_each: it must have an entry for each example; a sweep's must, that of `reference.run` need not.

    Raises:
        InputError: it is not one array, with an entry for each example, or needs values that are not known yet.
    """
    try:
        given = readout(output) if targets is None else readout(output, targets)
    except jax.errors.JAXTypeError as error:
        raise InputError(
            "the readout needs values before there are any: it is compiled, so it takes jax.numpy, not NumPy, "
            "float(...) or if"
        ) from error
    batch = vars(output)["last_hidden_state"].shape[0]  # not by attribute, which would be taken down
    expected = "one array [batch, ...], with an entry for each example" if of_each else "one array"
    if not isinstance(given, jax.Array | np.ndarray):
        arguments.refuse("what the readout returns", expected, given)
    if of_each and given.shape[:1] != (batch,):
        raise InputError(
            f"what the readout returns must be {expected}, found shape {given.shape} for {batch} "
            f"example{'s' * (batch > 1)}: keep the first axis (output.last_hidden_state[:, 0] is [CLS] of each)"
        )
    return jnp.asarray(given)


class _Recording(ModelOutput):
    """A model's output that writes down which of its fields are asked for."""

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__"):
            object.__getattribute__(self, "asked").add(name)
        return object.__getattribute__(self, name)


_Recording.__name__ = ModelOutput.__name__  # as a misspelt field names it


@dataclass(frozen=True)
class Inspected:
    """What a readout asks for and gives.

    Args:
        fields: of `ModelOutput` that it asks for.
        first_only: whether the model computes all of them from [CLS].
        given: what it gives for a single text, `[1, *readout]`.
        read_bytes: of the fields that it asks for, for a single text.
    """

    fields: frozenset[str]
    first_only: bool
    result: jax.ShapeDtypeStruct
    read_bytes: int


def inspect_readout(
    model: PretrainedModel, readout: Readout, tokens: int, targets: jax.ShapeDtypeStruct | None = None
) -> Inspected:
    """What a readout asks for and gives, without running it.

    Args:
        tokens: of the hidden states that it reads.
        targets: what it takes of each example beside the output, `[1, ...]`.
    """
    arguments.check_function(readout, "readout", READOUT)
    _check_arguments(readout, 1 if targets is None else 2)
    asked: set[str] = set()
    sizes: dict[str, int] = {}

    def probe(hidden: Array, targets: Array | None) -> Array:
        output = model.finish(hidden, jnp.ones((len(hidden), 1, tokens), model.numerics.wide))
        watched = object.__new__(_Recording)
        object.__setattr__(watched, "asked", asked)
        for name, value in vars(output).items():
            object.__setattr__(watched, name, value)
            sizes[name] = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(value))
        return read(readout, watched, targets)

    # Of two examples first: with one alone a token's axis could pass for the examples'.
    _, given = (
        jax.eval_shape(
            probe,
            jax.ShapeDtypeStruct((batch, tokens, model.config.hidden_size), model.numerics.dtype),
            targets and jax.ShapeDtypeStruct((batch, *targets.shape[1:]), targets.dtype),
        )
        for batch in (2, 1)
    )
    fields = frozenset(asked & {field.name for field in dataclasses.fields(ModelOutput)})
    read_bytes = sum(sizes.get(name, 0) for name in fields)
    return Inspected(fields, fields <= model.fields_of_first_token, given, read_bytes)


def _check_arguments(readout: Readout, given: int) -> None:
    """Raise `InputError` where a readout takes another number of arguments than it is given."""
    try:
        signature = inspect.signature(readout)
    except (ValueError, TypeError):  # some built-in functions have none
        return
    try:
        signature.bind(*[None] * given)
    except TypeError as error:
        if given == 1:
            raise InputError("the readout takes targets beside a model's output: give targets=") from error
        raise InputError("the readout takes a model's output alone: leave out targets=") from error


def check_at_positions(model: PretrainedModel, inspected: Inspected) -> None:
    """Raise `InputError` where a readout at chosen tokens asks for what is not computed token by token."""
    other = inspected.fields & (model.fields_of_first_token | {"sentence_embedding"})
    if other:
        raise InputError(f"the readout asks for {', '.join(sorted(other))}, which no single token has: leave out `at`")
