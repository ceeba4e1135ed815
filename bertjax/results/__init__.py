"""Results: what a sweep found, as a table, a directory, pictures, a comparison and a page; without the model."""
