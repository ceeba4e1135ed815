"""Sentence embedders: poolings and the model."""
