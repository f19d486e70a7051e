"""The rules of the protocol: pure decisions without sockets, clocks or tasks."""
