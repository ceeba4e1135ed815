"""Experiments that go beyond the paper, one file each."""
