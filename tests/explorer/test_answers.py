"""Answers and maps of every kind equal those of the reference implementation, head by head."""

import numpy as np
import pytest

from bertjax import ablations, collate, overrides, reference
from bertjax.errors import InputError, OverrideError
from bertjax.explorer.compute import compute_answer, compute_map, read_query
from bertjax.explorer.messages import MapRequest, Question, read_message
from bertjax.formatting import to_json
from tests.explorer.subjects import KINDS, encodings_of, kind_named, means_of, softmax

OFF = ("0.1", "1.0")
MODES = ("uniform", "zero", "mean")
FIELDS = {
    "logits": lambda output: output.logits,
    "score": lambda output: output.score,
    "vectors": lambda output: output.sentence_embedding,
    "start": lambda output: output.start_logits,
    "end": lambda output: output.end_logits,
}
FIELDS_OF = {"score": ["score"], "similarity": ["vectors"], "answer": ["start", "end"]}


def check():
    """No task ends."""


def reference_outputs(kind, texts, sets, mode):
    """Fields of the model's output, from a full forward pass for each set of heads: `{field: [set, text, ...]}`."""
    model, means = kind.subject.model, means_of(kind) if mode == "mean" else None
    of_sets = [ablations.ablation(model.config, heads, mode) for heads in sets]
    stacked = overrides.stack([ablations.to_overrides(model.config, one, means) for one in of_sets])
    batch = collate(encodings_of(kind, texts), 24)
    names = FIELDS_OF.get(kind.name, ["logits"]) if kind.subject.name != "rating" else ["logits"]
    return {name: np.asarray(reference.run(model, batch, stacked, FIELDS[name])) for name in names}


def context_of(kind, texts):
    """First and one past the last token of a context."""
    (pair,) = encodings_of(kind, texts)
    return pair.segments.index(1), len(pair) - 1


def span_chances(kind, texts, outputs):
    """The probability of each span by its first and last token `[set, token, token]`, and of no answer, one by one."""
    begin, end = context_of(kind, texts)
    starts, ends = (outputs[name][:, 0].astype(np.float64) for name in ("start", "end"))
    chances = np.zeros((len(starts), end, end))
    for first in range(begin, end):
        for last in range(first, min(end, first + 30)):
            chances[:, first, last] = np.exp(starts[:, first] + ends[:, last])
    nothing = np.exp(starts[:, 0] + ends[:, 0])
    total = chances.sum(axis=(1, 2)) + nothing
    return chances / total[:, None, None], nothing / total


def quantities(kind, texts, target, outputs):
    """The quantity of a map, from the reference's outputs: `[set]`."""
    if kind.name == "words":
        (encoding,) = encodings_of(kind, texts)
        masks = [place for place, token in enumerate(encoding.tokens) if token == "[MASK]"]
        word = kind.subject.tokenizer.encode([target["word"]])[0].input_ids[1]
        return np.log(softmax(outputs["logits"][:, 0, masks[target["mask"]]])[:, word])
    if kind.name == "classes":
        return np.log(softmax(outputs["logits"][:, 0])[:, target["class"]])
    if kind.name == "labels":
        return np.log(1 / (1 + np.exp(-outputs["logits"][:, 0, target["class"]].astype(np.float64))))
    if kind.name == "score":
        return next(iter(outputs.values())).reshape(-1)
    if kind.name == "similarity":
        first, second = np.moveaxis(outputs["vectors"].astype(np.float64), 1, 0)
        return (first * second).sum(-1) / np.sqrt((first**2).sum(-1) * (second**2).sum(-1))
    if kind.name == "entities":
        assert encodings_of(kind, texts)[0].tokens[1:5] == ("the", "dog", "##s", "ran")  # word 2 begins at token 4
        return np.log(softmax(outputs["logits"][:, 0, 4])[:, kind.labels.index(target["tag"])])
    (pair,) = encodings_of(kind, texts)
    begin, _ = context_of(kind, texts)
    chances, _ = span_chances(kind, texts, outputs)
    assert [pair.tokens[begin + 1], pair.tokens[begin + 2]] == ["old", "dog"]  # characters 3 to 10
    return np.log(chances[:, begin + 1, begin + 2])


