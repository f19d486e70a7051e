"""The rules: pure decisions from values to values, with no sockets, no clock and no tasks."""
