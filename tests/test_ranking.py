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
from bertjax.data import Candidates, Pool, Tokenizer, load_examples
from bertjax.errors import ConfigError, DataError, InputError
from bertjax.results import read_results
from bertjax.results.page import choose_examples
from bertjax.study.run import run_job
from bertjax.study.settings import Settings
from bertjax.tasks import Options, encode_examples, ranking
from bertjax.tasks.options import Options as Chosen
from tests.workshop import SENTENCES, make_classifier, make_cross_encoder, make_embedder, make_masked

TEXTS = tuple(f"{first} and {second}" for first in SENTENCES for second in SENTENCES if first != second)
GRADES = {(query, (query * 5 + step * 7) % len(TEXTS)): 1 + step % 2 for query in range(7) for step in range(3)}


def write_collection(folder, *, queries=SENTENCES, texts=TEXTS, grades=GRADES, run=None):
    """A collection as BEIR has it; with a run, as TREC."""
    (folder / "qrels").mkdir(parents=True)
    lines = {"queries": queries, "corpus": texts}
    for name, several in lines.items():
        rows = [{"_id": f"{name[0]}{number}", "text": text} for number, text in enumerate(several)]
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    judged = "".join(f"q{query}\tc{text}\t{grade}\n" for (query, text), grade in grades.items())
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    if run:
        (folder / "run.txt").write_text("".join(f"q{query} Q0 c{text} 1 0.5 bm25\n" for query, text in run))
    return folder


def ranking_rows(grades=(1, 0, 0, 2, 0)):
    """A row for each candidate."""
    return [
        {"query": query, "passage": TEXTS[(number * 5 + place) % len(TEXTS)], "relevance": grade}
        for number, query in enumerate(SENTENCES)
        for place, grade in enumerate(grades)
    ]


def write_rows(path):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in ranking_rows()))
    return path


@pytest.fixture(scope="module", params=["embedder", "cross-encoder"])
def ablated(request, tmp_path_factory):
    """A model of each kind, of which the second is given a part of the texts for each query."""
    folder = tmp_path_factory.mktemp("ranking")
    if request.param == "embedder":
        make_embedder(folder)
        data = write_collection(folder / "data")
    else:
        make_cross_encoder(folder)
        data = write_rows(folder / "rows.jsonl")
    bertjax.ablate(folder, "ranking", data=data, output=folder / "out", progress=False)
    return read_results(folder / "out")


def test_outputs_and_scores_are_those_of_an_independent_computation(ablated):
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
    job = Settings(model=settings["model"], task="ranking", data=settings["data"], engine="plain")
    plain = run_job(job, keep=False)
    for name in ("base", "outputs"):
        assert np.abs(plain.outputs[name] - ablated.outputs[name]).max() < 1e-5
    assert np.array_equal(plain.outputs["rank"], ablated.outputs["rank"])


def test_the_first_candidate_and_the_place_of_the_first_relevant_one(ablated):
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
    """A query with scores of which many are equal."""
    names = tuple(f"d{number}" for number in rng.permutation(candidates * 2)[:candidates])
    relevance = {name: int(grade) for name, grade in zip(names, rng.integers(0, 3, candidates), strict=True) if grade}
    relevance["elsewhere"] = 2  # relevant, and no candidate
    examples = replace(load_examples("mlm", limit=1), content=None)
    one = Candidates(Pool(names, tuple(f"{name} text" for name in names)), relevance)
    (query,) = ranking._queries(ranking._Texts(), examples.first, [one], Chosen())
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
        ranking._Query(number, pool, ("a",) * len(pool), np.arange(len(pool)), np.ones(len(pool), bool))
        for number, pool in ((0, pools[0]), (1, pools[1]), (2, pools[0]), (3, pools[1]))
    ]
    found = ranking._similarities(queries, vectors)
    expected = sklearn.metrics.pairwise.cosine_similarity(vectors.astype(np.float64))
    for number, scores in enumerate(found):
        assert scores == pytest.approx(expected[number, pools[number % 2]], abs=1e-6)


