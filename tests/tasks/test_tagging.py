"""The task `token-classification`: entities as seqeval counts them, tags as a loop in PyTorch predicts them."""

import gzip
import itertools
import json

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

import bertjax
from benchmarks.task_parity import compare
from bertjax import BertConfig, BertForTokenClassification
from bertjax.cli import main
from bertjax.data import Tokenizer
from bertjax.errors import ConfigError, DataError, InputError
from bertjax.results import read_results
from bertjax.tasks import EncodeArguments, encode_examples, load_examples
from bertjax.tasks.entities import SCHEMES, Counter, entities, scheme_of, strict_entities
from tests.factories import TAGS, make_classifier, make_tagger
from tests.task_files import TAGGED_SENTENCES, write_conll
from tests.tiny_models import SIZES, random_model
from tests.tokenizer_factories import ODD_TEXTS, TOKENIZER_FAMILIES, draw_lines, make_tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tagger(tmp_path_factory.mktemp("tagger"), seed=1)


@pytest.fixture(scope="module")
def ablated(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tags")
    path = write_conll(folder / "test.conll")
    bertjax.ablate(model, "ner", data=path, output=folder / "results", progress=False)
    return read_results(folder / "results")


TAG = st.sampled_from(["O", *(f"{mark}-{kind}" for mark in "BIES" for kind in ("a", "b"))])
BILOU_TAG = st.sampled_from(["O", *(f"{mark}-{kind}" for mark in "BILU" for kind in ("a", "b-c"))])


@pytest.mark.filterwarnings("ignore:.*seems not to be NE tag")
@pytest.mark.parametrize("tag", [TAG, BILOU_TAG], ids=["IOBES", "BILOU"])
def test_default_entities_are_seqevals(tag):
    from seqeval.metrics.sequence_labeling import get_entities

    @settings(max_examples=300, deadline=None)
    @given(st.lists(tag, min_size=1, max_size=12))
    def check(tags):
        expected = {(kind, first, last + 1) for kind, first, last in get_entities(tags)}
        assert entities(tags) == expected

    check()


@pytest.mark.parametrize("name", SCHEMES)
def test_strict_entities_are_seqevals(name):
    """Of all sequences of four tags, well formed or not."""
    from seqeval import scheme

    names = ["O", *(f"{mark}-{kind}" for mark in SCHEMES[name].marks for kind in ("a", "b"))]
    for tags in itertools.product(names, repeat=4):
        found = scheme.Entities([[*tags]], getattr(scheme, name)).entities[0]
        assert strict_entities(tags, name) == {(one.tag, one.start, one.end) for one in found}


def written_in(scheme, sentence):
    """The tags of entities (type, words) and of words outside (None) by the definition of a scheme."""
    tags, before = [], None
    for kind, length in sentence:
        marks = {
            "IOB2": "B" + "I" * (length - 1),
            "IOE2": "I" * (length - 1) + "E",
            "IOBES": "S" if length == 1 else "B" + "I" * (length - 2) + "E",
            "BILOU": "U" if length == 1 else "B" + "I" * (length - 2) + "L",
            "IOB1": ("B" if kind == before else "I") + "I" * (length - 1),
        }[scheme]
        tags += ["O"] * length if kind is None else [f"{mark}-{kind}" for mark in marks]
        before = kind
    return tags


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("seed", range(5))
def test_the_scheme_is_that_of_the_data(name, seed):
    from seqeval import scheme
    from seqeval.metrics import f1_score

    rng = np.random.default_rng(seed)
    drawn = [[(str(rng.choice(["a", "b"])), int(rng.integers(1, 4))) for _ in range(4)] for _ in range(9)]
    sentences = [written_in(name, [*sentence[:2], (None, 1), *sentence[2:], (None, 2)]) for sentence in drawn]
    sentences += [written_in(name, sentence) for sentence in drawn]
    assert scheme_of(sentences) == (name, 0)
    # Predictions of the scheme's marks, among which are many of no entity.
    marks = [f"{mark}-{kind}" for mark in SCHEMES[name].marks for kind in ("a", "b")]
    predicted = [[str(rng.choice(["O", tag, *marks])) for tag in sentence] for sentence in sentences]
    sums = np.zeros(3)
    for true, found in zip(sentences, predicted, strict=True):
        both = strict_entities(true, name), strict_entities(found, name)
        sums += len(both[0] & both[1]), len(both[0]), len(both[1])
    expected = f1_score(sentences, predicted, mode="strict", scheme=getattr(scheme, name))
    assert 2 * sums[0] / (sums[1] + sums[2]) == pytest.approx(expected)


def test_tags_of_no_scheme_have_none():
    assert scheme_of([["I-a", "I-a", "O", "I-b"]]) == ("IOB1", 0)  # IO
    assert scheme_of([["B-a", "I-a", "O", "I-b"]] * 3) == ("IOB2", 3)  # as most of its entities are written
    assert scheme_of([["O", "O"], []]) == ("IOB2", 0)
    assert scheme_of([["B-a", "SEP", "LABEL_9", "O"]]) == ("IOB2", 0)
    for tags in (["S-a", "U-b"], ["B-a", "L-a", "B-a", "E-a"], ["B-a", "U-a", "E-b"]):
        assert scheme_of([tags])[0] is None
    iob1_by_ends = ["I-a", "I-a", "O", "I-b", "O", "I-a", "E-a", "I-a"]  # IOE1: E only before another of its type
    assert scheme_of([iob1_by_ends])[0] is None


def tagger_of(sentences, path, more=()):
    """A model with random weights and the tags of these sentences, and a file of these sentences."""
    tags = dict.fromkeys(tag for sentence in sentences for _, tag in sentence)
    return make_tagger(path, ("O", *(tag for tag in tags if tag != "O"), *more), seed=1), write_conll(
        path / "a.conll", sentences
    )


@pytest.mark.parametrize("name", ["IOE2", "IOB1"])
def test_a_perfect_model_has_a_strict_f1_of_one(name, tmp_path, monkeypatch):
    """Also with labels that are no tags of entities."""
    tags = written_in(name, [("per", 2), ("per", 1), (None, 1), ("loc", 1)])
    words = ["the", "cat", "sat", "on", "mats"]
    model, path = tagger_of([[*zip(words, tags, strict=True)]] * 2, tmp_path, more=("SEP", "LABEL_9"))
    monkeypatch.setattr(Counter, "_predicted", lambda self, numbers: list(self._sentence.tags))
    results = bertjax.ablate(model, "ner", data=path, heads=["0.0"], progress=False)
    assert results.rows_of("strict_entity_f1")[0].base == 1
    assert f"tags in {name}" in results.summary["data"]["source"]


def test_without_a_scheme_the_strict_metric_is_left_out(tmp_path, capsys):
    sentences = [[("the", "S-per"), ("cat", "U-loc"), ("sat", "O")]] * 2
    model, path = tagger_of(sentences, tmp_path)
    results = bertjax.ablate(model, "ner", data=path, heads=["0.0"], progress=False)
    assert results.summary["metrics"] == ["entity_f1", "tag_accuracy"]
    note = "3 tags, which follow no tagging scheme: no strict_entity_f1"
    assert note in results.summary["data"]["source"]
    with pytest.raises(InputError, match=r"strict_entity_f1 cannot score tags of words .*: choose entity_f1 or tag"):
        bertjax.ablate(model, "ner", data=path, metric="strict_entity_f1", progress=False)
    arguments = ["--model", str(model), "--task", "ner", "--data", str(path), "--output", str(tmp_path / "out")]
    assert main(["ablate", *arguments, "--heads", "0.0"]) == 0
    assert note in capsys.readouterr().out


def test_outputs_and_scores_are_those_of_pytorch_and_seqeval(ablated):
    assert ablated.summary["metrics"] == ["entity_f1", "strict_entity_f1", "tag_accuracy"]
    assert "1 word without pieces, tagged O" in ablated.summary["data"]["source"]
    for run in compare(ablated, ablated.names):
        assert run.difference < 1e-5, run
        for ours, theirs in run.scores.values():
            assert ours == pytest.approx(theirs, abs=1e-12), run
    assert len({row.score for row in ablated.rows_of()}) > 2


def test_results_hold_the_tags_of_all_runs(ablated):
    arrays = ablated.outputs
    assert ablated.summary["tags"] == list(TAGS)
    assert arrays["units"].tolist() == [0] * 5 + [1] * 4 + [2] * 3 + [3] * 4 + [4] * 2
    assert arrays["words"].tolist()[9:12] == [1, 2, 3]
    true = [tag for sentence in TAGGED_SENTENCES for word, tag in sentence if word != "\u200b"]
    assert [TAGS[number] for number in arrays["true"]] == true
    assert arrays["tags"].shape == (6, 18)
    assert arrays["base"][:, 2].tolist() == [5, 4, 4, 4, 2]
    correct = arrays["tags"] == arrays["true"]
    assert arrays["outputs"][:, 1, 1].tolist() == correct[:, 5:9].sum(1).tolist()
    assert ablated.rows_of()[0].examples == 5  # sentences are drawn, not words


@pytest.mark.parametrize("name", TOKENIZER_FAMILIES)
def test_words_are_read_at_their_first_pieces(name, tmp_path):
    """As word ids of transformers have them: of words with spaces inside, of odd ones and of those without pieces."""
    directory = make_tokenizer(tmp_path, name)
    prefix = {"add_prefix_space": True} if name == "RobertaTokenizer" else {}
    theirs = AutoTokenizer.from_pretrained(directory, **prefix)
    rng, lines = np.random.default_rng(3), draw_lines(150, 6)
    words = [word for line in lines for word in line.split(" ")] + [
        *ODD_TEXTS,
        "New York",
        "1\u00a0000",
        " ",
        "",
        "\u200b",
    ]
    rows = [[str(rng.choice(words)) for _ in range(rng.integers(1, 9))] for _ in range(80)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"tokens": row, "tags": ["O"] * len(row)}) + "\n" for row in rows))
    tagger = random_model(BertForTokenClassification, BertConfig(**SIZES["three heads"], id2label={0: "O"}))
    for limit in (50, 6):
        read = load_examples("ner", data=path)
        assert [[*one.words] for one in read.content] == rows
        found = read.task.encode(tagger, Tokenizer.from_pretrained(directory), read, EncodeArguments(limit))
        expected = theirs(rows, is_split_into_words=True, truncation=True, max_length=limit)
        firsts = [
            {word: place for place, word in reversed([*enumerate(expected.word_ids(row))]) if word is not None}
            for row in range(len(rows))
        ]
        kept = [row for row, first in enumerate(firsts) if first]
        assert [row for row in range(len(rows)) if row not in found.dropped] == kept
        assert [list(one.input_ids) for one in found.encodings] == [expected["input_ids"][row] for row in kept]
        assert found.arrays["places"].tolist() == [firsts[row][word] for row in kept for word in sorted(firsts[row])]
        assert found.arrays["words"].tolist() == [word for row in kept for word in sorted(firsts[row])]
        missing = sum(len(row) - len(first) for row, first in zip(rows, firsts, strict=True))
        assert f"{missing} words without pieces, tagged O (first " in found.note


