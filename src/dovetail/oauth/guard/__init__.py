"""Checks of credentials in front of a server."""
