"""Login flows of a client."""