def test_words_and_their_white_space_are_kept(model, tmp_path):
    """In rows of lists and in columns; the tokenizer splits `the cat` into two words, and the first one is read."""
    rows = [[("the cat", "B-per"), ("sat", "O"), ("1\u00a0000", "O")], [("dog", "O"), ("\u2028", "O"), ("ran", "O")]]
    listed = tmp_path / "a.jsonl"
    listed.write_text(
        "".join(json.dumps({"tokens": [w for w, _ in row], "tags": [t for _, t in row]}) + "\n" for row in rows)
    )
    results = bertjax.ablate(model, "ner", data=listed, heads=["0.0"], output=tmp_path / "out", progress=False)
    shown = [json.loads(line) for line in (tmp_path / "out" / "examples.jsonl").read_text().splitlines()]
    assert [one["words"] for one in shown] == [[word for word, _ in row] for row in rows]
    assert [one["first"] for one in shown] == ["the cat sat 1\u00a0000", "dog \u2028 ran"]
    assert "1 word without pieces, tagged O (first '\\u2028' of sentence 1)" in results.summary["data"]["source"]
    ids = Tokenizer.from_pretrained(model).encode(["the cat sat 1 000"])[0].input_ids
    examples = load_examples("ner", data=listed)
    encoded = encode_examples(bertjax.load(model), Tokenizer.from_pretrained(model), examples, 20)
    assert encoded.encodings[0].input_ids == ids
    for run in compare(results, results.names):
        assert run.difference < 1e-5
    columns = load_examples("ner", data=write_conll(tmp_path / "b.conll", rows, blank="\n"))
    assert columns.content == examples.content


