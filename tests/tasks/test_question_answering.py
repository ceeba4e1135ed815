"""The task `question-answering`: windows, spans, exact match and F1 as independent computations have them."""

import itertools
import json
import re
import string
from collections import Counter

import datasets
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

import bertjax
from benchmarks.task_parity import compare
from bertjax import BertConfig, BertForQuestionAnswering
from bertjax.checkpoints import architecture
from bertjax.data import Examples, Tokenizer
from bertjax.errors import ConfigError, DataError, InputError
from bertjax.interventions import readouts
from bertjax.results import read_results
from bertjax.tasks import TASKS, EncodeArguments, load_examples
from bertjax.tasks.question_answering import Answers, QuestionAnsweringOptions, _score_span
from tests.factories import make_classifier, make_reader
from tests.family_models import saved_by_torch
from tests.task_files import CONTEXT, QUESTIONS, write_squad
from tests.tiny_models import SIZES, random_model
from tests.tokenizer_factories import TOKENIZER_FAMILIES, draw_lines, make_tokenizer

BLANKS = ["  ", "\n ", " ", "\u00a0\t  "]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_reader(tmp_path_factory.mktemp("reader"), seed=6)


@pytest.fixture(scope="module")
def ablated(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("answers")
    path = write_squad(folder / "dev.json")
    bertjax.ablate(model, "squad", data=path, output=folder / "out", max_length=16, stride=3, progress=False)
    return read_results(folder / "out")


def test_outputs_and_scores_equal_pytorch_and_torchmetrics(ablated):
    """Contexts are read in windows of 16 tokens; successive windows share three tokens of the context."""
    assert ablated.summary["metrics"] == ["answer_f1", "exact_match"]
    for run in compare(ablated, ablated.names):
        assert run.difference < 1e-5, run
        for ours, theirs in run.scores.values():
            assert ours == pytest.approx(theirs, abs=1e-7), run  # torchmetrics adds in float32
    assert len({row.score for row in ablated.rows_of()}) > 2


def test_results_hold_the_spans_of_all_runs(ablated):
    arrays = ablated.outputs
    assert arrays["spans"].shape == (6, 5, 2)
    assert arrays["labels"].tolist() == [2, 1, 1, 1, 1]
    for run, spans in enumerate(arrays["spans"]):
        for question, (start, end) in enumerate(spans.tolist()):
            found = CONTEXT[start:end]
            assert found
            assert found.strip() == found
            expected = _score_span(CONTEXT, Answers(tuple(QUESTIONS[question][1]), False), (start, end))
            assert arrays["outputs"][run, question, 1:].tolist() == pytest.approx(list(expected), abs=1e-6)
    assert ablated.rows_of()[0].examples == 5


@pytest.mark.parametrize("seed", range(5))
def test_the_readout_finds_the_best_span_of_all(seed, monkeypatch):
    """By trying all spans; tokens outside the context have the largest scores."""
    monkeypatch.setattr(readouts, "LONGEST_ANSWER", 4)
    rng = np.random.default_rng(seed)
    start, end = (jnp.asarray(rng.normal(size=(3, 9)).astype(np.float32)).at[:, 0].set(50.0) for _ in range(2))
    real = np.array([[0, 1, 1, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0, 0]])
    output = bertjax.models.ModelOutput(
        last_hidden_state=jnp.zeros((3, 9, 2)),
        record=None,
        start_logits=start + jnp.asarray(9.0 * (1 - real), jnp.float32),
        end_logits=end + jnp.asarray(9.0 * (1 - real), jnp.float32),
    )
    found = np.asarray(readouts.answers(output, jnp.asarray(real)))
    for row in range(3):
        places = [place for place in range(9) if real[row, place]]
        spans = [(first, last) for first in places for last in places if first <= last < first + 4]
        best = max(spans, key=lambda span: start[row, span[0]] + end[row, span[1]])
        assert tuple(found[row, :2].astype(int)) == best
        assert found[row, 2] == pytest.approx(float(start[row, best[0]] + end[row, best[1]]))
        assert found[row, 3] == pytest.approx(118.0)


def test_an_answer_has_at_most_so_many_tokens(monkeypatch):
    monkeypatch.setattr(readouts, "LONGEST_ANSWER", 4)
    for last, best in ((4, (1, 4)), (5, (2, 5))):  # four tokens, or five, which are too many
        start, end = np.zeros((1, 9), np.float32), np.zeros((1, 9), np.float32)
        start[0, 1], end[0, last], end[0, 2] = 5.0, 9.0, 1.0
        output = bertjax.models.ModelOutput(
            last_hidden_state=jnp.zeros((1, 9, 2)),
            record=None,
            start_logits=jnp.asarray(start),
            end_logits=jnp.asarray(end),
        )
        real = jnp.asarray([[0, 1, 1, 1, 1, 1, 1, 1, 1]])
        found = np.asarray(readouts.answers(output, real))[0, :2].astype(int)
        assert tuple(found) == best


@pytest.mark.parametrize(
    ("found", "true", "can_lack", "expected"),
    [
        ("the Panthers' defense", ["Panthers defense"], False, (1.0, 1.0)),
        ("on the mat", ["the red mat", "door"], False, (0.0, 0.5)),
        ("", ["mat"], False, (0.0, 0.0)),
        ("", [], True, (1.0, 1.0)),
        ("mat", [], True, (0.0, 0.0)),
        ("", ["mat"], True, (0.0, 0.0)),
        ("the", ["a"], False, (1.0, 0.0)),  # SQuAD 1.1's program: no word in common
        ("the", ["a"], True, (0.0, 0.0)),  # an answer without words is none in SQuAD 2.0's, `the` is none either
    ],
)
def test_exact_match_and_f1(found, true, can_lack, expected):
    span = (0, len(found)) if found else (-1, -1)
    if (found, can_lack) == ("the", True):
        expected = (1.0, 1.0)  # both are empty
    assert _score_span(found, Answers(tuple(true), can_lack), span) == expected


def test_a_question_may_have_no_answer(model, tmp_path):
    path = write_squad(tmp_path / "dev.json", context="home door", impossible=(1, 3))
    examples = load_examples("squad", data=path)
    assert [len(content.texts) for content in examples.content] == [2, 0, 1, 0, 1]
    assert "(5 questions, 2 without answer)" in examples.source
    results = bertjax.ablate(model, "squad", data=path, max_length=16, stride=3, progress=False)
    arrays = results.outputs
    runs = np.concatenate([arrays["base"][None], arrays["outputs"]])
    spans = np.concatenate([arrays["base_spans"][None], arrays["spans"]])
    lacks = spans[..., 0] < 0
    assert 0 < lacks.sum() < lacks.size
    assert (runs[..., 0] < 0).tolist() == lacks.tolist()  # the score is the best span's less that of no answer
    assert (runs[:, [1, 3], 1] == lacks[:, [1, 3]]).all()


def official_scores(found, gold):
    """Exact match and F1 as `evaluate-v2.0.py` of SQuAD computes them (`get_raw_scores`)."""

    def normalize(text):
        text = "".join(character for character in text.lower() if character not in set(string.punctuation))
        return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())

    def f1(true):
        ours, theirs = normalize(found).split(), normalize(true).split()
        common = sum((Counter(ours) & Counter(theirs)).values())
        if not ours or not theirs:
            return float(ours == theirs)
        precision, recall = common / len(ours), common / len(theirs)
        return 2 * precision * recall / (precision + recall) if common else 0.0

    answers = [text for text in gold if normalize(text)] or [""]
    return max(float(normalize(found) == normalize(true)) for true in answers), max(map(f1, answers))


