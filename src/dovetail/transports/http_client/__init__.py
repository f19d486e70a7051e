"""MCP over HTTP, client side."""
