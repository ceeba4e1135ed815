"""Labelled attention maps and their classifiers: the parts of section 4.1."""
