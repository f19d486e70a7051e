"""Child processes that are servers."""
