"""Roles of heads by definition: loops over attention in PyTorch, and attention with known roles."""

import json
import math
import re
import unicodedata

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

import bertjax
from bertjax import BertConfig, BertForMaskedLM, BertModel, Tokenizer
from bertjax.attention import (
    NUMBERS,
    ROLES,
    RoleNumbers,
    kinds_of,
    read_distances,
    read_roles,
    role_metrics,
    texts_to_compare,
    tokens_of,
    uniform_numbers,
)
from bertjax.attention.norms import output_products, value_lengths
from bertjax.cli import main
from bertjax.data import Encoding
from bertjax.errors import InputError
from bertjax.interventions import every_head
from bertjax.models.layer import before_attention
from bertjax.statistics import score, silhouette_of
from bertjax.tasks import load_examples
from tests.factories import make_embedder, write_pairs
from tests.family_models import DISTINCT, config_of, sometimes
from tests.schema_checks import check_by_jsonschema
from tests.task_factories import TASK_FACTORIES
from tests.tiny_models import encodings, random_model
from tests.tokenizer_factories import TOKENIZER_FAMILIES, make_tokenizer

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
PAIR = ("The cat, the old cat, slept.", "Did the CAT sleep? It's asleep!")


@pytest.fixture(scope="module")
def pair():
    tokenizer = Tokenizer.from_pretrained(MINILM)
    (encoding,) = tokenizer.encode([PAIR[0]], [PAIR[1]], word_ids=True)
    return encoding, tokens_of(encoding, PAIR)


def test_tokens_are_what_they_are(pair):
    encoding, tokens = pair
    assert [token for token, special in zip(encoding.tokens, tokens.special, strict=True) if special] == [
        "[CLS]",
        "[SEP]",
        "[SEP]",
    ]
    marks = [token for token, is_mark in zip(encoding.tokens, tokens.punctuation, strict=True) if is_mark]
    assert marks == [",", ",", ".", "?", "'", "!"]
    cats = [place for place, token in enumerate(encoding.tokens) if token == "cat"]
    assert len(cats) == 3
    assert len({tokens.words[place] for place in cats}) == 1  # whatever their case
    assert len({tokens.places[place] for place in cats}) == 3
    assert (tokens.words[tokens.special | tokens.punctuation] == -1).all()


def test_marks_that_belong_to_words_do_not_change_them():
    """SentencePiece's words hold the mark behind them: "dog," is the word "dog" and a mark."""
    text = "the dog, the dog."
    offsets = ((0, 0), (0, 3), (4, 7), (7, 8), (9, 12), (13, 16), (16, 17), (0, 0))
    encoding = Encoding((1,) * 8, (0,) * 8, ("",) * 8, offsets, False, word_ids=(None, 0, 1, 1, 2, 3, 3, None))
    tokens = tokens_of(encoding, [text])
    assert tokens.words.tolist() == [-1, 0, 1, -1, 0, 1, -1, -1]
    assert tokens.places.tolist() == [-1, 0, 1, 1, 2, 3, 3, -1]
    again = next(role for role in ROLES if role.name == "same_word").pairs(tokens)
    assert np.argwhere(again).tolist() == [[1, 4], [2, 5], [4, 1], [5, 2]]


@pytest.mark.parametrize("name", TOKENIZER_FAMILIES)
def test_spaces_of_tokenizers_are_no_words_nor_marks(name, tmp_path):
    """Offsets that include the space before a word, or are empty, do not change words; a lone space is no word."""
    tokenizer, rng = Tokenizer.from_pretrained(make_tokenizer(tmp_path, name)), np.random.default_rng(2)
    parts = ["cat", "Cat", "(cat", "dog.", "dog", ",", "(", ". ", " ", "a", "\tdogs"]
    for _ in range(30):
        text = " ".join(rng.choice(parts, 9))
        (encoding,) = tokenizer.encode([text], word_ids=True)
        found, spelled = tokens_of(encoding, [text]), [re.sub("^##|[▁Ġĉ]", "", token) for token in encoding.tokens]
        plain = [place for place, word in enumerate(encoding.word_ids) if word is not None]
        if "[UNK]" in encoding.tokens:
            continue
        forms = dict[int, str]()
        for place in plain:  # ASCII pieces are spelled as in the text
            pieces = [spelled[other] for other in plain if encoding.word_ids[other] == encoding.word_ids[place]]
            forms[place] = "".join(letter for letter in "".join(pieces).lower() if letter.isalpha())
        marks = [place for place in plain if spelled[place] and not any(map(str.isalpha, spelled[place]))]
        assert np.flatnonzero(found.punctuation).tolist() == marks
        for place in plain:
            of_word = place not in marks and forms[place] != ""
            assert (found.words[place] >= 0) == of_word
            for other in plain:
                if of_word and other not in marks and forms[other]:
                    assert (found.words[place] == found.words[other]) == (forms[place] == forms[other])


