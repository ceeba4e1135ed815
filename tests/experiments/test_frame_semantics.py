"""Attention between predicates and their core elements: links, both modes, sources, and the files of a run."""

import itertools
import json
from argparse import Namespace

import numpy as np
import pytest

import bertjax
from bertjax.data.tokenizer import Encoding
from experiments.fig3_frames import compute, figures, main, tables
from experiments.frames import report, selection
from experiments.frames.links import group_pieces, link_pairs, measure_published, published_pairs
from experiments.frames.sources import Sentence, read_published, split_words
from experiments.shared.attention import reduce_attention
from experiments.shared.run import Run, draw_sample
from tests.engine_checks import sum_squared_cls_weights
from tests.frame_files import PROPOSITIONS, span_of, write_framenet
from tests.tiny_models import arrays_of, largest_difference

pytestmark = pytest.mark.integration

ROWS = """sentence\ttarget\tcore_elements
the cat sat on the mat\tsat\tthe cat
the dog sat near a red door and slept\tslept\tthe dog
an old man saw the cat near the door\tsaw\tan old man | the cat
cats sleep\tsleep\tcats
he ran home\tran\the | home
"""


@pytest.fixture
def run(embedder, tmp_path, monkeypatch):
    """A run on a tiny random model and five made-up sentences."""
    (tmp_path / "sentences.tsv").write_text(ROWS)
    monkeypatch.setattr(selection, "PUBLISHED", tmp_path / "sentences.tsv")
    source = {"source": "published", "data": None, "conllu": None, "max_words": None}
    options = Namespace(model=str(embedder), limit=None, seed=0, draws=30, as_published=False, **source)
    model = bertjax.load(embedder)
    return Run(options, model)


def attention_of(run, sentence):
    """Weights `[layers, heads, query, key]` and pieces of one sentence; of one length, so that little is compiled."""
    (encoding,) = run.tokenizer.encode([sentence.text])
    weights = run.model(**bertjax.collate([encoding], 16)).attentions[:, 0]
    return np.asarray(weights)[:, :, : len(encoding), : len(encoding)], encoding


def test_the_authors_sentences_have_all_their_words():
    sentences = read_published(selection.PUBLISHED)
    assert len(sentences) == 473
    for sentence in sentences:
        spans = sorted([sentence.predicate, *sentence.elements])
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        assert all(len(sentence.text[slice(*span)].split()) <= 5 for span in spans)
    first = sentences[0]
    assert first.text[slice(*first.predicate)] == "lifted"
    assert [first.text[slice(*span)] for span in first.elements] == ["Mitch 's chin"]


def test_the_default_is_the_largest_weight_in_each_direction(run):
    found = compute(run)[1]
    for number, sentence in enumerate(read_published(selection.PUBLISHED)):
        weights, encoding = attention_of(run, sentence)
        predicate, *elements = group_pieces(encoding, sentence)
        among = [piece for element in elements for piece in element]
        assert largest_difference(found["both"][number, 0], weights[:, :, among][..., predicate].max((2, 3))) < 1e-5
        assert largest_difference(found["both"][number, 1], weights[:, :, predicate][..., among].max((2, 3))) < 1e-5
    assert largest_difference(found["element_to_predicate"], found["both"][:, 0].mean(0)) < 1e-6


def test_as_published_is_what_a_literal_loop_computes(run):
    found = compute(run)[1]
    for number, sentence in enumerate(read_published(selection.PUBLISHED)):
        weights, encoding = attention_of(run, sentence)
        pieces = [run.tokenizer.encode([sentence.text[slice(*span)]])[0].tokens[1:-1] for span in sentence.elements]
        predicate = run.tokenizer.encode([sentence.text[slice(*sentence.predicate)]])[0].tokens[1:-1]
        several = []
        for one, other in zip([piece for element in pieces for piece in element], predicate, strict=False):
            several.append(weights[:, :, encoding.tokens.index(one), encoding.tokens.index(other)])
        assert largest_difference(found["published"][number], np.max(several, axis=0)) < 1e-5


def test_as_published_pairs_all_element_and_predicate_pieces():
    pieces = ("[CLS]", "he", "un", "##der", "##stood", "the", "un", "##til", "[SEP]")
    encoding = Encoding((1,) * 9, (0,) * 9, pieces, ((0, 0),) * 9, False)
    assert published_pairs(encoding, [[2, 3, 4], [1], [5, 6]]) == [(1, 2), (5, 3), (2, 4)]
    assert published_pairs(encoding, [[1], [5], [6, 7]]) == [(5, 1)]


