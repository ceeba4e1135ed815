"""Labelled attention maps and what classifies them: the parts of section 4.1."""
