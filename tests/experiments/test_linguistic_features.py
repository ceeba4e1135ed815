"""Attention to linguistic features: which tokens, both modes against plain loops, means, base against fine-tuned."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tokenizers import BertWordPieceTokenizer

import bertjax
from experiments.fig6_features import compute, figures, main, tables
from experiments.published import PUBLISHED_NEGATION, counted_as_published, published_masks
from experiments.shared.run import Run
from experiments.words.annotated import Annotated, AnnotatedSample, Word
from experiments.words.columns import beyond_text, columns_of
from experiments.words.conllu_files import read_sentences
from experiments.words.estimates import differing, estimate
from experiments.words.features import FEATURES, feature_masks, find_negation
from tests.annotated_sentences import SENTENCES, make_run, write_sentences
from tests.factories import add_tokenizer, write_glue
from tests.tiny_models import arrays_of, largest_difference

pytestmark = pytest.mark.integration

# Tokens of each feature in the made-up sentences, by eye; [CLS] is 0.
TOKENS = {
    "nouns": [[2, 6], [2, 7], [2], [3, 6], [8], [1]],
    "verbs": [[3], [3, 9], [3], [4, 9], [2, 5], [2]],
    "pronouns": [[], [], [], [8], [1], []],
    "subjects": [[2], [2], [2], [3, 8], [1], [1]],
    "objects": [[], [], [], [6], [], []],
    "negation": [[], [], [], [], [2, 3, 4], []],
}


@pytest.fixture
def run(embedder, tmp_path):
    """A run on a tiny random model and six made-up sentences."""
    return make_run(embedder, tmp_path / "some.conllu", as_published=True)


def sample_of(run, *sentences):
    """Annotated texts as examples; a pair of them as one."""
    pairs = [sentence if isinstance(sentence, tuple) else (sentence,) for sentence in sentences]
    columns = [[text.text for text in column] for column in zip(*pairs, strict=True)]
    return AnnotatedSample("made up", tuple(range(len(pairs))), tuple(run.tokenizer.encode(*columns)), tuple(pairs))


def columns_of_one(run, text):
    """Column means over all tokens of one text `[layers, heads, token]`, padding cut off, and its tokens."""
    (encoding,) = run.tokenizer.encode([text])
    weights = np.asarray(run.model(**bertjax.collate([encoding], 12)).attentions[:, 0])
    return weights[:, :, : len(encoding), : len(encoding)].mean(2), encoding.tokens


def test_both_measures_use_the_column_means_of_the_tokens(run):
    """The largest, as published; and the mean times the tokens of the input, of which uniform attention gives 1."""
    values = {name.removeprefix("some_"): found for name, found in compute(run)[1].items()}
    for example, (text, *_) in enumerate(SENTENCES):
        means, tokens = columns_of_one(run, text)
        special = {"[CLS]": [[0]] * 6, "[SEP]": [[len(tokens) - 1]] * 6, "text": [[*range(1, len(tokens) - 1)]] * 6}
        for feature, several in {**TOKENS, **special}.items():
            number, positions = FEATURES.index(feature), several[example]
            assert values["counted"][example, number] == bool(positions)
            if positions:
                largest, mean = means[:, :, positions].max(-1), means[:, :, positions].mean(-1)
                assert largest_difference(values["base_largest"][example, number], largest) < 1e-6
                assert largest_difference(values["base_relative"][example, number], mean * len(tokens)) < 1e-5


def test_uniform_attention_is_1_for_any_number_of_tokens(rng):
    """The maximum of noise grows with the number of tokens; the mean relative to uniform attention does not."""
    tokens = 12
    maps = jnp.asarray(rng.dirichlet(np.ones(tokens), (1, 2000, 2, tokens)).astype(np.float32))
    masks = np.zeros((2000, 2, tokens), bool)
    masks[:, 0, 3] = masks[:, 1, 2:10] = True
    found = np.asarray(columns_of(maps, jnp.ones((2000, tokens), jnp.int32), jnp.asarray(masks)))
    largest, relative = found[:, 0].mean((0, 2, 3)), tokens * found[:, 1].mean((0, 2, 3))
    assert largest[1] > 1.3 * largest[0]
    assert np.abs(relative - 1).max() < 0.03


def test_a_feature_is_compared_with_the_other_tokens_of_its_text(rng):
    masks = np.zeros((3, len(FEATURES), 6), bool)
    text, nouns, cls = (FEATURES.index(name) for name in ("text", "nouns", "[CLS]"))
    masks[:, text, 1:5], masks[:2, nouns, 1], masks[0, nouns, 3], masks[:, cls, 0] = True, True, True, True
    weights = rng.random((3, 6, 2, 3)).astype(np.float32)  # examples, tokens, layers, heads
    relative = np.zeros((3, len(FEATURES), 2, 3), np.float32)
    for example, number in np.argwhere(masks.any(-1)):
        relative[example, number] = weights[example, masks[example, number]].mean(0)
    expected = [weights[0, [1, 3]].mean(0) - weights[0, [2, 4]].mean(0), weights[1, 1] - weights[1, 2:5].mean(0)]
    assert largest_difference(beyond_text(relative, masks, "nouns"), np.stack(expected)) < 1e-5
    special = [weights[example, 0] - weights[example, 1:5].mean(0) for example in range(3)]
    assert largest_difference(beyond_text(relative, masks, "[CLS]"), np.stack(special)) < 1e-5


def test_as_published_is_what_a_literal_loop_computes(run):
    """Word pieces anywhere; 0 without the feature, texts without negation left out; the larger [SEP]."""
    found = compute(run)[0]["sources"]["some"]
    total = {feature: [] for feature in (*TOKENS, "[CLS]", "[SEP]")}
    for text, *rows in SENTENCES:
        means, tokens = columns_of_one(run, text)
        words = [row.split() for row in rows if "-" not in row.split()[0]]
        forms = {
            "nouns": [word[1] for word in words if word[2] in ("NN", "NNS", "NNP", "NNPS")],
            "verbs": [word[1] for word in words if word[2] in ("VB", "VBD", "VBG", "VBN", "VBP", "VBZ")],
            "pronouns": [word[1] for word in words if word[2] in ("PRP", "PRP$")],
            "subjects": [word[1] for word in words if word[5] == "nsubj"],
            "objects": [word[1] for word in words if word[5] == "obj"],
            "negation": [word for word in PUBLISHED_NEGATION if word in text],
        }
        for feature, several in forms.items():
            pieces = [piece for form in several for piece in run.tokenizer.encode([form])[0].tokens[1:-1]]
            places = [place for place, token in enumerate(tokens) if token in pieces]
            if several or feature != "negation":
                total[feature].append(means[:, :, places].max(-1) if places else np.zeros((2, 3)))
        total["[CLS]"].append(means[:, :, 0])
        total["[SEP]"].append(means[:, :, [place for place, token in enumerate(tokens) if token == "[SEP]"]].max(-1))
    for feature, several in total.items():
        assert found["published_examples"][feature] == len(several)
        shown = np.array(found["as_published"][0][feature]["mean"])
        assert largest_difference(shown, np.mean(several, axis=0)) < 2e-6
    assert set(found["as_published"][0]) == set(total)
    apart = found["published_against_corrected"]
    assert apart["[CLS]"]["largest_difference"] == 0
    assert apart["objects"]["largest_difference"] > 0.01


def test_a_piece_counts_wherever_it_stands_only_as_published(run, tmp_path):
    sentence = read_sentences(write_sentences(tmp_path / "some.conllu"))[0]
    words = tuple(
        Word(word.form, word.span, "NN" if number == 0 else "X", "", -1, "")
        for number, word in enumerate(sentence.words)
    )
    sample = sample_of(run, Annotated(sentence.text, words))  # the first "the" is a noun, the second is not
    assert np.flatnonzero(feature_masks(sample)[0, 0]).tolist() == [1]
    assert np.flatnonzero(published_masks(sample, run.tokenizer)[0, 0]).tolist() == [1, 5]


@pytest.fixture(scope="module")
def knowing(tmp_path_factory):
    """A tokenizer that knows the words of negation, as BERT's does."""
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *["a", "cat", "sat", "knows", "another", "no", "not", "never", "can", "'", "t"],
    ]
    directory = tmp_path_factory.mktemp("knowing")
    BertWordPieceTokenizer({word: number for number, word in enumerate(words)}).save(str(directory / "tokenizer.json"))
    return bertjax.Tokenizer.from_pretrained(directory)