def test_blank_words_and_empty_sentences_do_not_refuse_a_file(model, tmp_path):
    rows = [(["the", "", " "], ["O", "B-per", "O"]), ([], []), (["cat"], ["B-per"])]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"tokens": words, "tags": tags}) + "\n" for words, tags in rows))
    examples = load_examples("ner", data=path)
    assert (examples.ids, examples.content[0].words) == ((0, 2), ("the", "", " "))
    assert "1 sentence without words left out" in examples.source
    (tmp_path / "b.conll").write_text("the\tO\n\tB-per\n \tO\n\ncat\tB-per\n")
    assert load_examples("ner", data=tmp_path / "b.conll").content == examples.content
    results = bertjax.ablate(model, "ner", data=path, heads=["0.0"], progress=False)
    assert "2 words without pieces, tagged O (first '' of sentence 0)" in results.summary["data"]["source"]
    assert results.outputs["base"][:, 2].tolist() == [3, 1]


def test_parts_of_speech_have_accuracy_alone(tmp_path):
    model = make_tagger(tmp_path, ("DET", "NOUN", "VERB"))
    path = tmp_path / "dev.conllu"
    path.write_text(
        "# sent_id = 1\n"
        "1\tThe\tthe\tDET\tDT\t_\t2\tdet\t_\t_\n"
        "2-3\tcatsat\t_\t_\t_\t_\t_\t_\t_\t_\n"
        "2\tcat\tcat\tNOUN\tNN\t_\t3\tnsubj\t_\t_\n"
        "3\tsat\tsit\tVERB\tVBD\t_\t0\troot\t_\t_\n"
        "3.1\tthere\t_\tADV\t_\t_\t_\t_\t_\t_\n"
        "\n# text = dogs ran\n"
        "1\tdogs\tdog\tNOUN\tNNS\t_\t2\tnsubj\t_\t_\n"
        "2\tran\trun\tVERB\tVBD\t_\t0\troot\t_\t_\n"
    )
    results = bertjax.ablate(tmp_path, "token-classification", data=path, heads=["0.0", "1.2"], progress=False)
    assert results.summary["metrics"] == ["tag_accuracy"]
    assert [example["words"] for example in results.examples] == [["The", "cat", "sat"], ["dogs", "ran"]]
    for run in compare(results, results.names):
        assert run.difference < 1e-5
        assert run.scores["tag_accuracy"][0] == pytest.approx(run.scores["tag_accuracy"][1], abs=1e-12)
    assert model.is_dir()


