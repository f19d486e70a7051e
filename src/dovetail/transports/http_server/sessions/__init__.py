"""Handshake sessions over Streamable HTTP."""
