"""MCP over HTTP, the client's end."""
