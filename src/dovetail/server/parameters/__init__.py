"""JSON Schemas of function parameters, and validation of arguments."""
