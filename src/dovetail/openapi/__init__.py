"""Tools from an OpenAPI document."""
