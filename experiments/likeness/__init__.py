"""How alike the attention of two heads is: the parts of section 5's repeated patterns."""
