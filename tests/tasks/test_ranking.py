"""The task `ranking`: an order of candidates by similarity or score, judged as trec_eval judges it."""

import json
from dataclasses import replace

import datasets
import numpy as np
import pytest
import sklearn.metrics
from pytrec_eval import RelevanceEvaluator

import bertjax
from benchmarks.task_parity import compare
from bertjax.data import Candidates, Tokenizer
from bertjax.data.rankings import Pool
from bertjax.errors import ConfigError, DataError, InputError
from bertjax.jobs.run import run_analysis
from bertjax.results import read_results
from bertjax.results.page import choose_examples
from bertjax.tasks import encode_examples, load_examples, ranking
from tests.factories import SENTENCES, make_classifier, make_cross_encoder, make_embedder, make_masked
from tests.job_factories import settings_of
from tests.task_files import CANDIDATES, GRADES, ranking_rows, write_collection


def write_rows(path):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in ranking_rows()))
    return path


@pytest.fixture(scope="module", params=["embedder", "cross-encoder"])
def ablated(request, tmp_path_factory):
    """A model of each kind; the second reads a part of the texts for each query."""
    folder = tmp_path_factory.mktemp("ranking")
    if request.param == "embedder":
        make_embedder(folder)
        data = write_collection(folder / "data")
    else:
        make_cross_encoder(folder)
        data = write_rows(folder / "rows.jsonl")
    bertjax.ablate(folder, "ranking", data=data, output=folder / "out", progress=False)
    return read_results(folder / "out")


def test_outputs_and_scores_equal_an_independent_computation(ablated):
    assert ablated.summary["metrics"] == ["ndcg_10", "mrr_10", "recall_10"]
    assert ablated.outputs["outputs"].shape == (6, 7, 6)
    for run in compare(ablated, ablated.names):
        assert run.difference < 1e-5, run
        for ours, theirs in run.scores.values():
            assert ours == pytest.approx(theirs, abs=1e-6)
    assert np.ptp([row.score for row in ablated.rows_of()]) > 0
    assert ablated.rows_of("mrr_10")[0].low is not None


def test_the_plain_form_gives_the_same(ablated):
    settings = ablated.summary["settings"]
    job = settings_of(model=settings["model"], task="ranking", data=settings["data"], engine="reference")
    plain = run_analysis(job, keep=False)
    for name in ("base", "outputs"):
        assert np.abs(plain.outputs[name] - ablated.outputs[name]).max() < 1e-5
    assert np.array_equal(plain.outputs["rank"], ablated.outputs["rank"])


def test_first_candidate_and_rank_of_the_first_relevant_one(ablated):
    arrays = ablated.outputs
    reciprocal, margin = arrays["outputs"][..., 2], arrays["outputs"][..., 0]
    ranks = arrays["rank"]
    assert np.allclose(reciprocal, np.where(ranks <= 10, 1 / np.maximum(ranks, 1), 0))
    assert np.array_equal(margin > 0, ranks == 1)
    for place, example in enumerate(ablated.examples):
        relevance = {one["number"]: one["relevance"] for one in example["candidates"]}
        for first, rank in zip(arrays["first"][:, place].tolist(), ranks[:, place].tolist(), strict=True):
            assert (relevance[first] > 0) == (rank == 1)


def test_the_page_has_the_text_that_comes_first(ablated):
    examples = choose_examples(ablated, list(range(6)))
    assert examples["value"] == "nDCG@10"
    marks = set()
    for (name, _, lines), example in zip(examples["texts"], ablated.examples, strict=True):
        assert str(example["id"]) == str(name)
        texts = {one["text"]: one["relevance"] for one in example["candidates"]}
        assert texts[lines[1][1][0]] == max(texts.values())
        first, mark = lines[2][1]
        assert mark == ("right" if texts[first] else "wrong")
        assert len(lines[2]) == (2 if mark == "right" else 3)
        marks.add(mark)
    assert marks == {"right", "wrong"}


