"""Which tokens of an input are nouns, verbs, pronouns, subjects, objects, negation, punctuation, [CLS] and [SEP].

Negation is a word of `NEGATION`; of a contraction such as "don't" or "cannot", all of it. Punctuation is a word of
punctuation marks alone. All tokens of the texts, which are those but [CLS] and [SEP], are a feature of their own, with
which others can be compared.
"""

import unicodedata
from collections.abc import Iterable, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bertjax import Tokenizer
from bertjax.data import Encoding
from experiments.words.annotated import (
    OBJECTS,
    PARTS_OF_SPEECH,
    ROLES,
    SUBJECTS,
    Annotated,
    AnnotatedSample,
    word_pieces,
)

NEGATION = frozenset(
    ("not", "no", "never", "none", "nobody", "nothing", "nowhere", "neither", "nor", "cannot", "n't", "nt")
)
# The authors' list, each looked for as a part of the text.
PUBLISHED_NEGATION = (
    *("neither", "nor", "not", "never", "none", "nothing", "nowhere", "don't", "won't", "didn't", "hadn't", "haven't"),
    *("can't", "isn't", "wasn't", "shouldn't", "couldn't"),
)
PUBLISHED_FEATURES = (*PARTS_OF_SPEECH, *ROLES, "negation")  # of words
WORD_FEATURES = (*PUBLISHED_FEATURES, "punctuation")
TEXT = "text"
SPECIAL = ("[CLS]", "[SEP]", "[SEP] first", "[SEP] second")
FEATURES = (*WORD_FEATURES, TEXT, *SPECIAL)
Masks = Bool[np.ndarray, "examples features token"]


def feature_masks(sample: AnnotatedSample) -> Masks:
    """The tokens of each feature in each example, by where the words stand.

    `[SEP]` are all of them; `[SEP] first` and `second` are set for pairs only. As wide as the longest example; no
    token of a feature where an example lacks it.
    """
    found = _no_masks(sample.texts)
    for example, (encoding, texts) in enumerate(zip(sample.texts, sample.annotations, strict=True)):
        for words, pieces in zip(texts, word_pieces(encoding, texts), strict=True):
            for number, members in enumerate(_word_features(words)):
                found[example, number, [token for word in members for token in pieces[word]]] = True
    return found


def published_masks(sample: AnnotatedSample, tokenizer: Tokenizer) -> Masks:
    """The tokens of each feature as the authors' code finds them: wherever a piece of one of its words stands."""
    found = _no_masks(sample.texts)
    for example, (encoding, texts) in enumerate(zip(sample.texts, sample.annotations, strict=True)):
        forms: list[set[str]] = [set() for _ in PUBLISHED_FEATURES]
        for text in texts:
            members = _word_features(text)[: len(forms) - 1]
            for own, words in zip(forms, members, strict=False):
                own |= {text.words[word].form for word in words}
            forms[-1] |= published_negation(text.text)
        for number, own in enumerate(forms):
            pieces = pieces_of_forms(tokenizer, own)
            found[example, number, : len(encoding)] = [token in pieces for token in encoding.tokens]
    return found


def counted_as_published(sample: AnnotatedSample) -> Bool[np.ndarray, "examples features"]:
    """Which examples the authors' code averages: all, and for negation those with one of its words in a text.

    It has one feature [SEP], none of the first or second, and none of punctuation or of all tokens of the texts.
    """
    absent = {"punctuation", TEXT, "[SEP] first", "[SEP] second", *sample.unknown}
    counted = np.tile([feature not in absent for feature in FEATURES], (len(sample), 1))
    for example, texts in enumerate(sample.annotations):
        counted[example, FEATURES.index("negation")] = any(published_negation(text.text) for text in texts)
    return counted


def published_negation(text: str) -> set[str]:
    """Which of the authors' negations stand in a text, be it as part of another word."""
    return {word for word in PUBLISHED_NEGATION if word in text}


def pieces_of_forms(tokenizer: Tokenizer, forms: Iterable[str]) -> set[str]:
    """The word pieces of words that stand alone."""
    return {piece for form in forms for piece in tokenizer.encode([form])[0].tokens[1:-1]}


