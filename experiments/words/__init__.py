"""Words of a text, their features and relations: the parts of sections 4.4 and 4.5."""
