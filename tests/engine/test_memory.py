"""A sweep stays within its memory budget."""

import os
import re
import subprocess
import sys
from dataclasses import replace

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from benchmarks.tpu_programs import Sizes, Target, sweep_programs
from bertjax import BertConfig, BertForMaskedLM, BertForSequenceClassification
from bertjax.engine import run as engine
from bertjax.engine import schedule, sizes
from bertjax.engine.plan import make_plan
from bertjax.engine.schedule import DryRun
from bertjax.engine.sharding import AXIS
from bertjax.engine.sizes import Blocks, fit_blocks, most_blocks, sweep_bytes
from bertjax.engine.sweep_input import make_sweep_input
from bertjax.errors import InputError
from bertjax.interventions import ablations as ab
from bertjax.interventions import readouts
from bertjax.machine import parse_bytes
from bertjax.models import Numerics
from tests.factories import make_classifier, write_pairs
from tests.family_models import SIZES
from tests.tiny_models import encodings, fixed_lengths, random_model

pytestmark = pytest.mark.integration

DEEP = BertConfig(
    vocab_size=40,
    hidden_size=24,
    num_hidden_layers=6,
    num_attention_heads=12,
    intermediate_size=8,
    max_position_embeddings=20,
)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ab.single_heads(DEEP),
        lambda: ab.head_pairs(DEEP)[::9],
        lambda: ab.random_subsets(DEEP, size=2, count=150),
        lambda: ab.random_subsets(DEEP, size=5, count=150),
        lambda: ab.all_but_one(DEEP),
        lambda: ab.all_but_one(DEEP, "patched"),
        lambda: ab.random_subsets(DEEP, "patched", size=5, count=150),
    ],
    ids=["single", "pairs", "two", "five", "all but one", "all but one patched", "five patched"],
)
def test_no_more_blocks_are_alive_than_are_counted_on(make, rng, monkeypatch):
    model, ablations, most = random_model(BertForSequenceClassification, DEEP), make(), [0]
    shapes = ((12, 1, 16, 24), (12, 1, 16, 12, 2))  # hidden states; what the heads of sources give
    add = schedule.Throttle.add

    def count(pace, block, runs):
        add(pace, block, runs)
        most[0] = max(most[0], sum(array.shape in shapes for array in jax.live_arrays()))

    monkeypatch.setattr(schedule.Throttle, "add", count)
    examples = encodings(DEEP, rng, fixed_lengths(3, 10, 24))
    sources = examples if ablations[0].changes[0].replacement == "source" else None
    engine.sweep(model, examples, ablations, readouts.logits, sources=sources, row_length=16, tokens_at_once=200)
    assert 6 < most[0] <= most_blocks(layers=6, runs=12)


def test_live_blocks_of_a_patching_grid_are_within_the_estimate(rng, monkeypatch):
    model, most = random_model(BertForSequenceClassification, DEEP), [0]
    cells = [
        ab.Change(layer, 0, "patched", site=place, at=(span,))
        for place in ab.SWEPT
        for layer in range(6)
        for span in range(5)
    ]
    ablations = [ab.Ablation(str(number), (cell,)) for number, cell in enumerate(cells)]
    shapes, add = ((12, 1, 16, 24), (12, 1, 16, 12, 2)), schedule.Throttle.add

    def count(pace, block, runs):
        add(pace, block, runs)
        most[0] = max(most[0], sum(array.shape in shapes for array in jax.live_arrays()))

    monkeypatch.setattr(schedule.Throttle, "add", count)
    texts, sources = (encodings(DEEP, rng, [9] * 24) for _ in range(2))
    spans = [np.arange(9) % 5 for _ in texts]
    options = {"sources": sources, "spans": spans, "row_length": 16, "tokens_at_once": 200}
    engine.sweep(model, texts, ablations, readouts.logits, **options)
    source_blocks = make_plan(DEEP, ablations).source_blocks
    assert source_blocks == 6 * len(ab.SWEPT)
    assert source_blocks < most[0] <= most_blocks(6, 12) + source_blocks - 6
    targets = Blocks(1, 12)
    more = sweep_bytes(DEEP, 4, 16, targets, source_blocks=source_blocks) - sweep_bytes(DEEP, 4, 16, targets)
    assert more == (source_blocks - 6) * 12 * 16 * 24 * 4


