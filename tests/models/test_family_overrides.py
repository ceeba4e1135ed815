"""Overrides of each family: every kind against PyTorch with the same change, and gradients of gates."""

import dataclasses
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax import BertModel
from bertjax.checkpoints import architecture
from bertjax.interventions import overrides as ov
from bertjax.jobs import parity, torch_reference
from tests.family_models import DISTINCT, arguments, config_of, saved_by_torch
from tests.tiny_models import largest_difference, random_model

EVERY = [(family, size) for family in DISTINCT for size in (0, 1)]


def mostly_slow(cases, *always):
    """Cases of a test; all but `always` are slow."""
    assert set(always) <= set(cases)
    return [case if case in always else pytest.param(*case, marks=pytest.mark.slow) for case in cases]


def twins(family, size, directory):
    """A model in float64 and the same in PyTorch."""
    saved_by_torch(family, architecture.TOKENS, directory, size)
    model = bertjax.load(directory, dtype="float64")
    return model, torch_reference.load_torch(model, directory)


@pytest.mark.needs_torch
@pytest.mark.parametrize(
    ("family", "size", "mode"),
    mostly_slow(
        [(*case, mode) for case in EVERY for mode in ("uniform", "zero")],
        *(("albert", 1, "uniform"), ("mpnet", 0, "uniform"), ("mpnet", 1, "zero")),
        *(("deberta-v2", 0, "uniform"), ("deberta-v2", 1, "uniform")),
        *(("modernbert", 0, "uniform"), ("modernbert", 1, "uniform")),
    ),
)
def test_every_disabled_head_agrees_in_float64(family, size, mode, tmp_path, rng, x64):
    model, reference = twins(family, size, tmp_path)
    rows = parity.compare_overrides(model, reference, arguments(model.config, rng), mode)
    assert len(rows) == model.config.num_hidden_layers * model.config.num_attention_heads
    assert [row for row in rows if not row.passed] == []