def by_hand(role, encoding):
    """Pairs of a role, token by token, from the definition alone."""
    n = len(encoding)
    special = [encoding.word_ids[place] is None for place in range(n)]
    texts = [PAIR[encoding.segments[place]][slice(*encoding.offsets[place])] for place in range(n)]
    marks = [not special[p] and all(unicodedata.category(c)[0] == "P" for c in texts[p]) for p in range(n)]
    word = [(encoding.segments[p], encoding.word_ids[p]) for p in range(n)]

    def form(place):
        positions = [p for p in range(n) if word[p] == word[place] and not special[p]]
        start, end = encoding.offsets[positions[0]][0], encoding.offsets[positions[-1]][1]
        return PAIR[encoding.segments[place]][start:end].lower()

    def same(q, k):
        if special[q] or special[k] or marks[q] or marks[k]:
            return False
        return word[q] != word[k] and form(q) == form(k)

    segment = encoding.segments
    rules = {
        "previous": lambda q, k: not special[q] and k == q - 1,
        "next": lambda q, k: not special[q] and k == q + 1,
        "self": lambda q, k: not special[q] and k == q,
        "cls": lambda q, k: not special[q] and k == 0,
        "sep": lambda q, k: not special[q] and special[k] and k > 0,
        "sep_from_sep": lambda q, k: special[q] and q > 0 and special[k] and k > 0,
        "punctuation": lambda q, k: not special[q] and marks[k],
        "rest": lambda q, k: not special[q] and not special[k] and not marks[k],
        "same_word": same,
        "same_word_across": lambda q, k: same(q, k) and segment[q] != segment[k],
        "other_text": lambda q, k: not special[q] and not special[k] and segment[q] != segment[k],
    }
    return np.array([[rules[role](q, k) for k in range(n)] for q in range(n)])


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_roles_are_what_they_say(role, pair):
    encoding, tokens = pair
    found, expected = role.pairs(tokens), by_hand(role.name, encoding)
    assert np.array_equal(found, expected)
    assert 0 < found.sum() < found.size


def some_pairs(count):
    """MiniLM, its tokenizer, real pairs, and the roles of their tokens."""
    model, tokenizer = bertjax.load(MINILM), Tokenizer.from_pretrained(MINILM)
    examples = load_examples("qnli-sample").head(count)
    several = tokenizer.encode(examples.first, examples.second, word_ids=True)
    texts = zip(several, examples.first, examples.second, strict=True)
    return model, tokenizer, several, [RoleNumbers.of(tokens_of(encoding, pair)) for encoding, *pair in texts]


def numbers_by_loop(maps, lengths, known):
    """All sums of one head and text, in loops: weights `[query, key]`, lengths of transformed values `[key]`."""
    added = maps * lengths
    norms = added / added.sum(-1, keepdims=True)
    found = [(maps * pairs).sum() for pairs in known.pairs]
    found += [(norms * pairs).sum() for pairs in known.pairs]
    for role, pairs in zip(ROLES, known.pairs, strict=True):
        if role.largest:
            found.append(sum(pairs[query, maps[query].argmax()] for query in range(len(maps))))
    words = np.flatnonzero(known.words)
    entropies = [-sum(a * math.log(a) for a in row if a > 0) for row in maps]
    found += [sum(maps[query].max() for query in words), sum(entropies[query] for query in words), entropies[0]]
    return np.array(found)