def test_as_published_negation_is_a_case_sensitive_substring(knowing):
    """Of "another" the authors' code finds "not" in the text, and no token: such an example counts as 0."""
    words = (Word("cat", (0, 3), "NN", "NOUN", -1, "root"),)
    texts = ["cat another", "Not a cat", "never sat", "can't", "cat knows no", "not another"]
    annotations = tuple((Annotated(text, words),) for text in texts)
    sample = AnnotatedSample("made up", tuple(range(6)), tuple(knowing.encode(texts)), annotations)
    place = FEATURES.index("negation")
    masks = published_masks(sample, knowing)[:, place]
    assert masks.any(-1).tolist() == [False, False, True, True, False, True]
    assert counted_as_published(sample)[:, place].tolist() == [True, False, True, True, False, True]
    assert np.flatnonzero(masks[3]).tolist() == [1, 2, 3]  # can ' t
    assert np.flatnonzero(masks[5]).tolist() == [1]


def test_as_published_words_of_both_texts_match_anywhere(knowing):
    """Their only case. Literally: forms of both texts, their pieces, the places of these in the whole input."""
    rng = np.random.default_rng(3)
    words, tags = ["cat", "sat", "knows", "another", "not"], ["NN", "VBD", "VBZ", "DT", "PRP"]
    pairs = []
    for _ in range(20):
        both = []
        for _ in range(2):
            forms = [words[number] for number in rng.integers(0, 5, 4)]
            starts = np.cumsum([0, *(len(form) + 1 for form in forms)])[:4].tolist()
            spans = [(start, start + len(form)) for start, form in zip(starts, forms, strict=True)]
            tagged = zip(forms, spans, rng.choice(tags, 4).tolist(), strict=True)
            both.append(Annotated(" ".join(forms), tuple(Word(*one, "", -1, "") for one in tagged)))
        pairs.append(tuple(both))
    texts = knowing.encode(*([pair[side].text for pair in pairs] for side in (0, 1)))
    sample = AnnotatedSample("made up", tuple(range(20)), tuple(texts), tuple(pairs))
    masks, counted = published_masks(sample, knowing), counted_as_published(sample)
    for number, (pair, text) in enumerate(zip(pairs, texts, strict=True)):
        for feature, tags_of_feature in {"nouns": ("NN",), "verbs": ("VBD", "VBZ"), "pronouns": ("PRP",)}.items():
            targets = {word.form for one in pair for word in one.words if word.tag in tags_of_feature}
            places = [place for place, token in enumerate(text.tokens) if token in targets]
            assert np.flatnonzero(masks[number, FEATURES.index(feature)]).tolist() == places
            assert counted[number, FEATURES.index(feature)]
        ends = [place for place, token in enumerate(text.tokens) if token == "[SEP]"]
        assert np.flatnonzero(masks[number, FEATURES.index("[SEP]")]).tolist() == ends
        hit = any("not" in one.text for one in pair)
        assert counted[number, FEATURES.index("negation")] == hit


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("he did|n't go", [1, 2]),
        ("he did n't go", [1, 2]),
        ("he did|n’t go", [1, 2]),
        ("I ca|n't", [1, 2]),
        ("it can|not be", [1, 2]),
        ("it don't know", [1]),
        ("Nothing is now known", [0]),
        ("he is not another man", [2]),
        ("(|not here", [1]),
        ("neither you nor I , never", [0, 2, 5]),
    ],
)
def test_negation_is_whole_words_and_whole_contractions(text, found):
    """A bar is between words that stand together."""
    words, here = [], 0
    for part in text.split(" "):
        for form in part.split("|"):
            words.append(Word(form, (here, here + len(form)), "", "", -1, ""))
            here += len(form)
        here += 1
    assert find_negation(Annotated(text.replace("|", ""), tuple(words))) == found


