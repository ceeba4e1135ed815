"""Similarity of heads by their attention: the parts of section 5 on repeated patterns."""
