"""Checkpoints: where a model's files are, what its config says, and which of its tensors is which parameter."""
