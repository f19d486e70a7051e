"""Credential checks in front of a server."""
