"""An HTTP/1.1 server. It runs an application, and knows nothing about MCP."""
