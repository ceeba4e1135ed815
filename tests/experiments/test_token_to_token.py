"""Relations between words against position: which words, which tokens, what position explains, and both modes."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import spearmanr

import bertjax
from experiments.fig7_cls import compute, figures, main, report_relation, tables
from experiments.published import published_pairs
from experiments.words import links
from experiments.words.annotated import Annotated, AnnotatedSample, Word
from experiments.words.cls_row import Row, report_row
from experiments.words.conllu_files import read_sentences
from experiments.words.features import FEATURES, feature_masks
from experiments.words.links import CONTROLS, follow_links, follow_published, measure
from experiments.words.pattern_join import join_patterns, read_patterns
from experiments.words.relations import RELATIONS, find_links, join_words, token_pairs
from tests.annotated_sentences import SENTENCES, make_run
from tests.tiny_models import arrays_of, largest_difference

pytestmark = pytest.mark.integration

# By eye, words counted from 0: subjects and verbs that they depend on, pronouns and nouns of one entity.
VERBS = [[(1, 2)], [(1, 2)], [], [(2, 3), (7, 8)], [(0, 3)], [(0, 1)]]
PRONOUNS = [[], [], [], [(7, 2)], [], []]


@pytest.fixture
def run(embedder, tmp_path):
    """A run on a tiny random model and six made-up sentences."""
    return make_run(embedder, tmp_path / "some.conllu", as_published=False, draws=99)


def sample_of(run, *texts):
    encodings = tuple(run.tokenizer.encode([text.text for text in texts]))
    return AnnotatedSample("made up", tuple(range(len(texts))), encodings, tuple((text,) for text in texts))


def attention_of(run, text):
    """Weights `[layers, heads, query, key]` of one text, padding cut off, and its tokens."""
    (encoding,) = run.tokenizer.encode([text])
    weights = np.asarray(run.model(**bertjax.collate([encoding], 12)).attentions[:, 0])
    return weights[:, :, : len(encoding), : len(encoding)], encoding


def test_links_are_those_seen_by_eye(run):
    for text, verbs, pronouns in zip(read_sentences(Path(run.options.conllu)), VERBS, PRONOUNS, strict=True):
        forth, back, reference, antecedent = find_links(text)
        assert (forth, reference) == (verbs, pronouns)
        assert (sorted(back), sorted(antecedent)) == (
            sorted((verb, subject) for subject, verb in verbs),
            sorted((noun, pronoun) for pronoun, noun in pronouns),
        )


def test_mentions_of_other_entities_and_of_one_kind_are_no_links():
    kinds = ["PRP", "NN", "NN", "PRP", "NN"]
    words = tuple(Word(kind, (place, place + 1), kind, "", -1, "") for place, kind in enumerate(kinds))
    mentions = (("1", 0), ("2", 1), ("1", 2), ("1", 3), ("2", 4))
    assert find_links(Annotated("abcde", words, mentions))[2:] == [[(0, 2), (3, 2)], [(2, 0), (2, 3)]]
    assert find_links(Annotated("abcde", words, None))[2:] == [[], []]


def test_truncated_words_have_no_links_and_links_stay_in_a_text(run):
    texts = read_sentences(Path(run.options.conllu))
    whole = join_words(run.tokenizer.encode([texts[5].text], [texts[3].text])[0], (texts[5], texts[3]))
    assert whole.links[0] == [(0, 1), (4, 5), (9, 10)]
    assert whole.starts == [0, 2]
    assert whole.tokens[0] == [1]
    assert whole.tokens[4] == [6]
    cut = join_words(run.tokenizer.encode([texts[3].text], max_length=9)[0], (texts[3],))
    assert cut.links[0] == [(2, 3)]
    assert token_pairs(whole.tokens, whole.links)[0] == [(1, 2), (6, 7), (11, 12)]


def test_the_default_is_what_literal_loops_compute(run):
    relations = compute(run)[0]["sources"]["some"]["models"][0]["relations"]
    assert [relations[name]["sources"] for name in RELATIONS] == [6, 6, 1, 1]
    largest, shares = {name: [] for name in RELATIONS}, {name: [] for name in RELATIONS}
    for text in read_sentences(Path(run.options.conllu)):
        weights, encoding = attention_of(run, text.text)
        words = [
            [
                token
                for token, (start, end) in enumerate(encoding.offsets)
                if start < word.span[1] and end > word.span[0]
            ]
            for word in text.words
        ]
        for name, pairs_of_relation in zip(RELATIONS, find_links(text), strict=True):
            if pairs_of_relation:
                several = [
                    weights[:, :, query, key]
                    for source, target in pairs_of_relation
                    for query in words[source]
                    for key in words[target]
                ]
                largest[name].append(np.max(several, axis=0))
            for source, target in pairs_of_relation:
                rows = weights[:, :, words[source]].mean(2)
                to = np.stack([rows[:, :, keys].sum(-1) for keys in words])
                shares[name].append(to.argmax(0) == target)
    for name in RELATIONS:
        assert largest_difference(relations[name]["mean"], np.mean(largest[name], axis=0)) < 2e-6
        assert largest_difference(relations[name]["share"], np.mean(shares[name], axis=0)) < 2e-6
        for control in CONTROLS:
            expected = np.mean(shares[name], axis=0) - np.array(relations[name]["control_shares"][control])
            assert largest_difference(relations[name]["margins"][control]["mean"], expected) < 2e-6
    reference = relations["pronoun to noun"]  # "an old man saw the cat and he ran": the nearest noun is the cat
    assert [reference["control_shares"][name] for name in ("distance", "nearest")] == [1, 0]
    assert relations["subject to verb"]["best_distance"] == 1
    assert relations["subject to verb"]["control_shares"]["distance"] == pytest.approx(5 / 6, abs=1e-6)


def test_the_same_key_control_uses_all_other_and_nearby_words(run):
    """Literally, of "an old man saw the cat and he ran home": who else attends most to a link's target?"""
    text = read_sentences(Path(run.options.conllu))[3]
    weights, _ = attention_of(run, text.text)
    words = weights[:, :, 1:-1, 1:-1]  # a token each
    chosen = words.argmax(-1)
    found = follow_links(run, run.model, sample_of(run, text)).same_key[0]
    for relation, several in enumerate(find_links(text)):
        for control, reach in enumerate((99, 2)):
            expected = np.zeros((2, 3))
            for source, target in several:
                taken = {target, *(other for other, to in several if to == target)}
                rest = [word for word in range(10) if word not in taken and abs(word - source) <= reach]
                expected += (chosen[:, :, rest] == target).mean(-1)
            assert largest_difference(found[control, relation], expected) < 1e-6


