"""Tool search: three tools that find, describe and call all other tools of a server."""
