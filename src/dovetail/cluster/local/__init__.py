"""The back end of a cluster on one machine: a SQLite file, sockets and locks."""
