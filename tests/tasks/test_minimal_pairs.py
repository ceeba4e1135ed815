"""The tasks `minimal-pairs` and `agreement`: pseudo-log-likelihoods as a loop in PyTorch computes them, by paradigm."""

import json

import numpy as np
import pytest

import bertjax
from benchmarks.task_parity import compare
from bertjax.errors import ConfigError, DataError, InputError
from bertjax.results import read_results
from bertjax.statistics import compute_statistics
from bertjax.tasks import load_examples
from tests.factories import make_classifier, make_masked
from tests.task_files import MINIMAL_PAIRS


def write_blimp(folder):
    """A file of each paradigm, as BLiMP has them."""
    folder.mkdir()
    for paradigm in ("one", "two"):
        lines = [
            {
                "sentence_good": good,
                "sentence_bad": bad,
                "UID": paradigm,
                "pairID": str(number),
                "one_prefix_method": True,
            }
            for number, (good, bad, _) in enumerate(pair for pair in MINIMAL_PAIRS if pair[2] == paradigm)
        ]
        (folder / f"{paradigm}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_masked(tmp_path_factory.mktemp("masked"))


@pytest.fixture(scope="module")
def blimp(tmp_path_factory):
    return write_blimp(tmp_path_factory.mktemp("data") / "blimp")


@pytest.fixture(scope="module")
def ablated(model, blimp, tmp_path_factory):
    output = tmp_path_factory.mktemp("results") / "pairs"
    bertjax.ablate(model, "minimal-pairs", data=blimp, output=output, progress=False)
    return read_results(output)


def test_a_directory_is_read_file_by_file(blimp):
    examples = load_examples("blimp", data=blimp)
    assert examples.first == tuple(good for good, _, _ in MINIMAL_PAIRS)
    assert examples.second == tuple(bad for _, bad, _ in MINIMAL_PAIRS)
    assert examples.groups == tuple(group for _, _, group in MINIMAL_PAIRS)
    assert examples.ids[:4] == ("one-0", "one-1", "one-2", "two-0")
    assert examples.labels.tolist() == [1] * 8
    assert "8 pairs of 2 files, 1 pair of equal sentences, which always count as wrong" in examples.source
    alone = load_examples("minimal-pairs", data=blimp / "one.jsonl")
    assert alone.groups is None
    assert len(alone) == 3


@pytest.mark.parametrize("pll", ["original", "within-word"])
def test_outputs_and_scores_are_those_of_a_loop_in_pytorch(model, blimp, pll):
    """`mats` and `dogs` are of two pieces."""
    results = bertjax.ablate(model, "minimal-pairs", data=blimp, pll=pll, progress=False)
    assert len(results.names) == 6
    for run in compare(results, results.names):
        assert run.difference < 1e-5, run
        assert run.scores["accuracy"][0] == run.scores["accuracy"][1]
        # Log-likelihoods of about -40 are float32.
        assert run.scores["margin"][0] == pytest.approx(run.scores["margin"][1], abs=1e-5), run
    assert results.summary["metrics"] == ["accuracy", "margin", "accuracy:one", "accuracy:two"]


def test_whole_word_masking_changes_only_words_of_several_pieces(model, blimp):
    both = [
        bertjax.ablate(model, "minimal-pairs", data=blimp, pll=pll, heads=["0.0"], progress=False)
        for pll in ("original", "within-word")
    ]
    bases = [results.outputs["base"] for results in both]
    same = np.isclose(*bases, atol=1e-6)
    assert same.tolist() == [
        [not any(word in sentence for word in ("mats", "dogs")) for sentence in (bad, good)]
        for good, bad, _ in MINIMAL_PAIRS
    ]


def test_a_paradigm_has_a_score_and_statistics(ablated):
    arrays = ablated.outputs
    for group in ("one", "two"):
        members = [place for place, pair in enumerate(MINIMAL_PAIRS) if pair[2] == group]
        rows = ablated.rows_of(f"accuracy:{group}")
        expected = [(run[members, 1] > run[members, 0]).mean() for run in arrays["outputs"]]
        assert [row.score for row in rows] == pytest.approx(expected)
        assert rows[0].base == pytest.approx((arrays["base"][members, 1] > arrays["base"][members, 0]).mean())
        statistics = compute_statistics(
            "accuracy", arrays["base"][members], arrays["outputs"][:, members], np.ones(len(members), int), seed=0
        )
        assert [row.q for row in rows] == statistics.q.tolist()
        assert [row.low for row in rows] == statistics.low.tolist()
        assert rows[0].examples == len(members)
    assert ablated.measure("accuracy:two").label == "Accuracy, two"
    assert ablated.plot(metric="accuracy:two") is not None


def test_a_pair_of_equal_sentences_is_never_right(ablated):
    assert (ablated.outputs["outputs"][:, -1, 0] == ablated.outputs["outputs"][:, -1, 1]).all()
    assert ablated.outputs["base"][-1, 0] == ablated.outputs["base"][-1, 1]


def test_agreement_asks_at_the_place_where_the_forms_differ(model, tmp_path):
    rows = [
        {"sentence": "the cat [MASK] on the mat", "good": "sat", "bad": "ran"},
        {"sentence": "the ***mask*** are old", "good": "dogs", "bad": "dog"},  # skipped: of two pieces
        {"sentence": "<mask> dog ran", "good": "a", "bad": "an"},
        {"sentence": "he [MASK] home", "good": "ran", "bad": "saw"},
    ]
    path = tmp_path / "agreement.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    results = bertjax.ablate(model, "agreement", data=path, progress=False)
    assert [example["first"] for example in results.examples] == ["the cat sat on the mat", "a dog ran", "he ran home"]
    assert "1 pair left out, with forms that differ in several pieces" in results.summary["data"]["source"]
    largest = max(float(np.abs(results.outputs[name]).max()) for name in ("base", "outputs"))
    for run in compare(results, results.names):
        assert run.difference < 1e-5
        for ours, theirs in run.scores.values():  # of differences of two outputs, which are float32
            assert ours == pytest.approx(theirs, abs=2e-6 * largest)


def test_sentences_serve_agreement_as_well(model, blimp):
    results = bertjax.ablate(model, "agreement", data=blimp, heads=["1.1"], progress=False)
    assert [example["id"] for example in results.examples] == ["one-1", "two-0", "two-1", "two-2", "two-3"]


def write_pairs(path, pairs):
    path.write_text("good\tbad\n" + "".join(f"{good}\t{bad}\n" for good, bad in pairs))
    return path


CUT = [
    ("the cat sat on the mat", "the cat sat on the door"),  # equal in the first six tokens
    ("the cat ran home", "the dog ran home"),
    ("a dog ran", "a dog ran"),  # equal
    ("an old man saw the cat", "an old man saw a cat"),  # equal in the first six tokens
    ("he ran home", "he slept home"),
]


def test_pairs_truncated_before_they_differ_are_left_out(model, tmp_path):
    data = write_pairs(tmp_path / "pairs.tsv", CUT)
    options = {"data": data, "heads": ["0.0"], "progress": False}
    cut = bertjax.ablate(model, "minimal-pairs", max_length=6, **options)
    assert "2 pairs left out, truncated before the sentences differ" in cut.summary["data"]["source"]
    assert [example["first"] for example in cut.examples] == [CUT[number][0] for number in (1, 2, 4)]
    whole = bertjax.ablate(model, "minimal-pairs", **options)
    assert "truncated before" not in whole.summary["data"]["source"]
    assert len(whole.examples) == 5
    assert np.allclose(cut.outputs["base"], whole.outputs["base"][[1, 2, 4]], atol=1e-5)  # these are not truncated
    right = whole.outputs["base"][[1, 2, 4], 1] > whole.outputs["base"][[1, 2, 4], 0]
    assert cut.rows_of()[0].base == pytest.approx(right.mean())
    data = write_pairs(tmp_path / "one.tsv", CUT[:1])
    with pytest.raises(DataError, match="no pair can be scored: 1 pair left out, truncated before the sentences"):
        bertjax.ablate(model, "minimal-pairs", data=data, max_length=6, progress=False)


def test_agreement_says_why_each_pair_is_skipped(model, tmp_path):
    pairs = [*CUT, ("dogs ran", "dog ran"), ("the cat saw a dog", "the cat saw a mat")]  # the last differ at the cut
    data = write_pairs(tmp_path / "pairs.tsv", pairs)
    results = bertjax.ablate(model, "agreement", data=data, max_length=7, heads=["0.0"], progress=False)
    assert [example["first"] for example in results.examples] == [CUT[1][0], CUT[4][0], pairs[-1][0]]
    source = results.summary["data"]["source"]
    assert "2 pairs left out, truncated before the sentences differ: give a larger --max-length" in source
    assert "1 pair left out, with sentences of the same pieces" in source
    assert "1 pair left out, with forms that differ in several pieces" in source
    results = bertjax.ablate(model, "agreement", data=data, max_length=6, heads=["0.0"], progress=False)
    assert [example["first"] for example in results.examples] == [CUT[1][0], CUT[4][0]]


def test_a_sentence_without_words_is_named(model, tmp_path):
    data = write_pairs(tmp_path / "pairs.tsv", [("\u200b", "door"), ("he ran", "he sat"), ("a dog", "\u200b")])
    results = bertjax.ablate(model, "minimal-pairs", data=data, heads=["0.0"], progress=False)
    assert [example["first"] for example in results.examples] == ["he ran"]
    assert "2 pairs left out, with a sentence without words (ids 0, 2)" in results.summary["data"]["source"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('{"sentence_good": "a"}', "no column 'sentence_bad'"),
        ('{"good": "a b", "bad": ""}', "line 1: column 'bad' is empty"),
        (
            '{"good": "a b", "bad": "c", "UID": "x"}\n{"good": "a b", "bad": "c", "UID": null}',
            "line 2: column 'UID' is null, but other rows have a group",
        ),
        ('{"good": "a b", "bad": 3}', "line 1: column 'bad' holds 3, which is not a string"),
        ('{"sentence": "a b", "good": "c", "bad": "d"}', "'a b' must mark one position of the forms by .MASK."),
        ('{"sentence": "[MASK] [MASK]", "good": "c", "bad": "d"}', "must mark one position of the forms"),
    ],
)
def test_bad_lines_are_named(tmp_path, lines, message):
    path = tmp_path / "pairs.jsonl"
    path.write_text(lines + "\n")
    with pytest.raises(DataError, match=message):
        load_examples("minimal-pairs", data=path)


