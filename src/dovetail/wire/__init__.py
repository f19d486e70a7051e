"""What travels: frozen structs and tables, one superset for every revision.

Knows the specification's shapes and nothing about who sends them, when, or over what.
A value here never waits and never changes.
"""
