"""Jobs whose results are made of what other runs gave: gradients, interactions, Shapley values, orders of pruning."""
