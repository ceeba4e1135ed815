"""Ranking: a model ranks the candidates of each query.

A sentence embedder reads each distinct query and candidate once, and ranks by cosine similarity; a cross-encoder reads
each query with each of its candidates. Rankings are scored by trec_eval (the package pytrec_eval), in which candidates
with equal scores are in descending order of their names.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float32, Int
from scipy.special import log_softmax

from bertjax.data import (
    Candidates,
    Examples,
    Queries,
    Source,
    Table,
    Tokenizer,
    exclude_own_documents,
    is_collection,
    read_collection,
    read_queries,
)
from bertjax.errors import DataError, MissingDependencyError
from bertjax.formatting import count_of
from bertjax.interventions import readouts
from bertjax.models import BertForSentenceEmbedding, BertForSequenceClassification, PretrainedModel
from bertjax.results import NAME, PLAIN, RIGHT, TRUE, WRONG, Line, NumberDisplay, shorten
from bertjax.statistics import ratios
from bertjax.tasks.classification import is_regression
from bertjax.tasks.encoded import SharedEncodings, TaskOutputs
from bertjax.tasks.outputs import Form, Graded, Objective, cosine_and_gradients
from bertjax.tasks.task import EncodeArguments, Task, TaskOptions, check_single_prompt

RANKING = "ranking"
MEASURES = {"ndcg_cut.10", "recip_rank", "recall.1,10,100"}
CUT = 100  # measures depend only on this many first candidates
RANKING_SCALE = 20.0  # of similarities in the softmax over candidates, as in sentence-transformers
QUERIES_AT_ONCE = 256  # whose similarities to all candidates are in memory together
# Usual names of prompts, as in sentence-transformers.
QUERY_PROMPTS, CANDIDATE_PROMPTS = ("query",), ("document", "passage", "corpus")


class RankingsDisplay(NumberDisplay):
    """Queries, with their relevant and first candidates."""

    value, note = "nDCG@10", "The first candidate is green if it is relevant."
    number = 1

    def lines(self, example: int) -> list[Line]:
        """The query, the most relevant candidate and the first candidate."""
        row, arrays = self.saved.examples[example], self.saved.outputs
        relevant = [one for one in row["candidates"] if one["relevance"] > 0]
        best = max(relevant, key=lambda one: one["relevance"], default=None)
        text, others = ("none of the candidates", "") if best is None else (best["text"], f" (1 of {len(relevant)})")
        true: Line = [(f"true{others * (len(relevant) > 1)}", NAME), (shorten(text), TRUE)]
        first = self._first("first", example, arrays["base_first"][example], arrays["base_rank"][example])
        return [[(shorten(row["first"]), PLAIN)], true, first]

    def change(self, run: int, example: int) -> list[Line]:
        """The first candidate of an ablated model."""
        arrays = self.saved.outputs
        return [self._first("ablated", example, arrays["first"][run, example], arrays["rank"][run, example])]

    def _first(self, name: str, example: int, number: Any, rank: Any) -> Line:
        """The first candidate, and the rank of the first relevant candidate if that is another."""
        found = next(one for one in self.saved.examples[example]["candidates"] if one["number"] == number)
        line: Line = [(name, NAME), (shorten(found["text"]), RIGHT if found["relevance"] > 0 else WRONG)]
        return line if rank < 2 else [*line, (f" relevant: rank {rank}", PLAIN)]


LOSS = "cross-entropy of the relevant candidates in a softmax over all"
_COMMON: dict[str, Any] = {"called": "rankings", "numbers": ratios.RANKINGS, "sized": 1, "display": RankingsDisplay}
SIMILAR = Form("ranking", readouts.sentence_embedding, **_COMMON)
SCORED = Form("scored-ranking", readouts.score, **_COMMON)


@dataclass(frozen=True, kw_only=True)
class RankingOptions(TaskOptions):
    """Which texts are candidates.

    Args:
        exclude_self: with task ranking: leave out the candidate that has the query's id, its own document, as the
            published scores of ArguAna and Quora do.
    """

    exclude_self: bool = False


@dataclass(frozen=True)
class Ranking(Task):
    """Queries with candidates, some of which are relevant."""

    models = (BertForSentenceEmbedding, BertForSequenceClassification)
    needs = "sentence vector, nor a single score"
    forms = (SIMILAR, SCORED)
    options = RankingOptions
    files = "a file of queries, candidates and relevance, or a directory of queries, corpus and qrels"
    reads_pairs = takes_prompts = True

    def read_table(self, table: Table, source: Source) -> Examples:
        """Read the queries of a table, except queries without relevant candidates."""
        return self._examples(table.path, read_queries(table, self, source.text_columns), source)

    def read_path(self, path: Path, source: Source) -> Examples:
        """Read the queries of a file or of a collection."""
        if not is_collection(path):
            return super().read_path(path, source)
        if source.text_columns is not None:
            raise DataError(f"{path}: a collection has no text columns: leave them out")
        queries, left_out = read_collection(path)
        return self._examples(path, Queries(queries, "", left_out), source)

    def advice_on_directory(self, path: Path) -> str:
        """To give a file of judgments."""
        return f"give its file, such as {path / 'qrels' / 'test.tsv'}"

    def _examples(self, path: Path | str, found: Queries, source: Source) -> Examples:
        exclude_self = isinstance(source.options, RankingOptions) and source.options.exclude_self
        if exclude_self and not found.has_ids:
            raise DataError(f"{path}: --exclude-self needs ids of queries and candidates, which it lacks: leave it out")
        queries = exclude_own_documents(found.queries) if exclude_self else list(found.queries)
        kept = [one for one in queries if one[2].relevance and len(one[2].pool.names) > (one[2].excluded is not None)]
        if not kept:
            raise DataError(f"{path}: no query has a relevant candidate ({count_of(len(queries), 'query')})")
        ids, texts, content = zip(*kept, strict=True)
        pools = {id(one.pool): len(one.pool.names) for one in content}
        notes = [f"{count_of(len(kept), 'query')}, {count_of(sum(pools.values()), 'candidate')}{found.columns}"]
        if dropped := sum(not one.relevance for _, _, one in queries):
            notes.append(f"{count_of(dropped, 'query')} left out without relevant candidates")
        if empty := len(queries) - len(kept) - dropped:
            notes.append(f"{count_of(empty, 'query')} left out, whose only candidate is excluded")
        notes += found.left_out
        if exclude_self:
            excluded = sum(one.excluded is not None for _, _, one in queries)
            notes.append(f"the candidate with the query's id excluded for {count_of(excluded, 'query')}")
        return Examples(
            task=self,
            ids=ids,
            first=texts,
            second=None,
            labels=np.full(len(kept), np.nan, np.float32),
            source=f"{path} ({'; '.join(notes)})",
            split="validation",
            content=content,
        )

    def fits(self, model: PretrainedModel) -> bool:
        """Whether a model is a sentence embedder, or a classifier with a single score."""
        return isinstance(model, BertForSentenceEmbedding) or is_regression(model)

    def encode(
        self, model: PretrainedModel, tokenizer: Tokenizer, examples: Examples, arguments: EncodeArguments
    ) -> "EncodedRankings":
        """Encode queries and candidates for a sentence embedder, or each query with each of its candidates.

        Raises:
            InputError: there is no such prompt, or two for a model that reads query and candidate as one text.
            MissingDependencyError: `pytrec_eval` is not installed.
        """
        candidates = [content for content in examples.content or () if isinstance(content, Candidates)]
        evaluator, embeds = _evaluator(candidates), isinstance(model, BertForSentenceEmbedding)
        check_single_prompt(model, arguments.prompts)
        prompts = _find_prompts(tokenizer, arguments.prompts, embeds)
        texts = _Texts()
        encode_queries = _queries_for_embedder if embeds else _queries_for_cross_encoder
        queries = list(encode_queries(texts, examples.first, candidates, prompts))
        first, second = zip(*texts.ids, strict=True)
        encode = tokenizer.with_prompt("").encode
        kind, form = (EncodedRankings, SIMILAR) if embeds else (EncodedScoredRankings, SCORED)
        return kind(
            form,
            tuple(encode(list(first), None if embeds else list(second), arguments.max_length)),
            tokenizer.pad_id,
            len(queries),
            np.array([query.relevant.sum() for query in queries], np.int32),
            [query.members for query in queries],
            2 if embeds else 1,
            queries=queries,
            evaluator=evaluator,
        )


RANKING_TASK = Ranking(RANKING, ("query",), metrics=("ndcg_10", "mrr_10", "recall_10"))


def _find_prompts(tokenizer: Tokenizer, prompts: Sequence[str] | None, embeds: bool) -> tuple[str, str]:
    """The prompts of queries and candidates; by default prompts with usual names for a sentence embedder.

    Args:
        embeds: whether the model is a sentence embedder; otherwise candidates have no prompt.
    """
    names: list[str | None] = [prompts[0], prompts[-1]] if prompts else [None, None]
    if embeds and not prompts:
        usual = (QUERY_PROMPTS, CANDIDATE_PROMPTS)
        names = [next((name for name in group if name in tokenizer.prompts), None) for group in usual]
    first, second = ((tokenizer if name is None else tokenizer.with_prompt(name)).prompt for name in names)
    return first, second if embeds else ""


@dataclass(frozen=True)
class _EncodedQuery:
    """A query with its candidates.

    Args:
        text: the index of the query's encoding; -1 if it is read together with the candidates.
        texts: the index of each candidate's encoding.
        names: the names of the candidates.
        order: the rank of each candidate's name in descending order, which decides between equal scores.
        relevant: whether each candidate is relevant.
        excluded: the index of the excluded candidate; -1 for none.
    """

    text: int
    texts: Int[np.ndarray, " candidates"]
    names: tuple[str, ...]
    order: Int[np.ndarray, " candidates"]
    relevant: Bool[np.ndarray, " candidates"]
    excluded: int = -1

    @property
    def kept(self) -> Bool[np.ndarray, " candidates"]:
        """Whether each candidate is not excluded."""
        return np.arange(len(self.names)) != self.excluded

    @property
    def members(self) -> Int[np.ndarray, " texts"]:
        """The indices of its encodings: of the query, if it has one, and of the candidates, relevant ones first."""
        order = np.argsort(~self.relevant, kind="stable")
        order = order[order != self.excluded]
        return np.concatenate([np.array([self.text] * (self.text >= 0), np.int64), self.texts[order]])

    def first(self, scores: Float32[np.ndarray, " candidates"], among: Bool[np.ndarray, " candidates"]) -> int:
        """The index of the first candidate among some."""
        best = np.flatnonzero(among & (scores == scores[among].max()))
        return int(best[self.order[best].argmin()])

    def rank(self, scores: Float32[np.ndarray, " candidates"]) -> int:
        """The rank of the first relevant candidate, from 1; 0 if no candidate is relevant."""
        if not self.relevant.any():
            return 0
        first = self.first(scores, self.relevant)
        ahead = (scores > scores[first]) | ((scores == scores[first]) & (self.order < self.order[first]))
        return 1 + int(ahead.sum())

    def margin(self, scores: Float32[np.ndarray, " candidates"]) -> float:
        """The score of the best relevant candidate minus that of the best other one; 0 if either is missing."""
        others = ~self.relevant & self.kept
        if not others.any() or not self.relevant.any():
            return 0.0
        return float(scores[self.relevant].max()) - float(scores[others].max())

    def for_trec(self, scores: Float32[np.ndarray, " candidates"]) -> dict[str, float]:
        """The scores of the first candidates by name, including ties with the last."""
        least = np.partition(scores, -CUT)[-CUT] if len(scores) > CUT else scores.min()
        first = np.flatnonzero((scores >= least) & self.kept)
        return {self.names[index]: float(scores[index]) for index in first.tolist()}


@dataclass(frozen=True)
class EncodedRankings(SharedEncodings):
    """Queries and candidates that a sentence embedder reads separately.

    Args:
        queries: the queries with their candidates.
        evaluator: an evaluator of trec_eval, with the relevance of each candidate.
    """

    queries: Sequence[_EncodedQuery] = field(kw_only=True)
    evaluator: Any = field(kw_only=True)

    def scores_of(self, values: Float[np.ndarray, "texts embed"]) -> list[Float32[np.ndarray, " candidates"]]:
        """The cosine similarity of each candidate of each query in one run."""
        return _similarities(self.queries, values)

    def collect(self, values: Float[np.ndarray, "runs texts *embed"]) -> TaskOutputs:
        """Each query's margin and trec_eval's scores; the first candidate, and the rank of the first relevant one."""
        outputs = np.zeros((len(values), self.examples, len(ratios.RANKINGS)))
        firsts = np.zeros((2, len(values), self.examples), np.int32)
        for run, of_texts in enumerate(values):
            scored = list(zip(self.queries, self.scores_of(of_texts), strict=True))
            for query, scores in scored:
                scores[~query.kept] = -np.inf
            found = self.evaluator.evaluate(
                {str(index): query.for_trec(scores) for index, (query, scores) in enumerate(scored)}
            )
            for index, (query, scores) in enumerate(scored):
                outputs[run, index] = (query.margin(scores), *_of_trec(found[str(index)]))
                firsts[:, run, index] = query.first(scores, query.kept), query.rank(scores)
        return TaskOutputs(outputs, {"first": firsts[0], "rank": firsts[1]})

    @property
    def objective(self) -> Objective:
        """The cross-entropy of the relevant candidates, in a softmax over scaled similarities."""
        return Objective(readouts.sentence_embedding, self.grade, LOSS)

    def grade(self, example: int, values: Float[np.ndarray, "texts embed"]) -> Graded:
        """An example's loss and its gradient; the first vector is the query's."""
        exact = values.astype(np.float64)
        cosines, of_query, of_texts = cosine_and_gradients(exact[0], exact[1:])
        loss, slopes = grade_scores(RANKING_SCALE * cosines, self._relevant[example])
        gradient = np.zeros(values.shape)
        if slopes is not None:
            gradient[0] = RANKING_SCALE * slopes @ of_query
            gradient[1:] = RANKING_SCALE * slopes[:, None] * of_texts
        return loss, gradient

    @cached_property
    def _relevant(self) -> list[Bool[np.ndarray, " candidates"]]:
        """Whether each candidate of each query is relevant, in the order of its members."""
        return [np.sort(query.relevant[query.kept])[::-1] for query in self.queries]


@dataclass(frozen=True)
class EncodedScoredRankings(EncodedRankings):
    """Queries, each with each of its candidates, for a cross-encoder."""

    def scores_of(self, values: Float[np.ndarray, " texts"]) -> list[Float32[np.ndarray, " candidates"]]:
        """The score of each candidate of each query in one run."""
        return [values[query.texts] for query in self.queries]

    @property
    def objective(self) -> Objective:
        """The cross-entropy of the relevant candidates, in a softmax over scores."""
        return Objective(readouts.logits, self.grade, LOSS)

    def grade(self, example: int, values: Float[np.ndarray, "texts 1"]) -> Graded:
        """An example's loss and its gradient."""
        loss, slopes = grade_scores(values[:, 0].astype(np.float64), self._relevant[example])
        return loss, np.zeros(values.shape) if slopes is None else slopes[:, None]


