"""Two sweeps have the same facts where their outputs are the same, and only there."""

import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import BertForSentenceEmbedding
from bertjax.checkpoints import DensePlan
from bertjax.engine.journal import _describe, facts_of
from bertjax.engine.sweep_input import make_sweep_input
from bertjax.errors import InputError
from bertjax.interventions import ablations as ab
from bertjax.interventions import readouts
from tests.tiny_models import encodings, random_model

SCALE = 1.0


def scaled(output):
    return output.logits * SCALE


def helper(logits):
    return logits * SCALE


def through_a_helper(output):
    return helper(output.logits)


def make(held):
    return lambda output: output.logits @ held


def with_default(output, *, factor=1.0):
    return output.logits * factor


def recursive(depth):
    def again(output):
        return again(output) if depth else output.logits

    return again


class Probe:
    def __call__(self, output):
        return output.logits

    def read(self, output):
        return output.logits


def big(changed):
    weights = np.linspace(0, 1, 1200, dtype=np.float32).reshape(12, 100)  # whose repr NumPy shortens
    weights[6, 50] += changed
    return weights


@pytest.mark.parametrize("hold", [make, lambda x: partial(with_default, factor=x), lambda x: make([{"a": x}])])
@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_values_in_a_closure_change_the_fingerprint(hold, array):
    assert _describe(hold(array(big(0)))) == _describe(hold(array(big(0))))
    assert _describe(hold(array(big(0)))) != _describe(hold(array(big(1e-3))))


@pytest.mark.parametrize("function", [scaled, through_a_helper])
def test_values_of_the_module_that_a_function_uses_count(function, monkeypatch):
    before = _describe(function)
    assert before == _describe(function)
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 5.0)
    assert _describe(function) != before


def test_defaults_by_name_count(monkeypatch):
    before = _describe(with_default)
    monkeypatch.setattr(with_default, "__kwdefaults__", {"factor": 2.0})
    assert _describe(with_default) != before


def test_a_function_that_calls_itself_has_an_end():
    assert _describe(recursive(1)) != _describe(recursive(0))


@pytest.mark.parametrize("function", [Probe(), Probe().read, make(object())])
def test_functions_without_a_fingerprint_are_refused(function):
    with pytest.raises(InputError, match="leave out the journal"):
        _describe(function)


CHILD = """
import jax, numpy as np
from functools import partial
from bertjax import readouts
from bertjax.checkpoints import DensePlan
from bertjax.engine.journal import _describe
def f(output, held):
    return np.tanh(output.logits) @ held
held = np.arange(6.0).reshape(2, 3)
print([_describe(g) for g in (jax.jit(f), partial(f, held=held), jax.vmap(f), readouts.logits, {1, 2, 3}.union)][:4])
"""


@pytest.mark.integration
def test_descriptions_are_the_same_in_every_process():
    runs = [
        subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True, env=None).stdout
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert "0x" not in runs[0]


def test_jit_and_vmap_of_different_functions_differ():
    for transform in (jax.jit, jax.vmap):
        assert _describe(transform(make(big(0)))) == _describe(transform(make(big(0))))
        assert _describe(transform(make(big(0)))) != _describe(transform(make(big(1))))
    assert _describe(jax.vmap(scaled)) != _describe(scaled)


@pytest.mark.parametrize("option", [{"pooling": "cls"}, {"normalize": False}, {"dense": (DensePlan(12, 5),)}])
def test_how_a_sentence_embedder_pools_is_a_fact(small, rng, option):
    texts, heads = encodings(small, rng, [3, 4]), ab.single_heads(small)

    def facts(**options):
        model = random_model(BertForSentenceEmbedding, small, **options)
        return facts_of(make_sweep_input(model, texts, heads, readouts.sentence_embedding))

    assert facts() == facts()
    assert facts()["model"] != facts(**option)["model"]
