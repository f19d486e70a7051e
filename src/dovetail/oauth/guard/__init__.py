"""Checks of the credentials of requests to a server."""
