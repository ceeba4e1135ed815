"""Jobs that are killed at random moments end, run again, in the bytes of an undisturbed one."""

import pytest

from tests import fuzz_kills

pytestmark = pytest.mark.integration


def test_a_seed_gives_the_same_kills():
    assert list(fuzz_kills.cases(3, 20)) == list(fuzz_kills.cases(3, 40))[:20] != list(fuzz_kills.cases(4, 20))


def test_differences_are_seen(tmp_path):
    from tests.result_factories import make_results

    whole, other = (make_results(tmp_path / str(seed), examples=12, seed=seed) for seed in (0, 1))
    assert fuzz_kills.differing(whole, whole) == fuzz_kills.half_written(whole, False) == ""
    assert fuzz_kills.differing(other, whole).startswith("other bytes: outputs.npz")
    (other / ".0123abcd-outputs.npz").touch()
    assert fuzz_kills.differing(other, whole) == "something is left: ['.0123abcd-outputs.npz']"
    (other / "results.parquet").unlink()
    assert fuzz_kills.half_written(other, False).startswith("half-written")


@pytest.mark.slow
def test_jobs_killed_at_random_moments():
    found = [(case, fuzz_kills.outcome(case)) for case in fuzz_kills.cases(seed=1, count=24)]
    assert [(case, came) for case, came in found if came not in fuzz_kills.OUTCOMES] == []
    assert sum(came == "ended before the kill" for _, came in found) < len(found) / 2
