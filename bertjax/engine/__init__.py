"""The engine: all sets of heads on all examples, each hidden state computed once, nothing lost when interrupted."""