def test_the_row_of_cls_is_taken_in_three_forms(run):
    rows = compute(run)[0]["sources"]["some"]["models"][0]["cls_row"]
    nouns = [[2, 6], [2, 7], [2], [3, 6], [8], [1]]
    measures, texts = [], [text for text, *_ in SENTENCES]
    for text, places in zip(texts, nouns, strict=True):
        weights, encoding = attention_of(run, text)
        row = weights[-1, :, 0, places]  # numpy puts the places first
        measures.append((row.max(0), row.max(0) * len(encoding), row.mean(0) * len(encoding)))
    forms = ("largest", "largest_by_uniform", "mean_by_uniform")
    for name, expected in zip(forms, zip(*measures, strict=True), strict=True):
        assert largest_difference(rows["nouns"][name], np.mean(expected, axis=0)) < 2e-5
    assert set(rows) == {*FEATURES[:6], "text", "[CLS]", "[SEP]"}


def test_uniform_attention_is_1_in_both_normalised_forms(run):
    sample = sample_of(run, *read_sentences(Path(run.options.conllu)))
    lengths, masks = np.array([len(text) for text in sample.texts]), feature_masks(sample)
    uniform = np.broadcast_to((1 / lengths)[:, None, None], (len(lengths), len(FEATURES), 3)).astype(np.float32)
    for one in report_row(Row(uniform, uniform), masks, lengths).values():
        assert np.allclose(one["largest_by_uniform"], 1)
        assert np.allclose(one["mean_by_uniform"], 1)
        assert one["all_heads"]["mean_by_uniform"]["mean"] == pytest.approx(1)


def literal_pairs(run, text, tokens):
    """Places of sources and of targets of each relation, as the authors' notebook finds them: pieces anywhere."""
    verbs = [word for word in text.words if word.relation == "nsubj" and text.words[word.head].part in ("VERB", "AUX")]
    ends = [([word.form for word in verbs], [text.words[word.head].form for word in verbs])]
    heads = [(entity, text.words[word]) for entity, word in text.mentions]
    pronouns, nouns = ([one for one in heads if one[1].tag == tag] for tag in ("PRP", "NN"))
    linked = [(one, other) for name, one in pronouns for entity, other in nouns if name == entity]
    ends.append(([one.form for one, _ in linked], [other.form for _, other in linked]))
    for sources, targets in ends:
        places = []
        for forms in (sources, targets):
            pieces = [piece for form in forms for piece in run.tokenizer.encode([form])[0].tokens[1:-1]]
            places.append([place for place, token in enumerate(tokens) if token in pieces])
        yield from (list(zip(*both, strict=False)) for both in (places, places[::-1]))


