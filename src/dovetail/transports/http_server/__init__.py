"""MCP over HTTP, server side."""
