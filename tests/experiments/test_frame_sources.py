"""Sentences with predicates and elements: the filters, FrameNet through nltk, PropBank's columns of CoNLL-U."""

import itertools

import pytest

from experiments.frames import sources as frames
from experiments.frames.propbank import read_propbank
from experiments.frames.sources import (
    Annotation,
    Sentence,
    filter_annotations,
    published_reason_against,
    read_framenet,
    read_published,
    reason_against,
    split_words,
)
from tests.frame_files import PROPOSITIONS, span_of, write_framenet

pytestmark = pytest.mark.integration


def marked(text, target, *elements, core=None):
    """An annotation of the words that are named."""
    spans = tuple(span_of(text, element) for element in elements)
    kept = spans if core is None else tuple(span_of(text, element) for element in core)
    return Annotation(text, split_words(text), (span_of(text, target),), spans, kept)


def test_each_filter_drops_what_it_is_for():
    far = "Ann and her dog ran ."
    assert reason_against(marked(far, "ran", "Ann")) is None
    assert reason_against(marked(far, "ran", "Ann", core=[])) == "no core element"
    assert reason_against(marked(far, "ran", "her dog")) == "an element within 2 words of the target"
    assert reason_against(marked(far, "ran", "Ann", "her", core=["Ann"])) == "an element within 2 words of the target"
    assert reason_against(marked(far, "ran", "Ann and her dog")) == "an element of more than 3 words"
    assert reason_against(marked(far, "ran", "Ann"), most_words=5) == "more than 5 words"
    two = Annotation(far, split_words(far), ((0, 3), (16, 19)), (), ())
    assert reason_against(two) == "not one target span"
    parts = Annotation(far, split_words(far), ((16, 19),), ((0, 3),), ((0, 3),), False)
    assert reason_against(parts) == "an element in several parts"
    kept, counts = filter_annotations([marked(far, "ran", "Ann"), two, two])
    assert [sentence.elements for sentence in kept] == [((0, 3),)]
    assert counts == {"kept": 1, "not one target span": 2}


def test_the_authors_filters_use_the_first_occurrence_of_a_word():
    far = "Ann and her dog ran ."
    assert published_reason_against(marked(far, "ran", "Ann"), 12) is None
    assert published_reason_against(marked(far, "ran", "her dog"), 12) == "an element within 2 words of the target"
    assert published_reason_against(marked(far, "ran", "Ann", core=[]), 12) == "no core element"
    assert published_reason_against(marked(far, "dog ran", "Ann"), 12) == "a target that is not one word"
    assert published_reason_against(marked(far, "ra", "Ann"), 12) == "a target that is not one word"
    assert published_reason_against(marked(far, "ran", "An"), 12) == "an element of parts of words"
    assert published_reason_against(marked(far, "ran", "Ann and her dog"), 12) == "an element of more than 3 words"
    assert published_reason_against(marked(far, "ran", "Ann"), 5) == "more than 5 words"
    twice = "the dog ran past the old red dog"
    second = Annotation(twice, split_words(twice), ((8, 11),), ((29, 32),), ((29, 32),))
    assert reason_against(second) is None
    assert published_reason_against(second, 12) == "an element within 2 words of the target"  # the first dog is
    again = "he ran and then the dog ran"
    second = Annotation(again, split_words(again), ((24, 27),), ((0, 2),), ((0, 2),))
    assert reason_against(second) is None
    assert published_reason_against(second, 12) == "an element within 2 words of the target"  # of the first ran
    kept, counts = filter_annotations([second, marked(far, "ran", "Ann")], 12, published_reason_against)
    assert (len(kept), counts["kept"]) == (1, 1)


@pytest.mark.parametrize(("apart", "kept"), [(1, False), (2, False), (3, True)])
def test_an_element_is_far_if_two_words_stand_between(apart, kept):
    text = " ".join(f"w{number}" for number in range(9))
    for step in (-apart, apart):
        assert (reason_against(marked(text, "w4", f"w{4 + step}")) is None) == kept


def test_the_authors_sentences_pass_all_checkable_filters():
    for sentence in read_published(frames.PUBLISHED):
        one = Annotation(sentence.text, sentence.words, (sentence.predicate,), sentence.elements, sentence.elements)
        assert reason_against(one) is None, sentence
        assert published_reason_against(one, 12) is None, sentence


