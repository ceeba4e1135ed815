"""Sentence embedders: how tokens become one vector, and the model that does it."""
