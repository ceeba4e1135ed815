"""Results of several seeds are joined: mean effects, with intervals and tests over seeds and examples."""

import numpy as np
import pandas
import pytest

from bertjax.errors import DataError, InputError
from bertjax.results import over_seeds_and_examples, read_results
from tests.result_factories import make_results
from tests.tiny_models import largest_difference


def test_few_differing_seeds_are_not_significant():
    """Two seeds of +10 and -2 points with hardly any noise of examples show nothing; of +10 and +9.9 they do."""
    within = np.array([0.01**2])
    apart = over_seeds_and_examples(np.array([[10.0], [-2.0]]), within, 5000)
    close = over_seeds_and_examples(np.array([[10.0], [9.9]]), within, 5000)
    assert apart["p"][0] > 0.4
    assert close["p"][0] < 0.01
    assert apart["low"][0] < 0 < close["low"][0]
    assert abs(apart["between"][0] - np.std([10, -2], ddof=1)) < 1e-12
    alone = over_seeds_and_examples(np.array([[10.0]]), within, 5000)
    assert np.isnan(alone["between"][0])
    assert largest_difference(alone["high"] - alone["low"], 2 * 1.96 * np.sqrt(within)) < 1e-3
    nothing = over_seeds_and_examples(np.zeros((2, 1)), np.zeros(1), 5000)
    assert nothing["p"].tolist() == [1.0]


@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
def test_tests_over_seeds_and_examples_are_not_too_sure(spread):
    """3,000 ablations without effect, noise of three seeds beside that of examples: p is seldom small."""
    rng = np.random.default_rng(1)
    of_examples = rng.normal(0, 1, 3000)
    change = of_examples + rng.normal(0, spread, (3, 3000))
    p = over_seeds_and_examples(change, np.ones(3000), 400)["p"]
    assert (p < 0.05).mean() < 0.06
    assert (p < 0.001).mean() < 0.003


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """Two results on the same examples: 2.3 has a large effect in both, another head in one."""
    folder = tmp_path_factory.mktemp("seeds")
    return [read_results(make_results(folder / name, helpful=name)) for name in ("0.1", "1.2")]


def test_mean_effects_are_those_of_the_results(seeds):
    first, second = seeds
    joined = first.join(second, metric="accuracy")
    changes = [[row.difference for row in one.rows_of("accuracy")] for one in seeds]
    assert joined.names == first.names
    assert (joined.seeds, joined.examples) == (2, 120)
    assert largest_difference(joined.mean, np.mean(changes, axis=0)) < 1e-9
    labels, arrays = first.outputs["labels"], [one.outputs for one in seeds]
    right = [np.stack([one["base"], *one["outputs"]]).argmax(-1) == labels for one in arrays]
    effects = np.mean([one[1:].astype(float) - one[0] for one in right], axis=0)
    expected = over_seeds_and_examples(np.array(changes), effects.var(1, ddof=1) / 120, 120)
    assert largest_difference(joined.p, expected["p"]) < 1e-9
    assert (joined.low <= joined.mean).all()
    assert (joined.mean <= joined.high).all()
    assert (joined.q >= joined.p).all()


def test_a_large_effect_of_all_seeds_is_found_and_printed(seeds):
    joined = seeds[0].join(seeds[1])
    assert [joined.names[index] for index in np.flatnonzero(joined.significant)] == ["2.3"]
    lines = str(joined).splitlines()
    assert lines[0].startswith("F1, mean over 2 results of 120 examples: ")
    assert lines[1].startswith("2.3  +")
    frame = joined.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["mean"].tolist() == joined.mean.tolist()
    assert list(frame) == ["name", "mean", "low", "high", "p", "q", "between"]


def test_results_of_other_examples_are_refused(seeds, tmp_path):
    other = read_results(make_results(tmp_path / "other", seed=3))
    with pytest.raises(InputError, match="have different examples: seeds need the same"):
        seeds[0].join(other)
    with pytest.raises(InputError, match="give at least two"):
        seeds[0].join()
    with pytest.raises((InputError, DataError), match="no metric 'recall'"):
        seeds[0].join(seeds[1], metric="recall")
