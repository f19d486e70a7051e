"""The policy of a host: rules for requests, and limits for tools."""