def drawn(rng, candidates, most):
    """A query with many equal scores."""
    names = tuple(f"d{number}" for number in rng.permutation(candidates * 2)[:candidates])
    relevance = {name: int(grade) for name, grade in zip(names, rng.integers(0, 3, candidates), strict=True) if grade}
    relevance["elsewhere"] = 2  # relevant, and no candidate
    examples = replace(load_examples("mlm", limit=1), content=None)
    one = Candidates(Pool(names, tuple(f"{name} text" for name in names)), relevance)
    (query,) = ranking._queries_for_cross_encoder(ranking._Texts(), examples.first, [one], ("", ""))
    return query, relevance, rng.integers(0, most, candidates).astype(np.float32)


@pytest.mark.parametrize("candidates", [1, 5, 99, 100, 101, 400])
@pytest.mark.parametrize("most", [1, 3, 50, 10_000])
def test_ties_and_long_lists_are_as_trec_eval_has_them(candidates, most):
    rng = np.random.default_rng([candidates, most])
    for _ in range(5):
        query, relevance, scores = drawn(rng, candidates, most)
        evaluator = RelevanceEvaluator({"0": relevance}, ranking.MEASURES)
        whole = evaluator.evaluate({"0": dict(zip(query.names, scores.tolist(), strict=True))})["0"]
        found = evaluator.evaluate({"0": query.for_trec(scores)})["0"]
        for name in ("ndcg_cut_10", "recall_1", "recall_10", "recall_100"):
            assert found[name] == whole[name]
        rank = query.rank(scores)
        assert whole["recip_rank"] == (1 / rank if rank else 0)
        first = query.first(scores, np.ones(candidates, bool))
        assert scores[first] == scores.max()
        assert query.names[first] == max(np.array(query.names)[scores == scores.max()])
        assert query.margin(scores) == 0 or (query.margin(scores) > 0) <= (rank == 1)


def test_similarities_are_cosines_whatever_the_length_of_vectors():
    rng = np.random.default_rng(5)
    vectors = (rng.normal(size=(9, 4)) * rng.uniform(0.1, 10, (9, 1))).astype(np.float32)
    pools = [np.array([4, 5, 6]), np.array([8, 4])]
    queries = [
        ranking._EncodedQuery(number, pool, ("a",) * len(pool), np.arange(len(pool)), np.ones(len(pool), bool))
        for number, pool in ((0, pools[0]), (1, pools[1]), (2, pools[0]), (3, pools[1]))
    ]
    found = ranking._similarities(queries, vectors)
    expected = sklearn.metrics.pairwise.cosine_similarity(vectors.astype(np.float64))
    for number, scores in enumerate(found):
        assert scores == pytest.approx(expected[number, pools[number % 2]], abs=1e-6)


def test_a_text_is_read_once(tmp_path):
    model = bertjax.load(make_embedder(tmp_path))
    tokenizer = Tokenizer.from_pretrained(tmp_path)
    data = write_collection(tmp_path / "data", texts=(*CANDIDATES, SENTENCES[0], CANDIDATES[0]))
    examples = load_examples("ranking", data=data)
    encoded = encode_examples(model, tokenizer, examples)
    assert len(encoded.encodings) == len(CANDIDATES) + len(SENTENCES)
    assert len(encoded.numbers_of(0)) == 1 + len(CANDIDATES) + 2
    assert len({id(content.pool) for content in examples.content}) == 1
    owned = [number for example in range(7) for number in encoded.own_of(example)]
    assert sorted(owned) == list(range(len(encoded.encodings)))  # means count each text once
    query, relevant = encoded.kept_of(3)
    assert encoded.encodings[query].input_ids == tuple(tokenizer.encode([SENTENCES[3]], None, 40)[0].input_ids)
    chosen = [CANDIDATES[text] for number, text in GRADES if number == 3]
    tokens = [tokenizer.encode([text], None, 40)[0].input_ids for text in chosen]
    assert encoded.encodings[relevant].input_ids in tokens