def test_the_largest_blocks_that_fit(monkeypatch):
    monkeypatch.setattr(sizes, "memory_in_use", lambda: 10**9)
    config, used = BertConfig(), 10**9
    for budget in (1.35e9, 1.5e9, 2e9, 8e9):
        blocks = fit_blocks(config, 4, rows=1000, row_length=128, tokens=20_000, output_bytes=0, budget=int(budget))
        assert used + sweep_bytes(config, 4, 128, blocks) <= budget
    assert blocks.runs * blocks.rows * 128 > 15_000
    small = fit_blocks(config, 4, rows=1000, row_length=128, tokens=20_000, output_bytes=0, budget=int(1.35e9))
    assert small.runs * small.rows < blocks.runs * blocks.rows
    with pytest.raises(InputError, match=r"1\.\d+ GB of memory .* but the budget is 1.1 GB"):
        fit_blocks(config, 4, rows=1000, row_length=128, tokens=20_000, output_bytes=0, budget=int(1.1e9))
    with pytest.raises(InputError, match="6 GB of it for outputs"):
        fit_blocks(config, 4, rows=1000, row_length=128, tokens=20_000, output_bytes=3 * 10**9, budget=int(5e9))


def count_blocks():
    """The number of blocks in memory."""
    return sum(array.shape == (12, 1, 16, 24) for array in jax.live_arrays())


@pytest.mark.parametrize("make", [lambda: ab.single_heads(DEEP), lambda: ab.head_pairs(DEEP)[::9]])
def test_a_dry_run_holds_as_many_blocks_as_the_sweep(make, rng, monkeypatch):
    """What `bertjax plan` counts on is what the engine holds, but for a block that the device still reads."""
    model, ablations, most = random_model(BertForSequenceClassification, DEEP), make(), [0]
    add, others = schedule.Throttle.add, count_blocks()  # other tests may have left some

    def count(pace, block, runs):
        add(pace, block, runs)
        most[0] = max(most[0], count_blocks() - others)

    monkeypatch.setattr(schedule.Throttle, "add", count)
    examples = encodings(DEEP, rng, [16] * 12)
    engine.sweep(model, examples, ablations, readouts.logits, row_length=16, tokens_at_once=200)
    monkeypatch.undo()
    dry_run = DryRun(DEEP, make_plan(DEEP, ablations), Blocks(1, 12))
    dry_run.run(12, sizes.STEPS_OF_PART["cpu"])
    assert most[0] - 1 <= dry_run.most <= most[0] + 1 < most_blocks(6, 12)


def test_amounts_of_memory():
    assert [parse_bytes(text) for text in ("8GB", "500 mb", "2g", "1.5K", "77")] == [8e9, 5e8, 2e9, 1500, 77]
    for text in ("", "many", "-1GB", "8 XB", "0"):
        with pytest.raises(InputError, match="not an amount of memory"):
            parse_bytes(text)


def test_hidden_states_of_every_token_count_as_outputs(rng):
    model = random_model(BertForSequenceClassification, DEEP)
    examples = encodings(DEEP, rng, [9, 10, 4])

    def hidden(output):
        return output.last_hidden_state

    found = engine.sweep(model, examples, ab.single_heads(DEEP)[:3], hidden)
    assert found.outputs.shape == (3, 3, 10, 24)
    budget = sizes.memory_in_use() + sweep_bytes(DEEP, 4, 12, Blocks(1, 1)) + 10**6
    with pytest.raises(InputError, match="for outputs"):
        engine.sweep(model, examples * 1000, ab.single_heads(DEEP), hidden, row_length=12, memory=budget)


