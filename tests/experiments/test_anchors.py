"""Anchors: published numbers that are met, missed or not run, and what is then said. Made up, on a tiny model."""

import json

import numpy as np
import pytest

import bertjax
from experiments import anchors
from experiments.words import annotation
from experiments.words.annotated import Annotated, Word
from experiments.words.spans import find_words
from tests.tiny_models import arrays_of

pytestmark = pytest.mark.integration

FRAMES = "sentence\ttarget\tcore_elements\nthe cat sat on a mat\tsat\tthe cat\nhe ran home\tran\the | home\n"
PAIRS = (
    ("the dog sat near a red door", "red doors are not old"),
    ("he ran home", "cats sleep not"),
    ("an old man saw the cat", "the man slept and a dog ran home"),
    ("the cat sat on a mat", "an old dog sat near the mat"),
)
TAGS = {
    **dict.fromkeys(("dog", "door", "doors", "cats", "man", "cat", "mat", "home"), "NN"),
    **dict.fromkeys(("sat", "ran", "saw", "slept", "are", "sleep"), "VB"),
    "he": "PRP",
}
QUERY, HEADS = "sat", ((0, 1), (1, 2))


def annotate(name, texts):
    """In place of spaCy: tags by a list, the first verb as root, what stands before it as its subject."""
    found = []
    for text in texts:
        forms = text.split()
        root = next(place for place, form in enumerate(forms) if TAGS.get(form) == "VB")
        words = []
        for place, form in enumerate(forms):
            tag = TAGS.get(form, "DT")
            role = "nsubj" if place == root - 1 else "dobj" if tag == "NN" else "dep"
            part = "VERB" if tag == "VB" else "X"
            words.append(Word(form, find_words(text, form), tag, part, -1 if place == root else root, role))
        found.append(Annotated(text, tuple(words)))
    return found


def weights_of(model, encodings):
    """Weights `[layers, heads, query, key]` of each text; all padded to one length, so that little is compiled."""
    weights = np.asarray(model(**bertjax.collate(encodings, 24)).attentions, np.float64)
    return [weights[:, place, :, : len(one), : len(one)] for place, one in enumerate(encodings)]


def literal_maps(model, tokenizer):
    """The published maps of the pairs by a loop over examples, in NumPy."""
    kept = {name: [] for name in ("nouns", "verbs", "pronouns", "subjects", "objects", "negation", "[CLS]", "[SEP]")}
    kept |= {"subject to verb": [], "verb to subject": []}
    encodings = tokenizer.encode(*zip(*PAIRS, strict=True))
    for pair, encoding, weights in zip(PAIRS, encodings, weights_of(model, encodings), strict=True):
        columns, tokens = weights.mean(2), encoding.tokens
        words = [word for text in annotate("", pair) for word in text.words]

        def most(forms, columns=columns, tokens=tokens):
            places = [place for place, token in enumerate(tokens) if token in forms]
            return columns[..., places].max(-1) if places else np.zeros(columns.shape[:2])

        for name, tag in (("nouns", "NN"), ("verbs", "VB"), ("pronouns", "PRP")):
            kept[name].append(most({word.form for word in words if word.tag == tag}))
        for name, role in (("subjects", "nsubj"), ("objects", "dobj")):
            kept[name].append(most({word.form for word in words if word.relation == role}))
        if any("not" in text.split() for text in pair):
            kept["negation"].append(most({"[UNK]"}))
        kept["[CLS]"].append(columns[..., 0])
        kept["[SEP]"].append(most({"[SEP]"}))
        several = [text.words for text in annotate("", pair)]
        subjects = [
            (word.form, words[word.head].form) for words in several for word in words if word.relation == "nsubj"
        ]
        sources, verbs = (
            [place for place, token in enumerate(tokens) if token in forms] for forms in zip(*subjects, strict=True)
        )
        links = list(zip(sources, verbs, strict=False))
        kept["subject to verb"].append(np.max([weights[..., source, verb] for source, verb in links], axis=0))
        kept["verb to subject"].append(np.max([weights[..., verb, source] for source, verb in links], axis=0))
    return {name: np.mean(values, axis=0) for name, values in kept.items()}


