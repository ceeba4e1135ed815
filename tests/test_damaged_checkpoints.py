"""Claims about damaged checkpoints: each is read as transformers reads it or refused in one line, at once."""

import random

import pytest

from tests import campaign, fuzz_utilities
from tests.damage_checkpoints import ATTACKED, VALUES, _change_json
from tests.fuzz_checkpoints import JSONS, WEIGHTS, Case, _base, _read, cases
from tests.fuzz_utilities import attempt

pytestmark = [pytest.mark.integration, pytest.mark.needs_torch]


@pytest.mark.parametrize("base", sorted({*JSONS, *WEIGHTS}))
def test_what_is_not_damaged_is_accepted(base):
    assert attempt(lambda: _read(Case(base, "", "", 0), _base(base))) == "accepted"


@pytest.mark.parametrize(("seed", "count"), [(0, 300), pytest.param(1, 6000, marks=pytest.mark.slow)])
def test_damage_ends_in_one_line_or_in_what_transformers_reads(seed, count):
    counts, broken = campaign.run("checkpoints", seed, count)
    assert broken == []
    assert counts.total() == count
    assert min(counts[kind] for kind in ("accepted", "refused in one line")) > count / 20


def test_a_seed_gives_the_same_cases():
    assert cases(3, 50) == cases(3, 80)[:50]
    assert cases(3, 50) != cases(4, 50)


def test_a_case_does_not_depend_on_earlier_damage():
    before, rng = repr(VALUES), random.Random(0)
    for _ in range(50):
        value = {"a": [1, {"b": 2}], "c": "d"}
        for _ in range(20):
            value = _change_json(value, rng)
    assert repr(VALUES) == before


def test_a_case_that_ends_otherwise_is_told(monkeypatch, capsys):
    """The campaign itself sees a traceback, code that ran and a hang."""
    from tests import fuzz_checkpoints as fuzzer

    def raise_error(*_):
        raise KeyError("\nkey")

    monkeypatch.setattr(fuzzer, "_read_undamaged", lambda _: None)
    monkeypatch.setattr(fuzzer, "_read", raise_error)
    monkeypatch.setattr("sys.argv", ["campaign", "--only", "checkpoints", "--count", "3"])
    assert campaign.main() == 1
    assert "| checkpoints | traceback | 3 |" in (told := capsys.readouterr().out)
    assert "KeyError" in told
    monkeypatch.setattr(fuzzer, "_read", lambda *_: str(ATTACKED.mkdir()))
    assert fuzzer.outcome(cases(0, 1)[0]) == "its code ran"
    monkeypatch.setattr(fuzz_utilities, "LONGEST", 1)
    assert attempt(lambda: __import__("time").sleep(3)) == "hang: more than 1 s"