def test_as_published_is_what_a_literal_loop_computes(run):
    """All relations; then the last layer's [CLS] row: the largest on a feature, texts without it left out."""
    aux = [Word("cat", (4, 7), "NN", "NOUN", 2, "nsubj"), Word("is", (8, 10), "VBZ", "AUX", -1, "root")]
    aux = Annotated("the cat is", (Word("the", (0, 3), "DT", "DET", 1, "det"), *aux), ())
    texts = [*read_sentences(Path(run.options.conllu)), aux]
    maps, rows, _ = follow_published(run, run.model, sample_of(run, *texts))
    several, nouns = {name: [] for name in RELATIONS}, []
    for text in texts:
        weights, encoding = attention_of(run, text.text)
        for name, pairs in zip(RELATIONS, literal_pairs(run, text, encoding.tokens), strict=True):
            found = [weights[:, :, query, key] for query, key in pairs]
            several[name].append(np.max(found, axis=0) if found else np.zeros((2, 3)))
        forms = {word.form for word in text.words if word.tag in ("PRP", "PRP$")}
        places = [place for place, token in enumerate(encoding.tokens) if token in forms]
        nouns += [weights[-1, :, 0, places].max(0)] if places else []  # numpy puts the places first
    for name, values in several.items():
        assert np.any(values)
        assert largest_difference(maps[name], np.mean(values, axis=0)) < 1e-6
    assert 0 < len(nouns) < len(texts)
    assert largest_difference(rows["pronouns"], np.mean(nouns, axis=0)) < 1e-6


def test_as_published_pairs_pieces_in_the_order_of_the_input(run, tmp_path):
    """Of two subjects and two verbs, the first of each are paired, whoever belongs to whom."""
    rows = ("the", (0, 3), "DT", "DET", 1, "det"), ("cat", (4, 7), "NN", "NOUN", 4, "nsubj")
    rows += ("he", (8, 10), "PRP", "PRON", 3, "nsubj"), ("saw", (11, 14), "VBD", "VERB", 1, "acl")
    words = tuple(Word(*row) for row in (*rows, ("ran", (15, 18), "VBD", "VERB", -1, "root")))
    text = Annotated("the cat he saw ran", words)
    (encoding,) = run.tokenizer.encode([text.text])
    assert published_pairs(encoding, [text], run.tokenizer) == [[(2, 4), (3, 5)], [(4, 2), (5, 3)], [], []]
    joined = join_words(encoding, [text])
    assert token_pairs(joined.tokens, joined.links)[0] == [(2, 5), (3, 4)]


def follow_with_attention(run, monkeypatch, rng, texts, make):
    """The links under the attention that `make` gives: `[layers, heads, query, key]` of an example."""
    sample = sample_of(run, *texts)
    width = max(len(text) for text in sample.texts)
    maps = np.zeros((2, len(texts), 3, width, width), np.float32)
    for example, encoding in enumerate(sample.texts):
        maps[:, example, :, : len(encoding), : len(encoding)] = make(example, len(encoding))
    keep = np.arange(width) < np.array([len(text) for text in sample.texts])[:, None]

    def reduce(model, texts, statistic, extras, **options):
        arrays = (jnp.asarray(array) for array in (maps, keep.astype(np.int32), *extras))
        return np.asarray(statistic(*arrays))

    monkeypatch.setattr(links, "reduce_attention", reduce)
    return follow_links(run, run.model, sample)


def random_text(rng):
    """Words in any order, a verb somewhere and its subject often just before it."""
    forms = rng.choice(["cat", "dog", "mat", "red", "old", "near"], 8).tolist()
    verb = int(rng.integers(1, 8))
    subject = verb - 1 if rng.random() < 0.3 else int(rng.choice([place for place in range(8) if place != verb]))
    words, here = [], 0
    for place, form in enumerate(forms):
        relation, head = ("nsubj", verb) if place == subject else ("dep", -1)
        tag = "VB" if place == verb else "NN"
        words.append(Word(form, (here, here + len(form)), tag, "VERB" if tag == "VB" else "NOUN", head, relation))
        here += len(form) + 1
    return Annotated(" ".join(forms), tuple(words))


