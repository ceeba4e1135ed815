"""Attention between predicates and their core elements: links, null, both modes, and the files of a run."""

import itertools
import json
from argparse import Namespace

import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from experiments import frame_semantics
from experiments.attention import reduce_attention
from experiments.frame_semantics import (
    Sentence,
    compute,
    group_pieces,
    link_pairs,
    main,
    move_groups,
    published_pairs,
    read_sentences,
    score_links,
)
from experiments.program import Run
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
    monkeypatch.setattr(frame_semantics, "SENTENCES", tmp_path / "sentences.tsv")
    options = Namespace(model=str(embedder), limit=None, seed=0, draws=30, as_published=False)
    model, tokenizer = bertjax.load(embedder), bertjax.Tokenizer.from_pretrained(embedder)
    return Run(options, model, tokenizer, lambda done, total: None)


def attention_of(run, sentence):
    """Weights `[layers, heads, query, key]` and pieces of one sentence, without padding."""
    (encoding,) = run.tokenizer.encode([sentence.text])
    weights = run.model(**bertjax.collate([encoding])).attentions[:, 0]
    return np.asarray(weights), encoding


def test_the_authors_sentences_have_all_their_words():
    sentences = read_sentences(frame_semantics.SENTENCES)
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
    for number, sentence in enumerate(read_sentences(frame_semantics.SENTENCES)):
        weights, encoding = attention_of(run, sentence)
        predicate, *elements = group_pieces(encoding, sentence)
        among = [piece for element in elements for piece in element]
        assert largest_difference(found["both"][number, 0], weights[:, :, among][..., predicate].max((2, 3))) < 1e-5
        assert largest_difference(found["both"][number, 1], weights[:, :, predicate][..., among].max((2, 3))) < 1e-5
    assert largest_difference(found["element_to_predicate"], found["both"][:, 0].mean(0)) < 1e-6


def test_as_published_is_what_a_literal_loop_computes(run):
    found = compute(run).values
    for number, sentence in enumerate(read_sentences(frame_semantics.SENTENCES)):
        weights, encoding = attention_of(run, sentence)
        pieces = [run.tokenizer.encode([sentence.text[slice(*span)]])[0].tokens[1:-1] for span in sentence.elements]
        predicate = run.tokenizer.encode([sentence.text[slice(*sentence.predicate)]])[0].tokens[1:-1]
        several = []
        for element in pieces:
            for one, other in zip(element, predicate, strict=False):
                several.append(weights[:, :, encoding.tokens.index(one), encoding.tokens.index(other)])
        assert largest_difference(found["published"][number], np.mean(several, axis=0)) < 1e-5


def test_a_piece_that_occurs_twice_is_taken_at_its_first_place_only_as_published(run):
    sentence = Sentence("the dog sat near the mat", (8, 11), ((17, 24),))  # "the mat", not "the dog"
    (encoding,) = run.tokenizer.encode([sentence.text])
    groups = group_pieces(encoding, sentence)
    assert groups == [[3], [5, 6]]
    assert published_pairs(encoding, groups) == [(1, 3)]
    assert link_pairs(groups) == ([(5, 3), (6, 3)], [(3, 5), (3, 6)])


def test_moved_groups_stay_whole_apart_and_among_the_words(rng):
    groups, places = [[3], [1, 2], [6, 7, 8]], set()
    for _ in range(200):
        moved = move_groups(groups, 11, rng)
        assert [len(group) for group in moved] == [1, 2, 3]
        tokens = [token for group in moved for token in group]
        assert len(set(tokens)) == 6
        assert 1 <= min(tokens) <= max(tokens) <= 9
        assert all(group == list(range(group[0], group[0] + len(group))) for group in moved)
        places.add(moved[0][0])
    assert places == set(range(1, 10))


def test_only_a_head_that_follows_the_links_is_more_than_chance(run, rng, monkeypatch):
    """Made-up weights: head 0.1 looks from elements to the predicate, head 1.2 back, the others anywhere."""
    texts = run.tokenizer.encode(["the dog sat near a red door and slept"] * 20)
    groups = [move_groups([[1], [2, 3]], 11, rng) for _ in texts]
    weights = rng.dirichlet(np.ones(len(texts[0])), (2, 20, 3, len(texts[0])))
    for example, (predicate, element) in enumerate(groups):
        weights[0, example, 1, element] = np.eye(len(texts[0]))[predicate[0]]
        weights[1, example, 2, predicate] = np.eye(len(texts[0]))[element[1]]

    def stream(model, texts, statistic, extras, **options):
        pairs = [jnp.asarray(extra) for extra in extras(np.arange(20))]
        yield (
            np.arange(20),
            np.asarray(statistic(jnp.asarray(weights, jnp.float32), jnp.ones((20, 11), jnp.int32), *pairs)),
        )

    monkeypatch.setattr(frame_semantics, "stream_attention", stream)
    maps = np.zeros((2, 2, 3))
    for example, group in enumerate(groups):
        for direction, pairs in enumerate(link_pairs(group)):
            maps[direction] += np.max([weights[:, example, :, query, key] for query, key in pairs], axis=0) / 20
    run.options.draws = 200
    found = score_links(run, texts, groups, maps)
    assert found.shape == (2, 2, 3)
    assert found[0, 0, 1] < 0.05
    assert found[1, 1, 2] < 0.05
    others = np.delete(found.ravel(), [1, 11])  # of ten, one in twenty is below 0.05 by chance
    assert (others < 0.05).sum() <= 2
    assert others.max() > 0.2


def test_statistics_do_not_depend_on_how_examples_are_batched(run, monkeypatch):
    texts = run.tokenizer.encode([sentence.text for sentence in read_sentences(frame_semantics.SENTENCES)])
    together = reduce_attention(run.model, texts, first_row)
    monkeypatch.setattr("experiments.attention.BATCH_BYTES", 2 * 4 * 2 * 3 * 12**2)
    assert largest_difference(reduce_attention(run.model, texts, first_row), together) < 1e-6
    weights, _ = attention_of(run, read_sentences(frame_semantics.SENTENCES)[3])
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
    assert (output / "figure.pdf").read_bytes().startswith(b"%PDF")
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main([*arguments, "--overwrite", "--as-published"]) == 0
    assert json.loads((output / "numbers.json").read_text())["settings"]["as_published"]
