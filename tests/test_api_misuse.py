"""Whatever is given to a public function in place of what it takes, the answer is one line of the project's own.

Tests check types by jaxtyping and beartype, which users do not have: both are off here.
"""

import numpy as np
import pytest

import bertjax
from bertjax import BertConfig
from bertjax.errors import BertjaxError
from bertjax.interventions import overrides
from tests import misuses_of_models, misuses_of_sweeps
from tests.factories import add_tokenizer
from tests.misuse_fixtures import MisuseFixtures

MISUSES = misuses_of_models.MISUSES | misuses_of_sweeps.MISUSES


@pytest.fixture(scope="module")
def fixtures(tmp_path_factory):
    return MisuseFixtures(tmp_path_factory.mktemp("fixtures"))


@pytest.fixture(scope="module")
def saved(fixtures, tmp_path_factory):
    """A checkpoint of the fixtures' model."""
    directory = tmp_path_factory.mktemp("saved")
    fixtures.model.save_pretrained(directory)
    return add_tokenizer(directory)


@pytest.mark.parametrize("name", MISUSES)
def test_a_misuse_is_one_line_of_a_bertjax_error(fixtures, saved, unchecked, name):
    fixtures.saved = saved
    misuse, message = MISUSES[name]
    with pytest.raises(BertjaxError, match=message) as caught:
        misuse(fixtures)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert " object at 0x" not in text
    assert len(text) < 300


def test_lists_have_the_statistics_of_their_arrays(unchecked):
    rng = np.random.default_rng(0)
    base, outputs, labels = rng.normal(size=(12, 2)), rng.normal(size=(2, 12, 2)), np.arange(12) % 2
    units = np.arange(12) // 2
    expected = bertjax.compute_statistics("accuracy", base, outputs, labels, units=units, resamples=50, draws=50)
    lists = bertjax.compute_statistics(
        "accuracy", base.tolist(), outputs.tolist(), labels.tolist(), units=units.tolist(), resamples=50, draws=50
    )
    for name in ("score", "low", "high", "p"):
        np.testing.assert_array_equal(getattr(lists, name), getattr(expected, name))
    assert lists.score.tolist() == [(run.argmax(-1) == labels).mean() for run in outputs]


def test_a_large_whole_number_is_not_wrapped():
    """Of 2^32 + 1, 32 bits are 1."""
    assert float(overrides.factor(BertConfig(), ["0.1"], [2**32 + 1]).output_gate[0, 1]) == 2.0**32
