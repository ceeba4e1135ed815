"""How similar attention is before and after fine-tuning: both modes against literal loops, and the files of a run."""

import csv
import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax import BertForSequenceClassification, BertModel
from bertjax.data.tokenizer import Encoding
from bertjax.errors import InputError
from experiments import fig5_change as attention_change
from experiments.fig5_change import compare_real, compare_whole, main
from experiments.shared.attention import reduce_attention
from tests.factories import make_classifier, make_config, make_embedder, write_pairs
from tests.picture_checks import assert_same_pictures
from tests.tiny_models import arrays_of, largest_difference, random_model

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A base encoder, a classifier with other weights, and pairs in MRPC's layout with an unbalanced quote."""
    folder = tmp_path_factory.mktemp("models")
    make_embedder(folder / "base")
    make_classifier(folder / "tuned", random_model(BertForSequenceClassification, make_config(), seed=1))
    (folder / "MRPC").mkdir()
    path = write_pairs(folder / "MRPC" / "dev.tsv", 9)
    lines = path.read_text().splitlines()
    lines[4] = '\t"'.join(lines[4].rsplit("\t", 1))  # row 3's second text swallows rows 4 and 5
    lines[6] += '"'
    path.write_text("\n".join(lines) + "\n")
    return folder


def run_main(folder, output, *more):
    """A run on MRPC, with the classifier as the fine-tuned model where no other is named."""
    tuned = [] if "--tuned" in more else ["--tuned", str(folder / "tuned")]
    arguments = ["--model", str(folder / "base"), "--task", "mrpc", "--data", str(folder), "--output", str(output)]
    return main([*arguments, *tuned, *more])


def cosine(one, other):
    total = lengths_one = lengths_other = 0.0
    for left, right in zip(one.ravel().tolist(), other.ravel().tolist(), strict=True):
        total, lengths_one, lengths_other = total + left * right, lengths_one + left**2, lengths_other + right**2
    return total / (lengths_one * lengths_other) ** 0.5


def test_maps_small_enough_to_check_by_eye():
    first = jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]])  # the third token is padding
    second = jnp.array([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]])
    base = jnp.stack([first, second])[None, None]
    tuned = jnp.stack([second, second])[None, None]
    keep = jnp.array([[1, 1, 0]])
    assert largest_difference(compare_real(base, tuned, keep)[0, 0, 0], [0.5, 1.0]) < 1e-6  # 1 of 2 rows alike
    assert largest_difference(compare_real(base, tuned, keep)[0, 1, 0], [0.5, 1.0]) < 1e-6
    assert largest_difference(compare_whole(base, tuned, keep)[0, 0, 0], [1.5 / 2.5, 1.0]) < 1e-6
    other = jnp.stack([second, first])[None, None]
    assert largest_difference(compare_real(base, other, keep)[0, :, 0], [[0.5, 0.5], [1.0, 1.0]]) < 1e-6


def test_both_modes_are_what_literal_loops_compute(folder, tmp_path):
    assert run_main(folder, tmp_path, "--as-published") == 0
    found = arrays_of(tmp_path / "values.npz")
    models = [bertjax.load(folder / name) for name in ("base", "tuned")]
    tokenizer = bertjax.Tokenizer.from_pretrained(folder / "base")
    rows = [line.split("\t")[3:] for line in (folder / "MRPC" / "dev.tsv").read_text().splitlines()[1:]]
    texts = tokenizer.encode(*zip(*rows, strict=True), max_length=40)
    assert len(found["mrpc_corrected_same_head"][0]) == len(texts) == 9
    assert len(found["mrpc_as_published_same_head"][0]) == 7
    for number, text in enumerate(texts):
        maps = [np.asarray(model(**bertjax.collate([text])).attentions, np.float64)[:, 0] for model in models]
        for layer, head in np.ndindex(2, 3):
            expected = cosine(maps[0][layer, head], maps[1][layer, head])
            assert abs(found["mrpc_corrected_same_head"][0, number, layer, head] - expected) < 1e-5
            others = [cosine(maps[0][layer, head], maps[1][layer, other]) for other in range(3) if other != head]
            assert abs(found["mrpc_corrected_other_heads"][0, number, layer, head] - np.mean(others)) < 1e-5
    with (folder / "MRPC" / "dev.tsv").open(newline="") as file:
        quoted = [row[-2:] for row in csv.reader(file, delimiter="\t")][1:]
    assert any("\n" in text for row in quoted for text in row)  # rows that quotes have made one
    for number, text in enumerate(tokenizer.encode(*zip(*quoted, strict=True), max_length=40)):
        length = len(text)
        whole = [np.asarray(model(**bertjax.collate([text], 40)).attentions, np.float64)[:, 0] for model in models]
        assert length == 40 or whole[0][:, :, length:, :length].sum() > 0  # padding queries attend to real keys
        for layer, head in np.ndindex(2, 3):
            expected = cosine(whole[0][layer, head], whole[1][layer, head])
            assert abs(found["mrpc_as_published_same_head"][0, number, layer, head] - expected) < 1e-5


