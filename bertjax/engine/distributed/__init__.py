"""Several processes share a sweep: each takes a part of the examples, and all end when one ends."""
