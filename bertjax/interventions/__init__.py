"""Interventions: what is changed in which heads, and what is kept of a run, as values beside the model."""