def test_as_published_the_largest_weight_counts(run, monkeypatch):
    """A predicate of two pieces, that of the second element's pair being the larger."""
    sentence = Sentence("cats ran home", split_words("cats ran home"), (0, 8), ((9, 13),))
    monkeypatch.setattr("experiments.frames.links.published_pairs", lambda *some: [(3, 1), (3, 2)])
    weights, _ = attention_of(run, sentence)
    expected = np.maximum(weights[:, :, 3, 1], weights[:, :, 3, 2])
    assert largest_difference(measure_published(run, [sentence])[0], expected) < 1e-5


@pytest.mark.parametrize(("words", "cut"), [(12, True), (13, False)])
def test_as_published_twelve_words_are_cut_after_twenty_tokens(run, monkeypatch, words, cut):
    text = " ".join(["sleep", *["cats"] * (words - 2), "sleep,,,,,,,,,,,,"])  # 12 pieces more
    sentence = Sentence(text, split_words(text), (0, 5), ((6, 10),))
    lengths = []
    monkeypatch.setattr(
        "experiments.frames.links.reduce_attention",
        lambda model, texts, *rest, **options: lengths.extend(map(len, texts)) or np.zeros((1, 1, 2, 3)),
    )
    measure_published(run, [sentence])
    assert lengths == [20 if cut else words + 2 + 12]


def test_as_published_repeated_pieces_use_their_first_position(run):
    text = "the dog sat near the mat"
    sentence = Sentence(text, split_words(text), (8, 11), ((17, 24),))  # "the mat", not "the dog"
    (encoding,) = run.tokenizer.encode([sentence.text])
    groups = group_pieces(encoding, sentence)
    assert groups == [[3], [5, 6]]
    assert published_pairs(encoding, groups) == [(1, 3)]
    assert link_pairs(groups) == ([(5, 3), (6, 3)], [(3, 5), (3, 6)])


def test_statistics_do_not_depend_on_how_examples_are_batched(run, monkeypatch):
    texts = run.tokenizer.encode([sentence.text for sentence in read_published(selection.PUBLISHED)])
    together = reduce_attention(run.model, texts, sum_squared_cls_weights)
    monkeypatch.setattr("experiments.shared.attention.BATCH_BYTES", 2 * 4 * 2 * 3 * 12**2)
    assert largest_difference(reduce_attention(run.model, texts, sum_squared_cls_weights), together) < 1e-6
    weights, _ = attention_of(run, read_published(selection.PUBLISHED)[3])
    assert largest_difference(together[3], (weights[:, :, 0] ** 2).sum(-1)) < 1e-6


def assert_results_are_of(values, results):
    """Numbers are those of the values of each of four sentences, rounded."""
    assert values["both"].shape == (4, 2, 2, 3)
    assert results["maps"]["as_published"] == values["published"].mean(0, dtype=float).round(6).tolist()
    assert set(results["q_values"]) >= {"moved", "both"}
    nulls = results["nulls"]
    assert nulls["moved"]["examples"] == 4
    for name, null in nulls.items():
        for part in ("observed", "mean", "high", "p_values"):
            assert values[f"{name}_{part}"].shape == (2, 2, 3)
            assert null[part] == values[f"{name}_{part}"].round(6).tolist()
    both = [results["maps"][name] for name in ("element_to_predicate", "predicate_to_element")]
    assert nulls["moved"]["observed"] == both


def test_a_run_leaves_numbers_values_and_figures(run, tmp_path):
    output = tmp_path / "out"
    arguments = ["--model", run.options.model, "--output", str(output), "--draws", "9", "--limit", "4"]
    assert main(arguments) == 0
    pictures = {f"{name}.{kind}" for name in ("figure", "examples") for kind in ("png", "pdf")}
    assert {path.name for path in output.iterdir()} == {"numbers.json", "values.npz", *pictures}
    found = json.loads((output / "numbers.json").read_text())
    assert found["settings"]["seed"] == 0
    assert found["model"]["layers"] == 2
    assert_results_are_of(arrays_of(output / "values.npz"), found["results"])
    assert (output / "figure.pdf").read_bytes().startswith(b"%PDF")
    example = found["results"]["example"]
    assert (example["sentence"], len(example["maps"]), example["tokens"][1]) == ("He was becoming agitated .", 2, "he")
    assert tables({"one": found, "other": found}).startswith("| heads, forth; back | authors | authors |")


def test_the_numbers_of_the_sentences_say_which_they_are(run):
    everything = compute(run)[1]
    run.options.limit = 3
    for run.options.seed in (0, 1):
        some = compute(run)[1]
        ids = some["ids"].tolist()
        assert ids == draw_sample(5, run.options)
        assert largest_difference(some["both"], everything["both"][ids]) < 1e-5
    assert everything["ids"].tolist() == [0, 1, 2, 3, 4]


