"""Ranking: which of its candidates does a model put first for a query?

A sentence embedder reads queries and candidates separately, each different text once, and orders by cosine similarity;
a cross-encoder reads each query with each of its candidates. Rankings are scored by trec_eval (the package
pytrec_eval): of equally similar candidates the one whose name is last comes first, be it relevant or not.
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
    excluding_own,
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
CUT = 100  # no measure depends on the order behind these
RANKING_SCALE = 20.0  # of similarities in a softmax over candidates, as in sentence-transformers
QUERIES_AT_ONCE = 256  # whose similarities to all texts of a pool are in memory together
# What prompts of queries and of candidates are called, as sentence-transformers looks for them.
OF_QUERIES, OF_CANDIDATES = ("query",), ("document", "passage", "corpus")


class RankingsDisplay(NumberDisplay):
    """Queries, with what is relevant and what comes first."""

    value, note = "nDCG@10", "The candidate that comes first is green where it is relevant."
    number = 1

    def lines(self, example: int) -> list[Line]:
        """The query, the most relevant candidate and the one that comes first."""
        row, arrays = self.saved.examples[example], self.saved.outputs
        relevant = [one for one in row["candidates"] if one["relevance"] > 0]
        best = max(relevant, key=lambda one: one["relevance"], default=None)
        text, others = ("none of the candidates", "") if best is None else (best["text"], f" (1 of {len(relevant)})")
        true: Line = [(f"true{others * (len(relevant) > 1)}", NAME), (shorten(text), TRUE)]
        first = self._first("first", example, arrays["base_first"][example], arrays["base_rank"][example])
        return [[(shorten(row["first"]), PLAIN)], true, first]

    def change(self, run: int, example: int) -> list[Line]:
        """What comes first for an ablated model."""
        arrays = self.saved.outputs
        return [self._first("ablated", example, arrays["first"][run, example], arrays["rank"][run, example])]

    def _first(self, name: str, example: int, number: Any, rank: Any) -> Line:
        """The candidate that comes first, and where the first relevant one is if that is another."""
        found = next(one for one in self.saved.examples[example]["candidates"] if one["number"] == number)
        line: Line = [(name, NAME), (shorten(found["text"]), RIGHT if found["relevance"] > 0 else WRONG)]
        return line if rank < 2 else [*line, (f" relevant: place {rank}", PLAIN)]


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
        """Queries of a table, without those for which nothing is relevant."""
        return self._examples(table.path, read_queries(table, self, source.text_columns), source)

    def read_path(self, path: Path, source: Source) -> Examples:
        """Queries of a file or of a collection."""
        if not is_collection(path):
            return super().read_path(path, source)
        if source.text_columns is not None:
            raise DataError(f"{path}: a collection has no text columns: leave them out")
        queries, left_out = read_collection(path)
        return self._examples(path, Queries(queries, "", left_out), source)

    def advice_on_directory(self, path: Path) -> str:
        """To name a file of judgments."""
        return f"give its file, such as {path / 'qrels' / 'test.tsv'}"

    def _examples(self, path: Path | str, found: Queries, source: Source) -> Examples:
        exclude_self = isinstance(source.options, RankingOptions) and source.options.exclude_self
        if exclude_self and not found.has_ids:
            raise DataError(f"{path}: --exclude-self takes ids of queries and candidates, which it lacks: leave it out")
        queries = excluding_own(found.queries) if exclude_self else list(found.queries)
        kept = [one for one in queries if one[2].relevance and not _is_alone(one[2])]
        if not kept:
            raise DataError(f"{path}: nothing is relevant for any of {count_of(len(queries), 'query')}")
        ids, texts, content = zip(*kept, strict=True)
        pools = {id(one.pool): len(one.pool.names) for one in content}
        said = [f"{count_of(len(kept), 'query')}, {count_of(sum(pools.values()), 'candidate')}{found.columns}"]
        if dropped := sum(not one.relevance for _, _, one in queries):
            said.append(f"{count_of(dropped, 'query')} left out, for which nothing is relevant")
        if alone := len(queries) - len(kept) - dropped:
            said.append(f"{count_of(alone, 'query')} left out, whose only candidate is excluded")
        said += found.left_out
        if exclude_self:
            own = sum(one.excluded is not None for _, _, one in queries)
            said.append(f"the query's own document excluded for {count_of(own, 'query')}")
        return Examples(
            task=self,
            ids=ids,
            first=texts,
            second=None,
            labels=np.full(len(kept), np.nan, np.float32),
            source=f"{path} ({'; '.join(said)})",
            split="validation",
            content=content,
        )

    def fits(self, model: PretrainedModel) -> bool:
        """Sentence embedders, and classifiers with a single score."""
        return isinstance(model, BertForSentenceEmbedding) or is_regression(model)

    def encode(
        self, model: PretrainedModel, tokenizer: Tokenizer, examples: Examples, arguments: EncodeArguments
    ) -> "EncodedRankings":
        """Queries and candidates for a sentence embedder, or each query with each of its candidates.

        Raises:
            InputError: there is no such prompt, or two for a model that reads query and candidate as one text.
            MissingDependencyError: `pytrec_eval` is not installed.
        """
        sought = [content for content in examples.content or () if isinstance(content, Candidates)]
        evaluator, embeds = _evaluator(sought), isinstance(model, BertForSentenceEmbedding)
        check_single_prompt(model, arguments.prompts)
        find_prompts = _prompts_of_both if embeds else _prompt_of_pair
        texts = _Texts()
        read = _queries_for_embedder if embeds else _queries_for_cross_encoder
        queries = list(read(texts, examples.first, sought, find_prompts(tokenizer, arguments.prompts)))
        first, second = zip(*texts.numbers, strict=True)
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


def _prompts_of_both(tokenizer: Tokenizer, prompts: Sequence[str] | None) -> tuple[str, str]:
    """The prompts of queries and candidates; by default those with usual names."""
    named = (prompts[0], prompts[-1]) if prompts else (_usual(tokenizer, OF_QUERIES), _usual(tokenizer, OF_CANDIDATES))
    first, second = ((tokenizer if name is None else tokenizer.with_prompt(name)).prompt for name in named)
    return first, second


def _usual(tokenizer: Tokenizer, names: Sequence[str]) -> str | None:
    """The first of these prompts that a checkpoint has."""
    return next((name for name in names if name in tokenizer.prompts), None)


def _prompt_of_pair(tokenizer: Tokenizer, prompts: Sequence[str] | None) -> tuple[str, str]:
    """The prompt of a query, and none of candidates."""
    return (tokenizer if prompts is None else tokenizer.with_prompt(prompts[0])).prompt, ""


@dataclass(frozen=True)
class _EncodedQuery:
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


@dataclass(frozen=True)
class EncodedRankings(SharedEncodings):
    """Queries and candidates that a sentence embedder reads separately.

    Args:
        queries: as they are scored.
        evaluator: trec_eval with the relevance of each candidate.
    """

    queries: Sequence[_EncodedQuery] = field(kw_only=True)
    evaluator: Any = field(kw_only=True)

    def scores_of(self, values: Float[np.ndarray, "texts embed"]) -> list[Float32[np.ndarray, " candidates"]]:
        """The score of each candidate of each query in one run: cosine similarities."""
        return _similarities(self.queries, values)

    def collect(self, values: Float[np.ndarray, "runs texts *embed"]) -> TaskOutputs:
        """Each query's margin and trec_eval's scores; the first candidate, and the rank of the first relevant one."""
        outputs = np.zeros((len(values), self.examples, len(ratios.RANKINGS)))
        firsts = np.zeros((2, len(values), self.examples), np.int32)
        for run, of_texts in enumerate(values):
            both = list(zip(self.queries, self.scores_of(of_texts), strict=True))
            for query, scores in both:
                scores[~query.kept] = -np.inf
            found = self.evaluator.evaluate(
                {str(number): query.for_trec(own) for number, (query, own) in enumerate(both)}
            )
            for number, (query, scores) in enumerate(both):
                outputs[run, number] = (query.margin(scores), *_of_trec(found[str(number)]))
                firsts[:, run, number] = query.first(scores, query.kept), query.rank(scores)
        return TaskOutputs(outputs, {"first": firsts[0], "rank": firsts[1]})

    @property
    def objective(self) -> Objective:
        """The cross-entropy of the relevant candidates, in a softmax over scaled similarities."""
        return Objective(readouts.sentence_embedding, self.grade, LOSS)

    def grade(self, example: int, values: Float[np.ndarray, "texts embed"]) -> Graded:
        """An example's loss and its gradient. The query's vector comes first."""
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
        """Which candidates of each query are relevant, in the order of its members."""
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
    """The cross-entropy of the relevant candidates in a softmax over all, with equal shares; and its gradient.

    NaN without gradient if all candidates are relevant, or none is.
    """
    if not relevant.any() or relevant.all():
        return np.nan, None
    shares = log_softmax(scores)
    return -float(shares[relevant].mean()), np.exp(shares) - relevant / relevant.sum()


class _Texts:
    """The different texts, or pairs of texts, of all queries, numbered as they come."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[str, str], int] = {}

    def number(self, first: str, second: str = "") -> int:
        """The number of a text or pair."""
        return self.numbers.setdefault((first, second), len(self.numbers))