def test_the_authors_sentences_have_word_classes_without_tags():
    sentence = read_published(frames.PUBLISHED)[2]
    assert sentence.text == "He guessed that a reaction was expected and shrugged ."
    classes = ["pronoun", "content", "function", "function", "content", "function", "content", "function", "content"]
    assert list(sentence.classes) == [*classes, "mark"]


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Makes a FrameNet of sentences; what nltk remembers of its place is forgotten afterwards."""
    import nltk.data

    monkeypatch.setattr(nltk.data, "path", [])
    numbers = itertools.count()
    return lambda sentences: write_framenet(tmp_path / f"data{next(numbers)}" / "corpora" / "framenet_v17", sentences)


FAR = "The old men < of Rome often went home ."


def test_framenet_is_read_with_its_places_and_core_sets(corpus):
    went = span_of(FAR, "went")
    sentences = [
        (FAR, [went], [("Agent", 0, 11), ("Time", *span_of(FAR, "often"))]),
        ("Men went home .", [(4, 8)], [("Theme", 0, 3)]),
        (FAR, [went], []),
        (FAR, [went, (0, 3)], [("Goal", *span_of(FAR, "Rome"))]),
    ]
    found = list(read_framenet(str(corpus(sentences))))
    assert [one.text for one in found] == [FAR, FAR, "Men went home .", FAR]  # unit by unit
    first = found[0]
    assert first.text[slice(*first.predicate[0])] == "went"
    assert [first.text[slice(*span)] for span in first.elements] == ["The old men", "often"]
    assert [first.text[slice(*span)] for span in first.core] == ["The old men"]
    assert first.text[slice(*first.words[3])] == "<"
    assert [len(one.predicate) for one in found] == [1, 1, 1, 2]
    assert [len(one.core) for one in found] == [1, 0, 0, 1]


def test_parts_of_speech_of_framenet_and_propbank_are_classes(corpus, tmp_path):
    went = [(4, 8)]
    sentences = [("Menx went home .", went, [], True), ("Menx went home .", went, [])]
    found = [
        Sentence(one.text, one.words, (4, 8), (), one.tags, one.tagset) for one in read_framenet(str(corpus(sentences)))
    ]
    assert found[0].classes == ("pronoun", "noun", "noun", "mark")
    assert found[1].classes == ("content", "content", "content", "mark")  # by the list
    (tmp_path / "some.conllu").write_text(PROPOSITIONS, encoding="utf-8")
    first = next(iter(read_propbank(tmp_path / "some.conllu")))
    assert (first.tagset, len(first.tags)) == ("UPOS", len(first.words))
    assert set(Sentence(first.text, first.words, (0, 1), (), first.tags, "UPOS").classes) >= {"noun", "verb"}


def test_framenet_where_nltk_finds_it_is_the_newest(corpus, monkeypatch):
    import nltk.data

    new = corpus([("Men went home .", [(4, 8)], [("Agent", 0, 3)])])
    with pytest.raises(SystemExit, match=r"nltk.download\('framenet_v17'\)"):
        list(read_framenet(None))
    monkeypatch.setattr(nltk.data, "path", [str(new.parents[1])])
    assert [one.text for one in read_framenet(None)] == ["Men went home ."]


def test_propositions_are_read_with_whole_arguments(tmp_path):
    path = tmp_path / "some.conllu"
    path.write_text(PROPOSITIONS, encoding="utf-8")
    found = list(read_propbank(path))
    assert [one.text[slice(*one.predicate[0])] for one in found] == ["says", "run", "likes", "left"]
    elements = [[one.text[slice(*span)] for span in one.elements] for one in found]
    assert elements[1:] == [["The old dog"], ["The men", "she"], ["The men she likes"]]
    assert [one.contiguous for one in found] == [
        False,
        True,
        True,
        True,
    ]  # what is said stands on both sides of "he says"
    assert len(found[1].words) == 12
    assert found[1].text[slice(*found[1].words[8])] == "n't"
    assert [reason_against(one) for one in found] == [
        "an element in several parts",
        None,
        "an element within 2 words of the target",
        "an element of more than 3 words",
    ]