def test_prompts_stand_before_queries_and_candidates(tmp_path):
    folder = make_embedder(tmp_path)
    prompts = {"query": "red ", "passage": "old ", "other": "cats "}
    settings = {"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    model, tokenizer = bertjax.load(folder), Tokenizer.from_pretrained(folder)
    examples = load_examples("ranking", data=write_collection(tmp_path / "data"))
    for prefixes, expected in (
        (None, ("red", "old")),
        (["other"], ("cats", "cats")),
        (["other", "red "], ("cats", "red")),
    ):
        encoded = encode_examples(model, tokenizer, examples, prompts=prefixes)
        query, candidate = (encoded.encodings[number].tokens[1] for number in encoded.kept_of(0))
        assert (query, candidate) == expected
    with pytest.raises(InputError, match="give one prompt"):
        bertjax.ablate(
            make_cross_encoder(tmp_path / "cross"),
            "ranking",
            data=tmp_path / "data",
            prompts=["a ", "b "],
            progress=False,
        )


def test_forms_of_the_same_queries(tmp_path):
    rows = load_examples("ranking", data=write_rows(tmp_path / "rows.jsonl"))
    assert rows.first == SENTENCES
    assert "(7 queries, 35 candidates, queries in query, candidates in passage, relevance in relevance)" in rows.source
    lists, words, apart = tmp_path / "lists.jsonl", tmp_path / "words.tsv", tmp_path / "apart.jsonl"
    with lists.open("w") as listed, apart.open("w") as parts:
        for query, one in zip(rows.first, rows.content, strict=True):
            grades = [one.relevance.get(name, 0) for name in one.pool.names]
            listed.write(f"{json.dumps({'query': query, 'candidates': one.pool.texts, 'relevance': grades})}\n")
            graded = [*zip(one.pool.texts, grades, strict=True)]
            positive, negative = ([text for text, grade in graded if (grade > 0) == yes] for yes in (True, False))
            parts.write(f"{json.dumps({'query': query, 'positive': positive, 'negative': negative})}\n")
    for path in (lists, apart):
        found = load_examples("ranking", data=path)
        assert found.first == SENTENCES
        for one, other in zip(found.content, rows.content, strict=True):
            texts = [dict(zip(each.pool.texts, each.pool.names, strict=True)) for each in (one, other)]
            assert texts[0].keys() == texts[1].keys()
            for text in texts[0]:
                grade, expected = (
                    each.relevance.get(by[text], 0) for each, by in zip((one, other), texts, strict=True)
                )
                assert grade == expected or (path == apart and (grade > 0) == (expected > 0))
    words.write_text("question\tsentence\tlabel\na dog\the ran\tentailment\na dog\tcats sleep\tnot_entailment\n")
    (qnli,) = load_examples("ranking", data=words).content
    assert qnli.relevance == {qnli.pool.names[0]: 1}
    kinds = datasets.Features(
        {
            "question": datasets.Value("string"),
            "sentence": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["entailment", "not_entailment"]),  # 0 is relevant, as in GLUE's QNLI
        }
    )
    columns = {"question": ["a dog"] * 2, "sentence": ["he ran", "cats sleep"], "label": [0, 1]}
    datasets.Dataset.from_dict(columns, kinds).save_to_disk(tmp_path / "saved")
    (saved,) = load_examples("ranking", data=tmp_path / "saved").content
    assert saved.relevance == qnli.relevance


