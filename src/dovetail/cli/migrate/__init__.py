"""Rewrite servers of mcp or fastmcp for dovetail. This package parses source code with libcst and never runs it.

`usage` finds the names that a file uses. `rewriter` translates the file with the tables in `names`. `migration` calls
both modules. A "peer" is one of the packages mcp and fastmcp.
"""
