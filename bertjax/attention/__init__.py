"""Roles of heads, distances between heads, and attention flow: what heads attend to, independent of any task."""

from bertjax.attention.distances import read_distances, texts_to_compare
from bertjax.attention.flow import attention_flow, attention_rollout
from bertjax.attention.norms import norm_shares, output_products
from bertjax.attention.notebook_view import view
from bertjax.attention.reading import read_roles
from bertjax.attention.roles import (
    KINDS,
    NUMBERS,
    ROLES,
    RoleNumbers,
    kinds_of,
    role_metrics,
    uniform_numbers,
)
from bertjax.attention.tokens import tokens_of

__all__ = [
    "KINDS",
    "NUMBERS",
    "ROLES",
    "RoleNumbers",
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
    "view",
]