def _no_masks(texts: Sequence[Encoding]) -> Masks:
    """Masks with [CLS], [SEP] and what is between them only."""
    found = np.zeros((len(texts), len(FEATURES), max(len(text) for text in texts)), bool)
    for example, text in enumerate(texts):
        last = len(text) - 1
        first = text.token_type_ids.index(1) - 1 if 1 in text.token_type_ids else last
        found[example, FEATURES.index("[CLS]"), 0] = True
        found[example, FEATURES.index("[SEP]"), [first, last]] = True
        found[example, FEATURES.index(TEXT), 1:last] = True
        found[example, FEATURES.index(TEXT), first] = False
        if first < last:
            found[example, FEATURES.index("[SEP] first"), first] = True
            found[example, FEATURES.index("[SEP] second"), last] = True
    return found


def _word_features(text: Annotated) -> list[list[int]]:
    """The words of each feature in the order of `WORD_FEATURES`."""
    kinds = [
        [number for number, word in enumerate(text.words) if word.kind == kind] for kind in ("noun", "verb", "pronoun")
    ]
    roles = [
        [number for number, word in enumerate(text.words) if word.relation in role] for role in (SUBJECTS, OBJECTS)
    ]
    marks = [number for number, word in enumerate(text.words) if is_punctuation(word.form)]
    return [*kinds, *roles, find_negation(text), marks]


def is_punctuation(form: str) -> bool:
    """Whether a word is made of punctuation marks alone.

    >>> [form for form in ("...", "n't", "?!", "$", "“", "3.5", "") if is_punctuation(form)]
    ['...', '?!', '“']
    """
    return bool(form) and all(unicodedata.category(letter).startswith("P") for letter in form)


def find_negation(text: Annotated) -> list[int]:
    """The words of a text that negate; of "don't" and "cannot" both parts, since they are one word."""
    found = set()
    for number, word in enumerate(text.words):
        form = word.form.lower().replace("’", "'")
        if form not in NEGATION and not form.endswith("n't"):
            continue
        found.add(number)
        before = text.words[number - 1] if number else None
        if before and before.form.isalpha() and (before.span[1] >= word.span[0] or form == "n't"):
            found.add(number - 1)
    return sorted(found)


def columns_of(
    maps: Float[Array, "layers batch heads query key"], keep: Array, masks: Bool[Array, "batch features token"]
) -> Float[Array, "batch 2 features layers heads"]:
    """Of the keys' means over the real queries: the largest of a feature's tokens, then the mean; 0 for none."""
    real = keep.astype(maps.dtype)
    means = jnp.einsum("lbhqk,bq->blhk", maps, real) / real.sum(-1)[:, None, None, None]
    return jnp.stack([largest_of(means, masks), mean_of(means, masks)], axis=1)


def mean_of(
    values: Float[Array, "batch layers heads key"], masks: Bool[Array, "batch features token"]
) -> Float[Array, "batch features layers heads"]:
    """The mean of some weights over each feature's tokens; 0 for none."""
    own = fit_width(masks, values.shape[-1]).astype(values.dtype)
    return jnp.einsum("bfk,blhk->bflh", own, values) / jnp.maximum(own.sum(-1), 1)[..., None, None]


def largest_of(
    values: Float[Array, "batch layers heads key"], masks: Bool[Array, "batch features token"]
) -> Float[Array, "batch features layers heads"]:
    """The largest of some weights among each feature's tokens; 0 for none."""
    wide = fit_width(masks, values.shape[-1])
    return jnp.where(wide[:, :, None, None], values[:, None], 0.0).max(-1)


def fit_width(masks: Bool[Array, "*sets token"], width: int) -> Bool[Array, "*sets fitted"]:
    """Masks cut or filled up to the width of a batch; what is cut is padding."""
    missing = max(0, width - masks.shape[-1])
    return jnp.pad(masks, [(0, 0)] * (masks.ndim - 1) + [(0, missing)])[..., :width]
