"""A sweep where JAX cannot run it: in a forked process, and inside JAX's transformations."""

import subprocess
import sys

import jax
import numpy as np
import pytest

from bertjax import BertForSequenceClassification
from bertjax.engine import reference
from bertjax.engine import run as engine
from bertjax.errors import InputError
from bertjax.interventions import ablations, overrides, readouts
from tests.tiny_models import encodings, random_model

FORKED = """
import multiprocessing, sys, warnings
import jax
import bertjax
from bertjax import BertConfig, BertForSequenceClassification, ablations, readouts
warnings.simplefilter("ignore")
sizes = dict(vocab_size=50, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=16)
model = BertForSequenceClassification(BertConfig(**sizes), jax.random.key(0))
heads = ablations.single_heads(model.config)
def refused(compute):
    try:
        compute()
    except bertjax.errors.InputError as error:
        print(error, flush=True)
def child():
    refused(lambda: bertjax.sweep(model, [[2, 5, 3]], heads, readouts.logits, progress=False))
    refused(lambda: model([[2, 5, 3]]))
    refused(lambda: BertForSequenceClassification(model.config))
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join(30)
sys.exit("the process waits" if process.is_alive() and process.kill() is None else process.exitcode)
"""


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_forked_process_is_refused():
    ended = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert len(lines) == 3
    assert all("forked from one that has used JAX" in line and "get_context('spawn')" in line for line in lines)


@pytest.mark.parametrize("transform", ["jit", "vmap", "closed over"])
def test_a_sweep_inside_a_transformation_is_refused(small, rng, transform):
    model, texts = random_model(BertForSequenceClassification, small), encodings(small, rng, [5, 3])
    heads, ids = ablations.single_heads(small), np.array([[2, 5, 7, 3], [2, 9, 8, 3]])
    calls = {
        "jit": (jax.jit(lambda rows: engine.sweep(model, rows, heads, readouts.logits, progress=False).base), ids),
        "vmap": (jax.vmap(lambda rows: engine.sweep(model, rows, heads, readouts.logits).base), ids[None]),
        "closed over": (jax.jit(lambda x: engine.sweep(model, texts, heads, readouts.logits).base * x), 1.0),
    }
    function, argument = calls[transform]
    with pytest.raises(InputError, match=r"a sweep is inside jax\.jit, vmap or grad, but compiles its own steps"):
        function(argument)


def test_the_reference_inside_jit_is_refused(small):
    model = random_model(BertForSequenceClassification, small)
    batch = {"input_ids": np.array([[2, 5, 7, 3]])}
    gone = [overrides.identity(small)]
    with pytest.raises(InputError, match=r"a sweep is inside jax\.jit"):
        jax.jit(lambda x: reference.sweep(model, [([0], batch)], gone, readouts.logits).base * x)(1.0)