def test_a_text_is_read_once(tmp_path):
    model = bertjax.load(make_embedder(tmp_path))
    tokenizer = Tokenizer.from_pretrained(tmp_path)
    data = write_collection(tmp_path / "data", texts=(*TEXTS, SENTENCES[0], TEXTS[0]))
    examples = load_examples("ranking", data=data)
    encoded = encode_examples(model, tokenizer, examples, options=Options())
    assert len(encoded.encodings) == len(TEXTS) + len(SENTENCES)
    assert len(encoded.numbers_of(0)) == 1 + len(TEXTS) + 2
    assert len({id(content.pool) for content in examples.content}) == 1
    owned = [number for example in range(7) for number in encoded.own_of(example)]
    assert sorted(owned) == list(range(len(encoded.encodings)))  # means count each text once
    query, relevant = encoded.kept_of(3)
    assert encoded.encodings[query].input_ids == tuple(tokenizer.encode([SENTENCES[3]], None, 40)[0].input_ids)
    chosen = [TEXTS[text] for number, text in GRADES if number == 3]
    tokens = [tokenizer.encode([text], None, 40)[0].input_ids for text in chosen]
    assert encoded.encodings[relevant].input_ids in tokens


def test_prompts_stand_before_queries_and_candidates(tmp_path):
    folder = make_embedder(tmp_path)
    prompts = {"query": "red ", "passage": "old ", "other": "cats "}
    settings = {"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    model, tokenizer = bertjax.load(folder), Tokenizer.from_pretrained(folder)
    examples = load_examples("ranking", data=write_collection(tmp_path / "data"))
    for given, expected in (
        (None, ("red", "old")),
        (["other"], ("cats", "cats")),
        (["other", "red "], ("cats", "red")),
    ):
        encoded = encode_examples(model, tokenizer, examples, prompts=given)
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
    assert f"7 queries, {len(TEXTS)} candidates" in whole.source
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
    (flat / "collection.tsv").write_text("pid\ttext\n" + "".join(f"c{n}\t{text}\n" for n, text in enumerate(TEXTS)))
    (flat / "qrels.txt").write_text("".join(f"q{q} 0 c{text} {grade}\n" for (q, text), grade in GRADES.items()))
    assert load_examples("ranking", data=flat).sha256 == whole.sha256
    none = write_collection(tmp_path / "none", grades={**GRADES, **{(6, text): 0 for text in range(len(TEXTS))}})
    assert "1 query left out, for which nothing is relevant" in load_examples("ranking", data=none).source


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["question\tsentence", "a\tb"], "no column 'relevance'"),
        (["question\tlabel", "a\t1"], "no column 'candidate'"),
        (["text\tlabel", "a\t1"], "no column 'query'"),
        (["query\ttext\tlabel", "a\tb\tmaybe"], "line 2: relevance 'maybe' is no whole number"),
        (["query\ttext\tlabel", "a\tb\t0.5"], "line 2: relevance '0.5' is no whole number"),
        (["query\ttext\tlabel", " \tb\t1"], "line 2: column 'query' holds no text"),
        (["query\ttext\tlabel", "a\tb\t0"], "nothing is relevant for any of 1 query"),
        (["qid\tquery\ttext\tlabel", "1\ta\tb\t1", "1\tc\tb\t1"], "line 3: query '1' is 'c', and 'a' in a row before"),
        (["query\tpid\ttext\tlabel", "a\t7\tb\t1", "a\t7\tc\t0"], "line 3: candidate '7' of query 'a' is there twice"),
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
        ("qrels/test.tsv", "q0 c0 much\n", "line 1: relevance 'much' is no whole number"),
        ("qrels/test.tsv", "q99 c0 1\n", "there is no query q99"),
        ("qrels/test.tsv", "", "holds no judgments"),
        ("qrels/dev.tsv", "q0 c0 1\n", "holds several judgments: give one of"),
        ("queries.jsonl", "3\n", "line 1: found '3'"),
        ("queries.jsonl", '{"_id": "q0"}\n', "line 1: it takes an id and a text"),
        ("corpus.jsonl", '{"_id": "c0", "text": "a"}\n' * 2, "line 2: 'c0' is there twice"),
        ("corpus.tsv", "c0\ta\n", "leave one of them there"),
        ("run.txt", "q0 Q0 c999 1 1 x\n", "there is no text c999 of query 'q0'"),
        ("run.txt", "q0 Q0 c1 1 1 x\n" * 2, "line 2: text 'c1' of query 'q0' is there twice"),
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
        bertjax.ablate(make_classifier(tmp_path), "ranking", data=data, progress=False)
    with pytest.raises(ConfigError, match="which ranking needs: it can do --task mlm"):
        bertjax.ablate(make_masked(tmp_path / "masked"), "ranking", data=data, progress=False)
    with pytest.raises(ConfigError, match="give a task of pairs, or --task ranking"):
        bertjax.ablate(make_embedder(tmp_path / "embedder"), "mlm", progress=False)
    with pytest.raises(DataError, match="ranking needs data: a file of queries"):
        load_examples("ranking")
