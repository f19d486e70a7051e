"""The server side of MCP over HTTP."""
