"""The rules of the protocol as pure functions, without sockets, clocks or tasks."""
