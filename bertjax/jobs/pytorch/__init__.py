"""Comparison with PyTorch: the same checkpoint in transformers, and how far its outputs are apart."""