def test_a_token_that_one_of_the_models_does_not_have_is_refused():
    large, small = (random_model(BertModel, replace(make_config(), vocab_size=size)) for size in (60, 20))
    text = Encoding((2, 50, 3), (0,) * 3, ("",) * 3, ((0, 0),) * 3, False)
    with pytest.raises(InputError, match="50"):
        reduce_attention((large, small), [text], compare_real)


def test_a_run_leaves_numbers_values_and_figures(folder, tmp_path):
    assert run_main(folder, tmp_path / "out", "--as-published", "--limit", "5") == 0
    found = json.loads((tmp_path / "out" / "numbers.json").read_text())
    results, values = found["results"]["mrpc"], arrays_of(tmp_path / "out" / "values.npz")
    similarity = values["mrpc_corrected_same_head"][0]
    assert results["corrected"]["examples"] == 5
    assert largest_difference(results["corrected"]["similarity"], similarity.mean(0)) < 1e-5
    margin = 1.96 * similarity.std(0, ddof=1) / 5**0.5
    assert largest_difference(results["corrected"]["interval"], margin) < 1e-5
    layer, head = np.unravel_index(similarity.mean(0).argmin(), (2, 3))
    assert results["corrected"]["heads_by_change"][0] == f"{layer}.{head}"
    assert results["corrected"]["layers_by_change"][0] == similarity.mean((0, 2)).argmin()
    apart = np.abs(similarity.mean(0) - values["mrpc_as_published_same_head"][0].mean(0)).max()
    assert abs(results["published_against_corrected"]["largest_difference"] - apart) < 1e-5
    assert (tmp_path / "out" / "figure.pdf").read_bytes().startswith(b"%PDF")
    drawn = attention_change.figures(found)
    del found["results"]["mrpc"]["as_published"]
    assert_same_pictures(tmp_path, drawn, "corrected", attention_change.figures(found)["figure"])


def test_each_task_has_its_model_and_its_map(folder, tmp_path):
    arguments = ["--task", "mrpc", "mrpc:dev", "--tuned", str(folder / "tuned"), str(folder / "base"), "--limit", "3"]
    assert run_main(folder, tmp_path / "out", *arguments) == 0
    found = json.loads((tmp_path / "out" / "numbers.json").read_text())["results"]
    assert list(found) == ["mrpc", "mrpc:dev"]
    assert largest_difference(found["mrpc:dev"]["corrected"]["similarity"], np.ones((2, 3))) < 1e-5
    assert np.min(found["mrpc"]["corrected"]["similarity"]) < 0.99


def test_a_tuned_model_with_other_tokens_is_refused(folder, tmp_path):
    other = make_classifier(tmp_path / "other")
    vocabulary = json.loads((other / "tokenizer.json").read_text())
    vocabulary["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": ""}
    (other / "tokenizer.json").write_text(json.dumps(vocabulary))
    (other / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(SystemExit, match="has another tokenizer"):
        run_main(folder, tmp_path / "out", "--tuned", str(other))


def test_a_model_tuned_on_another_task_is_refused(folder, tmp_path):
    three = make_classifier(
        tmp_path / "mnli",
        random_model(BertForSequenceClassification, replace(make_config(), id2label=dict(enumerate("abc")))),
    )
    with pytest.raises(SystemExit, match="mnli is not fine-tuned on mrpc: the model has 3 labels, but mrpc has 2"):
        run_main(folder, tmp_path / "out", "--tuned", str(three))
    recorded = make_classifier(tmp_path / "rte-pretrained-0" / "last")
    (recorded.parent / "result.json").write_text('{"task": "rte"}')
    with pytest.raises(SystemExit, match="last is fine-tuned on rte, not on mrpc: --tuned takes one model for each"):
        run_main(folder, tmp_path / "out", "--tuned", str(recorded))
    with pytest.raises(SystemExit, match="--tuned names 2 models for 1 tasks"):
        run_main(folder, tmp_path / "out", "--tuned", str(recorded), str(recorded))


def test_models_of_several_seeds_are_averaged_with_their_range(folder, tmp_path):
    several = ["--tuned", str(folder / "tuned"), "--tuned", str(folder / "base"), "--limit", "5"]
    assert run_main(folder, tmp_path / "both", *several) == 0
    assert run_main(folder, tmp_path / "one", *several[:2], *several[4:]) == 0
    both, one = (json.loads((tmp_path / name / "numbers.json").read_text()) for name in ("both", "one"))
    found, single = (numbers["results"]["mrpc"]["corrected"] for numbers in (both, one))
    assert largest_difference(found["seeds"][0], single["similarity"]) < 1e-5
    assert largest_difference(found["seeds"][1], np.ones((2, 3))) < 1e-5
    assert largest_difference(found["similarity"], (np.array(single["similarity"]) + 1) / 2) < 1e-5
    assert largest_difference(2 * np.array(found["interval"]), single["interval"]) < 1e-4  # base is like itself
    low = np.mean(single["similarity"][1])
    line = attention_change.tables({"": both}).splitlines()[2]
    assert f"| {(low + 1) / 2:.3f} |" in line
    attention_change.figures(both)["figure"](tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "both" / "figure.png").read_bytes()