EMPTY = [  # gold answers of four questions, some of them empty
    ("the cat sat", ["the mat"]),
    ("he saw", [""]),
    ("dog ran", ["", "home"]),
    ("old man", []),
]


@pytest.mark.parametrize("found", ["", "home", "the mat", "the", "on the mat"])
def test_an_empty_answer_is_none_as_in_the_official_program(tmp_path, found):
    content = load_examples("squad", data=write_squad(tmp_path / "dev.json", EMPTY, impossible=(3,))).content
    assert [one.texts for one in content] == [("the mat",), (), ("home",), ()]
    assert all(one.can_lack for one in content)
    for one, (_, gold) in zip(content, EMPTY, strict=True):
        assert _score_span(found, one, (0, len(found)) if found else (-1, -1)) == official_scores(found, gold)
    alone = load_examples("squad", data=write_squad(tmp_path / "dev.json", EMPTY[:2]))  # none is marked is_impossible
    assert "(2 questions, 1 without answer)" in alone.source


def hub_rows(questions=EMPTY):
    """Rows as the hub has SQuAD."""
    return [
        {
            "id": f"q{number}",
            "title": "t",
            "context": CONTEXT,
            "question": question,
            "answers": {"text": answers, "answer_start": [0] * len(answers)},
        }
        for number, (question, answers) in enumerate(questions)
    ]