@pytest.mark.needs_torch
def test_numbers_are_those_of_pytorch():
    """MiniLM on real pairs, against transformers in float64: attention from the library, the rest in loops."""
    import torch
    from transformers import AutoModel

    from bertjax.checkpoints import locate

    model, tokenizer, several, known = some_pairs(6)
    found = read_roles(model, several, known, tokenizer.pad_id)
    theirs = AutoModel.from_pretrained(locate(MINILM), attn_implementation="eager").double().eval()
    for place, encoding in enumerate(several):
        ids, types = torch.tensor([encoding.input_ids]), torch.tensor([encoding.token_type_ids])
        with torch.no_grad():
            output = theirs(ids, token_type_ids=types, output_attentions=True, output_hidden_states=True)
        for number, (layer, head) in enumerate(every_head(model.config)):
            module = theirs.encoder.layer[layer].attention
            rows = slice(head * 32, (head + 1) * 32)
            with torch.no_grad():
                values = module.self.value(output.hidden_states[layer])[0, :, rows]
                transformed = values @ module.output.dense.weight[:, rows].T
            lengths = transformed.norm(dim=-1).numpy()
            expected = numbers_by_loop(output.attentions[layer][0, head].numpy(), lengths, known[place])
            np.testing.assert_allclose(found[number, place, : len(expected)], expected, rtol=2e-5, atol=2e-5)
        assert np.array_equal(found[0, place, len(expected) :], known[place].counts)


@pytest.mark.parametrize("family", sometimes(DISTINCT, "roberta", "albert", "deberta-v2", "modernbert"))
def test_transformed_values_and_bias_sum_to_the_attention_output(family):
    """sum_h sum_k a f_h(x_k) + b, against what the layer adds; and their lengths."""
    rng, config = np.random.default_rng(3), config_of(family, 0)
    model = random_model(BertModel, config)
    inputs = model.inputs(bertjax.collate(encodings(config, rng, [9, 5]), None, config.pad_token_id or 0))
    inside, context = model.forward(inputs).inside, model.body.encoder.context(inputs)
    lengths = np.asarray(value_lengths(inside.values, output_products(model).astype(np.float32)))
    for number, layer in enumerate(model.body.encoder.applications()):
        projection = layer.attention.output
        values, kernel = np.asarray(inside.values[number], np.float64), np.asarray(projection.kernel[...], np.float64)
        transformed = np.einsum("bkhd,hde->bhke", values, kernel)
        np.testing.assert_allclose(lengths[number], np.linalg.norm(transformed, axis=-1), rtol=1e-4, atol=1e-6)
        total = np.einsum("bhqk,bhke->bqe", np.asarray(inside.weights[number], np.float64), transformed)
        bias = 0.0 if projection.bias is None else np.asarray(projection.bias[...])
        read = before_attention(inside.hidden_states[number], layer.weights_after_attention(), layer.recipe)
        attended = np.asarray(layer.attention(read, context, None, number)[0])
        np.testing.assert_allclose(total + bias, attended, atol=1e-5 * np.abs(attended).max())
        assert np.abs(total).max() > 1e-3


def test_uniform_attention_has_uniform_numbers(pair):
    """A model whose queries are 0 attends uniformly: its numbers equal `uniform_numbers`."""
    encoding, tokens = pair
    config = BertConfig(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=32)
    model = random_model(BertModel, config)
    for layer in model.body.encoder.layers:
        layer.attention.query.kernel[...] = 0 * layer.attention.query.kernel[...]
        layer.attention.query.bias[...] = 0 * layer.attention.query.bias[...]
    known = RoleNumbers.of(tokens)
    found, expected = read_roles(model, [encoding], [known], 0)[:, 0], uniform_numbers(known)
    for place, name in enumerate(NUMBERS):
        if not name.startswith(("norm_", "largest_")):  # where all are equally large the first is the largest
            np.testing.assert_allclose(found[:, place], expected[place], rtol=1e-4, err_msg=name)


def test_numbers_do_not_depend_on_other_texts_or_padding():
    model, tokenizer, several, known = some_pairs(5)
    together = read_roles(model, several, known, tokenizer.pad_id)
    alone = [read_roles(model, [one], [ids], tokenizer.pad_id) for one, ids in zip(several, known, strict=True)]
    np.testing.assert_allclose(together, np.concatenate(alone, axis=1), atol=2e-4)


