"""Estimates of a sweep: the steps that the engine takes, and their time."""

from collections import Counter

import numpy as np
import pytest

from bertjax import BertConfig, BertForMaskedLM, BertForSequenceClassification
from bertjax.engine import costs
from bertjax.engine import run as engine
from bertjax.engine.blocks import BlockRunner
from bertjax.engine.sizes import choose_sizes
from bertjax.engine.sweep_input import make_sweep_input
from bertjax.interventions import ablations as ab
from bertjax.interventions import readouts
from tests.tiny_models import encodings, random_model

CONFIG = BertConfig(
    vocab_size=40,
    hidden_size=24,
    num_hidden_layers=4,
    num_attention_heads=12,
    intermediate_size=8,
    max_position_embeddings=20,
)
STEPS = {"embed": 1.0, "apply_layer": 3.0, "fork_from_parent": 5.0, "read": 7.0, "take_sources": 11.0}
LENGTHS = [16, 9, 12, 7, 16, 5, 3, 16, 11, 16, 8, 16, 15, 13, 16, 14, 10, 16]  # more rows than a block has slots


def at_sites(config):
    """Whole hidden states, queries and heads' outputs, of sources and zero, everywhere and at one span."""
    changes = [
        ab.Change(layer, head, mode, 1.0, site, at)
        for layer in range(config.num_hidden_layers)
        for head, site, mode in (
            (0, "hidden_states", "patched"),
            (3, "queries", "zero"),
            (5, "head_outputs", "patched"),
        )
        for at in ((), (1,))
    ]
    return [ab.Ablation(str(number), (change,)) for number, change in enumerate(changes)]


SWEEPS = {
    "single heads": (lambda: ab.single_heads(CONFIG), BertForSequenceClassification, readouts.logits, ()),
    "pairs": (lambda: ab.head_pairs(CONFIG)[::7], BertForSequenceClassification, readouts.logits, ()),
    "five heads": (
        lambda: ab.random_subsets(CONFIG, "zero", size=5, count=40),
        BertForSequenceClassification,
        readouts.logits,
        (),
    ),
    "sites": (lambda: at_sites(CONFIG), BertForSequenceClassification, readouts.logits, ("sources", "spans")),
    "masked words": (lambda: ab.single_heads(CONFIG), BertForMaskedLM, readouts.words, ("targets", "at")),
}


@pytest.fixture(params=SWEEPS)
def sweep_input(request, rng):
    """The arguments of a sweep."""
    make, cls, readout, names = SWEEPS[request.param]
    examples = encodings(CONFIG, rng, LENGTHS)
    first, second = np.array([[0, length - 1] for length in LENGTHS]), rng.integers(0, 40, (len(LENGTHS), 2))
    known = {
        "sources": encodings(CONFIG, rng, LENGTHS),
        "spans": [rng.integers(-1, 2, length) for length in LENGTHS[:-1]] + [np.ones(LENGTHS[-1], int)],
        "targets": second,
        "at": first,
    }
    return make_sweep_input(
        random_model(cls, CONFIG), examples, make(), readout, **{name: known[name] for name in names}
    )


class Clock:
    """A clock that only steps advance; counts the steps."""

    def __init__(self, monkeypatch):
        self.now, self.taken = 0.0, Counter()
        for name in STEPS:
            monkeypatch.setattr(BlockRunner, name, self.timed(name, getattr(BlockRunner, name)))
        monkeypatch.setattr(costs.time, "perf_counter", lambda: self.now)

    def timed(self, name, step):
        def with_time(runner, *arguments):
            found = step(runner, *arguments)
            if name != "take_sources" or runner.sources is not None:
                self.now += STEPS[name]
                self.taken[name] += 1
            return found

        return with_time


def sizes_of(sweep_input):
    return choose_sizes(sweep_input, row_length=16, tokens_at_once=200)


def take_steps(sweep_input, sizes):
    """Compute all parts of a sweep."""
    runner = engine.make_runner(sweep_input, sizes)
    outputs = engine._Outputs(sweep_input, runner, None)
    engine._run_parts(runner, engine._parts(sweep_input, runner, sizes), outputs, lambda done, total: None)


def test_seconds_are_those_of_the_steps_that_the_sweep_takes(sweep_input, monkeypatch):
    clock, sizes = Clock(monkeypatch), sizes_of(sweep_input)
    estimate = costs.estimate_with_sizes(sweep_input, sizes)
    before = clock.now
    clock.taken.clear()
    take_steps(sweep_input, sizes)
    assert len(clock.taken) >= 3
    assert estimate.seconds == pytest.approx(clock.now - before)
    assert estimate.rate == pytest.approx(estimate.cost.flops / estimate.seconds)
    assert estimate.separate_seconds == pytest.approx(estimate.cost.plain / estimate.rate)


def test_one_chunk_of_a_large_plan_stands_for_all(sweep_input, monkeypatch):
    monkeypatch.setattr(costs, "LONGEST_DRY_RUN", 1)
    clock, sizes = Clock(monkeypatch), sizes_of(sweep_input)
    estimate = costs.estimate_with_sizes(sweep_input, sizes)
    before = clock.now
    take_steps(sweep_input, sizes)
    assert clock.now - before <= estimate.seconds < 3 * (clock.now - before)
