"""The back end of a cluster on several machines, in Redis 7 or Valkey."""