def _evaluator(sought: Sequence[Candidates]) -> Any:
    """trec_eval with what is relevant for each query, by its number."""
    try:
        from pytrec_eval import RelevanceEvaluator
    except ImportError as error:
        raise MissingDependencyError(
            f"ranking is scored by trec_eval, which takes pytrec-eval-terrier ({error}): pip install 'bertjax[ranking]'"
        ) from error
    return RelevanceEvaluator({str(number): dict(one.relevance) for number, one in enumerate(sought)}, MEASURES)


def _queries_for_embedder(
    texts: _Texts, first: Sequence[str], sought: Sequence[Candidates], prompts: tuple[str, str]
) -> Iterator[_EncodedQuery]:
    """The queries and candidates as texts of their own; queries of one pool share its texts."""
    of_pool = cache(lambda pool: np.array([texts.number(prompts[1] + text) for text in pool.texts]))
    order_of = cache(lambda pool: _places(pool.names))
    for text, one in zip(first, sought, strict=True):
        number = texts.number(prompts[0] + text)
        yield _encoded_query(one, number, of_pool(one.pool), order_of(one.pool))


def _queries_for_cross_encoder(
    texts: _Texts, first: Sequence[str], sought: Sequence[Candidates], prompts: tuple[str, str]
) -> Iterator[_EncodedQuery]:
    """The queries, each with each of its candidates."""
    order_of = cache(lambda pool: _places(pool.names))
    for text, one in zip(first, sought, strict=True):
        pairs = zip(one.pool.names, one.pool.texts, strict=True)
        numbers = [0 if name == one.excluded else texts.number(prompts[0] + text, other) for name, other in pairs]
        yield _encoded_query(one, -1, np.array(numbers), order_of(one.pool))


def _encoded_query(
    one: Candidates, number: int, texts: Int[np.ndarray, " candidates"], places: Int[np.ndarray, " candidates"]
) -> _EncodedQuery:
    names = one.pool.names
    relevant = np.array([name in one.relevance and name != one.excluded for name in names])
    excluded = -1 if one.excluded is None else names.index(one.excluded)
    return _EncodedQuery(number, texts, names, places, relevant, excluded)


def _places(names: Sequence[str]) -> Int[np.ndarray, " names"]:
    """The place of each name from the last to the first, by their bytes, as trec_eval compares them."""
    order = sorted(range(len(names)), key=lambda number: names[number].encode(), reverse=True)
    places = np.empty(len(names), np.int64)
    places[order] = np.arange(len(names))
    return places


def _of_trec(found: dict[str, float]) -> tuple[float, ...]:
    """The scores of a query in the order of `ratios.RANKINGS`; a reciprocal rank beyond 10 counts as 0."""
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


def _is_alone(one: Candidates) -> bool:
    """Whether no candidate is left."""
    return len(one.pool.names) <= (one.excluded is not None)