PROPOSITIONS = (
    "# sent_id = 1\n"
    "1\tthe\tthe\tDET\tDT\t_\t2\tdet\t_\t_\t_\t_\t_\n"
    "2\tcat\tcat\tNOUN\tNN\t_\t3\tnsubj:pass\t_\t_\t_\tARG1\tARG0\n"
    "3\tsat\tsit\tVERB\tVBD\t_\t0\troot\t_\t_\tsit.01\tV\t_\n"
    "4\tran\trun\tVERB\tVBD\t_\t3\tconj\t_\t_\trun.02\t_\tV\n"
    "\n1\tdogs\tdog\tNOUN\tNNS\t_\t0\troot\t_\t_\t_\n"
)


def test_columns_of_conllu_are_tags_and_annotation(tmp_path):
    path = tmp_path / "up.conllu"
    path.write_text(PROPOSITIONS)
    tags = {name: load_examples("ner", data=path, tags=name).content[0].tags for name in ("upos", "xpos", "deprel")}
    assert tags == {
        "upos": ("DET", "NOUN", "VERB", "VERB"),
        "xpos": ("DT", "NN", "VBD", "VBD"),
        "deprel": ("det", "nsubj", "root", "conj"),
    }
    first, second = (sentence.annotation for sentence in load_examples("ner", data=path).content)
    assert (first.lemmas, first.upos, first.heads) == (("the", "cat", "sit", "run"), tags["upos"], (2, 3, 0, 3))
    assert first.deprel == ("det", "nsubj:pass", "root", "conj")
    assert first.roles == (("_", "_"), ("ARG1", "ARG0"), ("V", "_"), ("_", "V"))
    assert second.roles == ((),)
    with pytest.raises(DataError, match="no column 'deprel'"):
        load_examples("ner", data=write_conll(tmp_path / "a.conll"), tags="deprel")
    with pytest.raises(InputError, match="--tags is an option of token-classification, not of mlm"):
        load_examples("mlm", tags="xpos")


