"""Attributions beside what masking does: each number against a loop over single calls of the model."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import spearmanr

import bertjax
from bertjax.models import BertForSentenceEmbedding
from bertjax.tasks import load_examples
from experiments.beyond import faithfulness
from experiments.words.attributions import ATTRIBUTIONS, _rank_correlation, read_output, study_text
from tests.factories import make_classifier, make_embedder, write_pairs
from tests.tiny_models import arrays_of

pytestmark = pytest.mark.integration

MAKE = {"classifier": make_classifier, "embedder": make_embedder}


@pytest.fixture(scope="module", params=[*MAKE])
def faithfulness_run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    model, data = MAKE[request.param](folder / "model"), write_pairs(folder / "pairs.tsv", 12)
    arguments = ["--model", str(model), "--task", "mrpc", "--data", str(data), "--output", str(folder / "out")]
    assert faithfulness.main(arguments) == 0
    return folder, bertjax.load(model), bertjax.Tokenizer.from_pretrained(model), load_examples("mrpc", data=data)


def outcome(model, ids, types):
    batch = {"input_ids": np.array([ids]), "token_type_ids": np.array([types])}
    output = model({**batch, "attention_mask": np.ones_like(batch["input_ids"])})
    if isinstance(model, BertForSentenceEmbedding):
        return np.asarray(output.sentence_embedding[0], np.float64), output
    logits = np.asarray(output.logits[0], np.float64)
    return logits - np.log(np.exp(logits).sum()), output


def difference(model, base, other):
    if isinstance(model, BertForSentenceEmbedding):
        return 1 - base @ other / np.linalg.norm(base) / np.linalg.norm(other)
    return abs(other[base.argmax()] - base[base.argmax()])


def test_numbers_are_those_of_single_calls(faithfulness_run):
    _, model, tokenizer, examples = faithfulness_run
    embeds = isinstance(model, BertForSentenceEmbedding)
    second = None if embeds else examples.second[:1]
    (encoding,) = tokenizer.encode(examples.first[:1], second, word_ids=True)
    plain = np.array([place for place, word in enumerate(encoding.word_ids) if word is not None])
    marks = np.zeros(len(encoding), bool)
    marks[plain[0]] = True
    rng = np.random.default_rng(0)
    found = study_text(model, encoding, plain, marks, tokenizer.mask_token_id, rng)
    base, output = outcome(model, encoding.input_ids, encoding.token_type_ids)
    for place, token in enumerate(plain):
        ids = list(encoding.input_ids)
        ids[token] = tokenizer.mask_token_id
        changed = difference(model, base, outcome(model, ids, encoding.token_type_ids)[0])
        assert found.changes[place] == pytest.approx(changed, rel=2e-2, abs=2e-7)
    readers = np.full(len(encoding), 1 / len(encoding)) if embeds else np.eye(len(encoding))[0]
    maps = np.asarray(output.attentions, np.float64)[:, 0]
    np.testing.assert_allclose(found.attributions["weights"], (readers @ maps[-1].mean(0))[plain], rtol=1e-4)
    np.testing.assert_allclose(found.attributions["all layers"], (readers @ maps.mean((0, 1)))[plain], rtol=1e-4)
    layer = model.body.encoder.applications()[-1].attention
    values = np.asarray(output.record.values[-1, 0], np.float64)  # key, heads, head_dim
    kernel = np.asarray(layer.output.kernel[...], np.float64)
    sizes = np.zeros((len(encoding), len(encoding)))
    for query, key in np.ndindex(*sizes.shape):
        added = sum(maps[-1][head, query, key] * values[key, head] @ kernel[head] for head in range(len(kernel)))
        sizes[query, key] = np.linalg.norm(added)
    np.testing.assert_allclose(found.attributions["norms"], (readers @ sizes)[plain], rtol=1e-4)
    assert found.attributions["words"].tolist() == [0.0, *[1.0] * (len(plain) - 1)]


def test_gradients_are_the_first_order_change(faithfulness_run):
    """Against a difference of outputs, the token's embedding moved a little towards the mask token's."""
    _, model, tokenizer, examples = faithfulness_run
    embeds = isinstance(model, BertForSentenceEmbedding)
    (encoding,) = tokenizer.encode(examples.first[1:2], None if embeds else examples.second[1:2], word_ids=True)
    plain = np.array([place for place, word in enumerate(encoding.word_ids) if word is not None])
    rng, marks = np.random.default_rng(0), np.zeros(len(encoding), bool)
    found = study_text(model, encoding, plain, marks, tokenizer.mask_token_id, rng)
    body = model.body
    inputs = model.inputs(bertjax.collate([encoding], None, 0))
    masked = model.inputs({**bertjax.collate([encoding], None, 0), "input_ids": np.full((1, len(encoding)), 4)})
    assert tokenizer.mask_token_id == 4
    before, after = body.embeddings(inputs), body.embeddings(masked)

    def read(hidden):
        last = body.encoder(hidden, body.encoder.context(inputs))[0]
        return np.asarray(read_output(model, model.finish(last, inputs.keep))[0], np.float64)

    label = int(read(before).argmax())
    expected = []
    for token in plain.tolist():
        one = jnp.zeros((1, len(encoding), 1)).at[0, token, 0].set(0.02)
        slope = (read(before + one * (after - before)) - read(before - one * (after - before))) / 0.04
        expected.append(np.linalg.norm(slope) if embeds else abs(slope[label]))
    np.testing.assert_allclose(found.attributions["gradients"], expected, atol=0.03 * max(expected))
    assert np.ptp(expected) > 0.01 * max(expected)


def test_what_is_written_is_what_was_found(faithfulness_run, capsys):
    folder, *_ = faithfulness_run
    numbers = json.loads((folder / "out" / "numbers.json").read_text())
    found = arrays_of(folder / "out" / "values.npz")["correlations"]
    assert found.shape == (numbers["results"]["texts"], len(ATTRIBUTIONS))
    for place, name in enumerate(ATTRIBUTIONS):
        mean, low, high = numbers["results"]["correlation"][name]
        assert mean == pytest.approx(found[:, place].mean(), abs=1e-4)
        assert low <= mean <= high
    assert numbers["results"]["less_weights"]["weights"] == [0, 0, 0]
    assert (folder / "out" / "figure.png").exists()
    table = faithfulness.tables({"one": numbers, "other": numbers}).splitlines()
    mean, low, high = (f"{x:.2f}".replace("-", "−") for x in numbers["results"]["correlation"]["rollout"])
    assert [line.count(f"{mean} ({low} to {high})") for line in table if line.startswith("| rollout")] == [2]


def test_correlations_are_spearmans():
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 5, 30).astype(float), rng.normal(size=30)
    assert _rank_correlation(first, second) == pytest.approx(spearmanr(first, second)[0])
    assert _rank_correlation(np.ones(30), second) == 0
    constant = faithfulness.summarise(np.tile([[0.3, *[0.1] * 8]], (20, 1)), 0)
    assert constant["correlation"]["weights"] == [0.3, 0.3, 0.3]
    assert constant["less_weights"]["norms"] == [-0.2, -0.2, -0.2]


def test_checkpoints_without_some_heads_are_read(tmp_path):
    make_classifier(tmp_path / "model")
    whole, tokenizer = bertjax.load(tmp_path / "model"), bertjax.Tokenizer.from_pretrained(tmp_path / "model")
    whole.save_pretrained(tmp_path / "smaller", tokenizer, without=[(1, 0)])
    data = write_pairs(tmp_path / "pairs.tsv", 4)
    arguments = ["--task", "mrpc", "--data", str(data), "--output", str(tmp_path / "out")]
    assert faithfulness.main(["--model", str(tmp_path / "smaller"), *arguments]) == 0
