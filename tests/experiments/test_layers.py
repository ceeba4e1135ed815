"""Tests of the table that joins what layers encode with what they cost on a task."""

from itertools import permutations

import numpy as np
import pytest
from scipy.stats import spearmanr

import bertjax
from experiments.beyond import layers

pytestmark = pytest.mark.integration


def _described(values, analysis, greater_is_better=True):
    rows = [
        {"name": str(layer), "score": value, "difference": [value, None, None], "significant": False}
        for layer, value in enumerate(values)
    ]
    names = {"name": "n", "label": "L", "analysis": analysis, "task": "stsb", "model": "one"}
    return {**names, "greater_is_better": greater_is_better, "rows": rows, "mix": None}


def test_correlation_is_over_layers_with_exact_p():
    """The loss is the negative difference; p is over all orders, as by SciPy's correlation of each of them."""
    generator = np.random.default_rng(0)
    scores, differences = generator.normal(size=(2, 5))
    found = layers.correlate(_described(scores, "probe"), _described(differences, "ablation"))
    expected = spearmanr(scores, -differences).statistic
    null = [spearmanr(scores[list(order)], -differences).statistic for order in permutations(range(5))]
    assert found["spearman"] == pytest.approx(expected, abs=1e-4)
    by_loss = layers.correlate(_described(scores, "probe"), _described(-differences, "ablation", False))
    assert by_loss == found
    assert found["p"] == pytest.approx(np.mean(np.abs(null) >= abs(expected) - 1e-12), abs=0.01)


def test_directories_of_analyses_are_joined(tmp_path):
    """Results of a probe and of an ablation become one table with a correlation; a cell is what its results say."""
    first = {"tokens": ["a", "man", "eats"], "tags": ["D", "N", "V"]}
    second = {"tokens": ["dogs", "bark"], "tags": ["N", "V"]}
    study = bertjax.Study(task="token-classification", data=[first, second] * 10)
    study.probe(output=tmp_path / "probe", progress=False)
    bertjax.Study(limit=20).ablate(ablate="layers", output=tmp_path / "ablate", progress=False)
    names = [str(tmp_path / "probe:selectivity"), str(tmp_path / "ablate")]
    assert layers.main([*names, "--output", str(tmp_path / "out")]) == 0
    numbers = bertjax.json_files.read_json(tmp_path / "out" / "numbers.json")
    probe, ablation = (one for one in numbers["results"]["runs"])
    expected = bertjax.read_results(tmp_path / "ablate").rows_of()[3]
    assert ablation["rows"][3]["difference"][0] == pytest.approx(100 * expected.difference, rel=1e-4)
    assert probe["label"].startswith("Selectivity")
    assert len(numbers["results"]["correlations"]) == 1
    assert len(layers.tables({"layers": numbers}).split("\n\n")) == 2
    assert "| probe: Selectivity of the probe |" in layers.tables({"layers": numbers})
    assert (tmp_path / "out" / "figure.png").exists()