@pytest.fixture(scope="module")
def published(embedder):
    """Anchors that the tiny model meets."""
    model, tokenizer = bertjax.load(embedder), bertjax.Tokenizer.from_pretrained(embedder)
    sentence, tokens = "the cat sat on a mat", ["[CLS]", *["the", "cat", "sat", "on", "a", "mat"], "[SEP]"]
    first, second, *_ = weights_of(model, tokenizer.encode([sentence, "he ran home"] * 2))
    rows = {f"{layer}.{head}": first[layer, head, 3].round(2).tolist() for layer, head in HEADS}
    cat = first[..., 1, 3]  # "the cat" and "sat", in order: the first piece only
    home = second[..., 1, 2]  # "he": the first of all elements' pieces for the one of the predicate
    return {
        "source": "made up",
        "he": {"sentence": sentence, "query": QUERY, "tokens": tokens, "allowed": 0.005, "rows": rows},
        "framenet": {"allowed": 0.002, "reading": 0.001, "map": ((cat + home) / 2).round(4).tolist()},
        "qqp": published_qqp(literal_maps(model, tokenizer)),
    }


def published_qqp(maps):
    """Anchors of QQP: of a picture whose colours go up to 1, so that all heads are allowed about as much."""
    return {
        **{"allowed": 0.001, "steps": 10**9, "ranks": 0.5, "examples": 10**6},
        "uppermost": dict.fromkeys(maps, 1.0),
        "highest": {name: "{}.{}".format(*divmod(int(maps[name].argmax()), 3)) for name in ("[CLS]", "[SEP]")},
        "maps": {name: found.tolist() for name, found in maps.items()},
    }


@pytest.fixture
def check(embedder, published, tmp_path, monkeypatch):
    """Runs the program with anchors that a function changes: the tables, and checks by anchor."""
    rows = "".join(f"{number}\t{one}\t{other}\t0\n" for number, (one, other) in enumerate(PAIRS))
    (tmp_path / "dev.tsv").write_text("id\tquestion1\tquestion2\tis_duplicate\n" + rows)
    (tmp_path / "frames.tsv").write_text(FRAMES)
    monkeypatch.setattr(anchors, "PUBLISHED", tmp_path / "frames.tsv")
    monkeypatch.setattr(anchors, "ANCHORS", tmp_path / "anchors.json")
    monkeypatch.setattr(annotation, "annotate", annotate)
    monkeypatch.setattr("experiments.shared.checks.STANDARD_ERRORS", 0)

    def run(*options, change=lambda anchors: None):
        changed = json.loads(json.dumps(published))
        change(changed)
        (tmp_path / "anchors.json").write_text(json.dumps(changed))
        output = tmp_path / "out"
        assert anchors.main(["--model", str(embedder), "--output", str(output), *options]) == 0
        numbers = json.loads((output / "numbers.json").read_text())
        return anchors.tables({"": numbers}), {one["anchor"]: one for one in numbers["results"]["checks"]}

    run.qqp = ("--data", str(tmp_path / "dev.tsv"))
    return run


@pytest.fixture
def undrawn(monkeypatch):
    """Pictures take the most time."""
    monkeypatch.setattr(anchors, "draw_maps", lambda path, **rest: path.write_bytes(b"picture"))


def with_verdict(results, expected_verdict):
    return [name for name, check in results.items() if check["verdict"] == expected_verdict]


def test_a_model_with_the_published_numbers_passes_all_anchors(check, tmp_path):
    message, results = check(*check.qqp, "--spacy", "some_model")
    assert len(with_verdict(results, "pass")) == len(results) == 14, message
    values = arrays_of(tmp_path / "out" / "values.npz")
    assert len(results.keys() & values.keys()) == 11
    for name in results.keys() & values.keys():
        np.testing.assert_allclose(values[name].mean(0).ravel(), results[name]["found"], atol=1e-6, err_msg=name)