def test_only_a_head_that_follows_links_beats_position(run, rng, monkeypatch):
    """Head 0.1 looks at the next token, head 1.2 from the subject to its verb, the others anywhere."""
    texts = [random_text(rng) for _ in range(80)]

    def make(example, tokens):
        weights = rng.dirichlet(np.ones(tokens), (2, 3, tokens))
        weights[0, 1] = np.eye(tokens)[np.minimum(np.arange(tokens) + 1, tokens - 1)]
        ((source, target),) = find_links(texts[example])[0]
        weights[1, 2, source + 1] = np.eye(tokens)[target + 1]
        return weights

    run.options.draws = 499
    measured = measure(run, follow_with_attention(run, monkeypatch, rng, texts, make))["subject to verb"]
    assert measured["best_distance"] == 1
    margin = measured["margins"]["distance"]
    assert measured["share"][0, 1] == pytest.approx(float(measured["shares"]["distance"]))
    assert margin.mean[0, 1] == pytest.approx(0)
    assert margin.q_values[0, 1] > 0.5
    assert measured["share"][1, 2] == 1
    assert all(one.q_values[1, 2] < 0.05 for one in measured["margins"].values())
    others = np.delete(margin.q_values.ravel(), 5)
    assert (others > 0.5).all()


def test_a_head_that_attends_targets_always_fails_the_same_key(run, rng, monkeypatch):
    """It beats distance and the nearest word, as one does that follows the link alone; that one beats all four."""
    texts = [random_text(rng) for _ in range(80)]

    def make(example, tokens):
        weights = rng.dirichlet(np.ones(tokens), (2, 3, tokens))
        ((source, target),) = find_links(texts[example])[0]
        weights[0, 1] = np.eye(tokens)[target + 1]
        weights[1, 2, source + 1] = np.eye(tokens)[target + 1]
        return weights

    run.options.draws = 499
    measured = measure(run, follow_with_attention(run, monkeypatch, rng, texts, make))["subject to verb"]
    q_values = {name: one.q_values for name, one in measured["margins"].items()}
    assert q_values["distance"][0, 1] < 0.05
    assert q_values["others"][0, 1] > 0.5
    assert q_values["neighbours"][0, 1] > 0.5
    assert measured["shares"]["others"][0, 1] == pytest.approx(1)
    assert report_relation(measured)["followed_by"] == ["1.2"]


def test_tables_and_figures_are_redrawn_from_saved_numbers(run, tmp_path):
    output = tmp_path / "out"
    patterns = write_patterns(tmp_path / "patterns.json", run.options.model)
    arguments = ["--model", run.options.model, "--conllu", run.options.conllu, "--output", str(output), "--draws", "9"]
    assert main([*arguments, "--as-published", "--patterns", str(patterns)]) == 0
    names = {"figure", "cls_row"}
    pictures = {f"{name}.{kind}" for name in names for kind in ("png", "pdf")}
    assert {path.name for path in output.iterdir()} == {"numbers.json", "values.npz", *pictures}
    numbers = json.loads((output / "numbers.json").read_text())
    found = numbers["results"]["sources"]["some"]
    assert set(found["models"][0]["relations"]) == set(found["as_published"]["maps"]) == set(RELATIONS)
    assert arrays_of(output / "values.npz")["some_0_hits"].shape == (6, 4, 2, 3)
    drawn = figures(numbers)
    assert set(drawn) == names
    drawn["cls_row"](tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == (output / "cls_row.png").read_bytes()
    assert "share of diagonal maps" in tables({"": numbers})


def write_patterns(path, model):
    """What `attention_patterns` leaves, of two tasks: head 1.2 is diagonal, others vertical."""
    heads = {"diagonal": np.zeros((2, 3)), "vertical+diagonal": np.zeros((2, 3)), "vertical": np.ones((2, 3))}
    heads["diagonal"][1, 2], heads["vertical+diagonal"][1, 2] = 0.5, 0.25
    tasks = {name: {"by_head": {kind: shares.tolist() for kind, shares in heads.items()}} for name in ("rte", "mrpc")}
    settings = {"model": model, "tuned": None}
    path.write_text(json.dumps({"settings": settings, "results": {"corrected": tasks}}), encoding="utf-8")
    return path


def test_relations_are_joined_with_diagonal_maps_head_by_head(run, tmp_path):
    patterns = read_patterns(str(write_patterns(tmp_path / "patterns.json", "m")))
    weight = np.arange(6).reshape(2, 3).tolist()  # 1.2 has most
    found = join_patterns({"a": {"mean": weight, "share": weight[::-1], "followed_by": ["0.1"]}}, patterns)["a"]
    assert found["highest"] == {"1.2": 0.75, "1.1": 0, "1.0": 0}
    assert found["followed_by"] == {"0.1": 0}
    assert found["all"] == pytest.approx(0.125)
    assert found["weight_ranks"] == pytest.approx(spearmanr(range(6), [0, 0, 0, 0, 0, 1]).statistic)
