"""Programs compiled for TPU: every step of the engine, with the number of its uses."""

from collections import Counter

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from benchmarks import tpu_compile, tpu_programs
from benchmarks.tpu_compile import CHIPS, Compiled, compile_program, count_collectives, make_table, predict
from benchmarks.tpu_programs import Sizes, Target, choose_sizes, count_steps
from bertjax import BertConfig, BertForSequenceClassification
from bertjax.engine import compiled_steps
from bertjax.engine import run as engine
from bertjax.engine.plan import make_plan
from bertjax.engine.sharding import AXIS
from bertjax.engine.sizes import Blocks
from bertjax.engine.sizes import Sizes as SweepSizes
from bertjax.interventions import readouts
from bertjax.interventions.ablations import single_heads
from bertjax.models.pretrained import make_numerics
from tests.tiny_models import SIZES, encodings, random_model

STEPS = {
    "embed": "embed",
    "gather": "gather",
    "apply_layer": "layer",
    "fork_from_parent": "fork",
    "read": "read first",
}


@pytest.mark.parametrize("examples", [3, 40])
def test_steps_are_counted_as_the_engine_takes_them(rng, examples, monkeypatch):
    config = BertConfig(**SIZES["five heads"])
    model, texts = random_model(BertForSequenceClassification, config), encodings(config, rng, [9] * examples)
    taken, blocks = Counter(), Blocks(2, 4)
    for name, words in STEPS.items():
        step = getattr(compiled_steps, name)

        def counted(*args, step=step, words=words, **static):
            changed = words == "layer" and args[3] is not None
            taken["last " * static.get("cls_only", False) + "changed " * changed + words] += 1
            return step(*args, **static)

        monkeypatch.setattr(compiled_steps, name, counted)
    sizes = SweepSizes(12, blocks.rows, blocks.runs, tpu_programs.STEPS_OF_PART)
    monkeypatch.setattr(engine, "choose_sizes", lambda *args, **options: sizes)
    found = engine.sweep(model, texts, single_heads(config), readouts.logits)
    assert count_steps(config, make_plan(config, found.ablations), -(-examples // blocks.rows), blocks) == taken


@pytest.fixture
def target():
    """One device, whatever it is: programs are lowered for TPU all the same."""
    return Target(Mesh(np.array(jax.devices()[:1]), (AXIS,)), make_numerics("bfloat16"), 10**9)


def test_every_program_lowers_for_tpu_with_suitable_sizes(target, monkeypatch):
    monkeypatch.setattr(tpu_programs, "LENGTH", 16)
    monkeypatch.setattr(tpu_programs, "BATCH_OF_CHIP", 2)
    config = BertConfig(**{**SIZES["three heads"], "max_position_embeddings": 128})
    sizes = choose_sizes(config, "mrpc", 20, target)
    assert sizes.row_length % 128 == 0
    programs = dict(
        [
            *tpu_programs.sweep_programs(config, sizes, target),
            *tpu_programs.model_programs(config, target),
            *tpu_programs.kernel_programs(config, target),
        ]
    )
    assert set(sizes.steps) <= set(programs)
    for name, lower in programs.items():
        text = lower().as_text()
        assert "stablehlo" in text
        if name.startswith("kernel"):
            assert ("tpu_custom_call" in text) == (name != "kernel's gradient"), name


def test_compile_failures_are_reported_without_a_prediction():
    def fail():
        raise ValueError("no such\ninstruction")

    chip = CHIPS["v5e"]
    wrong = compile_program("fork", fail, chip, 1)
    assert wrong.error == "ValueError: no such instruction"
    right = compile_program("layer", lambda: jax.jit(lambda x: x @ x).lower(np.ones((64, 64), np.float32)), chip, 6)
    assert right.flops == pytest.approx(2 * 64**3, rel=0.01)
    assert right.memory >= 2 * 64 * 64 * 4
    assert right.seconds == max(6 * right.flops / chip.flops, right.moved / chip.bandwidth) > 0
    sizes = Sizes(3, 128, Blocks(1, 2), {"layer": 5})
    assert predict(sizes, [right, wrong]) == pytest.approx(5 * right.seconds)
    assert predict(Sizes(3, 128, Blocks(1, 2), {"layer": 5, "fork": 1}), [right, wrong]) is None
    table = make_table([right, wrong, Compiled("read", seconds=2.0)], chip, "title", {"layer": 5})
    cells = [list(column.cells) for column in table.columns]
    assert cells[0] == ["layer", "fork", "read"]
    assert cells[1][1] == wrong.error
    assert cells[-1] == ["5", "", ""]


def test_exchanges_between_chips_are_counted():
    text = "a = f32[2] all-reduce(b)\nc = all-gather-start(a)\nd = all-gather-done(c)\ne = add(a, a)"
    assert count_collectives(text) == 2


def test_without_the_compiler_it_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setattr(tpu_compile.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="2"):
        tpu_compile.main([])
    assert "make test-tpu-aot" in capsys.readouterr().err