def test_files_of_other_forms_give_the_same(tmp_path):
    expected = load_examples("ner", data=write_conll(tmp_path / "a.conll"))
    spaces = tmp_path / "b.txt"
    lines = ["-DOCSTART- -X- O O\n\n"]
    lines += ["".join(f"{word} NN X {tag}\n" for word, tag in one) + "\n" for one in TAGGED_SENTENCES]
    spaces.write_text("".join(lines))
    listed = tmp_path / "c.jsonl"
    rows = [{"tokens": [word for word, _ in one], "ner_tags": [tag for _, tag in one]} for one in TAGGED_SENTENCES]
    listed.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    zipped, windows = write_conll(tmp_path / "d.conll.gz", blank="\n"), write_conll(tmp_path / "e.conll", blank="\r\n")
    for path in (spaces, listed, zipped, windows):
        examples = load_examples("token-classification", data=path)
        assert examples.content == expected.content, path
        assert examples.sha256 == expected.sha256
    assert expected.first[0] == "the cat sat on mats"


def conll_features():
    """As those of conll2003: numbers of parts of speech, too, before those of entities."""
    number = datasets.Sequence(datasets.ClassLabel(names=list(TAGS)))
    parts = datasets.Sequence(datasets.ClassLabel(names=["NN", "DT"]))
    text, words = datasets.Value("string"), datasets.Sequence(datasets.Value("string"))
    return datasets.Features({"id": text, "tokens": words, "pos_tags": parts, "ner_tags": number})


def make_conll(sentences=TAGGED_SENTENCES):
    datasets.disable_progress_bars()
    columns = {
        "id": [str(number) for number in range(len(sentences))],
        "tokens": [[word for word, _ in sentence] for sentence in sentences],
        "pos_tags": [[0] * len(sentence) for sentence in sentences],
        "ner_tags": [[TAGS.index(tag) for _, tag in sentence] for sentence in sentences],
    }
    return datasets.Dataset.from_dict(columns, features=conll_features())


def test_parquet_and_saved_datasets_give_the_same(tmp_path):
    expected = load_examples("ner", data=write_conll(tmp_path / "a.conll"))
    dataset = make_conll()
    dataset.save_to_disk(tmp_path / "saved")
    datasets.DatasetDict({"train": make_conll(TAGGED_SENTENCES[:2]), "dev": dataset}).save_to_disk(tmp_path / "parts")
    with (tmp_path / "numbers.parquet").open("wb") as file:
        dataset.to_parquet(file, batch_size=2)
    named = [[tag for _, tag in sentence] for sentence in TAGGED_SENTENCES]
    table = pa.table({"words": dataset["tokens"][:], "tags": pa.array(named, pa.large_list(pa.string()))})
    pq.write_table(table, tmp_path / "names.parquet", row_group_size=3)
    content = (tmp_path / "names.parquet").read_bytes()
    (tmp_path / "packed.parquet.gz").write_bytes(gzip.compress(content))
    for name in ("saved", "parts", "numbers.parquet", "names.parquet", "packed.parquet.gz"):
        examples = load_examples("token-classification", data=tmp_path / name)
        assert examples.content == expected.content, name
        assert examples.sha256 == expected.sha256
    train = load_examples("ner", data=tmp_path / "parts", split="train")
    assert (len(train), train.split) == (2, "train")
    parts = load_examples("ner", data=tmp_path / "saved", text_columns=["tokens", "pos_tags"])
    assert parts.content[0].tags == ("NN",) * 5
    with pytest.raises(DataError, match="no split 'test'; there are train, dev"):
        load_examples("ner", data=tmp_path / "parts", split="test")


def test_lists_that_cannot_be_tags_are_named_by_row(tmp_path):
    words = [["the"], ["a", "cat"]]
    for tags, message in (
        ([[0], [1, 1]], r"row 0 \(from 0\): column 'tags' holds \[0\], which is not a list of strings"),
        ([["O"], ["O"]], r"row 1 \(from 0\): there are 2 words and 1 tags"),
        ([["O"], None], r"row 1 \(from 0\): column 'tags' holds None, which is not a list of strings"),
        ([["O"], ["O", None]], r"row 1 \(from 0\): column 'tags' holds \['O', None\], which is not a list"),
        ([[["O"]], [["O"]]], "column 'tags' holds ..'O'.., which is not a list of strings"),
    ):
        pq.write_table(pa.table({"tokens": words, "tags": tags}), tmp_path / "a.parquet")
        with pytest.raises(DataError, match=message):
            load_examples("ner", data=tmp_path / "a.parquet")
    table = make_conll([[("cat", "O")]]).data.table  # with the names of classes
    table = table.set_column(3, "ner_tags", pa.array([[9]]))
    pq.write_table(table, tmp_path / "c.parquet")
    with pytest.raises(DataError, match=r"row 0 \(from 0\): tag 9 of column 'ner_tags' is not a class id"):
        load_examples("ner", data=tmp_path / "c.parquet")
    hidden = pa.array([b"a", b"b", b"\xff"]).view(pa.string())
    broken = pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), hidden)
    for dictionary in (True, False):
        pq.write_table(
            pa.table({"tokens": broken, "tags": [["O", "O"], ["O"]]}), tmp_path / "b.parquet", use_dictionary=dictionary
        )
        with pytest.raises(DataError, match=r"row 1 \(from 0\): column 'tokens' is not UTF-8"):
            load_examples("ner", data=tmp_path / "b.parquet")