def test_collections_and_runs(tmp_path):
    whole = load_examples("ranking", data=write_collection(tmp_path / "beir"))
    assert whole.ids == tuple(f"q{number}" for number in range(7))
    assert f"7 queries, {len(CANDIDATES)} candidates" in whole.source
    assert whole.content[2].relevance == {f"c{text}": grade for (query, text), grade in GRADES.items() if query == 2}
    chosen = load_examples("ranking", data=tmp_path / "beir" / "qrels" / "test.tsv")
    assert chosen.sha256 == whole.sha256
    run = [(query, text) for query in (0, 3) for text in range(query, query + 9)]
    few = load_examples("ranking", data=write_collection(tmp_path / "trec", run=run))
    assert few.ids == ("q0", "q3")
    assert few.content[1].pool.names == tuple(f"c{text}" for text in range(3, 12))
    assert few.content[1].relevance == whole.content[3].relevance  # also what the run has not found
    flat = tmp_path / "flat"
    flat.mkdir()
    (flat / "queries.tsv").write_text("".join(f"q{n}\t{text}\n" for n, text in enumerate(SENTENCES)))
    (flat / "collection.tsv").write_text(
        "pid\ttext\n" + "".join(f"c{n}\t{text}\n" for n, text in enumerate(CANDIDATES))
    )
    (flat / "qrels.txt").write_text("".join(f"q{q} 0 c{text} {grade}\n" for (q, text), grade in GRADES.items()))
    assert load_examples("ranking", data=flat).sha256 == whole.sha256
    none = write_collection(tmp_path / "none", grades={**GRADES, **{(6, text): 0 for text in range(len(CANDIDATES))}})
    assert "1 query left out without relevant candidates" in load_examples("ranking", data=none).source


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["question\tsentence", "a\tb"], "no column 'relevance'"),
        (["question\tlabel", "a\t1"], "no column 'candidate'"),
        (["text\tlabel", "a\t1"], "no column 'query'"),
        (["query\ttext\tlabel", "a\tb\tmaybe"], "line 2: relevance 'maybe' is neither an integer nor yes or no"),
        (["query\ttext\tlabel", "a\tb\t0.5"], "line 2: relevance '0.5' is neither an integer nor yes or no"),
        (["query\ttext\tlabel", "a\tb\t0"], r"no query has a relevant candidate \(1 query\)"),
        (
            ["qid\tquery\ttext\tlabel", "1\ta\tb\t1", "1\tc\tb\t1"],
            "line 3: query '1' is 'c', and 'a' in an earlier row",
        ),
        (["query\tpid\ttext\tlabel", "a\t7\tb\t1", "a\t7\tc\t0"], "line 3: candidate '7' of query 'a' occurs twice"),
    ],
)
def test_bad_rows_are_named(tmp_path, rows, message):
    path = tmp_path / "rows.tsv"
    path.write_text("".join(f"{row}\n" for row in rows))
    with pytest.raises(DataError, match=message):
        load_examples("ranking", data=path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("qrels/test.tsv", "q0 c0\n", "line 1: 2 columns, not"),
        ("qrels/test.tsv", "q0 c0 much\n", "line 1: relevance 'much' is not an integer"),
        ("qrels/test.tsv", "q99 c0 1\n", "there is no query q99"),
        ("qrels/test.tsv", "", "has no judgments"),
        ("qrels/dev.tsv", "q0 c0 1\n", "has several judgments: give one of"),
        ("queries.jsonl", "3\n", "line 1: found '3'"),
        ("queries.jsonl", '{"_id": "q0"}\n', "line 1: an id and a text are needed"),
        ("corpus.jsonl", '{"_id": "c0", "text": "a"}\n' * 2, "line 2: 'c0' occurs twice"),
        ("corpus.tsv", "c0\ta\n", "keep one of them"),
        ("run.txt", "q0 Q0 c999 1 1 x\n", "there is no text c999 of query 'q0'"),
        ("run.txt", "q0 Q0 c1 1 1 x\n" * 2, "line 2: text 'c1' of query 'q0' occurs twice"),
    ],
)
def test_bad_collections_are_refused_in_a_line(tmp_path, name, content, message):
    folder = write_collection(tmp_path / "data")
    (folder / name).write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        load_examples("ranking", data=folder)
    assert "\n" not in str(caught.value)


def test_models_that_give_no_order_are_refused(tmp_path):
    data = write_rows(tmp_path / "rows.jsonl")
    with pytest.raises(
        ConfigError, match="has no sentence vector, nor a single score, which ranking needs: it is a cl"
    ):
        bertjax.ablate(make_classifier(tmp_path / "model"), "ranking", data=data, progress=False)
    with pytest.raises(ConfigError, match="which ranking needs: give --task mlm"):
        bertjax.ablate(make_masked(tmp_path / "masked"), "ranking", data=data, progress=False)
    with pytest.raises(ConfigError, match="give a task of pairs, or --task ranking"):
        bertjax.ablate(make_embedder(tmp_path / "embedder"), "mlm", progress=False)
    with pytest.raises(DataError, match="ranking needs data: a file of queries"):
        load_examples("ranking")


def collect_rankings(examples, texts, vectors):
    """The outputs of queries from the vectors of all texts."""
    queries = [*ranking._queries_for_embedder(texts, examples.first, examples.content, ("", ""))]
    none, evaluator = np.zeros(len(queries)), ranking._evaluator(examples.content)
    common = ranking.SIMILAR, (), 0, len(queries), none, [query.members for query in queries], 2
    return ranking.EncodedRankings(*common, queries=queries, evaluator=evaluator).collect(vectors)