def map_of(kind, **message):
    """The lines of a map: base, values by layer, and the last line."""
    request = read_message(to_json(message).encode(), MapRequest)
    lines = []
    compute_map(kind, read_query(kind, request), request.target, lines.append, check)
    first, *layers, last = lines
    assert set(first) == {"base", "quantity"}
    assert first["quantity"] == kind.quantity
    assert sorted(line["layer"] for line in layers) == [0, 1]
    assert last["done"]
    assert last["seconds"] > 0
    return first["base"], {line["layer"]: line["values"] for line in layers}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", KINDS)
def test_maps_equal_the_reference(name, mode):
    _, _, texts, target = KINDS[name]
    kind = kind_named(name)
    for off in ((), OFF):
        base, layers = map_of(kind, texts=texts, mode=mode, off=list(off), target=target)
        heads = [f"{layer}.{head}" for layer in range(2) for head in range(3)]
        sets = [off, *({*off, head} for head in heads)]
        expected = quantities(kind, texts, target, reference_outputs(kind, texts, sets, mode))
        found = [base, *(value for layer in range(2) for value in layers[layer])]
        assert [value is None for value in found] == [False, *(head in off for head in heads)]
        kept = [place for place, value in enumerate(found) if value is not None]
        np.testing.assert_allclose([found[place] for place in kept], expected[kept], rtol=2e-5, atol=2e-6)
        assert np.ptp(expected) > 1e-3  # the heads differ


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", KINDS)
def test_answers_equal_the_models_output(name, mode):
    texts, kind = KINDS[name][2], kind_named(name)
    query = read_query(kind, Question(texts=texts, mode=mode, off=list(OFF)))
    answer = compute_answer(kind, query, check)
    outputs = reference_outputs(kind, texts, [(), OFF], mode)
    assert answer["tokens"] == [list(encoding.tokens) for encoding in encodings_of(kind, texts)]
    assert answer["truncated"] is False
    for run, shown in enumerate((answer["base"], answer["ablated"])):
        check_answer(kind, texts, shown, {field: values[run : run + 1] for field, values in outputs.items()})
    assert answer["base"] != answer["ablated"]


