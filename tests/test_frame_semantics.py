"""Attention between predicates and their core elements: links, both modes, sources, and the files of a run."""

import itertools
import json
from argparse import Namespace

import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from experiments import frame_semantics
from experiments.frame_semantics import compute, main
from experiments.frames.links import group_pieces, link_pairs, published_pairs
from experiments.frames.sources import Sentence, read_published, split_words
from experiments.shared.attention import reduce_attention
from experiments.shared.program import Run
from tests.tiny import largest_difference
from tests.workshop import make_embedder

ROWS = """sentence\ttarget\tcore_elements
the cat sat on the mat\tsat\tthe cat
the dog sat near a red door and slept\tslept\tthe dog
an old man saw the cat near the door\tsaw\tan old man | the cat
cats sleep\tsleep\tcats
he ran home\tran\the | home
"""


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    return make_embedder(tmp_path_factory.mktemp("embedder"))


@pytest.fixture
def run(embedder, tmp_path, monkeypatch):
    """A run on a tiny random model and five made-up sentences."""
    (tmp_path / "sentences.tsv").write_text(ROWS)
    monkeypatch.setattr(frame_semantics, "PUBLISHED", tmp_path / "sentences.tsv")
    source = {"source": "published", "data": None, "max_words": None}
    options = Namespace(model=str(embedder), limit=None, seed=0, draws=30, as_published=False, **source)
    model, tokenizer = bertjax.load(embedder), bertjax.Tokenizer.from_pretrained(embedder)
    return Run(options, model, tokenizer, lambda done, total: None)


def attention_of(run, sentence):
    """Weights `[layers, heads, query, key]` and pieces of one sentence; of one length, so that little is compiled."""
    (encoding,) = run.tokenizer.encode([sentence.text])
    weights = run.model(**bertjax.collate([encoding], 16)).attentions[:, 0]
    return np.asarray(weights)[:, :, : len(encoding), : len(encoding)], encoding


def test_the_authors_sentences_have_all_their_words():
    sentences = read_published(frame_semantics.PUBLISHED)
    assert len(sentences) == 473
    for sentence in sentences:
        spans = sorted([sentence.predicate, *sentence.elements])
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        assert all(len(sentence.text[slice(*span)].split()) <= 5 for span in spans)
    first = sentences[0]
    assert first.text[slice(*first.predicate)] == "lifted"
    assert [first.text[slice(*span)] for span in first.elements] == ["Mitch 's chin"]


def test_the_default_is_the_largest_weight_of_all_pairs_in_each_direction(run):
    found = compute(run).values
    for number, sentence in enumerate(read_published(frame_semantics.PUBLISHED)):
        weights, encoding = attention_of(run, sentence)
        predicate, *elements = group_pieces(encoding, sentence)
        among = [piece for element in elements for piece in element]
        assert largest_difference(found["both"][number, 0], weights[:, :, among][..., predicate].max((2, 3))) < 1e-5
        assert largest_difference(found["both"][number, 1], weights[:, :, predicate][..., among].max((2, 3))) < 1e-5
    assert largest_difference(found["element_to_predicate"], found["both"][:, 0].mean(0)) < 1e-6


def test_as_published_is_what_a_literal_loop_computes(run):
    found = compute(run).values
    for number, sentence in enumerate(read_published(frame_semantics.PUBLISHED)):
        weights, encoding = attention_of(run, sentence)
        pieces = [run.tokenizer.encode([sentence.text[slice(*span)]])[0].tokens[1:-1] for span in sentence.elements]
        predicate = run.tokenizer.encode([sentence.text[slice(*sentence.predicate)]])[0].tokens[1:-1]
        several = []
        for element in pieces:
            for one, other in zip(element, predicate, strict=False):
                several.append(weights[:, :, encoding.tokens.index(one), encoding.tokens.index(other)])
        assert largest_difference(found["published"][number], np.mean(several, axis=0)) < 1e-5


def test_a_piece_that_occurs_twice_is_taken_at_its_first_place_only_as_published(run):
    text = "the dog sat near the mat"
    sentence = Sentence(text, split_words(text), (8, 11), ((17, 24),))  # "the mat", not "the dog"
    (encoding,) = run.tokenizer.encode([sentence.text])
    groups = group_pieces(encoding, sentence)
    assert groups == [[3], [5, 6]]
    assert published_pairs(encoding, groups) == [(1, 3)]
    assert link_pairs(groups) == ([(5, 3), (6, 3)], [(3, 5), (3, 6)])


def test_statistics_do_not_depend_on_how_examples_are_batched(run, monkeypatch):
    texts = run.tokenizer.encode([sentence.text for sentence in read_published(frame_semantics.PUBLISHED)])
    together = reduce_attention(run.model, texts, first_row)
    monkeypatch.setattr("experiments.shared.attention.BATCH_BYTES", 2 * 4 * 2 * 3 * 12**2)
    assert largest_difference(reduce_attention(run.model, texts, first_row), together) < 1e-6
    weights, _ = attention_of(run, read_published(frame_semantics.PUBLISHED)[3])
    assert largest_difference(together[3], (weights[:, :, 0] ** 2).sum(-1)) < 1e-6


def first_row(attentions, keep):
    """The sum of squares of [CLS]'s weights, padding weightless."""
    return jnp.moveaxis((attentions[:, :, :, 0] ** 2).sum(-1), 1, 0)


def test_a_run_leaves_numbers_values_and_figures(run, tmp_path, capsys):
    output = tmp_path / "out"
    arguments = ["--model", run.options.model, "--output", str(output), "--draws", "9", "--limit", "4"]
    assert main(arguments) == 0
    assert "4 sentences" in capsys.readouterr().out
    assert {path.name for path in output.iterdir()} == {"numbers.json", "values.npz", "figure.png", "figure.pdf"}
    found = json.loads((output / "numbers.json").read_text())
    assert found["settings"]["seed"] == 0
    assert found["model"]["layers"] == 2
    values = np.load(output / "values.npz")
    assert values["both"].shape == (4, 2, 2, 3)
    assert found["results"]["maps"]["as_published"] == values["as_published"].round(6).tolist()
    assert set(found["results"]["q_values"]) >= {"moved", "both"}
    assert (output / "figure.pdf").read_bytes().startswith(b"%PDF")
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main([*arguments, "--overwrite", "--as-published"]) == 0
    assert json.loads((output / "numbers.json").read_text())["settings"]["as_published"]


def test_mistakes_about_the_source_are_one_line(embedder, tmp_path, capsys):
    (tmp_path / "empty.conllu").write_text("1\tcats\t_\tX\t_\t_\t0\troot\t_\t_\n\n")
    for options, words in (
        (["--data", "somewhere"], "--source"),
        (["--source", "propbank"], "--data"),
        (["--source", "propbank", "--data", str(tmp_path / "empty.conllu")], "no columns of PropBank"),
        (["--source", "framenet", "--data", str(tmp_path)], "no directory of FrameNet"),
    ):
        assert main(["--model", str(embedder), "--output", str(tmp_path / "out"), *options]) == 2
        said = capsys.readouterr().err
        assert words in said
        assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()
