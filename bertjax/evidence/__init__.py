"""Evidence: scores of saved outputs, and which of their differences are more than chance."""