def grade_scores(
    scores: Float[np.ndarray, " candidates"], relevant: Bool[np.ndarray, " candidates"]
) -> tuple[float, Float[np.ndarray, " candidates"] | None]:
    """The cross-entropy of the relevant candidates, equally weighted, in a softmax over all; and its gradient.

    NaN and no gradient if all candidates are relevant, or none is.
    """
    if not relevant.any() or relevant.all():
        return np.nan, None
    shares = log_softmax(scores)
    return -float(shares[relevant].mean()), np.exp(shares) - relevant / relevant.sum()


class _Texts:
    """The distinct texts, or pairs of texts, of all queries, with consecutive ids."""

    def __init__(self) -> None:
        self.ids: dict[tuple[str, str], int] = {}

    def id_of(self, first: str, second: str = "") -> int:
        """The id of a text or pair, which is added if it is new."""
        return self.ids.setdefault((first, second), len(self.ids))


def _evaluator(candidates: Sequence[Candidates]) -> Any:
    """The evaluator of trec_eval, with the relevance of candidates for each query by its index."""
    try:
        from pytrec_eval import RelevanceEvaluator
    except ImportError as error:
        raise MissingDependencyError(
            f"ranking is scored by trec_eval, which needs pytrec-eval-terrier ({error}): pip install 'bertjax[ranking]'"
        ) from error
    return RelevanceEvaluator({str(index): dict(one.relevance) for index, one in enumerate(candidates)}, MEASURES)


