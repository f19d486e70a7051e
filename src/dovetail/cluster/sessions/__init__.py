"""Handshake sessions and event streams that the workers of a cluster share."""
