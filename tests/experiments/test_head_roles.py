"""The program that joins roles of heads on several texts: its numbers are those of the results."""

import json

import numpy as np
import pytest
from scipy.stats import spearmanr

import bertjax
from experiments.beyond import head_roles
from tests.factories import make_embedder, write_lines, write_pairs

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kinds")
    model = make_embedder(folder / "model")
    pairs, lines = write_pairs(folder / "pairs.tsv", 30), write_lines(folder / "lines.txt")
    options = {"progress": False}
    return [
        bertjax.roles(model, "mrpc", data=pairs, output=folder / "roles", **options),
        bertjax.roles(model, "mlm", data=lines, output=folder / "of_lines", **options),
    ]


def run(results, output):
    return head_roles.main([*(str(one.directory) for one in results), "--output", str(output)])


def test_numbers_are_those_of_the_results(several, tmp_path, capsys):
    assert run(several, tmp_path / "out") == 0
    printed = capsys.readouterr().out
    numbers = json.loads((tmp_path / "out" / "numbers.json").read_text())
    assert head_roles.tables({"": numbers}) in printed
    first, second = numbers["results"]["runs"]
    assert (first["texts"], second["texts"]) == ("mrpc", "lines")
    assert "other_text" in first["weights"]
    assert "other_text" not in second["weights"]
    weights = [[row.score for row in results.rows_of("sep")] for results in several]
    np.testing.assert_allclose(first["weights"]["sep"], weights[0], rtol=1e-4)
    np.testing.assert_allclose(first["norms"]["sep"], [row.score for row in several[0].rows_of("norm_sep")], rtol=1e-4)
    (both,) = numbers["results"]["between_texts"]
    assert both["correlations"]["sep"] == pytest.approx(spearmanr(*weights)[0], abs=1e-3)
    base = several[0].rows_of("sep")[0].base
    means = f"{100 * base:.1f} / {100 * np.mean(weights[0]):.1f}"
    assert means in printed
    for run_ in (first, second):  # what words attend to: all of it, by either
        for kind in ("uniform", "weights", "norms"):
            total = np.sum([run_["parts"][kind][part] for part in head_roles.PARTS], axis=0)
            np.testing.assert_allclose(total, 1, atol=1e-3)
    assert {"figure.png", "figure.pdf"} <= {path.name for path in (tmp_path / "out").iterdir()}
