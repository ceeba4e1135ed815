"""Whatever is given to a public function in place of what it takes, the answer is one line of the project's own.

Tests check types by jaxtyping and beartype, which users do not have: both are off here.
"""

import pytest

from bertjax.errors import BertjaxError
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
def test_a_misuse_is_told_in_one_line_of_the_projects_own(fixtures, saved, unchecked, name):
    fixtures.saved = saved
    misuse, message = MISUSES[name]
    with pytest.raises(BertjaxError, match=message) as caught:
        misuse(fixtures)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert " object at 0x" not in text
    assert len(text) < 300
