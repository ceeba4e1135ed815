"""Figures 8 and 9: effects small enough to check by eye, and outputs that equal a literal computation."""

import json

import numpy as np
import pytest
from scipy.special import ndtr, softmax

import bertjax
from bertjax import read_results
from experiments import fig8_heads, fig9_layers
from experiments.shared.effects import Effects, correlate_sites, draw_means, modes_table
from tests.factories import SENTENCES, make_classifier, make_embedder, write_pairs
from tests.tiny_models import arrays_of, largest_difference

pytestmark = pytest.mark.integration

HEADS = [(layer, head) for layer in range(2) for head in range(3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A classifier, an embedder, pairs in MRPC's layout with an unbalanced quote, and some in STS-B's."""
    folder = tmp_path_factory.mktemp("models")
    make_classifier(folder / "classifier")
    make_embedder(folder / "embedder")
    for name in ("MRPC", "STS-B"):
        (folder / name).mkdir()
    path = write_pairs(folder / "MRPC" / "dev.tsv", 17)
    lines = path.read_text().splitlines()
    lines[4] = '\t"'.join(lines[4].rsplit("\t", 1))  # row 3's second text swallows rows 4 and 5
    lines[6] += '"'
    path.write_text("\n".join(lines) + "\n")
    rows = [f"{SENTENCES[n % 7]}\t{SENTENCES[(3 * n + 1) % 7]}\t{(n * 3) % 5}.5" for n in range(12)]
    (folder / "STS-B" / "dev.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n")
    return folder


def run_main(script, folder, model, task, output, *more):
    inputs = ["--model", str(folder / model), "--task", task, "--data", str(folder), "--output", str(output)]
    assert script.main([*inputs, *more]) == 0
    return json.loads((output / "numbers.json").read_text()), arrays_of(output / "values.npz")


def entry_of(change, q, **more):
    """The numbers of a metric with these changes in points."""
    inputs = {"change": change, "low": [x - 1 for x in change], "high": [x + 1 for x in change], "p": q, "q": q}
    return {**inputs, "mean": float(np.mean(change)), "mean_interval": [None, None], "least_p": 0.0001, **more}


def test_effects_by_eye():
    entry = entry_of([-25, -50, 25, 0], [0.01, 0.01, 0.5, 1.0], gains=[0, 0, 1, 0], losses=[1, 2, 0, 0])
    results = {"kind": "head", "task": "mrpc", "names": ["0.0", "0.1", "1.0", "1.1"], "metric": "accuracy"}
    results["effects"] = {"accuracy": {"uniform": entry}}
    (*_, row) = modes_table([results]).splitlines()
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[:4] == ["heads, mrpc", "uniform", "1 (0)", "2 (2)"]
    assert cells[4] == "1.0 +25.0 (+24.0 to +26.0; 1 become right, 0 wrong; q 0.5)"
    assert cells[5] == "0.1 −50.0 (−51.0 to −49.0; 0 become right, 2 wrong; q 0.01)"
    assert cells[6] == "−12.5"


def test_q_of_the_least_p_that_swaps_can_give_is_at_most_that():
    effects = Effects.of(entry_of([-3.0, 1.0], [0.0001, 0.5]))
    assert (effects.format_q(0), effects.format_q(1)) == ("≤0.0001", "0.5")
    assert Effects.of(entry_of([-3.0], [0.0001], least_p=None)).format_q(0) == "0.0001"


def test_ties_of_the_largest_are_counted():
    effects = Effects.of(entry_of([25.0, 25.0, 0.0, 25.0], [1.0] * 4))
    assert effects.format_extreme(list("abcd"), 1).startswith("a and 2 more +25.0")
    assert effects.format_extreme(list("abcd"), -1) == "none"


def test_draws_with_an_undefined_score_are_left_out_of_the_mean():
    drawn = np.array([[np.nan, 0.1, np.nan], [0.02, 0.3, np.nan], [np.nan] * 3])
    assert np.allclose(draw_means(drawn), [0.1, 0.16, np.nan], equal_nan=True)


def test_rank_correlation_of_effects_and_its_interval(rng):
    first, noise = rng.normal(size=60), rng.normal(size=60)
    close, far = (correlate_sites(first, first + share * noise, 0) for share in (0.3, 3.0))
    assert close["spearman"] > far["spearman"]
    for found in (close, far):
        low, high = found["interval"]
        assert low < found["spearman"] < high
    assert correlate_sites(first, -first, 0)["spearman"] == -1


def literal_logits(weights, config, text, disabled):
    """A classifier's logits in float64 NumPy, the weights of some heads 1/n over the text's n tokens."""

    def norm(x, name):
        deviation = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((deviation**2).mean(-1, keepdims=True) + config.layer_norm_eps)
        return deviation / scale * weights[f"{name}.scale"] + weights[f"{name}.bias"]

    def dense(x, name):
        return np.tensordot(x, weights[f"{name}.kernel"], 1) + weights[f"{name}.bias"]

    ids, types = np.array(text.input_ids), np.array(text.token_type_ids)
    words, segments = weights["bert.embeddings.word"][ids], weights["bert.embeddings.token_type"][types]
    x = norm(words + segments + weights["bert.embeddings.position"][: len(ids)], "bert.embeddings.norm")
    for layer in range(2):
        name = f"bert.encoder.layers.{layer}"
        queries, keys, values = (dense(x, f"{name}.attention.{part}") for part in ("query", "key", "value"))
        attended = x + weights[f"{name}.attention.output.bias"]
        for head in range(3):
            attention = softmax(queries[:, head] @ keys[:, head].T / np.sqrt(4), axis=-1)
            if (layer, head) in disabled:
                attention = np.full((len(ids), len(ids)), 1 / len(ids))
            attended = attended + attention @ values[:, head] @ weights[f"{name}.attention.output.kernel"][head]
        x = norm(attended, f"{name}.attention_norm")
        inner = dense(x, f"{name}.intermediate")
        x = norm(x + dense(inner * ndtr(inner), f"{name}.output"), f"{name}.output_norm")
    return dense(np.tanh(dense(x[0], "bert.pooler.dense")), "classifier")


@pytest.mark.parametrize(
    ("script", "several"),
    [(fig8_heads, [{head} for head in HEADS]), (fig9_layers, [set(HEADS[:3]), set(HEADS[3:])])],
    ids=["heads", "layers"],
)
def test_uniform_weights_on_all_rows(folder, tmp_path, script, several):
    """Rows are lines; heads and whole layers get weights 1/n, as in the authors' program."""
    numbers, values = run_main(script, folder, "classifier", "mrpc", tmp_path / "out", "--modes", "uniform")
    model = bertjax.load(folder / "classifier")
    weights = {name: np.asarray(value, np.float64) for name, value in model.parameters().items()}
    rows = [line.split("\t") for line in (folder / "MRPC" / "dev.tsv").read_text().splitlines()[1:]]
    labels = np.array([int(row[0]) for row in rows])
    texts = model.tokenizer.encode([row[-2] for row in rows], [row[-1] for row in rows], max_length=40)
    results = numbers["results"]
    assert (results["examples"], results["metric"], list(results["base"])) == (17, "accuracy", ["accuracy", "f1"])
    for place, disabled in enumerate(several):
        expected = np.array([literal_logits(weights, model.config, text, disabled) for text in texts])
        assert largest_difference(values["uniform"][1 + place], expected) < 1e-4
        change = 100 * ((expected.argmax(-1) == labels).mean() - results["base"]["accuracy"])
        assert abs(results["effects"]["accuracy"]["uniform"]["change"][place] - change) < 1e-4


def test_three_modes_of_an_embedder(folder, tmp_path):
    numbers, values = run_main(fig9_layers, folder, "embedder", "stsb", tmp_path / "out")
    results = numbers["results"]
    assert set(results["rank_correlation"]) == {"uniform-zero", "uniform-mean", "zero-mean"}
    for mode in fig8_heads.MODES:
        saved = read_results(tmp_path / "out" / mode)
        assert saved.summary["mode"]["name"] == mode
        assert np.array_equal(saved.outputs["outputs"], values[mode][1:])
        expected = [100 * row.difference for row in saved.rows_of("spearman")]
        assert largest_difference(results["effects"]["spearman"][mode]["change"], expected) < 1e-4
    lines = fig9_layers.tables({"": numbers}).splitlines()
    assert [" | ".join(line.split(" | ")[:2]) for line in lines[2:]] == [
        "| layers, stsb | uniform",
        "| layers, stsb | zero",
        "| layers, stsb | mean",
    ]
    assert (tmp_path / "out" / "figure.pdf").read_bytes().startswith(b"%PDF")