@pytest.mark.usefixtures("undrawn")
def test_missing_data_is_in_the_message_and_no_pass(check):
    message, results = check()
    assert with_verdict(results, "pass") == ["'sat' 0.1", "'sat' 1.2", "FrameNet"]
    assert message.count("not run, for want of --data") == len(with_verdict(results, "not run")) == 10
    results = check(*check.qqp)[1]
    assert set(with_verdict(results, "not run")) == {
        *("QQP nouns", "QQP verbs", "QQP pronouns", "QQP subjects", "QQP objects"),
        *("QQP subject to verb", "QQP verb to subject"),
    }
    assert "QQP [SEP] by layer" in with_verdict(results, "pass")


CHANGES = {
    "'sat' 1.2": lambda anchors, by: anchors["he"]["rows"]["1.2"].__setitem__(2, anchors["he"]["rows"]["1.2"][2] + by),
    "FrameNet": lambda anchors, by: _shift(anchors["framenet"]["map"], by),
    "QQP nouns": lambda anchors, by: _shift(anchors["qqp"]["maps"]["nouns"], by),
    "QQP verb to subject": lambda anchors, by: _shift(anchors["qqp"]["maps"]["verb to subject"], by),
}


def _shift(rows, by):
    rows[1][2] += by


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", CHANGES)
def test_one_number_that_is_off_fails_its_anchor_alone(check, name):
    by = {"'sat' 1.2": 0.02, "FrameNet": -0.0021}.get(name, 0.0011)
    message, results = check(*check.qqp, "--spacy", "some_model", change=lambda some: CHANGES[name](some, by))
    assert with_verdict(results, "FAIL") == [name]
    line = next(line for line in message.splitlines() if line.startswith(f"| {name} |"))
    assert "| FAIL" in line
    assert ("cat" if name.startswith("'") else "1.2") in line


@pytest.mark.usefixtures("undrawn")
def test_numbers_that_are_off_by_less_than_allowed_pass(check):
    def change(some):
        CHANGES["FrameNet"](some, 0.0019)
        CHANGES["QQP verb to subject"](some, -0.0004)

    message, results = check(*check.qqp, "--spacy", "some_model", change=change)
    assert len(with_verdict(results, "pass")) == 14, message


@pytest.mark.usefixtures("undrawn")
def test_a_wrong_order_fails_even_with_close_numbers(check):
    highest = {}

    def wide(some):
        highest.update(some["qqp"]["highest"])
        others = {name: "1.0" if head != "1.0" else "0.0" for name, head in highest.items()}
        some["qqp"].update(allowed=10.0, highest=others)
        some["qqp"]["maps"]["negation"] = (1 - np.array(some["qqp"]["maps"]["negation"])).tolist()

    message, results = check(*check.qqp, change=wide)
    assert with_verdict(results, "FAIL") == ["QQP negation", "QQP [CLS]", "QQP [SEP]"]
    assert "FAIL; a rank correlation of −1.00, 0.5 is required" in message
    for name, head in highest.items():
        assert f"FAIL; {head} is highest, not " in message
        assert len(results[f"QQP {name}"]["disorder"]) == 1


@pytest.mark.usefixtures("undrawn")
def test_random_samples_may_be_apart_by_their_standard_errors(check, monkeypatch):
    monkeypatch.setattr("experiments.shared.checks.STANDARD_ERRORS", 4)
    fewer = check(*check.qqp, change=lambda some: some["qqp"].update(examples=4))[1]["QQP [CLS]"]
    exact = check(*check.qqp, change=lambda some: some["qqp"].update(examples=10**9))[1]["QQP [CLS]"]
    published = np.array(exact["published"])
    reading = 0.001 * (1 - published) / (1 - published.min())  # the colours go up to 1
    ratio = (np.array(fewer["allowed"]) - reading) / (np.array(exact["allowed"]) - reading)
    assert ratio == pytest.approx(np.sqrt(2), abs=0.01)  # two samples of four against one


def test_no_number_is_no_pass():
    found = np.array([0.1, np.nan])
    some = anchors.Check("", ["0.0", "0.1"], np.array([0.1, 0.2]), np.array([1.0, 1.0]), found)
    assert some.verdict == "FAIL"


