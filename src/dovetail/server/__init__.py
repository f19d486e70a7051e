"""The server framework: it turns functions into tools, resources and prompts. It does not depend on any transport."""
