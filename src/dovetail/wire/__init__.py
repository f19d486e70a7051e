"""What travels: immutable structs and tables, one superset for every protocol version.

Knows the specification's shapes and nothing about who sends them, when, or over what.
A value here never waits and never changes.
"""
