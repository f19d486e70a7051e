"""The client: a connection to one server, in any protocol version."""
