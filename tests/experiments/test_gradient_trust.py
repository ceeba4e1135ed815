"""Would gradients have told: the numbers are those of the results, and of orders computed by hand."""

import json

import numpy as np
import pytest
from scipy.stats import spearmanr

import bertjax
from experiments.beyond import gradient_trust
from tests.factories import make_embedder, make_masked, write_lines, write_pairs

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """An embedder on pairs and a masked model on lines: exact effects, and gradients."""
    folder = tmp_path_factory.mktemp("trust")
    jobs = {
        "mrpc": (make_embedder(folder / "embedder"), write_pairs(folder / "pairs.tsv", 40)),
        "mlm": (make_masked(folder / "masked"), write_lines(folder / "lines.txt")),
    }
    found = {}
    for task, (model, data) in jobs.items():
        options = {"data": data, "mode": "zero", "progress": False}
        exact = bertjax.ablate(model, task, output=folder / f"{task}-exact", **options)
        found[task] = exact, bertjax.importance(model, task, output=folder / f"{task}-gradients", **options)
    return found


def run(results, output):
    return gradient_trust.main([*(str(one.directory) for one in results), "--output", str(output)])


def test_numbers_are_those_of_the_results(pairs, tmp_path, capsys):
    assert run([one for both in pairs.values() for one in both], tmp_path / "out") == 0
    printed = capsys.readouterr().out
    numbers = json.loads((tmp_path / "out" / "numbers.json").read_text())
    assert gradient_trust.tables({"": numbers}) in printed
    for pair, (exact, gradients) in zip(numbers["results"]["pairs"], pairs.values(), strict=True):
        effects = np.abs([row.difference for row in exact.rows_of()])
        for order, estimate in {
            "importance": [row.score for row in gradients.rows_of("importance")],
            "predicted_loss": [abs(row.difference) for row in gradients.rows_of("predicted_loss")],
            "layer": [row.layer for row in exact.rows_of()],
        }.items():
            assert pair["fits"][order]["correlation"] == pytest.approx(spearmanr(estimate, effects)[0], abs=1e-4)
        assert -1 <= pair["ceiling"] <= 1
        assert f"{pair['fits']['importance']['correlation']:.2f}".replace("-", "−") in printed
    assert {"figure.png", "figure.pdf"} <= {path.name for path in (tmp_path / "out").iterdir()}


def test_halves_of_effects_that_are_the_same_everywhere_agree():
    """Where each example says the same, one half tells what the other does; where all is noise, it tells little."""
    effects = np.array([0.5, -0.1, 0.3, 0.02, 0.7, -0.4])
    assert gradient_trust.between_halves(np.tile(effects[:, None], 20)) == pytest.approx(1)
    noise = np.random.default_rng(0).normal(size=(60, 20))
    assert abs(gradient_trust.between_halves(noise)) < 0.3


def test_within_layers_it_does_not_help_to_know_the_layer():
    rng = np.random.default_rng(1)
    layers = np.repeat(np.arange(6.0), 12)
    first, second = (10 * layers + rng.normal(size=72) for _ in range(2))
    assert spearmanr(first, second)[0] > 0.9
    assert abs(gradient_trust.within_layers(first, second, layers)) < 0.3
    assert gradient_trust.within_layers(first, first, layers) == pytest.approx(1)
