"""The JSON Schema of a function's parameters, and the validation of arguments."""
