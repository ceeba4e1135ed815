"""Ranking: which of its candidates does a model put first for a query?

A sentence embedder reads queries and candidates apart, each different text once, and orders by cosine similarity; a
cross-encoder reads each query with each of its candidates. The scores of an order are trec_eval's (the package
pytrec_eval): of equally similar candidates the one whose name is last comes first, be it relevant or not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float32, Int
from scipy.special import log_softmax

from bertjax.data import Candidates, Examples, Pool, Tokenizer
from bertjax.errors import MissingDependencyError
from bertjax.evidence import ratios
from bertjax.interventions import readouts
from bertjax.tasks.encoded import Collected, Encoded
from bertjax.tasks.losses import Graded, Objective, cosine_and_gradients
from bertjax.tasks.options import Options

MEASURES = {"ndcg_cut.10", "recip_rank", "recall.1,10,100"}
CUT = 100  # no measure depends on the order behind these
RANKING_SCALE = 20.0  # of similarities in a softmax over candidates, as in sentence-transformers
QUERIES_AT_ONCE = 256  # whose similarities to all texts of a pool are in memory together


@dataclass(frozen=True)
class _Query:
    """A query as it is scored.

    Args:
        number: of its text, where it is read apart from the candidates.
        texts: the number of each candidate's text, or of both together.
        names: of the candidates.
        places: of each in the order of names, the last first, which decides between equal scores.
        relevant: which candidates are.
        excluded: the one that is no candidate, the query's own document; -1 for none.
    """

    number: int
    texts: Int[np.ndarray, " candidates"]
    names: tuple[str, ...]
    places: Int[np.ndarray, " candidates"]
    relevant: Bool[np.ndarray, " candidates"]
    excluded: int = -1

    @property
    def kept(self) -> Bool[np.ndarray, " candidates"]:
        """Which candidates are not excluded."""
        return np.arange(len(self.names)) != self.excluded

    @property
    def members(self) -> Int[np.ndarray, " texts"]:
        """Its texts: its own, if it has one, and those of the candidates, the relevant ones first."""
        order = np.argsort(~self.relevant, kind="stable")
        order = order[order != self.excluded]
        own = np.array([self.number] * (self.number >= 0), np.int64)
        return np.concatenate([own, self.texts[order]])

    def first(self, scores: Float32[np.ndarray, " candidates"], among: Bool[np.ndarray, " candidates"]) -> int:
        """The first of some candidates."""
        best = np.flatnonzero(among & (scores == scores[among].max()))
        return int(best[self.places[best].argmin()])

    def rank(self, scores: Float32[np.ndarray, " candidates"]) -> int:
        """The place of the first relevant candidate, from 1; 0 where none is."""
        if not self.relevant.any():
            return 0
        first = self.first(scores, self.relevant)
        ahead = (scores > scores[first]) | ((scores == scores[first]) & (self.places < self.places[first]))
        return 1 + int(ahead.sum())

    def margin(self, scores: Float32[np.ndarray, " candidates"]) -> float:
        """How far the best relevant candidate is before the best other one; 0 where either is missing."""
        others = ~self.relevant & self.kept
        if not others.any() or not self.relevant.any():
            return 0.0
        return float(scores[self.relevant].max()) - float(scores[others].max())

    def for_trec(self, scores: Float32[np.ndarray, " candidates"]) -> dict[str, float]:
        """The scores of the first candidates by name, and of all that equal the last of these."""
        least = np.partition(scores, -CUT)[-CUT] if len(scores) > CUT else scores.min()
        first = np.flatnonzero((scores >= least) & self.kept)
        return {self.names[number]: float(scores[number]) for number in first.tolist()}


class _Texts:
    """The different texts, or pairs of texts, of all queries, numbered as they come."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[str, str], int] = {}

    def number(self, first: str, second: str = "") -> int:
        """The number of a text or pair."""
        return self.numbers.setdefault((first, second), len(self.numbers))


def encode(tokenizer: Tokenizer, examples: Examples, options: Options) -> Encoded:
    """Queries and candidates as a sentence embedder reads them, or each query with each of its candidates.

    Raises:
        MissingDependencyError: `pytrec_eval` is not installed.
    """
    sought = [content for content in examples.content or () if isinstance(content, Candidates)]
    evaluator = _evaluator(sought)
    texts = _Texts()
    queries = list(_queries(texts, examples.first, sought, options))
    first, second = zip(*texts.numbers, strict=True)
    return Encoded(
        "ranking" if options.embeds else "scored-ranking",
        tuple(tokenizer.encode(list(first), None if options.embeds else list(second), options.max_length)),
        tokenizer.pad_id,
        len(queries),
        collect=partial(_collect, queries, evaluator),
        labels=np.array([query.relevant.sum() for query in queries], np.int32),
        members=[query.members for query in queries],
        shown=2 if options.embeds else 1,
        objective=Objective(
            readouts.sentence_embedding if options.embeds else readouts.logits,
            partial(grade_ranking, [np.sort(query.relevant[query.kept])[::-1] for query in queries]),
            "cross-entropy of the relevant candidates in a softmax over all",
        ),
    )