def test_what_a_readout_takes_apart_counts(rng):
    wide = replace(DEEP, vocab_size=30_000)
    model, examples = random_model(BertForMaskedLM, wide), encodings(wide, rng, [9, 10, 4])
    sweep_input = make_sweep_input(model, examples, ab.single_heads(wide), lambda output: output.logits.argmax(-1))
    assert sweep_input.row_bytes(3, 8) > 2 * 3 * 10 * 30_000 * 4
    first = make_sweep_input(
        random_model(BertForSequenceClassification, DEEP), examples, ab.single_heads(DEEP), readouts.logits
    )
    assert first.row_bytes(3, 8) < 1000 * 3
    budget = sizes.memory_in_use() + sizes.COMPILER_BYTES + 60_000_000
    roomy, tight = (sizes.choose_sizes(sweep_input, tokens_at_once=4000, memory=most) for most in (None, budget))
    assert tight.rows * tight.runs < roomy.rows * roomy.runs


@pytest.mark.parametrize(
    ("family", "runs", "length", "at_most"),
    [("bert", 12, 104, 1.3), ("modernbert", 1, 1300, 1.3), ("deberta-v2", 2, 300, 1.7)],
)
def test_a_step_takes_inside_what_the_compiler_says(family, runs, length, at_most):
    """XLA's numbers for two rows of a chunk, in rows as long as those of real texts."""
    settings = SIZES[family][0] | {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 512}
    if family == "deberta-v2":
        settings |= {"position_buckets": 256}
    config = BertConfig.from_dict(settings | {"model_type": family, "max_position_embeddings": 2048})
    target = Target(Mesh(np.array(jax.devices()[:1]), (AXIS,)), Numerics(), 0)
    inside = max(
        lower().compile().memory_analysis().temp_size_in_bytes
        for name, lower in sweep_programs(config, Sizes(2, length, Blocks(2, runs), {}), target)
        if name.startswith(("layer", "changed layer", "fork"))
    )
    most = 4 * 2 * max(sizes.step_floats(config, kind, length, runs) for kind in set(config.architecture.layers))
    assert inside <= most <= at_most * inside


CHILD = """
import sys
import numpy as np
from bertjax import BertConfig, BertForSequenceClassification, readouts, sweep
from bertjax.interventions.ablations import single_heads
from bertjax.engine.plan import make_plan
from tests.tiny_models import encodings, random_model

config = BertConfig(num_hidden_layers=int(sys.argv[2]))
model = random_model(BertForSequenceClassification, config)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
examples = encodings(config, np.random.default_rng(0), [40] * 96)
heads = single_heads(config)[-24:]
sweep(model, examples, heads, readouts.logits, tokens_at_once=16_000, memory=int(sys.argv[1]))
print(next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="Linux tells peak memory")
@pytest.mark.parametrize(
    ("layers", "budget", "least"),
    [(3, 1_050_000_000, 500_000_000), pytest.param(12, 1_500_000_000, 700_000_000, marks=pytest.mark.slow)],
)
def test_a_model_as_wide_as_bert_stays_within_its_budget(layers, budget, least):
    command = [sys.executable, "-c", CHILD, str(budget), str(layers)]
    peak = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert least < peak <= budget


def test_a_memory_budget_makes_steps_smaller(rng):
    model = random_model(BertForSequenceClassification, DEEP)
    sweep_input = make_sweep_input(model, encodings(DEEP, rng, [10] * 5000), ab.single_heads(DEEP), readouts.logits)
    free = sizes.choose_sizes(sweep_input, tokens_at_once=40_000)
    budget = sizes.memory_in_use() + sizes.COMPILER_BYTES + 20_000_000
    tight = sizes.choose_sizes(sweep_input, tokens_at_once=40_000, memory=budget)
    assert tight.rows * tight.runs < free.rows * free.runs


def test_a_plan_needs_as_much_memory_as_the_sweep(tmp_path):
    """Both refuse a budget that is too small, and name the necessary memory; a separate process has no modules."""
    data = write_pairs(tmp_path / "pairs.tsv", 20)
    options = ["--model", str(make_classifier(tmp_path / "model")), "--task", "mrpc", "--data", str(data)]
    needed = []
    for command in (["plan"], ["ablate", "--output", str(tmp_path / "out")]):
        words = [sys.executable, "-m", "bertjax", *command, *options, "--memory", "1MB"]
        error = subprocess.run(words, capture_output=True, text=True).stderr
        needed.append(parse_bytes(re.search("the sweep needs about ([^ ]+ [^ ]+) of memory", error)[1]))
    assert needed[0] == pytest.approx(needed[1], rel=0.04)
