"""Back ends for the state that the workers of one server share. No server uses them yet.

`memory_backend` serves one process, `local_backend` the workers of one machine, and `redis_backend` several machines.
"""
