"""Arguments of any kind end in one line that names them, or in what a plainer way gives."""

import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax import BertConfig, collate
from bertjax.errors import BertjaxError
from bertjax.interventions import ablations, overrides, patching, readouts
from tests import campaign, fuzz_python
from tests.fuzz_python import Case, calls, fixtures

pytestmark = pytest.mark.integration

HUGE = 10**5000  # Python writes out no number of more than 4,300 digits
MATRIX = np.ones((2, 3))
CONFIG = BertConfig()


def check(seed, count):
    counts, broken = campaign.run("python", seed, count)
    assert broken == []
    assert counts.total() == count
    assert min(counts[kind] for kind in fuzz_python.OUTCOMES) > count / 40


def test_arguments_of_other_kinds():
    check(seed=0, count=fuzz_python.SWEEPS * 8)


@pytest.mark.slow
def test_thousands_of_arguments_of_other_kinds():
    check(seed=1, count=10_000)


@pytest.mark.parametrize("name", calls())
def test_what_fits_is_accepted(name, unchecked):
    function, fitting, sensible = calls()[name]
    if name != "read_results":  # the fixtures have none
        assert sensible(function(**fitting), fitting)


def test_what_should_not_come_is_seen(monkeypatch):
    def fail(**_):
        raise KeyError("x")

    def refuse(message):
        def function(**_):
            raise BertjaxError(message)

        return function

    arguments = {"heads": ["0.1"]}
    for function, wrong in (
        (fail, "traceback"),
        (refuse("something is wrong"), "argument not named"),
        (lambda **_: np.nan, "silently wrong"),
        (refuse("heads are none"), "refused in one line"),
    ):
        known = {"zero": (function, arguments, lambda found, given: bool(np.isfinite(found)))}
        monkeypatch.setattr(fuzz_python, "calls", lambda known=known: known)
        assert fuzz_python.outcome(Case("zero", 0)).startswith(wrong)


# ---- what it found --------------------------------------------------------------------------------------------------
FOUND = {
    "a name": (lambda d: ablations.ablation(CONFIG, ["0.1"], "zero", MATRIX), "name must be a string, found an array"),
    "a precision": (lambda d: bertjax.load(d.directory, precision=jnp.asarray(MATRIX)), "precision.*found an array"),
    "no precision": (lambda d: bertjax.load(d.directory, precision=0), "precision.*found 0"),
    "a dtype": (lambda d: bertjax.load(d.directory, dtype=HUGE), "dtype.*a very large number"),
    "a complex gate": (lambda d: overrides.uniform(CONFIG, ["0.1"], 0.5j), "gate must be.*found 0.5j"),
    "a head": (lambda d: overrides.zero(CONFIG, [(0, HUGE)]), "there is no head 0.a very large number"),
    "no pair": (lambda d: overrides.parse_head(HUGE, CONFIG), "a very large number names no head"),
    "a factor": (lambda d: overrides.factor(CONFIG, ["0.1"], np.float64(1e300)), "factor must be finite"),
    "a share": (lambda d: ablations.Change(0, 1, "zero", 10**400), "share of head 0.1 .* must be a finite number"),
    "a complex share": (lambda d: ablations.Change(0, 1, "zero", np.complex64(1)), "share of head 0.1 .* finite"),
    "an example": (lambda d: overrides.forbidden_edges(CONFIG, [(0, 1, 0, 0)], 2**31), "example.*2147483648"),
    "a token": (lambda d: overrides.forbidden_edges(CONFIG, [(0, 1, 2**31, 0)]), r"edge .*2147483648.* beyond"),
    "a length": (lambda d: d.tokenizer.encode(["a"], max_length=-HUGE), "max_length.*64 bits.*a very large number"),
    "a batch": (lambda d: collate(d.texts, length=10**12), "length 1000000000000 takes 24 TB of memory"),
    "padding": (lambda d: collate(d.texts, pad_id=2**31), "pad_id is 2147483648"),
    "labels of another number": (
        lambda d: bertjax.weigh("accuracy", np.eye(2), np.ones((1, 2, 2)), [0, 1, 1]),
        r"outputs of shape \[2, 2, 2\] and labels of shape \[3\] don't fit",
    ),
    "a base of another shape": (
        lambda d: bertjax.weigh("accuracy", np.ones((3, 2)), np.ones((1, 2, 2)), [0, 1]),
        r"outputs have shape \[1, 2, 2\], but base \[3, 2\]",
    ),
    "labels of texts": (
        lambda d: bertjax.weigh("accuracy", np.eye(2), np.ones((1, 2, 2)), ["a", "b"]),
        "labels must be an array of numbers, found a list that begins with the string 'a'",
    ),
    "no metric": (lambda d: bertjax.weigh(["f1"], np.eye(2), np.ones((1, 2, 2)), [0, 1]), r"no metric .*\['f1'\]"),
    "a mask of another length": (
        lambda d: patching.patched(d.config, "queries", ["0.1"], d.output, tokens=np.ones((2, 3))),
        r"mask of tokens has shape \(2, 3\), but there are 2 examples of \d+ tokens",
    ),
    "a mask of other examples": (
        lambda d: patching.token_mask(np.ones((3, 5)), 2, 5),
        r"mask of tokens has shape \(3, 5\), but there are 2 examples of 5 tokens",
    ),
    "a form": (
        lambda d: bertjax.estimate(
            d.model, d.texts, ablations.single_heads(d.config), readouts.pooled, attention=MATRIX
        ),
        "attention.*found an array",
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_is_told_in_a_line(name, unchecked):
    misuse, message = FOUND[name]
    with pytest.raises(BertjaxError, match=message):
        misuse(fixtures())


def test_lists_are_weighed_as_the_arrays_that_they_mean(unchecked):
    rng = np.random.default_rng(0)
    base, outputs, labels = rng.normal(size=(12, 2)), rng.normal(size=(2, 12, 2)), np.arange(12) % 2
    units = np.arange(12) // 2
    expected = bertjax.weigh("accuracy", base, outputs, labels, units=units, resamples=50, draws=50)
    lists = bertjax.weigh(
        "accuracy", base.tolist(), outputs.tolist(), labels.tolist(), units=units.tolist(), resamples=50, draws=50
    )
    for name in ("score", "low", "high", "p"):
        np.testing.assert_array_equal(getattr(lists, name), getattr(expected, name))
    assert lists.score.tolist() == [(run.argmax(-1) == labels).mean() for run in outputs]


def test_a_large_whole_number_is_not_wrapped():
    """Of 2^32 + 1, 32 bits are 1."""
    assert float(overrides.factor(CONFIG, ["0.1"], [2**32 + 1]).output_gate[0, 1]) == 2.0**32
