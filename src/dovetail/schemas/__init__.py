"""JSON Schema: parsing, validation cost, provider rules and differences. This package does no I/O."""