def check_answer(kind, texts, shown, outputs):
    """Compare an answer with the model's outputs in one run."""
    close = {"rtol": 2e-5, "atol": 2e-7}
    if kind.name == "words":
        chances = softmax(outputs["logits"][0, 0])
        masks = [place for place, token in enumerate(encodings_of(kind, texts)[0].tokens) if token == "[MASK]"]
        assert [one["token"] for one in shown["masks"]] == masks
        for one in shown["masks"]:
            best = np.argsort(-chances[one["token"]])[:5]
            assert [guess["word"] for guess in one["guesses"]] == kind.subject.tokenizer.pieces(best.tolist())
            found = [guess["probability"] for guess in one["guesses"]]
            np.testing.assert_allclose(found, chances[one["token"]][best], **close)
    elif kind.name in ("classes", "labels"):
        logits = outputs["logits"][0, 0]
        chances = softmax(logits) if kind.name == "classes" else 1 / (1 + np.exp(-logits))
        np.testing.assert_allclose([one["probability"] for one in shown[kind.name]], chances, **close)
        assert [one["name"] for one in shown[kind.name]] == kind.labels
    elif kind.name == "entities":
        chances = softmax(outputs["logits"][0, 0])
        firsts = [1, 2, 4, 5, 6, 7]  # dog ##s are one word
        assert [one["text"] for one in shown["words"]] == texts[0].split()
        assert [texts[0][one["start"] : one["end"]] for one in shown["words"]] == texts[0].split()
        assert [one["tag"] for one in shown["words"]] == [kind.labels[chances[place].argmax()] for place in firsts]
        found = [one["probability"] for one in shown["words"]]
        np.testing.assert_allclose(found, chances[firsts].max(axis=1), **close)
    elif kind.name == "answer":
        chances, nothing = span_chances(kind, texts, outputs)
        best = np.argsort(-chances[0].ravel())[:5]
        np.testing.assert_allclose([one["probability"] for one in shown["spans"]], chances[0].ravel()[best], **close)
        np.testing.assert_allclose(shown["no_answer"], nothing[0], **close)
        offsets, width = encodings_of(kind, texts)[0].offsets, chances.shape[2]
        spans = [(offsets[place // width][0], offsets[place % width][1]) for place in best]
        assert [(one["start"], one["end"]) for one in shown["spans"]] == spans
        assert [one["text"] for one in shown["spans"]] == [texts[1][start:end] for start, end in spans]
    else:
        (value,) = shown.values()
        np.testing.assert_allclose(value, quantities(kind, texts, {}, outputs)[0], rtol=2e-5, atol=2e-6)


def test_the_kind_follows_from_the_model():
    assert [kind_named(name).name for name in KINDS] == [
        *("words", "classes", "classes", "classes", "labels", "score", "score", "similarity", "entities", "answer"),
    ]


def test_words_without_a_mask_have_no_answer():
    kind = kind_named("words")
    answer = compute_answer(kind, read_query(kind, Question(texts=["the cat ran"])), check)
    assert answer["base"] == {"masks": []}
    assert answer["ablated"] is None


def test_long_texts_are_truncated():
    kind = kind_named("classes")
    answer = compute_answer(kind, read_query(kind, Question(texts=["the cat ran " * 100])), check)
    assert answer["truncated"] is True
    assert len(answer["tokens"][0]) == 40


def test_entities_follow_the_tags():
    kind = kind_named("entities")
    encodings = kind.encode(["the dogs ran near a door"])
    logits = np.zeros((24, len(kind.labels)))
    for token, tag in ((2, "B-per"), (4, "I-per"), (7, "B-loc")):
        logits[token, kind.labels.index(tag)] = 9
    logits[[1, 5, 6], 0] = 9
    answer = kind.answer(["the dogs ran near a door"], encodings, logits)
    assert answer["entities"] == [
        {"start": 4, "end": 12, "text": "dogs ran", "type": "per"},
        {"start": 20, "end": 24, "text": "door", "type": "loc"},
    ]


def test_all_heads_of_a_layer_off():
    base, layers = map_of(kind_named("classes"), texts=["the cat ran"], off=["1.0", "1.1", "1.2"], target={"class": 0})
    assert layers[1] == [None] * 3
    assert all(value != base for value in layers[0])


def test_all_heads_off():
    every = [f"{layer}.{head}" for layer in range(2) for head in range(3)]
    base, layers = map_of(kind_named("classes"), texts=["the cat ran"], off=every, target={"class": 0})
    assert np.isfinite(base)
    assert layers == {0: [None] * 3, 1: [None] * 3}


@pytest.mark.parametrize(
    ("name", "message", "problem"),
    [
        ("words", {"texts": ["the [MASK] ran"], "target": {"mask": 1, "word": "cat"}}, "no mask 1"),
        ("words", {"texts": ["the [MASK] ran"], "target": {"mask": 0, "word": "zebra"}}, "not one word"),
        ("words", {"texts": ["the [MASK] ran"], "target": {"mask": 0, "word": "dogs"}}, "not one word"),
        ("words", {"texts": ["the [MASK] ran"], "target": {"mask": 0}}, "name a word"),
        ("words", {"texts": ["a", "b"]}, "reads 1 text"),
        ("classes", {"texts": ["a"], "target": {"class": 3}}, "classes 0 to 2"),
        ("classes", {"texts": ["a"]}, "choose one"),
        ("classes", {"texts": [" "]}, "empty"),
        ("similarity", {"texts": ["a"]}, "reads 2 texts"),
        ("entities", {"texts": ["a cat"], "target": {"word": 2, "tag": "O"}}, "2 words"),
        ("entities", {"texts": ["a cat"], "target": {"word": 1, "tag": "B-x"}}, "no tag"),
        ("answer", {"texts": ["a", "a cat"], "target": {"start": 1, "end": 5}}, "begin and end at tokens"),
        ("answer", {"texts": ["a", "a cat"], "target": {"start": 2, "end": 1}}, "tokens"),
    ],
)
def test_wrong_targets_are_errors(name, message, problem):
    with pytest.raises(InputError, match=problem):
        map_of(kind_named(name), **message)


def test_wrong_heads_and_modes_are_errors():
    kind = kind_named("classes", with_examples=False)
    with pytest.raises(OverrideError, match=r"7\.0"):
        read_query(kind, Question(texts=["a"], off=["7.0"]))
    with pytest.raises(OverrideError):
        read_query(kind, Question(texts=["a"], off=["cat"]))
    with pytest.raises(InputError, match="needs the examples"):
        read_query(kind, Question(texts=["a"], mode="mean"))
    assert kind.subject.modes == ["uniform", "zero"]
