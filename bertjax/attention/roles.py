"""Roles of heads: the shares of attention by type of token, and the entropy of attention.

A role is a set of pairs of query and key. Its number is the share of attention that queries give to the keys of these
pairs, over queries that have any. Shares are those of the weights, as in Clark et al. 2019 (section 3) and Voita et al.
2019 (section 5), and those of the norms of weighted values ||a_qk f(x_k)|| (Kobayashi et al. 2020). A head's confidence
is the mean over queries of the largest weight (Voita et al. 2019); its entropy is -sum a ln a in nats (Clark et al.
2019), at most ln n for n tokens.

Each number is compared with that of uniform attention on the same tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bertjax.attention.norms import norm_shares
from bertjax.attention.tokens import Tokens
from bertjax.models import ModelOutput
from bertjax.statistics import Metric, ratios

Pairs = Bool[np.ndarray, "query key"]


@dataclass(frozen=True)
class Role:
    """Pairs of query and key.

    Args:
        name: the name in files and on the command line.
        label: the label, after "attention to".
        definition: the queries and keys in words.
        pairs: computes the pairs of a text.
        largest: whether to compute how often a query's largest weight is in the role.
    """

    name: str
    label: str
    definition: str
    pairs: Callable[[Tokens], Pairs]
    largest: bool = False


def _to(keys: Callable[[Tokens], Bool[np.ndarray, " token"]], tokens: Tokens) -> Pairs:
    """From all tokens that are not special to some keys."""
    return np.outer(tokens.plain, keys(tokens))


def _at_distance(step: int, tokens: Tokens) -> Pairs:
    """From tokens that are not special to the token at a distance."""
    return np.asarray(np.eye(len(tokens), k=step, dtype=np.bool_) & tokens.plain[:, None])


def _separators(tokens: Tokens) -> Bool[np.ndarray, " token"]:
    """Special tokens except the first."""
    return tokens.special & (np.arange(len(tokens)) > 0)


def _classifier(tokens: Tokens) -> Bool[np.ndarray, " token"]:
    return np.arange(len(tokens)) == 0


def _rest(tokens: Tokens) -> Bool[np.ndarray, " token"]:
    return ~tokens.special & ~tokens.punctuation


def _same_word(elsewhere: bool, tokens: Tokens) -> Pairs:
    """From a word's pieces to those of its other occurrences, or only to those in the other text."""
    words, places = tokens.words, tokens.places
    pairs = (words[:, None] == words[None]) & (words >= 0)[:, None] & (places[:, None] != places[None])
    return np.asarray(pairs & (tokens.texts[:, None] != tokens.texts[None]) if elsewhere else pairs)


def _other_text(tokens: Tokens) -> Pairs:
    """From each text's words to those of the other."""
    return np.outer(tokens.plain, tokens.plain) & (tokens.texts[:, None] != tokens.texts[None])


# All roles, in the order of the table.
ROLES: tuple[Role, ...] = (
    Role("previous", "the previous token", "from words to the token before", partial(_at_distance, -1), largest=True),
    Role("next", "the next token", "from words to the token after", partial(_at_distance, 1), largest=True),
    Role("self", "itself", "from words to themselves", partial(_at_distance, 0), largest=True),
    Role("cls", "[CLS]", "from words to the first token", partial(_to, _classifier)),
    Role("sep", "[SEP]", "from words to all special tokens but the first", partial(_to, _separators)),
    Role(
        "sep_from_sep",
        "[SEP] from [SEP]",
        "from all special tokens but the first to these",
        lambda tokens: np.outer(_separators(tokens), _separators(tokens)),
    ),
    Role("punctuation", "punctuation", "from words to punctuation", partial(_to, lambda tokens: tokens.punctuation)),
    Role("rest", "words", "from words to tokens that are neither special nor punctuation", partial(_to, _rest)),
    Role(
        "same_word",
        "the same word elsewhere",
        "from words, not punctuation, that occur again to there",
        partial(_same_word, False),
    ),
    Role(
        "same_word_across",
        "the same word in the other text",
        "from words, not punctuation, that occur in the other text, too, to there",
        partial(_same_word, True),
    ),
    Role("other_text", "the other text", "from the words of each text of a pair to those of the other", _other_text),
)
LARGEST = tuple(role.name for role in ROLES if role.largest)
_SPREAD = ("confidence", "entropy", "cls_entropy")
# Sums over a text's queries for each head, and the numbers of queries by which they are divided.
_SUMS = (
    *(role.name for role in ROLES),
    *(f"norm_{role.name}" for role in ROLES),
    *(f"largest_{name}" for name in LARGEST),
    *_SPREAD,
)
_COUNTS = (*(f"queries of {role.name}" for role in ROLES), "words", "texts")
# The names of the numbers of each head and text.
NUMBERS = (*_SUMS, *_COUNTS)


@dataclass(frozen=True)
class RoleNumbers:
    """The roles of a text's tokens.

    Args:
        pairs: the pairs of each role.
        words: which tokens are not special.
    """

    pairs: Bool[np.ndarray, "roles query key"]
    words: Bool[np.ndarray, " query"]

    @classmethod
    def of(cls, tokens: Tokens) -> "RoleNumbers":
        """The roles of a text's tokens."""
        return cls(np.stack([role.pairs(tokens) for role in ROLES]), tokens.plain)

    @property
    def counts(self) -> Float[np.ndarray, " counts"]:
        """The number of queries of each role, the number of words, and 1 for the text."""
        return np.array([*self.pairs.any(axis=2).sum(axis=1), self.words.sum(), 1.0])


