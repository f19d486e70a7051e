"""A host served as one server."""