def _queries_for_embedder(
    texts: _Texts, first: Sequence[str], candidates: Sequence[Candidates], prompts: tuple[str, str]
) -> Iterator[_EncodedQuery]:
    """Queries that are read separately from their candidates; queries with the same pool share its texts."""
    of_pool = cache(lambda pool: np.array([texts.id_of(prompts[1] + text) for text in pool.texts]))
    order_of = cache(lambda pool: _descending_ranks(pool.names))
    for text, one in zip(first, candidates, strict=True):
        text_id = texts.id_of(prompts[0] + text)
        yield _encoded_query(one, text_id, of_pool(one.pool), order_of(one.pool))


def _queries_for_cross_encoder(
    texts: _Texts, first: Sequence[str], candidates: Sequence[Candidates], prompts: tuple[str, str]
) -> Iterator[_EncodedQuery]:
    """Queries that are read together with each of their candidates."""
    order_of = cache(lambda pool: _descending_ranks(pool.names))
    for text, one in zip(first, candidates, strict=True):
        pairs = zip(one.pool.names, one.pool.texts, strict=True)
        ids = [0 if name == one.excluded else texts.id_of(prompts[0] + text, other) for name, other in pairs]
        yield _encoded_query(one, -1, np.array(ids), order_of(one.pool))


def _encoded_query(
    one: Candidates, text: int, texts: Int[np.ndarray, " candidates"], order: Int[np.ndarray, " candidates"]
) -> _EncodedQuery:
    names = one.pool.names
    relevant = np.array([name in one.relevance and name != one.excluded for name in names])
    excluded = -1 if one.excluded is None else names.index(one.excluded)
    return _EncodedQuery(text, texts, names, order, relevant, excluded)