def test_both_separators_and_words_of_both_texts_are_found(run, tmp_path):
    first, second = read_sentences(write_sentences(tmp_path / "some.conllu"))[:6:5]
    masks = feature_masks(sample_of(run, (first, second)))[0]
    found = {feature: np.flatnonzero(mask).tolist() for feature, mask in zip(FEATURES, masks, strict=True)}
    assert found["nouns"] == [2, 6, 8]
    assert found["subjects"] == [2, 8]
    assert [found[name] for name in FEATURES[-4:]] == [[0], [7, 10], [7], [10]]


def test_padding_and_the_width_of_masks_change_nothing(rng):
    maps = rng.dirichlet(np.ones(7), (2, 4, 3, 7)).astype(np.float32)
    keep = (np.arange(7) < np.array([7, 5, 3, 6])[:, None]).astype(np.int32)
    maps = maps * keep[None, :, None, None]
    masks = rng.random((4, 5, 7)) < 0.3
    masks &= keep[:, None].astype(bool)
    expected = np.zeros((4, 2, 5, 2, 3))
    for example, feature in np.argwhere(masks.any(-1)):
        means = maps[:, example][:, :, keep[example] > 0].mean(2)[:, :, masks[example, feature]]
        expected[example, :, feature] = means.max(-1), means.mean(-1)
    for width in (6, 7, 9):
        wide = np.zeros((4, 5, width), bool)
        wide[..., : min(width, 7)] = masks[..., :width]
        if masks[..., width:].any():
            continue
        found = columns_of(jnp.asarray(maps), jnp.asarray(keep), jnp.asarray(wide))
        assert largest_difference(found, expected) < 1e-6


