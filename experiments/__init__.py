"""Programs that answer one question each about what attention heads do; see `README.md`."""
