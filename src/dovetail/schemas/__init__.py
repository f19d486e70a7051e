"""JSON Schema: reading, cost, provider rules and differences. This package does no I/O."""