def test_scores_are_ratios_of_sums():
    rng = np.random.default_rng(0)
    outputs = rng.uniform(1, 2, (4, 9, len(NUMBERS)))
    for metric in role_metrics(np.ones(len(ROLES) + 2)):
        count = {"confidence": "words", "entropy": "words", "cls_entropy": "texts"}.get(metric.name)
        name = metric.name.removeprefix("norm_").removeprefix("largest_")
        column = NUMBERS.index(count or f"queries of {name}")
        expected = outputs[..., NUMBERS.index(metric.name)].sum(1) / outputs[..., column].sum(1)
        np.testing.assert_allclose(score(metric, outputs, np.zeros(9)), expected)
    some = np.array([float(role.name != "other_text") for role in ROLES] + [1.0, 1.0])
    assert {metric.name for metric in role_metrics(some)} & {"other_text", "norm_other_text"} == set()


def test_kinds_are_by_their_criteria():
    assert kinds_of({"largest_next": 0.9, "next": 0.5, "entropy": 2.7}, 3.0) == ["positional", "broad"]
    assert kinds_of({"largest_next": 0.89, "next": 0.51, "sep": 0.6, "entropy": 2.69}, 3.0) == ["next", "sep"]


def test_distances_are_divergences_of_each_two_heads():
    """All pairs and tokens in a loop over scipy's distance, the root of the divergence; filled-up batches too."""
    rng, config = np.random.default_rng(5), config_of("bert", 0)
    model = random_model(BertModel, config)
    texts = encodings(config, rng, [7, 3, 5, 9, 4, 8, 6])
    found = read_distances(model, texts, 0)
    maps = [np.asarray(model(bertjax.collate([text], None, 0)).attentions)[:, 0] for text in texts]
    flat = [weights.reshape(-1, *weights.shape[2:]).astype(np.float64) for weights in maps]
    expected = np.zeros(found.shape)
    for weights in flat:
        for one, other in np.ndindex(*found.shape):
            expected[one, other] += (jensenshannon(weights[one], weights[other], axis=-1) ** 2).sum()
    np.testing.assert_allclose(found, expected / sum(map(len, texts)), atol=2e-6)
    assert found.max() > 1e-3
    assert np.array_equal(found, found.T)
    alone = read_distances(model, texts[:1], 0)
    assert np.abs(alone - found).max() > 1e-4  # the texts differ


def test_texts_are_spread_and_few():
    assert texts_to_compare([10] * 100, 100) == list(range(0, 100, 10))
    assert texts_to_compare([5, 6, 7]) == [0, 1, 2]
    assert texts_to_compare([10_000], 100) == [0]


def test_silhouettes_are_compared_with_permuted_groups(monkeypatch):
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(4), 8)
    points = rng.normal(size=(32, 3)) + 3 * rng.normal(size=(4, 3))[groups]
    apart = silhouette_of(np.linalg.norm(points[:, None] - points, axis=-1), groups)
    assert apart.value > 0.3 > 0 > apart.permuted
    assert apart.p == 0.001
    monkeypatch.setattr("bertjax.statistics.grouping.PERMUTATIONS", 99)
    noise = rng.normal(size=(32, 3))
    found = [silhouette_of(np.linalg.norm(noise[:, None] - noise, axis=-1), rng.permutation(groups)) for _ in range(8)]
    assert np.mean([one.p for one in found]) > 0.15
    assert silhouette_of(np.ones((4, 4)), np.zeros(4, np.int64)) is None


@pytest.fixture(scope="module")
def role_inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("roles")
    return folder, make_embedder(folder / "model"), write_pairs(folder / "pairs.tsv", 30)


def _check_tests(found):
    for row in found.rows:  # attention cannot be less confident than uniform attention, nor have more entropy
        one_sign = row.metric in ("confidence", "entropy", "cls_entropy")
        assert (row.q is None) == one_sign, row.metric
        assert not one_sign or row.difference * (1 if row.metric == "confidence" else -1) > -1e-6
    entropies = found.sentence_of("entropy")
    assert "not tested" in entropies
    assert not re.search("blat|q <|chance", entropies)
    assert "blat" not in found.sentence
    assert set(found.attention["runs"].tolist()) == {"base"}