def uniform_numbers(known: RoleNumbers) -> Float[np.ndarray, " numbers"]:
    """`NUMBERS` of uniform attention with values of equal norm.

    >>> from bertjax.attention.tokens import Tokens
    >>> special, no = np.array([True, False, False, True]), np.zeros(4, bool)
    >>> tokens = Tokens(special, no, np.array([-1, 0, 1, -1]), np.array([-1, 0, 1, -1]), np.zeros(4, int))
    >>> float(uniform_numbers(RoleNumbers.of(tokens))[NUMBERS.index("cls")])  # of two words, a quarter each
    0.5
    """
    count = len(known.words)
    shares = known.pairs.sum(axis=(1, 2)) / count
    largest = [shares[[role.name for role in ROLES].index(name)] for name in LARGEST]
    words = float(known.words.sum())
    spread = [words / count, words * np.log(count), np.log(count)]
    return np.array([*shares, *shares, *largest, *spread, *known.counts])


def role_sums(
    output: ModelOutput,
    products: Float[Array, "layers heads head_dim head_dim"],
    pairs: Float[Array, "batch roles query key"],
    words: Float[Array, "batch query"],
) -> Float[Array, "batch layers heads sums"]:
    """The sums over queries, the part of `NUMBERS` that differs between heads.

    Args:
        products: the result of `norms.output_products`.
        pairs: the pairs of each role; 0 for padding.
        words: 1 for queries that are not special; 0 for padding.
    """
    weights = output.attentions
    norms = norm_shares(weights, output.inside.values, products)
    is_largest = jax.nn.one_hot(jnp.argmax(weights, axis=-1), weights.shape[-1], dtype=weights.dtype)
    with_largest = np.flatnonzero([role.largest for role in ROLES])
    entropies = -jnp.where(weights > 0, weights * jnp.log(jnp.where(weights > 0, weights, 1.0)), 0.0).sum(axis=-1)
    total = partial(jnp.einsum, precision="highest")
    parts = [
        total("lbhqk,brqk->blhr", weights, pairs),
        total("lbhqk,brqk->blhr", norms, pairs),
        total("lbhqk,brqk->blhr", is_largest, pairs[:, with_largest]),
        total("lbhq,bq->blh", weights.max(axis=-1), words)[..., None],
        total("lbhq,bq->blh", entropies, words)[..., None],
        jnp.moveaxis(entropies[..., 0], 0, 1)[..., None],
    ]
    return jnp.concatenate(parts, axis=-1)


def role_metrics(counted: Float[np.ndarray, " counts"]) -> tuple[Metric, ...]:
    """The metrics of the roles that occur in the texts.

    Args:
        counted: the sum over texts of `RoleNumbers.counts`.
    """
    there = {name: number > 0 for name, number in zip(_COUNTS, counted.tolist(), strict=True)}
    entries = [(role.name, f"Attention to {role.label}", f"queries of {role.name}") for role in ROLES]
    entries += [(f"norm_{role.name}", f"Norms at {role.label}", f"queries of {role.name}") for role in ROLES]
    labels = {role.name: role.label for role in ROLES}
    entries += [(f"largest_{name}", f"Largest weight at {labels[name]}", f"queries of {name}") for name in LARGEST]
    metrics = [_metric(*entry) for entry in entries if there[entry[2]]]
    # Uniform attention has the least confidence and the highest entropy: differences from it need no test.
    metrics.append(_metric("confidence", "Confidence (largest weight)", "words", tested=False))
    nats = {"unit": "nats", "highest": np.inf, "tested": False}
    metrics.append(_metric("entropy", "Entropy of attention", "words", **nats))
    metrics.append(_metric("cls_entropy", "Entropy of attention from [CLS]", "texts", **nats))
    return tuple(metrics)


def _metric(name: str, label: str, count: str, **more: object) -> Metric:
    sums = ratios.ratio_of(NUMBERS, name, count)
    return Metric.of_sums(name, label, sums, compared_with="uniform attention", **more)


# The kinds of heads and their criteria.
KINDS: Mapping[str, str] = {
    "positional": "for 90 % of words the largest weight is at the previous token, or at the next (Voita et al. 2019)",
    "previous": "more than half of the attention goes to the previous token (Clark et al. 2019)",
    "next": "more than half of the attention goes to the next token (Clark et al. 2019)",
    "sep": "more than half of the attention goes to [SEP] (Clark et al. 2019)",
    "broad": "the entropy is at least 0.9 of that of uniform attention",
}
POSITIONAL, HALF, BROAD = 0.9, 0.5, 0.9


def kinds_of(scores: Mapping[str, float], uniform_entropy: float) -> list[str]:
    """The `KINDS` of a head.

    Args:
        scores: the head's scores by metric.
        uniform_entropy: the entropy of uniform attention on the same texts.

    >>> kinds_of({"previous": 0.7, "largest_previous": 0.95, "next": 0.1, "sep": 0.1, "entropy": 1.0}, 3.0)
    ['positional', 'previous']
    """
    found = []
    if max(scores.get("largest_previous", 0.0), scores.get("largest_next", 0.0)) >= POSITIONAL:
        found.append("positional")
    found += [name for name in ("previous", "next", "sep") if scores.get(name, 0.0) > HALF]
    if scores.get("entropy", 0.0) >= BROAD * uniform_entropy:
        found.append("broad")
    return found
