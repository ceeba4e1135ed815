"""Measurements; see README.md in this folder."""