def write_hub(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_a_row_without_answers_may_have_a_false_mark(tmp_path):
    rows = [{**row, "is_impossible": False} for row in hub_rows([("a", []), ("b", ["red"])])]
    examples = load_examples("squad", data=write_hub(tmp_path / "dev.jsonl", rows))
    assert [one.texts for one in examples.content] == [(), ("red",)]


@pytest.mark.parametrize("questions", [EMPTY, QUESTIONS])
def test_rows_of_the_hub_are_read_as_the_file_of_squad(tmp_path, questions):
    none = tuple(number for number, (_, answers) in enumerate(questions) if not any(answers))
    expected = load_examples("squad", data=write_squad(tmp_path / "dev.json", questions, impossible=none))
    rows = hub_rows(questions)
    write_hub(tmp_path / "a.jsonl", rows)
    listed = [{"text": text, "answer_start": 0} for text in questions[0][1]]
    write_hub(tmp_path / "b.jsonl", [{**rows[0], "answers": listed}, *rows[1:]])
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet", row_group_size=2)
    datasets.disable_progress_bars()
    text = datasets.Value("string")
    answers = datasets.Sequence({"text": text, "answer_start": datasets.Value("int32")})
    features = datasets.Features({"id": text, "title": text, "context": text, "question": text, "answers": answers})
    saved = datasets.Dataset.from_list(rows, features=features)
    saved.save_to_disk(tmp_path / "saved")
    datasets.DatasetDict({"validation": saved, "train": saved.select([0])}).save_to_disk(tmp_path / "parts")
    for name in ("a.jsonl", "b.jsonl", "c.parquet", "saved", "parts"):
        found = load_examples("squad", data=tmp_path / name)
        assert found.sha256 == expected.sha256, name
        assert found.ids == tuple(f"q{number}" for number in range(len(questions)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answers": {"text": [3]}}, "line 2: column 'answers' needs texts, as {'text':"),
        ({"answers": "home"}, "line 2: column 'answers' needs texts"),
        ({"answers": None}, "line 2: column 'answers' needs texts"),
        ({"id": "q0"}, "line 2: id 'q0' is also in line 1"),
        ({"id": None}, "line 2: the question has no id, but others have one"),
        ({"id": True}, "line 2: id True is neither a string nor an integer"),
    ],
)
def test_bad_rows_of_the_hub_are_named(tmp_path, changes, message):
    first, second, *rest = hub_rows(QUESTIONS)
    with pytest.raises(DataError, match=message):
        load_examples("squad", data=write_hub(tmp_path / "dev.jsonl", [first, {**second, **changes}, *rest]))


def test_questions_without_text_or_context_are_left_out(tmp_path):
    first, second, *rest = hub_rows(QUESTIONS)
    for changes in ({"question": " "}, {"context": ""}):
        examples = load_examples("squad", data=write_hub(tmp_path / "a.jsonl", [first, {**second, **changes}, *rest]))
        assert "; 1 question without a text or a context left out (first in line 2)" in examples.source
        assert examples.ids == tuple(row["id"] for row in (first, *rest))
    path = write_squad(tmp_path / "dev.json")
    path.write_text(path.read_text().replace(QUESTIONS[1][0], " "))
    source = load_examples("squad", data=path).source
    assert "1 question without a text or a context left out (first in data[0].paragraphs[0].qas[1])" in source
    path.write_text('{"data": [{"paragraphs": [{"context": "", "qas": [{"question": "a", "answers": []}]}]}]}')
    with pytest.raises(DataError, match="has no questions with a text and a context"):
        load_examples("squad", data=path)


def test_a_file_without_any_answer_is_refused(tmp_path):
    with pytest.raises(DataError, match="no question has an answer, as in a test split"):
        load_examples("squad", data=write_hub(tmp_path / "dev.jsonl", hub_rows([("a", []), ("b", [])])))
    with pytest.raises(DataError, match="no column 'answers'"):
        load_examples("squad", data=write_hub(tmp_path / "dev.jsonl", [{"question": "a", "context": "b"}]))


def test_ids_that_are_repeated_or_no_text_are_refused(tmp_path):
    path = write_squad(tmp_path / "dev.json")
    path.write_text(path.read_text().replace('"q1"', '"q0"'))
    with pytest.raises(DataError, match=r"qas\[1\]: id 'q0' is also in data\[0\]\.paragraphs\[0\]\.qas\[0\]$"):
        load_examples("squad", data=path)
    path.write_text(path.read_text().replace('"id": "q0"', '"id": true'))
    with pytest.raises(DataError, match="id True is neither a string nor an integer"):
        load_examples("squad", data=path)
    path.write_text(path.read_text().replace('"version"', '"data": [], "version"'))
    with pytest.raises(DataError, match='an object has the key "data" twice'):
        load_examples("squad", data=path)


def test_a_short_context_is_one_window(model, tmp_path):
    path = write_squad(tmp_path / "dev.json", context="the cat sat")
    results = bertjax.ablate(model, "squad", data=path, heads=["0.0"], stride=3, progress=False)
    for run in compare(results, results.names):
        assert run.difference < 1e-5


def test_questions_without_room_are_left_out_and_counted(model, tmp_path):
    path = write_squad(tmp_path / "dev.json")
    with pytest.raises(
        InputError, match=r"no question can be read: 5 questions without room .* 10 tokens .* share 128"
    ):
        bertjax.ablate(model, "squad", data=path, max_length=10, progress=False)
    long = [("the cat sat on the mat and he saw an old man", ["the mat"]), ("cats", ["a dog"])]
    path = write_squad(tmp_path / "long.json", [*QUESTIONS[:1], *long])
    results = bertjax.ablate(model, "squad", data=path, max_length=14, stride=3, heads=["0.0"], progress=False)
    assert [example["id"] for example in results.examples] == ["q0", "q2"]
    assert "left out: 1 question without room for a window" in results.summary["data"]["source"]
    assert "(first q1)" in results.summary["data"]["source"]
    for run in compare(results, results.names):
        assert run.difference < 1e-5
    write_squad(path, [*QUESTIONS[:1]], context="\u200b")  # no token of the tokenizer's
    with pytest.raises(InputError, match="no question can be read: 1 question whose context has no token"):
        bertjax.ablate(model, "squad", data=path, progress=False)


@pytest.mark.parametrize("name", TOKENIZER_FAMILIES)
def test_windows_are_those_of_transformers(name, tmp_path):
    """Of contexts that begin or end with white space, and of odd ones."""
    directory = make_tokenizer(tmp_path, name)
    ours, theirs = Tokenizer.from_pretrained(directory), AutoTokenizer.from_pretrained(directory)
    lines = [line for line in draw_lines(60, 8) if line.strip()]
    contexts = [
        f"{before}dog {line} {line}{after}"
        for line, before, after in zip(lines, itertools.cycle(BLANKS), itertools.cycle(["", *BLANKS]), strict=False)
    ]
    questions = ["the cat"] * len(contexts)
    content = tuple(Answers(("a",), False) for _ in contexts)
    ids, labels = tuple(range(len(contexts))), np.zeros(len(contexts), np.float32)
    examples = Examples(
        TASKS["question-answering"], ids, tuple(questions), tuple(contexts), labels, "", "", content=content
    )
    options = {"truncation": "only_second", "stride": 4, "return_overflowing_tokens": True}
    reader = random_model(BertForQuestionAnswering, BertConfig(**SIZES["three heads"]))
    for most in (30, 300):
        arguments = EncodeArguments(most, options=QuestionAnsweringOptions(stride=4))
        found = examples.task.encode(reader, ours, examples, arguments)
        expected = theirs(questions, contexts, max_length=most, return_offsets_mapping=True, **options)
        assert [list(one.input_ids) for one in found.encodings] == expected["input_ids"]
        assert found.positions.examples.tolist() == expected["overflow_to_sample_mapping"]
        for window, (at, real) in enumerate(zip(found.positions.at, found.positions.real, strict=True)):
            places = [place for place, part in enumerate(expected.sequence_ids(window)) if part == 1]
            assert at[real].tolist() == [0, *places]
            offsets = found.encodings[window].offsets
            assert [offsets[place] for place in places] == [
                expected["offset_mapping"][window][place] for place in places
            ]


def test_leading_blanks_belong_to_the_context(tmp_path):
    """Byte-level BPE makes tokens of them, which transformers takes for possible answers."""
    directory = make_tokenizer(tmp_path / "model", "RobertaTokenizer")
    sizes = {"vocab_size": len(AutoTokenizer.from_pretrained(directory)), "max_position_embeddings": 80}
    saved_by_torch("roberta", architecture.ANSWERS, directory, **sizes)
    path = write_squad(tmp_path / "dev.json", context=f"    {CONTEXT}  \n ")
    results = bertjax.ablate(directory, "squad", data=path, max_length=60, stride=3, heads=["0.0"], progress=False)
    for run in compare(results, results.names):
        assert run.difference < 1e-5, run
        for ours, theirs in run.scores.values():
            assert ours == pytest.approx(theirs, abs=1e-7), run


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", ": data must be a list of objects, as in SQuAD"),
        ('{"data": [{"paragraphs": []}, {"paragraphs": [{"qas": [[]]}]}]}', r"data\[1\]\.paragraphs\[0\]\.qas must be"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', "has no questions"),
        (
            '{"data": [{"paragraphs": [{"context": "a", "qas": [{"question": "b"}]}]}]}',
            r", data\[0\]\.paragraphs\[0\]\.qas\[0\]: column 'answers' needs texts",
        ),
        (
            '{"data": [{"paragraphs": [{"context": "a", "qas": [{"question": "", "answers": []}]}]}]}',
            "has no questions with a text",
        ),
        (
            '{"data": [{"paragraphs": [{"context": "a", "qas": [{"id": "x", "question": "b", "answers": []}]}]}]}',
            r"qas\[0\]: question 'x' has no answer, and none is marked is_impossible",
        ),
        (
            '{"data": [{"paragraphs": [{"context": "a", "qas": [{"question": "b", "answers": []}]}]}]}',
            r"qas\[0\]: the question has no answer, and none is marked is_impossible",
        ),
        ('{"data": []}', "has no questions"),
    ],
)
def test_bad_files_are_refused_in_a_line(tmp_path, text, message):
    (tmp_path / "dev.json").write_text(text)
    with pytest.raises(DataError, match=message):
        load_examples("squad", data=tmp_path / "dev.json")


def test_what_does_not_fit_is_refused_in_a_line(tmp_path):
    path = write_squad(tmp_path / "dev.json")
    with pytest.raises(ConfigError, match="has no question-answering head, which question-answering needs"):
        bertjax.ablate(make_classifier(tmp_path / "model"), "squad", data=path, progress=False)
    with pytest.raises(DataError, match=r"needs a .json file in SQuAD's format"):
        load_examples("squad", data=tmp_path)