# ---- ids, judgments and texts that are missing ----------------------------------------------------------------------
SITES = {"New York": "New York is a large city", "San Diego": "San Diego is warm", "Paris": "Paris is in France"}


def write_places(folder, judged, *, corpus=SITES, queries=("q1", "q2"), run=""):
    """A small collection in which ids hold spaces."""
    (folder / "qrels").mkdir(parents=True)
    texts = {"queries": {name: f"query {name}" for name in queries}, "corpus": corpus}
    for name, rows in texts.items():
        lines = (json.dumps({"_id": key, "text": text}) for key, text in rows.items())
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (folder / "qrels" / "test.tsv").write_text(judged)
    if run:
        (folder / "run.trec").write_text(run)
    return folder


def test_ids_may_hold_spaces_where_tabs_separate(tmp_path):
    three = "query-id\tcorpus-id\tscore\nq1\tNew York\t1\nq2\tParis\t1\n"
    four = "q1\t0\tNew York\t1\nq2\t0\tParis\t1\n"
    run = "q1\tQ0\tSan Diego\t1\t2.0\tbm 25\nq1\tQ0\tNew York\t2\t1.0\tbm 25\nq2\tQ0\tParis\t1\t1.0\tbm 25\n"
    for name, judged in (("three", three), ("four", four)):
        examples = load_examples("ranking", data=write_places(tmp_path / name, judged))
        assert examples.ids == ("q1", "q2")
        assert [one.relevance for one in examples.content] == [{"New York": 1}, {"Paris": 1}]
    first, _ = load_examples("ranking", data=write_places(tmp_path / "run", four, run=run)).content
    assert first.pool.names == ("San Diego", "New York")
    # The first query is as New York, the second as none.
    encoded = collect_rankings(examples, ranking._Texts(), np.eye(5, dtype=np.float32)[[0, 0, 1, 2, 3]][None])
    expected = RelevanceEvaluator({"q1": {"New York": 1}}, {"ndcg_cut.10"}).evaluate(
        {"q1": {"New York": 1.0, "San Diego": 0.0, "Paris": 0.0}}
    )
    assert encoded.outputs[0, 0, 1] == expected["q1"]["ndcg_cut_10"] == 1.0


@pytest.mark.parametrize(
    ("judged", "message"),
    [
        (
            "q1\tParis\t1\nq1\tParis\t0\n",
            "line 2: text 'Paris' of query 'q1' has relevance 0, and 1 in an earlier line",
        ),
        ("q1\tParis\t0\nq2\tParis\t1\nq1\tParis\t1\n", "line 3: text 'Paris' of query 'q1' has relevance 1, and 0"),
        ("q1\t0\tParis\t1\nq1\t0\tParis\t2\n", "line 2: text 'Paris' of query 'q1' has relevance 2, and 1"),
        ("q1\t\tParis\t1\n", "line 1: a column is empty"),
        ("q1 New York 0 1 2\n", "line 1: 6 columns, not 3, 4"),
        ("q1\tLondon\t1\n", "none of its texts is in .*corpus.jsonl, such as London"),
    ],
)
def test_judgments_that_cannot_be_meant_are_refused(tmp_path, judged, message):
    with pytest.raises(DataError, match=message):
        load_examples("ranking", data=write_places(tmp_path / "data", judged))


@pytest.mark.parametrize(
    "lines",
    [
        ["query\ttext\tlabel", "a\tb\t1", "a\tb\t0"],
        ["qid\tquery\ttext\tlabel", "7\ta\tb\t1", "7\ta\tc\t1", "7\ta\tb\t0"],
    ],
)
def test_rows_that_contradict_each_other_are_refused(tmp_path, lines):
    (tmp_path / "rows.tsv").write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(DataError, match="has the candidate 'b' twice, with different relevance"):
        load_examples("ranking", data=tmp_path / "rows.tsv")
    lists = {"query": "a", "positive": ["b", "c"], "negative": ["c"]}
    (tmp_path / "lists.jsonl").write_text(json.dumps(lists))
    with pytest.raises(DataError, match="line 1: the candidate 'c' occurs twice, with different relevance"):
        load_examples("ranking", data=tmp_path / "lists.jsonl")


