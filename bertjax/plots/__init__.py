"""Plots: the pictures of effects and of attention."""