def grade_ranking(
    relevant: Sequence[Bool[np.ndarray, " candidates"]], example: int, given: Float[np.ndarray, "texts *embed"]
) -> Graded:
    """The cross-entropy of the relevant candidates in a softmax over all, each an equal share of what is true.

    Args:
        relevant: of each query, in the order of its candidates' texts; a vector of the query itself comes first.
    """
    gradient = np.zeros(given.shape)
    exact, true = given.astype(np.float64), relevant[example]
    if not true.any() or true.all():
        return np.nan, gradient
    of_query = of_texts = None
    if given.shape[0] > len(true):
        cosines, of_query, of_texts = cosine_and_gradients(exact[0], exact[1:])
        scores = RANKING_SCALE * cosines
    else:
        scores = exact.reshape(len(true))
    shares = log_softmax(scores)
    slopes = np.exp(shares) - true / true.sum()
    loss = -float((shares[true]).mean())
    if of_query is None or of_texts is None:
        return loss, slopes.reshape(given.shape)
    gradient[0] = RANKING_SCALE * slopes @ of_query
    gradient[1:] = RANKING_SCALE * slopes[:, None] * of_texts
    return loss, gradient


def _evaluator(sought: Sequence[Candidates]) -> Any:
    """trec_eval with what is relevant for each query, by its number."""
    try:
        from pytrec_eval import RelevanceEvaluator
    except ImportError as error:
        raise MissingDependencyError(
            f"ranking is scored by trec_eval, which takes pytrec-eval-terrier ({error}): pip install 'bertjax[ranking]'"
        ) from error
    return RelevanceEvaluator({str(number): dict(one.relevance) for number, one in enumerate(sought)}, MEASURES)


def _queries(texts: _Texts, first: Sequence[str], sought: Sequence[Candidates], options: Options) -> Iterator[_Query]:
    """The queries, their texts numbered; queries of one pool share what is the same for all."""
    before_query, before_candidate = options.prompts
    numbers: dict[Pool, Int[np.ndarray, " candidates"]] = {}
    places: dict[Pool, Int[np.ndarray, " candidates"]] = {}
    for text, one in zip(first, sought, strict=True):
        own, pool = -1, one.pool
        if pool not in places:
            places[pool] = _places(pool.names)
        if options.embeds:
            own = texts.number(before_query + text)
            if pool not in numbers:
                numbers[pool] = np.array([texts.number(before_candidate + other) for other in pool.texts])
            its = numbers[pool]
        else:
            pairs = zip(pool.names, pool.texts, strict=True)
            its = np.array(
                [0 if name == one.excluded else texts.number(before_query + text, other) for name, other in pairs]
            )
        relevant = np.array([name in one.relevance and name != one.excluded for name in pool.names])
        excluded = -1 if one.excluded is None else pool.names.index(one.excluded)
        yield _Query(own, its, pool.names, places[pool], relevant, excluded)


def _places(names: Sequence[str]) -> Int[np.ndarray, " names"]:
    """The place of each name from the last to the first, by their bytes, as trec_eval compares them."""
    order = sorted(range(len(names)), key=lambda number: names[number].encode(), reverse=True)
    places = np.empty(len(names), np.int64)
    places[order] = np.arange(len(names))
    return places


def _collect(queries: Sequence[_Query], evaluator: Any, given: Float[np.ndarray, "runs texts *embed"]) -> Collected:
    """Of each query its margin and trec_eval's scores; the first candidate, and the rank of the first relevant one."""
    outputs = np.zeros((len(given), len(queries), len(ratios.RANKINGS)))
    firsts = np.zeros((2, len(given), len(queries)), np.int32)
    for run, values in enumerate(given):
        scores = _similarities(queries, values) if values.ndim > 1 else [values[query.texts] for query in queries]
        for query, own in zip(queries, scores, strict=True):
            own[~query.kept] = -np.inf
        found = evaluator.evaluate(
            {str(number): query.for_trec(own) for number, (query, own) in enumerate(zip(queries, scores, strict=True))}
        )
        for number, (query, own) in enumerate(zip(queries, scores, strict=True)):
            outputs[run, number] = (query.margin(own), *_of_trec(found[str(number)]))
            firsts[:, run, number] = query.first(own, query.kept), query.rank(own)
    return Collected(outputs, {"first": firsts[0], "rank": firsts[1]})


def _of_trec(found: dict[str, float]) -> tuple[float, ...]:
    """The scores of a query in the order of `ratios.RANKINGS`; a reciprocal rank beyond 10 counts as 0."""
    reciprocal = found["recip_rank"]
    recalls = (found[f"recall_{depth}"] for depth in (1, 10, 100))
    return (found["ndcg_cut_10"], reciprocal if reciprocal >= 0.1 else 0.0, *recalls)


def _similarities(
    queries: Sequence[_Query], vectors: Float[np.ndarray, "texts embed"]
) -> list[Float32[np.ndarray, " candidates"]]:
    """The cosine similarity of each query to its candidates, summed in float64."""
    exact = vectors.astype(np.float64)
    exact /= np.maximum(np.sqrt(np.einsum("te,te->t", exact, exact)), 1e-12)[:, None]
    of_pools: dict[int, list[int]] = {}
    for number, query in enumerate(queries):
        of_pools.setdefault(id(query.texts), []).append(number)
    found: dict[int, Float32[np.ndarray, " candidates"]] = {}
    for numbers in of_pools.values():
        pool = exact[queries[numbers[0]].texts]
        for start in range(0, len(numbers), QUERIES_AT_ONCE):
            several = numbers[start : start + QUERIES_AT_ONCE]
            scores = exact[[queries[number].number for number in several]] @ pool.T
            found |= dict(zip(several, scores.astype(np.float32), strict=True))
    return [found[number] for number in range(len(queries))]
