"""Damaged data, odd paths, files of sets and journals end in a line, at once."""

from collections import Counter

import pytest

from tests import fuzz_inputs, fuzz_utilities

pytestmark = pytest.mark.integration


def count_outcomes(seed, count):
    """How often each outcome came; the cases of those that should not come."""
    found = [(case, fuzz_inputs.outcome(case)) for case in fuzz_inputs.cases(seed, count)]
    assert [(case, came) for case, came in found if came not in fuzz_inputs.OUTCOMES] == []
    return Counter(came for _, came in found)


def test_a_few_hundred_damaged_inputs():
    counts = count_outcomes(seed=0, count=200)
    assert min(counts[name] for name in fuzz_inputs.OUTCOMES) > 30


@pytest.mark.slow
def test_thousands_of_damaged_inputs():
    counts = count_outcomes(seed=1, count=5000)
    assert min(counts[name] for name in fuzz_inputs.OUTCOMES) > 500


def test_what_should_not_come_is_noticed(monkeypatch):
    def fail(rng, directory):
        raise KeyError("oops")

    def wait(rng, directory):
        while True:
            pass

    for kind, came, longest in ((fail, "traceback", 60), (wait, "hang", 1)):
        monkeypatch.setattr(fuzz_utilities, "LONGEST", longest)
        monkeypatch.setitem(fuzz_inputs.KINDS, "path", kind)
        assert fuzz_inputs.outcome(fuzz_inputs.Case("path", 0)).startswith(came)


def test_the_same_seed_gives_the_same_cases():
    assert list(fuzz_inputs.cases(3, 50)) == list(fuzz_inputs.cases(3, 50)) != list(fuzz_inputs.cases(4, 50))
