"""Tools, resources and prompts: registration, access and lists."""
