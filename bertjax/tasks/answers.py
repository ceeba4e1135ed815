"""Questions on texts: a long text is read in windows that overlap, and the best span of all of them is the answer."""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
from jaxtyping import Float, Int

from bertjax.data import Answers, Encoding, Examples, Tokenizer
from bertjax.errors import InputError
from bertjax.formatting import count_of
from bertjax.interventions import readouts
from bertjax.tasks.encoded import Asked, Collected, Encoded
from bertjax.tasks.losses import Graded, Objective, cross_entropy
from bertjax.tasks.options import Options

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
NONE = (-1, -1)  # the span of no answer


@dataclass(frozen=True)
class _Window:
    """A part of a context, behind its question.

    Args:
        text: tokens of both.
        first: the first token of the context.
        offsets: characters of the context that its tokens stand for.
    """

    text: Encoding
    first: int
    offsets: tuple[tuple[int, int], ...]


def encode(tokenizer: Tokenizer, examples: Examples, options: Options) -> Encoded:
    """Questions with their contexts, each window asked for its best span.

    Questions whose context has no token, or that leave no room for it, are left out.

    Raises:
        InputError: all are.
    """
    assert examples.second is not None
    pairs = tokenizer.encode(list(examples.first), list(examples.second), None, word_ids=True)
    windows: list[_Window] = []
    owners: list[int] = []
    kept, left = list[int](), dict[str, list[int]]()
    for example, pair in enumerate(pairs):
        own = _windows(pair, options.max_length or len(pair), options.stride)
        if isinstance(own, str):
            left.setdefault(own, []).append(example)
            continue
        windows += own
        owners += [len(kept)] * len(own)
        kept.append(example)
    reasons = _reasons(left, examples.ids)
    if not kept:
        raise InputError(f"no question can be read: {reasons}")
    places = [[0, *range(window.first, window.first + len(window.offsets))] for window in windows]
    of_context = [[0, *[1] * len(window.offsets)] for window in windows]
    read = examples.take(kept)
    contexts, asked = read.second or (), Asked.of_lists(places, of_context, owners)
    true = [content for content in read.content or () if isinstance(content, Answers)]
    return Encoded(
        "answers",
        tuple(window.text for window in windows),
        tokenizer.pad_id,
        len(kept),
        asked=asked,
        labels=np.array([len(content.texts) for content in true], np.int32),
        collect=partial(_collect, [window.offsets for window in windows], contexts, true, asked),
        kept_examples=None if len(kept) == len(pairs) else tuple(kept),
        note=f"left out: {reasons}" if left else "",
        objective=Objective(
            readouts.span_logits,
            partial(grade_span, asked, _spans_of(windows, owners, contexts, true)),
            "cross-entropies of an answer's first and last token, the mean over windows",
        ),
    )


def _reasons(left: Mapping[str, Sequence[int]], ids: Sequence[int | str]) -> str:
    """How many questions are left out and why, each time with the first of them."""
    return "; ".join(f"{count_of(len(those), 'question')} {why} (first {ids[those[0]]})" for why, those in left.items())


def _windows(pair: Encoding, most: int, stride: int) -> list[_Window] | str:
    """A question with each part of its context, or why there is none.

    Args:
        pair: both, whole, with `word_ids`. The context is all of its second text, blanks at its ends included.
        most: tokens of a window.
        stride: tokens of the context that successive windows share.
    """
    words = zip(pair.word_ids, pair.segments, strict=True)
    context = [place for place, (word, segment) in enumerate(words) if segment == 1 and word is not None]
    if not context:
        return "whose context has no token"
    first, last = context[0], context[-1] + 1
    room = most - first - (len(pair) - last)
    if room <= stride and room < last - first:
        return (
            f"without room for a window: of {most} tokens too few are left for the context, of which successive "
            f"windows share {stride}; give a larger --max-length or a smaller --stride"
        )
    windows, start = [], first
    while True:
        end = min(start + room, last)
        kept = [*range(first), *range(start, end), *range(last, len(pair))]
        offsets = pair.offsets[start:end]
        windows.append(_Window(_part(pair, kept), first, offsets))
        if end == last:
            return windows
        start = end - stride


def _part(pair: Encoding, kept: Sequence[int]) -> Encoding:
    """Some tokens of a pair."""
    return replace(
        pair,
        input_ids=tuple(pair.input_ids[place] for place in kept),
        token_type_ids=tuple(pair.token_type_ids[place] for place in kept),
        tokens=tuple(pair.tokens[place] for place in kept),
        offsets=tuple(pair.offsets[place] for place in kept),
        word_ids=(),
    )