def test_the_first_of_several_tags_is_taken_and_reported(tmp_path):
    """The test part of WNUT 2017 has such."""
    sentences = [[("home", "B-loc,B-per"), ("dog", "O")], [("cat", "B-a,b")]]
    examples = load_examples("ner", data=write_conll(tmp_path / "a.conll", sentences))
    assert examples.content[0].tags == ("B-loc", "O")
    assert examples.content[1].tags == ("B-a,b",)
    assert "1 word with several tags, the first taken" in examples.source


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.conll", "the\tO\ncat\n", "line 2: 1 column, but 2 in earlier lines"),
        ("a.conll", "the\tO\n\ncat\tO\tO\n", "line 3: 3 columns, but 2"),
        ("a.conll", "the\n", "line 1: 1 column: expected a word and its tag"),
        ("a.conll", "the\t \n", "line 1: 1 column: expected a word and its tag"),
        ("a.conll", "\n\t\n", "holds no examples"),
        ("a.jsonl", '{"tokens": ["a"], "tags": []}', "line 1: there are 1 words and 0 tags"),
        ("a.jsonl", '{"tokens": "a", "tags": ["O"]}', "column 'tokens' holds 'a', which is not a list of strings"),
        ("a.jsonl", '{"tokens": ["a"], "tags": [""]}', "column 'tags' has an empty string: each word needs a tag"),
        ("a.jsonl", '{"tokens": [], "tags": []}', "no sentence has a word"),
        ("a.conll", "the\t\tO\n\ncat\t\t \n", "line 3: 1 column, but 3 in earlier lines"),
        ("a.jsonl", '{"tokens": ["a"], "tags": [0]}', "'tags' holds .0., .* strings: tag names are missing; write"),
        ("a.jsonl", '{"tokens": ["a"]}', "no column 'tags'"),
    ],
)
def test_bad_lines_are_named(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        load_examples("ner", data=tmp_path / name)


def test_what_does_not_fit_is_refused_in_a_line(model, tmp_path):
    path = write_conll(tmp_path / "a.conll", [[("cat", "B-org"), ("dog", "O")]])
    with pytest.raises(ConfigError, match="the model's tags O, B-per, I-per, B-loc, I-loc lack B-org of"):
        bertjax.ablate(model, "ner", data=path, progress=False)
    with pytest.raises(ConfigError, match="has no token-classification head, which token-classification needs"):
        bertjax.ablate(make_classifier(tmp_path / "model"), "ner", data=path, progress=False)
    with pytest.raises(DataError, match="no word has a piece"):
        bertjax.ablate(model, "ner", data=write_conll(tmp_path / "b.conll", [[("\u200b", "O")]]), progress=False)
    with pytest.raises(DataError, match="is a directory; token-classification needs a file"):
        load_examples("ner", data=tmp_path)
    with pytest.raises(DataError, match="no such file"):
        load_examples("ner", data=tmp_path / "nothing.conll")
    with pytest.raises(DataError, match="needs two columns, of words and of tags"):
        load_examples("ner", data=path, text_columns=["tokens"])


def test_words_that_are_cut_off_are_tagged_outside(model, tmp_path):
    path = write_conll(tmp_path / "a.conll", [[("cat", "B-per"), ("dog", "B-per"), ("ran", "O")]] * 2)
    results = bertjax.ablate(model, "ner", data=path, max_length=3, heads=["0.0"], progress=False)
    assert results.outputs["words"].tolist() == [0, 0]
    assert results.outputs["base"][:, 2].tolist() == [3, 3]
    assert "4 words without pieces, tagged O" in results.summary["data"]["source"]
    assert np.all(results.outputs["base"][:, 1] >= 1)
