"""Tags of words: each word's tag is that of its first piece, as in the reference programs of transformers.

A word without pieces, or beyond the maximum length, is tagged `O`, outside of all entities, if the model has that tag.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from jaxtyping import Float, Int

from bertjax.arguments import brief
from bertjax.data import Encoding, Examples, Tagged, Tokenizer
from bertjax.errors import ConfigError, DataError, some_of
from bertjax.formatting import count_of
from bertjax.interventions import readouts
from bertjax.tasks.encoded import Asked, Collected, Encoded
from bertjax.tasks.entities import Counter, entities
from bertjax.tasks.losses import Objective
from bertjax.tasks.masked_words import grade_words
from bertjax.tasks.options import Options

OUTSIDE = "O"


def encode(tokenizer: Tokenizer, examples: Examples, options: Options) -> Encoded:
    """Sentences, each asked for the tag of its words at their first pieces.

    Raises:
        ConfigError: the model lacks a tag of the data.
        DataError: no word has a piece.
    """
    names, sentences = options.label_names, _sentences(examples)
    numbers = _numbers(names, sentences, examples)
    words_of = [sentence.words for sentence in sentences]
    texts = tokenizer.encode_words(words_of, options.max_length)
    heads = [_first_pieces(text) for text in texts]
    kept = [number for number, words in enumerate(heads) if words]
    if not kept:
        raise DataError("no word has a piece of the tokenizer's: nothing can be measured")
    places = [list(heads[number].values()) for number in kept]
    true = [[numbers[sentences[number].tags[word]] for word in heads[number]] for number in kept]
    asked = Asked.of_lists(places, true, range(len(kept)))
    words = np.array([word for number in kept for word in heads[number]], np.int32)
    tagged = [sentences[number] for number in kept]
    notes = _without_piece(sentences, heads, examples.ids)
    if len(kept) < len(texts):
        notes.append(f"{count_of(len(texts) - len(kept), 'sentence')} without any left out")
    return Encoded(
        "tags",
        tuple(texts[number] for number in kept),
        tokenizer.pad_id,
        len(kept),
        asked=asked,
        collect=partial(_collect, tagged, words, names, asked),
        labels=np.array([len(entities(sentence.tags)) for sentence in tagged], np.int32),
        fixed={"units": asked.units, "places": asked.places, "words": words, "true": asked.words},
        kept_examples=None if len(kept) == len(texts) else tuple(kept),
        note=", ".join(notes),
        tags=tuple(names),
        objective=Objective(readouts.tags, partial(grade_words, asked), "mean surprisal of a sentence's true tags"),
    )


def _sentences(examples: Examples) -> list[Tagged]:
    return [content for content in examples.content or () if isinstance(content, Tagged)]


def _numbers(names: Sequence[str], sentences: Sequence[Tagged], examples: Examples) -> dict[str, int]:
    """The model's number of each tag. Raises `ConfigError` where it lacks one of the data."""
    numbers = {name: number for number, name in enumerate(names)}
    found = {tag for sentence in sentences for tag in sentence.tags}
    if missing := sorted(found - numbers.keys()):
        raise ConfigError(
            f"the model's tags {some_of(names)} lack {some_of(missing)} of {examples.task.name}'s data: name them "
            "alike in the model's config.json (id2label)"
        )
    return numbers


def _without_piece(
    sentences: Sequence[Tagged], heads: Sequence[Mapping[int, int]], ids: Sequence[int | str]
) -> list[str]:
    """How many words have no piece, and the first of them; nothing where all have one."""
    missing = [
        (word, name)
        for sentence, found, name in zip(sentences, heads, ids, strict=True)
        for place, word in enumerate(sentence.words)
        if place not in found
    ]
    if not missing:
        return []
    (word, name), count = missing[0], count_of(len(missing), "word")
    return [f"{count} without piece, tagged {OUTSIDE} (first {brief(word)} of sentence {name})"]


def _first_pieces(text: Encoding) -> dict[int, int]:
    """The token of each word's first piece, of words that have one."""
    found: dict[int, int] = {}
    for place, word in enumerate(text.word_ids):
        if word is not None:
            found.setdefault(word, place)
    return found


def _collect(
    sentences: Sequence[Tagged],
    words: Int[np.ndarray, " words"],
    names: Sequence[str],
    asked: Asked,
    given: Float[np.ndarray, "runs texts wanted 2"],
) -> Collected:
    """Of each sentence the mean log-probability of its true tags, and counts of words and entities."""
    by_word = asked.of_words(given)
    counts = np.bincount(asked.units, minlength=len(sentences))
    ends = np.cumsum(counts)
    mean = np.add.reduceat(by_word[..., 0].astype(np.float64), ends - counts, axis=1) / counts
    predicted = by_word[..., 1].astype(np.int16)
    outputs = np.zeros((len(given), len(sentences), 9), given.dtype)
    outputs[..., 0] = mean
    for number, (sentence, end, count) in enumerate(zip(sentences, ends, counts, strict=True)):
        counter = Counter(sentence, words[end - count : end], names, OUTSIDE)
        outputs[:, number, 1:] = [counter.count(run) for run in predicted[:, end - count : end]]
    return Collected(outputs, {"tags": predicted})
