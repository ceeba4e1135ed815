"""Which tokens of an input are nouns, verbs, pronouns, subjects, objects, negation, punctuation, [CLS] and [SEP].

Negation is a word of `NEGATION`; a contraction such as "don't" or "cannot" counts as a whole. Punctuation is a word of
punctuation marks alone. All tokens of the texts, that is all but [CLS] and [SEP], form a feature with which others can
be compared.
"""

import unicodedata
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

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
PUBLISHED_FEATURES = (*PARTS_OF_SPEECH, *ROLES, "negation")  # of words
WORD_FEATURES = (*PUBLISHED_FEATURES, "punctuation")
TEXT = "text"
SPECIAL = ("[CLS]", "[SEP]", "[SEP] first", "[SEP] second")
FEATURES = (*WORD_FEATURES, TEXT, *SPECIAL)
Masks = Bool[np.ndarray, "examples features token"]


def feature_masks(sample: AnnotatedSample) -> Masks:
    """The tokens of each feature in each example, by the positions of the words.

    `[SEP]` marks all of them; `[SEP] first` and `second` are set for pairs only. The masks are as wide as the longest
    example; a feature that an example lacks has no tokens.
    """
    masks = no_masks(sample.texts)
    for example, (encoding, texts) in enumerate(zip(sample.texts, sample.annotations, strict=True)):
        for words, pieces in zip(texts, word_pieces(encoding, texts), strict=True):
            for feature, members in enumerate(word_features(words)):
                masks[example, feature, [token for word in members for token in pieces[word]]] = True
    return masks


def no_masks(texts: Sequence[Encoding]) -> Masks:
    """Masks with only [CLS], [SEP] and the text between them."""
    masks = np.zeros((len(texts), len(FEATURES), max(len(text) for text in texts)), bool)
    for example, text in enumerate(texts):
        last = len(text) - 1
        first = text.segments.index(1) - 1 if 1 in text.segments else last
        doubled = text.boundary is not None and text.input_ids[first : first + 2] == text.input_ids[last:] * 2
        separators = [first, last, *[first + 1] * doubled]
        masks[example, FEATURES.index("[CLS]"), 0] = True
        masks[example, FEATURES.index("[SEP]"), separators] = True
        masks[example, FEATURES.index(TEXT), 1:last] = True
        masks[example, FEATURES.index(TEXT), separators] = False
        if first < last:
            masks[example, FEATURES.index("[SEP] first"), first] = True
            masks[example, FEATURES.index("[SEP] second"), last] = True
    return masks


def word_features(text: Annotated) -> list[list[int]]:
    """The words of each feature, in the order of `WORD_FEATURES`."""
    kinds = [
        [index for index, word in enumerate(text.words) if word.kind == kind] for kind in ("noun", "verb", "pronoun")
    ]
    roles = [[index for index, word in enumerate(text.words) if word.relation in role] for role in (SUBJECTS, OBJECTS)]
    marks = [index for index, word in enumerate(text.words) if is_punctuation(word.form)]
    return [*kinds, *roles, find_negation(text), marks]


def is_punctuation(form: str) -> bool:
    """Whether a word consists of punctuation marks alone.

    >>> [form for form in ("...", "n't", "?!", "$", "“", "3.5", "") if is_punctuation(form)]
    ['...', '?!', '“']
    """
    return bool(form) and all(unicodedata.category(letter).startswith("P") for letter in form)


def find_negation(text: Annotated) -> list[int]:
    """The words of a text that negate; both parts of "don't" and "cannot", since each is one word."""
    negations = set()
    for index, word in enumerate(text.words):
        form = word.form.lower().replace("’", "'")
        if form not in NEGATION and not form.endswith("n't"):
            continue
        negations.add(index)
        previous = text.words[index - 1] if index else None
        if previous and previous.form.isalpha() and (previous.span[1] >= word.span[0] or form == "n't"):
            negations.add(index - 1)
    return sorted(negations)


def columns_of(
    maps: Float[Array, "layers batch heads query key"], keep: Array, masks: Bool[Array, "batch features token"]
) -> Float[Array, "batch 2 features layers heads"]:
    """Of the keys' mean weights over real queries: the largest of a feature's tokens, then their mean; 0 for none."""
    real = keep.astype(maps.dtype)
    means = jnp.einsum("lbhqk,bq->blhk", maps, real) / real.sum(-1)[:, None, None, None]
    return jnp.stack([largest_of(means, masks), mean_of(means, masks)], axis=1)


def mean_of(
    values: Float[Array, "batch layers heads key"], masks: Bool[Array, "batch features token"]
) -> Float[Array, "batch features layers heads"]:
    """The mean of the weights over each feature's tokens; 0 for none."""
    members = fit_width(masks, values.shape[-1]).astype(values.dtype)
    return jnp.einsum("bfk,blhk->bflh", members, values) / jnp.maximum(members.sum(-1), 1)[..., None, None]


def largest_of(
    values: Float[Array, "batch layers heads key"], masks: Bool[Array, "batch features token"]
) -> Float[Array, "batch features layers heads"]:
    """The largest of the weights among each feature's tokens; 0 for none."""
    members = fit_width(masks, values.shape[-1])
    return jnp.where(members[:, :, None, None], values[:, None], 0.0).max(-1)


def fit_width(masks: Bool[Array, "*sets token"], width: int) -> Bool[Array, "*sets fitted"]:
    """Masks cut or padded to the width of a batch; only padding is cut off."""
    padding = max(0, width - masks.shape[-1])
    return jnp.pad(masks, [(0, 0)] * (masks.ndim - 1) + [(0, padding)])[..., :width]
