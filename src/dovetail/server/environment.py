"""Environment variables that set defaults of a server."""

import os
from typing import Final

from dovetail.protocol.sealer import MIN_SECRET_BYTES

# The default of `Server(cluster=...)`, for servers that are served over HTTP.
CLUSTER_VARIABLE: Final = "DOVETAIL_CLUSTER"
# The default of `Server(secret_keys=...)`: keys separated by commas, newest first.
SECRET_KEYS_VARIABLE: Final = "DOVETAIL_SECRET_KEYS"
# The folder in which the workers of one parent process keep their shared state. The parent sets this variable.
WORKERS_FOLDER_VARIABLE: Final = "_DOVETAIL_WORKERS_FOLDER"
# The variable is removed, because processes that a tool starts are not workers.
_workers_folder: str | None = os.environ.pop(WORKERS_FOLDER_VARIABLE, None)


def get_workers_folder() -> str | None:
    """Return the folder of the workers to which this process belongs, or None."""
    return _workers_folder


def read_secret_keys() -> list[str]:
    """Return the secret keys in the environment. Raise ValueError if one is too short."""
    keys = [key for part in os.environ.get(SECRET_KEYS_VARIABLE, "").split(",") if (key := part.strip())]
    if any(len(key.encode()) < MIN_SECRET_BYTES for key in keys):
        raise ValueError(f"each key in {SECRET_KEYS_VARIABLE} must have at least {MIN_SECRET_BYTES} bytes")
    return keys