def left_heads(run):
    """A result in which a head of each direction is left."""
    results = compute(run)[0]
    results = {**results, "heads_left": {"element_to_predicate": ["1.2"], "predicate_to_element": ["0.0", "1.2"]}}
    return {"settings": vars(run.options), "results": results}


def test_the_figure_marks_remaining_heads_and_pales_chance_ones(run, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(report, "draw_maps", lambda path, panels, *rest, **more: drawn.extend(panels))
    numbers = left_heads(run)
    numbers["results"]["q_values"] = {"both": [[[0.04, 0.06, 0.05]] * 2, [[0.0] * 3] * 2]}
    figures(numbers)["figure"](tmp_path / "figure.png")
    forth, back = drawn
    assert np.argwhere(forth.marked).tolist() == [[1, 2]]
    assert np.argwhere(back.marked).tolist() == [[0, 0], [1, 2]]
    assert forth.struck.tolist() == [[False, True, True]] * 2
    assert not back.struck.any()


FAR, NEW = "the old men of the door often sat near a mat", "the dog saw a man and then ran home"
TWICE = "a dog ran near the mat near the man"
AUTHORS = f"sentence\ttarget\tcore_elements\n{FAR}\tsat\tthe old men\nhe saw cats near the door\tsaw\tthe door\n"
AUTHORS += "an old cat and a dog slept\tslept\tan old cat\n"
SEVERAL = (
    (FAR, ["sat"], {"Agent": "the old men", "Time": "often"}),  # an element that does not count is too near
    (FAR, ["sat"], {"Agent": "the old men"}),
    (f"{FAR} of the red door", ["sat"], {"Agent": "the old men"}),
    (NEW, ["ran"], {"Agent": "the dog"}),
    (NEW, ["ran"], {"Theme": "the dog"}),
    (NEW, ["ran"], {"Agent": "the dog saw a man"}),
    (NEW, ["saw", "ran"], {"Agent": "home"}),
    (TWICE, ["ran"], {"Agent": "the man"}),  # where "the" first stands it is too near
)


def run_source(run, tmp_path, *options):
    """What a run over a source leaves: exit code, results and values."""
    arguments = ["--model", run.options.model, "--output", str(tmp_path / "out"), "--draws", "9"]
    code = main([*arguments, *map(str, options)])
    found = json.loads((tmp_path / "out" / "numbers.json").read_text())["results"] if code == 0 else {}
    return code, found, arrays_of(tmp_path / "out" / "values.npz") if code == 0 else {}


def test_framenet_filter_counts_match_the_authors_sentences(run, tmp_path, monkeypatch):
    monkeypatch.setattr("nltk.data.path", [])
    (tmp_path / "sentences.tsv").write_text(AUTHORS)
    sentences = [
        (
            text,
            [span_of(text, target) for target in targets],
            [(name, *span_of(text, filler)) for name, filler in named],
        )
        for text, targets, named in ((text, targets, elements.items()) for text, targets, elements in SEVERAL)
    ]
    directory = write_framenet(tmp_path / "corpora" / "framenet_v17", sentences)
    code, found, values = run_source(run, tmp_path, "--source", "framenet", "--data", directory, "--max-words", 11)
    assert code == 0
    assert found["annotations_by_filter"] == {
        "kept": 3,
        "more than 11 words": 1,
        "not one target span": 1,
        "an element of more than 3 words": 1,
        "an element within 2 words of the target": 1,
        "no core element": 1,
    }
    assert [values[name].tolist() for name in ("ids", "published_ids")] == [[0, 1, 2], [0, 1]]
    assert found["as_published"]["examples"] == 2
    assert found["published_by_filter"]["an element within 2 words of the target"] == 2


def test_propbank_is_counted_by_filter(run, tmp_path):
    (tmp_path / "some.conllu").write_text(PROPOSITIONS, encoding="utf-8")
    source = ["--source", "propbank", "--conllu", tmp_path / "some.conllu", "--max-words"]
    code, found, values = run_source(run, tmp_path, *source, 12)
    assert code == 0
    assert found["annotations_by_filter"] == {
        "kept": 1,
        "an element in several parts": 1,
        "an element within 2 words of the target": 1,
        "an element of more than 3 words": 1,
    }
    assert (values["both"].shape, values["ids"].tolist()) == ((1, 2, 2, 3), [0])
    assert set(found["nulls"]) == {"moved"}  # no other sentence is as long
