"""The model: the mathematics of a BERT, the modules that hold its parameters, and what goes in and comes out."""
