"""Data: examples of a task, from GLUE or from a file of one's own, as tokens."""