def test_what_does_not_fit_is_refused_in_a_line(model, blimp, tmp_path):
    with pytest.raises(DataError, match="minimal-pairs needs data: a file of sentence_good and sentence_bad"):
        load_examples("minimal-pairs")
    with pytest.raises(DataError, match="no such file or directory"):
        load_examples("minimal-pairs", data=tmp_path / "nothing")
    with pytest.raises(DataError, match="has no file of pairs for minimal-pairs"):
        load_examples("minimal-pairs", data=tmp_path)
    with pytest.raises(DataError, match="needs two text columns"):
        load_examples("minimal-pairs", data=blimp, text_columns=["good"])
    with pytest.raises(ConfigError, match="has no masked-LM head, which minimal-pairs needs"):
        bertjax.ablate(make_classifier(tmp_path), "minimal-pairs", data=blimp, progress=False)
    with pytest.raises(InputError, match="--stride is an option of question-answering, not of minimal-pairs"):
        bertjax.ablate(model, "minimal-pairs", data=blimp, stride=3, progress=False)
    with pytest.raises(InputError, match="--pll is an option of mlm and minimal-pairs, not of agreement"):
        bertjax.ablate(model, "agreement", data=blimp, pll="within-word", progress=False)
    (tmp_path / "long.tsv").write_text("good\tbad\ndogs\tdog\n")
    with pytest.raises(DataError, match="no pair has forms that differ in a single piece"):
        bertjax.ablate(model, "agreement", data=tmp_path / "long.tsv", progress=False)
    (tmp_path / "empty.tsv").write_text("good\tbad\n\u200b\tdoor\n")
    with pytest.raises(DataError, match=r"1 pair left out, with a sentence without words \(ids 0\)"):
        bertjax.ablate(model, "minimal-pairs", data=tmp_path / "empty.tsv", progress=False)
