"""Several layers disabled at once: which sets, what pairs do beyond the sum of both, pictures from numbers alone."""

import json
from dataclasses import replace

import numpy as np
import pytest

import bertjax
from bertjax import BertForSequenceClassification
from bertjax.interventions import overrides
from bertjax.tasks import encode_examples, load_examples
from experiments.beyond import layer_sets
from experiments.beyond.layer_sets import list_sets, measure_pairs, name_layers
from tests.factories import make_classifier, make_config, write_pairs
from tests.tiny_models import arrays_of, largest_difference, random_model

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("total", [1, 2, 3, 4, 12])
def test_sets_have_names_of_their_own_and_none_comes_twice(total):
    sets = list_sets(total)
    assert len({name_layers(some, total) for some in sets}) == len(sets) == len(set(sets))
    assert sets[:total] == [(layer,) for layer in range(total)]
    assert sum(len(some) == 2 for some in sets) == total * (total - 1) // 2
    for size in range(1, total + 1):
        assert tuple(range(size)) in sets
        assert tuple(range(total - size, total)) in sets
    assert sum(len(some) == total - 1 for some in sets) >= (total if total > 1 else 0)


def test_a_pair_beyond_the_sum_of_both():
    """Layers 0 and 1 cost nothing alone and 40 of 100 examples together; 0 and 2 cost what 2 costs alone."""
    names = ["0", "1", "2", "0+1", "0+2", "1+2"]
    right = np.ones((7, 100), int)
    right[4, :40] = 0
    right[[3, 5], :20] = 0
    right[6, 60:70] = 0  # both cost less than layer 2 alone
    outputs, labels = np.stack([1 - right, right], axis=-1).astype(float), np.ones(100, np.int32)
    change = (100 * (right[1:].mean(1) - 1)).tolist()
    part = dict.fromkeys(("change", "low", "high", "p", "q"), change) | {"mean": 0.0, "mean_interval": [0.0, 0.0]}
    results = {"layers": 3, "names": names, "metric": "accuracy", "positive": 1, "base": {"accuracy": 1.0}}
    results |= {"effects": {"accuracy": {"uniform": part}}}
    found = measure_pairs(results, "uniform", outputs, labels, 0, draws=400)
    assert found["layers"] == [[0, 1], [0, 2], [1, 2]]
    assert found["beyond"] == [-40, 0, 10]
    assert found["q"][0] < 0.001
    assert found["q"][1] == 1
    assert found["low"][0] < -40 < found["high"][0] < -25
    assert found["low"][2] < 10 < found["high"][2]


def test_outputs_equal_single_runs_and_figures_use_saved_numbers(tmp_path):
    config = replace(make_config(), num_hidden_layers=3)
    model = random_model(BertForSequenceClassification, config, seed=4)
    (tmp_path / "model").mkdir()
    (tmp_path / "MRPC").mkdir()
    directory = make_classifier(tmp_path / "model", model)
    write_pairs(tmp_path / "MRPC" / "dev.tsv", 15)
    arguments = [
        "--model",
        str(directory),
        "--task",
        "mrpc",
        "--data",
        str(tmp_path),
        "--output",
        str(tmp_path / "out"),
    ]
    assert layer_sets.main(arguments) == 0
    numbers = json.loads((tmp_path / "out" / "numbers.json").read_text())
    results, values = numbers["results"], arrays_of(tmp_path / "out" / "values.npz")
    assert results["names"] == ["0", "1", "2", "0+1", "0+2", "1+2", "0 to 2"]
    encoded = encode_examples(model, bertjax.Tokenizer.from_pretrained(directory), load_examples("mrpc", data=tmp_path))
    batch = bertjax.collate(encoded.encodings)
    for place, layers in enumerate(list_sets(3)):
        heads = [head for layer in layers for head in overrides.heads_of_layer(config, layer)]
        logits = model(**batch, overrides=overrides.uniform(config, heads)).logits
        assert largest_difference(values["uniform"][1 + place], logits) < 1e-4
    pictures = layer_sets.figures(numbers)
    assert set(pictures) == {"figure", "growing"}
    lines = layer_sets.tables({"": numbers}).splitlines()
    assert [line.count("|") for line in lines] == [4] * 4
