"""Servers that are mounted on another server."""
