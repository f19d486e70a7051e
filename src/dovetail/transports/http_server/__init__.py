"""MCP over HTTP, the server's end."""
