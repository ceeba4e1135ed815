"""Words of CoNLL-U files and of spaCy: places in the text, tags, roles, mentions; and what is refused."""

import gzip
from argparse import Namespace

import pytest

import bertjax
from experiments.shared.run import Run
from experiments.words.annotated import Word, word_pieces
from experiments.words.annotation import SAMPLE, annotate, make_annotator, read_annotated
from experiments.words.conllu_files import find_mentions, read_sentences
from tests.annotated_sentences import SENTENCES, conllu, fake_spacy, write_sentences

pytestmark = pytest.mark.integration


def read(tmp_path, *sentences):
    path = tmp_path / "some.conllu"
    path.write_text(conllu(*sentences), encoding="utf-8")
    return read_sentences(path)


def forms(sentence):
    """What stands where words are said to be."""
    return [sentence.text[slice(*word.span)] for word in sentence.words]


def test_words_stand_where_their_spans_say(tmp_path):
    sentences = read_sentences(write_sentences(tmp_path / "some.conllu"))
    assert [sentence.text for sentence in sentences] == [text for text, *_ in SENTENCES]
    for sentence in sentences:
        assert forms(sentence) == [word.form for word in sentence.words]
    assert [(word.form, word.span, word.head) for word in sentences[4].words[:4]] == [
        ("he", (0, 2), 3),
        ("did", (3, 6), 3),
        ("n't", (6, 9), 3),
        ("sleep", (10, 15), -1),
    ]


def test_words_share_multiword_tokens_and_empty_nodes_do_not(tmp_path):
    rows = ("1-2 zum _ _ _ _", "1 zu APPR ADP 3 case", "2 dem ART DET 3 det", "2.1 x _ X _ _", "3 Haus NN NOUN 0 root")
    (sentence,) = read(tmp_path, ("zum  Haus", *rows))
    assert forms(sentence) == ["zum", "zum", "Haus"]
    assert [word.head for word in sentence.words] == [2, 2, -1]


def test_a_text_that_is_left_out_is_made_of_the_words(tmp_path):
    rows = ("1-2 don't _ _ _ _", "1 do VBP AUX 3 aux", "2 n't RB PART 3 advmod", "3 go VB VERB 0 root SpaceAfter=No")
    (sentence,) = read(tmp_path, (None, *rows, "4 ! . PUNCT 3 punct"))
    assert sentence.text == "don't go!"
    assert forms(sentence) == ["do", "n't", "go", "!"]


def test_word_kinds_use_penn_tags_where_all_tags_are_from_penn(tmp_path):
    rows = ("1 can MD AUX 2 aux", "2 go VB VERB 0 root", "3 who WP PRON 2 obj", "4 Rome NNP PROPN 2 obl")
    (penn,) = read(tmp_path, ("can go who Rome", *rows))
    assert [word.kind for word in penn.words] == ["", "verb", "", "noun"]
    (other,) = read(tmp_path, ("can go who Rome du", *rows, "5 du PPER PRON 2 nsubj"))
    assert [word.kind for word in other.words] == ["verb", "verb", "pronoun", "noun", "pronoun"]


def test_mentions_are_known_by_their_heads():
    words = [Word(str(place), (0, 1), "", "", head, "") for place, head in enumerate([2, 0, 6, 2, 5, 2, -1])]
    marks = ["(7-person-new-1(8-place-new-coref-A_%28b%29)", "", "", "(9-thing-giv)", "(9-thing", "7)9)", "(7-person)"]
    found = list(find_mentions(marks, words))
    assert found == [("8", 0), ("9", 3), ("7", 2), ("9", 5), ("7", 6)]


def test_a_file_without_entities_says_nothing_of_mentions(tmp_path):
    assert [sentence.mentions for sentence in read(tmp_path, SENTENCES[2], SENTENCES[5])] == [None, None]
    assert [sentence.mentions for sentence in read(tmp_path, SENTENCES[2], SENTENCES[3])] == [(), (("3", 2), ("3", 7))]


def test_the_shipped_sample_has_every_word_and_its_source():
    sentences = read_sentences(SAMPLE)
    assert len(sentences) == 200
    assert all(forms(sentence) == [word.form for word in sentence.words] for sentence in sentences)
    assert {word.tag for sentence in sentences for word in sentence.words} >= {"NN", "VBD", "PRP"}
    assert "CC BY-SA 4.0" in SAMPLE.read_text(encoding="utf-8")[:600]


def test_a_packed_file_is_read_too(tmp_path):
    plain = write_sentences(tmp_path / "some.conllu")
    (tmp_path / "some.conllu.gz").write_bytes(gzip.compress(plain.read_bytes()))
    assert read_sentences(tmp_path / "some.conllu.gz") == read_sentences(plain)


def tag_ran(text):
    """Of "the dog  ran": the further space is a token."""
    assert text == "the dog  ran"
    return [("DT", "DET", 1, "det"), ("NN", "NOUN", 3, "nsubj"), ("_SP", "SPACE", 1, ""), ("VBD", "VERB", 3, "ROOT")]


def test_spacys_words_are_taken_without_further_spaces(monkeypatch):
    fake_spacy(monkeypatch, tag_ran)
    (found,) = annotate("some_model", ["the dog  ran"])
    assert found.words == (
        Word("the", (0, 3), "DT", "DET", 1, "det"),
        Word("dog", (4, 7), "NN", "NOUN", 2, "nsubj"),
        Word("ran", (9, 12), "VBD", "VERB", -1, "ROOT"),
    )
    assert found.mentions is None


def test_other_tags_of_spacy_are_not_taken_for_penns(monkeypatch):
    fake_spacy(monkeypatch, lambda text: [("PPER", "PRON", 1, "sb"), ("VVFIN", "VERB", 1, "ROOT")])
    (found,) = annotate("german", ["ich lief"])
    assert [(word.tag, word.kind) for word in found.words] == [("", "pronoun"), ("", "verb")]


def test_both_texts_of_a_pair_are_annotated_separately(embedder, tmp_path, monkeypatch):
    (tmp_path / "dev.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\tcats sleep\tthe dog ran\tentailment\n")
    tags = {"cats sleep": [("NNS", "NOUN", 1, "nsubj"), ("VBP", "VERB", 1, "ROOT")]}
    tags["the dog ran"] = [("DT", "DET", 1, "det"), ("NN", "NOUN", 2, "nsubj"), ("VBD", "VERB", 2, "ROOT")]
    fake_spacy(monkeypatch, tags.get)
    options = Namespace(
        task="rte", split="validation", data=str(tmp_path / "dev.tsv"), data_dir=None, limit=None, seed=0
    )
    options.conllu, options.spacy, options.tagger, options.max_length = None, "some_model", None, 9
    model = bertjax.load(embedder)
    sample = read_annotated(Run(options, model), options, make_annotator(options))
    assert word_pieces(sample.texts[0], sample.annotations[0]) == [[[1], [2]], [[4], [5], [6]]]
    assert "annotated by spaCy's some_model" in sample.source
