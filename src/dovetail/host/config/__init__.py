"""Read, watch and edit the MCP configuration files of hosts such as Claude Desktop and VS Code."""
