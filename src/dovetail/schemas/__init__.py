"""JSON Schema: reading, cost, provider rules and differences. Pure."""
