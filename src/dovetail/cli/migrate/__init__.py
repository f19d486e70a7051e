"""Rewrites servers that were written for mcp or fastmcp. It reads source code with libcst and never runs it.

`usage` finds what a file uses, `rewriter` translates it with the tables in `names`, and `migration` runs both.
"""