def test_documents_with_the_same_text_may_differ_in_relevance(tmp_path):
    rows = ["query_id\tquery\tcandidate_id\ttext\tlabel", "q\ta\td1\tsame\t1", "q\ta\td2\tsame\t0"]
    (tmp_path / "rows.tsv").write_text("".join(f"{row}\n" for row in rows))
    examples = load_examples("ranking", data=tmp_path / "rows.tsv")
    assert examples.content[0].pool.names == ("d1", "d2")
    assert examples.content[0].relevance == {"d1": 1}


def test_judgments_of_texts_that_are_not_there_are_counted(tmp_path):
    judged = "q1\tNew York\t1\nq1\tLondon\t2\nq1\tNew York\t1\nq2\tParis\t1\nq2\tOslo\t0\n"
    examples = load_examples("ranking", data=write_places(tmp_path / "data", judged))
    assert "; 2 judgments of texts that are not in corpus.jsonl)" in examples.source
    assert examples.content[0].relevance == {"New York": 1, "London": 2}  # trec_eval counts it as not found


def test_queries_and_texts_without_text_are_left_out(tmp_path):
    corpus = {**SITES, "Nowhere": " ", "Void": ""}
    judged = "q1\tParis\t1\nq1\tVoid\t1\nq2\tParis\t1\n"
    folder = write_places(tmp_path / "data", judged, corpus=corpus)
    examples = load_examples("ranking", data=folder)
    assert "2 texts without text left out: Nowhere, Void" in examples.source
    assert examples.content[0].pool.names == tuple(SITES)
    (folder / "queries.jsonl").write_text('{"_id": "q1", "text": "a"}\n{"_id": "q2", "text": null}\n')
    examples = load_examples("ranking", data=folder)
    assert examples.ids == ("q1",)
    assert "1 query without text left out: q2" in examples.source
    (tmp_path / "rows.tsv").write_text("query\ttext\tlabel\na\tb\t1\na\t \t0\n")
    examples = load_examples("ranking", data=tmp_path / "rows.tsv")
    assert examples.content[0].pool.texts == ("b",)
    assert "1 row left out in whole or part, without text: line 3" in examples.source


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("corpus.jsonl", "", "corpus.jsonl: has no texts"),
        ("corpus.jsonl", "\n\n", "corpus.jsonl: has no texts"),
        ("corpus.jsonl", '{"_id": "Paris", "text": ""}\n', "all needed texts of its 1 text are empty"),
        ("queries.jsonl", "", "queries.jsonl: has no texts"),
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\n", "test.tsv: has no judgments"),
        ("run.trec", "\n", "run.trec: has no lines"),
        ("run.trec", "q9 Q0 Paris 1 1 x\n", "run.trec: has no query of test.tsv"),
        ("corpus.jsonl", '{"_id": true, "text": "a"}\n', "line 1: an id and a text are needed, as _id and text"),
        ("corpus.jsonl", '{"_id": 1.5, "text": "a"}\n', "line 1: an id and a text are needed, as _id and text"),
        ("corpus.jsonl", '{"_id": "", "text": "a"}\n', "line 1: the id is empty"),
        ("corpus.jsonl", '{"_id": "a", "_id": "b", "text": "a"}\n', 'line 1: an object has the key "_id" twice'),
        ("corpus.jsonl", '{"_id": "a", "text": "a\\u0000b"}\n', "line 1: it contains a NUL character"),
        ("qrels/test.tsv", "q1\tParis\t1\rq2\tParis\t1\r", "line 1: a carriage return without a line feed"),
    ],
)
def test_empty_and_damaged_collections_are_refused(tmp_path, name, content, message):
    folder = write_places(tmp_path / "data", "q1\tParis\t1\n")
    (folder / name).write_text(content)
    with pytest.raises(DataError, match=message):
        load_examples("ranking", data=folder)


