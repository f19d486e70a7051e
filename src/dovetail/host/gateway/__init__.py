"""Serve all servers of a host as one MCP server."""