def _collect(
    offsets: Sequence[tuple[tuple[int, int], ...]],
    contexts: Sequence[str],
    true: Sequence[Answers],
    asked: Asked,
    given: Float[np.ndarray, "runs windows 4"],
) -> Collected:
    """Of each question the score of the best span over all windows, its exact match and its F1; and the span."""
    starts = np.searchsorted(asked.examples, np.arange(len(true)))
    outputs = np.zeros((len(given), len(true), 3), given.dtype)
    spans = np.zeros((len(given), len(true), 2), np.int32)
    for question, (start, end) in enumerate(zip(starts, [*starts[1:], len(asked.examples)], strict=True)):
        own = given[:, start:end]
        windows = own[..., 2].argmax(axis=1)
        best = np.take_along_axis(own, windows[:, None, None], axis=1)[:, 0]
        nothing = own[..., 3].min(axis=1)  # where any window says that it has the answer, there is one
        judge = cache(partial(_judge, contexts[question], true[question]))
        for run, (window, (first, last, score, _)) in enumerate(zip(windows.tolist(), best, strict=True)):
            lacks = true[question].can_lack and nothing[run] > score
            own_offsets = offsets[start + window]
            span = NONE if lacks else (own_offsets[int(first) - 1][0], own_offsets[int(last) - 1][1])
            spans[run, question] = span
            outputs[run, question] = (score - nothing[run] if true[question].can_lack else score, *judge(span))
    return Collected(outputs, {"spans": spans})


def grade_span(
    asked: Asked, spans: Int[np.ndarray, "windows 2"], example: int, given: Float[np.ndarray, "texts wanted 2"]
) -> Graded:
    """The mean over a question's windows of the cross-entropies of the first and the last token of its answer.

    Args:
        spans: of each window, among the tokens that are asked; (0, 0), which is [CLS], where it has no answer.
    """
    own = asked.own(example)
    gradient, losses = np.zeros(given.shape), []
    for window, (real, span) in enumerate(zip(asked.real[own], spans[own], strict=True)):
        for end in range(2):
            loss, gradient[window, real, end] = cross_entropy(given[window, real, end], int(span[end]))
            losses.append(loss)
    return float(np.mean(losses)) * 2, gradient / len(given)


def _spans_of(
    windows: Sequence[_Window], owners: Sequence[int], contexts: Sequence[str], true: Sequence[Answers]
) -> Int[np.ndarray, "windows 2"]:
    """Where in each window's asked tokens the first answer stands first; (0, 0), which is [CLS], where it does not."""
    spans = np.zeros((len(windows), 2), np.int64)
    for number, (window, owner) in enumerate(zip(windows, owners, strict=True)):
        text = next(iter(true[owner].texts), "")
        begin = contexts[owner].find(text) if text else -1
        if begin >= 0:
            inside = [
                place
                for place, (start, end) in enumerate(window.offsets, start=1)
                if start < begin + len(text) and end > begin
            ]
            starts, ends = window.offsets[0][0] <= begin, window.offsets[-1][1] >= begin + len(text)
            if inside and starts and ends:
                spans[number] = inside[0], inside[-1]
    return spans


def _judge(context: str, true: Answers, span: tuple[int, int]) -> tuple[float, float]:
    """Exact match and F1 of a span, the best over the true answers, as SQuAD's official programs compute them."""
    found = context[span[0] : span[1]] if span != NONE else ""
    texts = [text for text in true.texts if normalise(text)] if true.can_lack else list(true.texts)
    score = partial(_f1, empty=true.can_lack)
    return (
        max(float(normalise(found) == normalise(text)) for text in texts or [""]),
        max(score(found, text) for text in texts or [""]),
    )


def normalise(text: str) -> str:
    """An answer without capitals, punctuation, articles and superfluous space.

    >>> normalise("The  Panthers' defense.")
    'panthers defense'
    """
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def _f1(found: str, true: str, *, empty: bool) -> float:
    """F1 of the words that both answers have.

    Args:
        empty: whether two answers without words agree, as in SQuAD 2.0.
    """
    words, true_words = normalise(found).split(), normalise(true).split()
    if empty and not (words and true_words):
        return float(words == true_words)
    common = sum((Counter(words) & Counter(true_words)).values())
    if not common:
        return 0.0
    precision, recall = common / len(words), common / len(true_words)
    return 2 * precision * recall / (precision + recall)
