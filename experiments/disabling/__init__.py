"""Disabling heads and layers: the parts of section 4.6."""