@contextmanager
def replaced_outputs(reference, config, head, replace):
    """PyTorch's model with the outputs `[batch, query, head_dim]` of a head replaced by `replace(outputs, values)`."""
    layer, number = head
    sets = config.architecture.parameters_of
    place, columns = sets[:layer].count(sets[layer]), slice(number * config.head_dim, (number + 1) * config.head_dim)
    value, part = torch_reference._module(reference, config, sets[layer], "value")
    output, _ = torch_reference._module(reference, config, sets[layer], "output")
    seen, calls = [], []

    def keep_values(module, inputs, projected):
        seen.append(projected if part is None else projected.chunk(part[1], dim=-1)[part[0]])

    def change(module, inputs):
        calls.append(None)
        if len(calls) - 1 != place:
            return inputs
        outputs = inputs[0].clone()
        outputs[..., columns] = replace(outputs[..., columns], seen[place][..., columns])
        return (outputs, *inputs[1:])

    hooks = [value.register_forward_hook(keep_values), output.register_forward_pre_hook(change)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        assert len(seen) == len(calls) == sets.count(sets[layer])


def mixing(shares):
    """Head outputs for weights `[batch, query, key]`."""
    import torch

    return lambda outputs, values: torch.tensor(shares) @ values


def changes_of(config, head, learned, real, rng):
    """Kinds of overrides of a head: ours, and what becomes of its outputs in PyTorch.

    Args:
        learned: its weights in PyTorch, `[batch, query, key]`.
        real: where tokens are.
    """
    import torch

    layer, tokens = head[0], real.shape[1]
    window = config.architecture.layers[layer].window or tokens
    near = np.abs(np.arange(tokens)[:, None] - np.arange(tokens)[None]) <= window
    weights = rng.normal(size=learned.shape) * real[:, None] * near[None]
    edges = [(0, 0), (4, 3), (4, 4), (4, 5)]
    cut, put = learned.copy(), learned.copy()
    for query, key in edges:
        cut[:, query, key] = 0
    cut /= np.where(cut.sum(-1) > 0, cut.sum(-1), 1)[..., None]
    put[0, 2, 1] = 0.7
    means = rng.normal(size=(config.num_hidden_layers, config.num_attention_heads, config.head_dim))
    mean = torch.tensor(means[head])
    return {
        "weights": (ov.fixed(config, {head: weights}), mixing(weights)),
        "cut edges": (ov.forbidden_edges(config, [(*head, *edge) for edge in edges]), mixing(cut)),
        "an edge": (ov.fixed_edges(config, {(*head, 2, 1): 0.7}, example=0), mixing(put)),
        "mean": (ov.mean(config, [head], means), lambda outputs, values: mean.expand_as(outputs)),
        "half a mean": (ov.mean(config, [head], means, 0.5), lambda outputs, values: (mean + outputs) / 2),
        "factor": (ov.factor(config, [head], -0.3), lambda outputs, values: -0.3 * outputs),
    }


def last_hidden_state(output):
    return output.last_hidden_state


@pytest.mark.needs_torch
@pytest.mark.parametrize(
    ("family", "size"),
    mostly_slow(EVERY, ("albert", 1), ("mpnet", 0), ("deberta-v2", 1), ("modernbert", 0), ("modernbert", 1)),
)
def test_every_kind_of_override_agrees_in_float64(family, size, tmp_path, rng, x64):
    """One head in each layer."""
    model, reference = twins(family, size, tmp_path)
    config, batch = model.config, arguments(model.config, rng)
    real = batch["attention_mask"].astype(bool)
    base, expected, ours = torch_reference.run_torch(reference, batch), {}, []
    for layer in range(config.num_hidden_layers):
        head = (layer, int(rng.integers(config.num_attention_heads)))
        learned = base.attentions[layer][:, head[1]].numpy()
        for name, (override, replace) in changes_of(config, head, learned, real, rng).items():
            ours.append(override)
            with replaced_outputs(reference, config, head, replace):
                expected[head, name] = torch_reference.run_torch(reference, batch).hidden_states[-1]
    found = bertjax.reference.run(model, model.inputs(**batch), ov.stack(ours), last_hidden_state)
    for (name, theirs), one in zip(expected.items(), found, strict=True):
        assert largest_difference(one, theirs, real) < 1e-10, name
        assert largest_difference(theirs, base.hidden_states[-1], real) > 1e-4, name


@pytest.mark.parametrize(
    ("family", "size"),
    mostly_slow([("bert", 0), *EVERY], ("bert", 0), ("deberta-v2", 0), ("modernbert", 0)),
)
def test_gradients_of_gates_agree_with_differences(family, size, rng, x64):
    """Of both gates of every head, at 0 and at 1."""
    config = config_of(family, size)
    model, batch = random_model(BertModel, config, "float64"), arguments(config, rng, tokens=8)
    means = rng.normal(size=(config.num_hidden_layers, config.num_attention_heads, config.head_dim))
    heads, real = ov.every_head(config), jnp.asarray(batch["attention_mask"])[..., None].astype(float)
    base, inputs = ov.combine(ov.uniform(config, heads), ov.mean(config, heads, means)), model.inputs(**batch)

    def total(gates):
        override = dataclasses.replace(base, weights_gate=gates[0], output_gate=gates[1])
        return jnp.sum(real * jnp.sin(model.forward(inputs, override).last_hidden_state))

    shape, step = (2, *means.shape[:2]), 1e-6
    steps = step * np.eye(np.prod(shape)).reshape(-1, *shape)
    slope, totals = jax.jit(jax.grad(total)), jax.jit(jax.vmap(total))
    for of_weights, of_outputs in ((0.0, 1.0), (1.0, 1.0), (1.0, 0.0)):
        gates = jnp.stack([jnp.full(shape[1:], of_weights), jnp.full(shape[1:], of_outputs)])
        before, after = np.split(np.asarray(totals(gates[None] + jnp.concatenate([-steps, steps]))), 2)
        slopes, differences = np.asarray(slope(gates)), ((after - before) / (2 * step)).reshape(shape)
        assert largest_difference(slopes, differences) < 1e-6 * (1 + np.abs(slopes).max())
        assert (np.abs(slopes[1]) > 1e-5).all()
        assert (np.abs(slopes[0]) > 1e-5).any() == (of_outputs == 1)  # weights have no effect on a mean output