def test_the_shipped_anchors_are_those_of_the_paper():
    shipped = json.loads(anchors.ANCHORS.read_text(encoding="utf-8"))
    framenet = np.array(shipped["framenet"]["map"])
    assert framenet.shape == (12, 12)
    highest = [divmod(int(place), 12) for place in np.argsort(-framenet, axis=None)[:4]]
    assert highest == [(6, 5), (0, 1), (0, 8), (0, 6)]
    assert framenet[[6, 0, 0, 0], [5, 1, 8, 6]] == pytest.approx([0.209, 0.201, 0.131, 0.125], abs=0.0005)
    means = [0.066, 0.077, 0.084, 0.160, 0.292, 0.316, 0.326, 0.334, 0.370, 0.383, 0.453, 0.370]
    assert np.mean(shipped["qqp"]["maps"]["[SEP]"], axis=1) == pytest.approx(means, abs=0.0005)
    assert (shipped["framenet"]["allowed"], shipped["qqp"]["allowed"], shipped["qqp"]["ranks"]) == (0.002, 0.03, 0.9)
    assert len(shipped["qqp"]["maps"]) == 10
    maps = {name: np.array(rows) for name, rows in shipped["qqp"]["maps"].items()}
    assert [maps["[CLS]"][1, 6], maps["[SEP]"][10, 1]] == [maps["[CLS]"].max(), maps["[SEP]"].max()]
    assert shipped["qqp"]["highest"] == {"[CLS]": "1.6", "[SEP]": "10.1"}
    assert all(rows.max() <= shipped["qqp"]["uppermost"][name] for name, rows in maps.items())
    assert {rows.shape for rows in maps.values()} == {(12, 12)}
    assert list(shipped["he"]["rows"].values())[1] == [0.0, 0.01, 0.01, 0.06, 0.87, 0.0, 0.06]


@pytest.fixture
def check_sample(monkeypatch):
    """Holds 1,000 made-up examples against the shipped anchors of QQP, their means by anchor being what is given."""
    shipped = json.loads(anchors.ANCHORS.read_text(encoding="utf-8"))["qqp"]

    def verdicts(change, noise=True):
        rng = np.random.default_rng(0)

        def examples(rows, uppermost):
            mean = change(np.array(rows), uppermost, rng)
            return mean * (rng.exponential(size=(1000, *mean.shape)) if noise else np.ones((1000, 1, 1)))

        values = {name: examples(rows, shipped["uppermost"][name]) for name, rows in shipped["maps"].items()}
        checks = list(anchors.check_qqp(values, shipped))
        assert [check.ranks for check in checks] == [0.9] * 11
        return {check.name: check.verdict for check in checks}

    return verdicts


def with_other_bound(by):
    """The map, were the lower bound of its picture's colours higher, by no more than a quarter of their range."""
    return lambda rows, top, rng: top - (top - rows) * (1 - min(by / (top - rows.min()), 0.25))


@pytest.mark.parametrize(("by", "noise"), [(0, True), (0.03, True), (0.03, False)])
def test_published_maps_pass_with_noise_of_a_thousand_examples(check_sample, by, noise):
    assert set(check_sample(with_other_bound(by), noise).values()) == {"pass"}


def same_everywhere(place):
    """The same number at each head: so much of the way from a map's lowest to its highest."""
    return lambda rows, uppermost, rng: np.full(rows.shape, rows.min() + place * np.ptp(rows))


WRONG = {
    "zeros": lambda rows, uppermost, rng: np.zeros(rows.shape),
    "lowest": same_everywhere(0),
    "middle": same_everywhere(0.5),
    "highest": same_everywhere(1),
    "shuffled": lambda rows, uppermost, rng: rng.permuted(rows.ravel()).reshape(rows.shape),
    "layers turned": lambda rows, uppermost, rng: rows[::-1],
    "half": lambda rows, uppermost, rng: rows / 2,
}


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("name", WRONG)
def test_maps_that_say_nothing_fail_every_anchor_of_qqp(check_sample, name, noise):
    assert set(check_sample(WRONG[name], noise).values()) == {"FAIL"}
