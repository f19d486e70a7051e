"""Rules for requests, and limits of tools."""