@pytest.mark.integration
def test_results_are_read_by_every_command(role_inputs, capsys, tmp_path):
    _, model, data = role_inputs
    output = str(tmp_path / "roles")
    options = ["--model", str(model), "--task", "mrpc", "--data", str(data), "--output", output, "--no-compile-cache"]
    assert main(["roles", *options]) == 0
    printed = capsys.readouterr().out
    assert "the previous token" in printed
    assert "positional (for 90 % of words" in printed.replace("\n", " ")
    found = bertjax.read_results(output)
    check_by_jsonschema(json.loads((tmp_path / "roles" / "summary.json").read_text()))
    assert found.measure("sep").compared_with == "uniform attention"
    tokenizer, examples = Tokenizer.from_pretrained(model), load_examples("mrpc", data=data)
    several = tokenizer.encode(examples.first, examples.second, word_ids=True)
    lengths = np.array([len(encoding) for encoding in several])
    words = lengths - 3
    assert found.rows_of("cls")[0].base == pytest.approx((words / lengths).sum() / words.sum())
    output_of = found.outputs
    assert output_of["outputs"].shape == (6, 30, len(NUMBERS))
    for metric in ("cls", "norm_sep", "entropy"):
        assert main(["show", output, "--metric", metric, "--top", "2"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "of uniform attention:" in shown
        assert "without ablation" not in shown
        assert ", mode" not in shown
    _check_tests(found)
    for figure in ("auto", "roles", "distances", "map", "ranking"):
        assert main(["plot", output, "--figure", figure, "-o", str(tmp_path / f"{figure}.png")]) == 0
    capsys.readouterr()
    assert main(["plot", output, "--figure", "roles", "--metric", "cls", "-o", str(tmp_path / "x.png")]) == 2
    assert "is of no single metric" in capsys.readouterr().err
    assert "silhouette" in printed
    layers = np.repeat([0, 1], 3)
    expected = silhouette_of(found.outputs["distances"], layers)
    assert found.summary["roles"]["silhouette"]["value"] == pytest.approx(expected.value)
    assert main(["report", output]) == 0
    assert main(["compare", output, output, "--metric", "cls"]) == 0
    bertjax.ablate(model, "mrpc", data=data, heads=["0.0"], output=tmp_path / "heads", progress=False)
    assert main(["plot", str(tmp_path / "heads"), "--figure", "roles", "-o", str(tmp_path / "x.png")]) == 2
    assert "give results of bertjax roles" in capsys.readouterr().err
    assert main(["plot", str(tmp_path / "heads"), "--figure", "distances", "-o", str(tmp_path / "x.png")]) == 2
    assert "has no distances between heads" in capsys.readouterr().err


def test_texts_without_words_are_refused(role_inputs, tmp_path, capsys):
    _, model, _ = role_inputs
    (tmp_path / "empty.jsonl").write_text('{"sentence1": "", "sentence2": "", "label": 1}\n' * 3)
    options = ["--model", str(model), "--task", "custom", "--data", str(tmp_path / "empty.jsonl"), "--no-compile-cache"]
    assert main(["roles", *options, "--output", str(tmp_path / "roles")]) == 2
    assert "no text has a word" in capsys.readouterr().err
    assert not (tmp_path / "roles").exists()


def test_a_model_without_a_head_and_single_texts_will_do(tmp_path):
    make, write, name = TASK_FACTORIES["mlm"]
    directory = make(tmp_path / "model")
    found = bertjax.roles(directory, "mlm", data=write(tmp_path / name), progress=False)
    assert "other_text" not in found.summary["metrics"]  # there is no pair
    assert "previous" in found.summary["metrics"]
    body = BertModel.from_pretrained(directory, add_pooling_layer=False)
    body.save_pretrained(tmp_path / "body", Tokenizer.from_pretrained(directory))
    again = bertjax.roles(tmp_path / "body", "mlm", data=tmp_path / name, progress=False)
    assert [row.score for row in again.rows_of("cls")] == [row.score for row in found.rows_of("cls")]
    assert isinstance(bertjax.load(directory), BertForMaskedLM)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"heads": ("0.0",)}, "heads is not an option of this call"),
        ({"mode": "zero"}, "mode is not an option of this call"),
        ({"every_word": True}, "every_word is not an option of this call"),
        ({"precision": "bfloat16"}, "precision is not an option of this call"),
        ({"task": "ranking"}, "are not texts or pairs of texts"),
        ({"memory": "1GB"}, "memory is not an option of this call"),
    ],
    ids=str,
)
def test_what_roles_do_not_have_is_refused(wrong, message, role_inputs):
    _, model, data = role_inputs
    with pytest.raises(InputError, match=message):
        bertjax.roles(model, **{"task": "mrpc", "data": data} | wrong)
