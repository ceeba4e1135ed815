"""The cost of a plan: FLOPs compared with XLA's count, and with a count by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import BertConfig, BertForMaskedLM, BertModel
from bertjax.engine import run
from bertjax.engine.costs import Work, count_work, flops, plan_sweep, price
from bertjax.engine.packing import pack
from bertjax.engine.plan import make_plan
from bertjax.engine.sizes import Blocks
from bertjax.interventions import ablations as ab
from bertjax.interventions import readouts
from bertjax.models import packed_layer
from bertjax.models.packed_layer import LayerInterventions, Recipe, Rows
from tests.tiny_models import encodings, random_model

BASE = BertConfig()
WIDE = BertConfig(vocab_size=10, num_hidden_layers=1)


def xla_flops(step, *arguments):
    """What XLA counts for a compiled step."""
    compiled = jax.jit(step, static_argnums=len(arguments) - 1).lower(*arguments).compile()
    return compiled.cost_analysis()["flops"]


@pytest.mark.parametrize(
    ("step", "cls_only", "work"),
    [
        (packed_layer.apply_layer, False, Work(full=1)),
        (packed_layer.fork_from_parent, False, Work(shared=1, forked=4)),
        (packed_layer.apply_layer, True, Work(last_full=1)),
        (packed_layer.fork_from_parent, True, Work(last_shared=1, last_forked=4)),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_flops_are_those_that_xla_counts(step, cls_only, work):
    batch, tokens, places = 3, 64, 2
    model = BertModel(WIDE)
    weights = packed_layer.layer_weights(model.encoder.layers[0], model.numerics)
    rows = Rows(jnp.ones((batch, tokens), jnp.int32), jnp.zeros((batch, places), jnp.int32))
    forks = step is packed_layer.fork_from_parent
    changes = LayerInterventions(jnp.ones((4, 12)), None, None, None, None, None) if forks else None
    hidden = jnp.zeros((batch, tokens, 768))
    recipe = Recipe(WIDE.architecture.layers[0], model.numerics)
    found = xla_flops(partial(step, cls_only=cls_only), weights, hidden, rows, changes, recipe)
    expected = flops([work], WIDE, float(batch * tokens), [float(tokens)], float(batch * places))
    assert found == pytest.approx(expected, rel=0.05)


def test_the_work_of_all_single_heads():
    plan = make_plan(BASE, ab.single_heads(BASE))
    # A layer for the base, and for each head all layers above its layer; 12 heads fork in each layer at once.
    alone = sum(1 + 12 * layer for layer in range(11))
    assert in_all(plan, 12, cls_only=False) == Work(alone + 1 + 12 * 11, 12, 144)
    assert in_all(plan, 12, cls_only=True) == Work(alone, 11, 132, 1 + 12 * 11, 1, 12)
    assert in_all(plan, 6, cls_only=True).shared == 22


def in_all(plan, runs, cls_only):
    return sum(count_work(plan, BASE, runs, cls_only), Work())


def test_the_saving_is_that_of_the_design():
    # In products of embed x embed for each token, attention itself left out: 20,880 against 10,800 or 9,108.
    plan, square = make_plan(BASE, ab.single_heads(BASE)), 2.0 * BASE.hidden_size**2
    assert 145 * flops([Work(full=1)] * 12, BASE, 1.0, [0.0] * 12, 0.0) / square == 20880
    every, first = (
        flops(count_work(plan, BASE, 12, only), BASE, 1.0, [0.0] * 12, 0.0, kinds=0) / square for only in (False, True)
    )
    assert every == pytest.approx(10800, rel=0.01)
    assert first == pytest.approx(9108, rel=0.01)


def test_few_children_do_not_branch_and_shared_runs_count_once():
    several = [ab.ablation(BASE, ["2.0"]), ab.ablation(BASE, ["2.1", "5.0"]), ab.ablation(BASE, ["2.1", "5.0"])]
    # The base through 12 layers; 2.0 through 10; 2.1 up to layer 5, from where 5.0 needs 7 more.
    assert in_all(make_plan(BASE, several), 12, cls_only=False) == Work(full=12 + 10 + 3 + 7)


def test_a_price_says_what_filling_up_costs(rng):
    plan = make_plan(BASE, ab.single_heads(BASE))
    lengths = rng.integers(20, 60, 40).tolist()
    cost = price(plan, BASE, Blocks(1, 12), rows=20, row_length=128, lengths=lengths, cls_only=True)
    assert cost.plain > 2 * cost.necessary
    assert cost.flops > cost.necessary * 20 * 128 / sum(lengths)
    assert cost.states == tuple(range(13, 146, 12))
    assert cost.state_bytes == 20 * 128 * 768 * 4
    assert np.isfinite(cost.flops)


def test_an_estimate_packs_the_examples_once(small, rng, monkeypatch):
    """These replace the sources too, which only make mode 'patched' possible."""
    packings: list[int] = []

    def counted(examples, row_length, **args):
        packings.append(len(examples))
        return pack(examples, row_length, **args)

    monkeypatch.setattr(run, "pack", counted)
    plan_sweep(
        random_model(BertModel, small), encodings(small, rng, [9, 5, 7]), ab.single_heads(small), readouts.pooled
    )
    assert packings == [3]


def test_an_estimate_counts_what_reads_masked_words(small, rng):
    """The head's products: of its dense layer, and with every word of the vocabulary."""
    model, texts = random_model(BertForMaskedLM, small), encodings(small, rng, [9, 5, 7])
    heads, at = ab.single_heads(small), np.array([[1, 3], [2, 0], [5, 6]])
    options = {"at": at, "targets": at}
    with_words = plan_sweep(model, texts, heads, readouts.words, **options).cost
    without = plan_sweep(model, texts, heads, readouts.hidden_state, at=at).cost
    embed, words = small.hidden_size, (len(heads) + 1) * at.size
    products = words * (2 * embed**2 + 2 * embed * small.vocab_size)
    for name in ("flops", "necessary", "plain"):
        counted = getattr(with_words, name) - getattr(without, name)
        assert products < counted < 1.6 * products + 40 * words * small.vocab_size, name
