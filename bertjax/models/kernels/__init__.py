"""Attention that keeps no weights: `jax.nn`'s form, the Pallas kernel, and what it measures of heads."""
