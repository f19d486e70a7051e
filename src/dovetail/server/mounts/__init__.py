"""Servers inside a server."""