def _descending_ranks(names: Sequence[str]) -> Int[np.ndarray, " names"]:
    """The rank of each name in descending order of bytes, as trec_eval compares names."""
    order = sorted(range(len(names)), key=lambda index: names[index].encode(), reverse=True)
    return np.argsort(order)


def _of_trec(found: dict[str, float]) -> tuple[float, ...]:
    """The scores of a query in the order of `ratios.RANKINGS`; reciprocal ranks beyond 10 count as 0."""
    reciprocal = found["recip_rank"]
    recalls = (found[f"recall_{depth}"] for depth in (1, 10, 100))
    return (found["ndcg_cut_10"], reciprocal if reciprocal >= 0.1 else 0.0, *recalls)


def _similarities(
    queries: Sequence[_EncodedQuery], vectors: Float[np.ndarray, "texts embed"]
) -> list[Float32[np.ndarray, " candidates"]]:
    """The cosine similarity of each query to its candidates, summed in float64."""
    exact = vectors.astype(np.float64)
    exact /= np.maximum(np.sqrt(np.einsum("te,te->t", exact, exact)), 1e-12)[:, None]
    of_pools: dict[int, list[int]] = {}
    for index, query in enumerate(queries):
        of_pools.setdefault(id(query.texts), []).append(index)
    found: dict[int, Float32[np.ndarray, " candidates"]] = {}
    for indices in of_pools.values():
        pool = exact[queries[indices[0]].texts]
        for start in range(0, len(indices), QUERIES_AT_ONCE):
            chunk = indices[start : start + QUERIES_AT_ONCE]
            scores = exact[[queries[index].text for index in chunk]] @ pool.T
            found |= dict(zip(chunk, scores.astype(np.float32), strict=True))
    return [found[index] for index in range(len(queries))]
