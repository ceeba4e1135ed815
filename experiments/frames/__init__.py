"""Predicates and their elements: the parts of section 4.2."""
