"""Message types and tables for every protocol version.

This package contains the types of the specification. It does not depend on who sends a message, when, or over which
transport. All values are immutable.
"""
