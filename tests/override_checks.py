"""Overrides that change nothing, checked to the bit in a separate process."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import BertConfig, BertModel
from bertjax.interventions import overrides as ov
from tests.tiny_models import SIZES, arguments, random_model, tree_equal


def check_identity(size, dtype):
    config, rng = BertConfig(**SIZES[size]), np.random.default_rng()
    with jax.enable_x64(dtype == "float64"):
        model, call = random_model(BertModel, config, dtype), arguments(config, rng)
        base = model(**call)
        assert tree_equal(base, model(**call, overrides=ov.identity(config))), (size, dtype)
        for form in ("fused", "pallas"):
            other = random_model(BertModel, config, dtype, attention=form)
            assert tree_equal(other(**call), other(**call, overrides=ov.identity(config))), (size, dtype, form)
        zeros = jnp.zeros((config.num_hidden_layers, config.num_attention_heads, config.head_dim))
        head = (0, 0)
        replaced = ov.combine(
            ov.mean(config, [head], zeros + 7),
            ov.uniform(config, [head]),
            ov.fixed_edges(config, {(0, 0, 1, 1): 0.5}),
        )
        ones = jnp.ones_like(replaced.weights_gate)
        idle = dataclasses.replace(
            replaced,
            weights_gate=ones,
            output_gate=ones,
            edges=dataclasses.replace(replaced.edges, gate=jnp.ones(1)),
        )
        assert tree_equal(base, model(**call, overrides=idle)), (size, dtype)
