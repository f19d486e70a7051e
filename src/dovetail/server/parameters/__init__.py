"""From a function's signature to JSON Schema and validated arguments."""
