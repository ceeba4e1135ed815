"""Probes: what kind of head each is, by where it looks, whatever a task makes of it."""

from bertjax.attention.distances import read_distances, texts_to_compare
from bertjax.attention.flow import attention_flow, attention_rollout
from bertjax.attention.norms import norm_shares, output_products, value_lengths
from bertjax.attention.reading import read_roles
from bertjax.attention.roles import (
    KINDS,
    NUMBERS,
    ROLES,
    Role,
    RoleNumbers,
    kinds_of,
    role_metrics,
    uniform_numbers,
)
from bertjax.attention.tokens import Tokens, tokens_of

__all__ = [
    "KINDS",
    "NUMBERS",
    "ROLES",
    "Role",
    "RoleNumbers",
    "Tokens",
    "attention_flow",
    "attention_rollout",
    "kinds_of",
    "norm_shares",
    "output_products",
    "read_distances",
    "read_roles",
    "role_metrics",
    "texts_to_compare",
    "tokens_of",
    "uniform_numbers",
    "value_lengths",
]
