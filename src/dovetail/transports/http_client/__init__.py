"""The client side of MCP over HTTP."""
