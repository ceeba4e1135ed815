"""Attention without stored weights: `jax.nn`'s, cuDNN's, and a Pallas kernel."""