def test_estimates_have_intervals_and_corrected_tests(rng):
    values = rng.normal(size=(40, 3, 4)) + np.array([0.0, 3.0, -3.0])[:, None]
    found = estimate(values)
    assert largest_difference(found.mean, values.mean(0)) < 1e-6
    assert largest_difference(found.interval, 1.959964 * values.std(0, ddof=1) / np.sqrt(40)) < 1e-5
    sure = differing({"some": found, "noise": estimate(rng.normal(size=(40, 2000)))})
    assert sure["some"][1:].all()
    assert sure["noise"].mean() < 0.02  # 5 % without correction
    assert not differing({"one": estimate(values[:1])})["one"].any()  # one example has no spread


def add_noise(embedder, directory):
    """A copy whose weights differ a little."""
    model, generator = bertjax.load(embedder), np.random.default_rng(1)
    graph, state = nnx.split(model)
    state = jax.tree.map(lambda leaf: leaf + 0.2 * generator.normal(size=leaf.shape).astype(np.float32), state)
    nnx.merge(graph, state).save_pretrained(directory)
    return add_tokenizer(directory)


def test_tuned_models_are_compared_with_the_base(run, embedder, tmp_path):
    """Two seeds: the change is that of their mean; each seed's own map is kept."""
    base = compute(run)[0]["sources"]["some"]
    (tmp_path / "tuned").mkdir()
    tuned = str(add_noise(embedder, tmp_path / "tuned"))
    run.options.tuned = [[tuned], [str(embedder)]]
    both = compute(run)
    run.options.tuned = []
    alone = compute(Run(run.options, bertjax.load(tuned)))[0]["sources"]["some"]
    found = both[0]["sources"]["some"]
    for feature in TOKENS:
        first, second = (np.array(one["features"][feature]["base"]["relative"]["mean"]) for one in (base, alone))
        assert found["features"][feature]["base"] == base["features"][feature]["base"]
        assert largest_difference(found["features"][feature]["tuned"]["relative_by_seed"], [second, first]) < 2e-5
        change = np.array(found["features"][feature]["tuned"]["change"]["mean"])
        assert largest_difference(change, (second - first) / 2) < 2e-5
        assert largest_difference(second, first) > 1e-3


def test_tables_and_figures_are_redrawn_from_saved_numbers(run, tmp_path):
    output = tmp_path / "out"
    arguments = ["--model", run.options.model, "--conllu", run.options.conllu, "--output", str(output), "--limit", "5"]
    assert main([*arguments, "--as-published", "--tuned", run.options.model]) == 0
    names = {"figure", "layers"}
    pictures = {f"{name}.{kind}" for name in names for kind in ("png", "pdf")}
    assert {path.name for path in output.iterdir()} == {"numbers.json", "values.npz", *pictures}
    numbers = json.loads((output / "numbers.json").read_text())
    assert numbers["results"]["sources"]["some"]["tuned"][0]["name"] == run.options.model
    assert arrays_of(output / "values.npz")["some_tuned_1_relative"].shape == (5, len(FEATURES), 2, 3)
    drawn = figures(numbers)
    assert set(drawn) == names
    drawn["layers"](tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == (output / "layers.png").read_bytes()
    assert "| nouns | 5 |" in tables({"": numbers})


def test_tasks_need_no_parser_and_stand_side_by_side(run, tmp_path):
    """Without a tagger nouns are left out and named; [SEP], negation and punctuation are not."""
    data = write_glue(tmp_path / "glue")
    output = tmp_path / "out"
    arguments = ["--model", run.options.model, "--task", "mrpc", "mrpc:train", "--data", str(data), "--limit", "7"]
    arguments += ["--output", str(output), "--as-published"]
    assert main([*arguments, "--tuned", run.options.model, "-"]) == 0
    numbers = json.loads((output / "numbers.json").read_text())
    sources = numbers["results"]["sources"]
    assert [len(one["tuned"]) for one in sources.values()] == [1, 0]
    features = sources["mrpc"]["features"]
    assert set(features) == {"text", "[CLS]", "[SEP]", "[SEP] first", "[SEP] second"}
    both = [np.array(features[f"[SEP] {name}"]["base"]["largest"]["mean"]) for name in ("first", "second")]
    larger = np.array(features["[SEP]"]["base"]["largest"]["mean"])
    assert (larger >= np.maximum(*both) - 1e-6).all()
    assert set(sources["mrpc"]["as_published"][0]) == {"[CLS]", "[SEP]"}
    found = tables({"": numbers})
    assert "| mean over heads | mrpc | mrpc:train |" in found
    assert "| [SEP] first | " in found