# ---- the document of the query --------------------------------------------------------------------------------------
def write_with_document(folder):
    """A collection whose queries are texts of its corpus, under the same ids, as in ArguAna and Quora."""
    (folder / "qrels").mkdir(parents=True)
    rows = [json.dumps({"_id": f"t{number}", "text": text}) for number, text in enumerate(CANDIDATES)]
    (folder / "corpus.jsonl").write_text("".join(f"{row}\n" for row in rows))
    (folder / "queries.jsonl").write_text("".join(f"{row}\n" for row in rows[:8]))
    judged = "".join(f"t{number}\tt{(number * 5 + 9) % len(CANDIDATES)}\t1\n" for number in range(8))
    (folder / "qrels" / "test.tsv").write_text(judged)
    return folder


def test_without_the_querys_document_scores_match_trec_eval(tmp_path):
    """BEIR and MTEB publish scores of runs from which the document with the query's id is removed."""
    rng = np.random.default_rng(0)
    data = write_with_document(tmp_path / "data")
    vectors = rng.normal(size=(1, len(CANDIDATES), 4)).astype(np.float32)
    for exclude_self in (False, True):
        examples = load_examples("ranking", data=data, exclude_self=exclude_self)
        texts = ranking._Texts()
        found = collect_rankings(examples, texts, vectors)
        rows = dict(
            zip(
                (text for text, _ in texts.ids),
                vectors[0] / np.linalg.norm(vectors[0], axis=1)[:, None],
                strict=True,
            )
        )
        run = {
            f"t{query}": {
                f"t{number}": float(rows[CANDIDATES[query]] @ rows[text])
                for number, text in enumerate(CANDIDATES)
                if not (exclude_self and number == query)
            }
            for query in range(8)
        }
        judged = {f"t{query}": {f"t{(query * 5 + 9) % len(CANDIDATES)}": 1} for query in range(8)}
        expected = RelevanceEvaluator(judged, ranking.MEASURES).evaluate(run)
        for query, outputs in enumerate(found.outputs[0]):
            scores = expected[f"t{query}"]
            reciprocal = scores["recip_rank"] if scores["recip_rank"] >= 0.1 else 0.0
            recalls = [scores[f"recall_{depth}"] for depth in (1, 10, 100)]
            assert outputs[1:].tolist() == pytest.approx([scores["ndcg_cut_10"], reciprocal, *recalls])
            others = [value for name, value in run[f"t{query}"].items() if name not in judged[f"t{query}"]]
            (relevant,) = judged[f"t{query}"]
            assert outputs[0] == pytest.approx(run[f"t{query}"][relevant] - max(others), abs=1e-6)
        assert (found.details["first"][0] == np.arange(8)).all() == (not exclude_self)


@pytest.mark.parametrize("make", [make_embedder, make_cross_encoder])
def test_the_querys_document_is_excluded_from_a_sweep(tmp_path, make):
    data, folder = write_with_document(tmp_path / "data"), make(tmp_path / "model")
    results = bertjax.ablate(folder, "ranking", data=data, limit=3, exclude_self=True, heads=["0.0"], progress=False)
    assert "the candidate with the query's id excluded for 8 queries" in results.summary["data"]["source"]
    for run in compare(results, results.names):
        assert run.difference < 1e-5
        for ours, theirs in run.scores.values():
            assert ours == pytest.approx(theirs, abs=1e-6)
    for place, example in enumerate(results.examples):
        names = {one["name"] for one in example["candidates"]}
        assert example["id"] not in names
        assert f"t{results.outputs['base_first'][place]}" in names


def test_exclude_self_is_refused_where_it_has_no_effect(tmp_path):
    with pytest.raises(DataError, match="--exclude-self needs ids of queries and candidates"):
        load_examples("ranking", data=write_rows(tmp_path / "rows.jsonl"), exclude_self=True)
    with pytest.raises(InputError, match="--exclude-self is an option of ranking, not of mlm"):
        load_examples("mlm", exclude_self=True)
    (tmp_path / "ids.tsv").write_text("qid\tpid\tquery\ttext\tlabel\n1\t1\ta\ta\t0\n1\t2\ta\tb\t1\n2\t2\tb\tb\t1\n")
    examples = load_examples("ranking", data=tmp_path / "ids.tsv", exclude_self=True)
    assert [one.excluded for one in examples.content] == ["1"]  # the second query's only candidate is itself
    assert examples.sha256 != load_examples("ranking", data=tmp_path / "ids.tsv").head(1).sha256
