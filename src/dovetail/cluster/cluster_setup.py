"""Connect a server to the cluster that its options or the environment name."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from dovetail.protocol.sealer import MIN_SECRET_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from dovetail.cluster import Cluster
    from dovetail.cluster.cluster_worker import ClusterWorker
    from dovetail.protocol.interfaces.shared_state import SharedState

# The default of `Server(cluster=...)`, for servers that are served over HTTP.
CLUSTER_VARIABLE: Final = "DOVETAIL_CLUSTER"
# The default of `Server(secret_keys=...)`: keys separated by commas, newest first.
SECRET_KEYS_VARIABLE: Final = "DOVETAIL_SECRET_KEYS"
# The folder in which the workers of one parent process keep their shared state. The parent sets this variable.
WORKERS_FOLDER_VARIABLE: Final = "_DOVETAIL_WORKERS_FOLDER"
# The variable is removed, because processes that a tool starts do not belong to the cluster.
_workers_folder: str | None = os.environ.pop(WORKERS_FOLDER_VARIABLE, None)


class WorkersFolder:
    """The cluster of the workers that one process starts. It is the default if there are several workers."""

    def __init__(self, path: "str | Path") -> None:
        from pathlib import Path  # Servers without workers do not need this module.

        self.path = Path(path)


def read_cluster_option(cluster: "Cluster | SharedState | str | None") -> "Cluster | SharedState | None":
    """Return the value of `cluster=`. Raise an error if it is not valid."""
    if isinstance(cluster, str):
        from dovetail.cluster import Cluster

        return Cluster(cluster)
    if cluster is not None and not hasattr(cluster, "is_local") and not hasattr(cluster, "end_lost_stream"):
        from dovetail.error_context import describe_value

        raise TypeError(f'cluster= must be "local", a Redis URL or a Cluster(...), not {describe_value(cluster)}')
    return cluster


def find_default_cluster() -> "Cluster | WorkersFolder | None":
    """Return the cluster that the environment names, or None."""
    if url := os.environ.get(CLUSTER_VARIABLE):
        from dovetail.cluster import Cluster

        try:
            return Cluster(url)
        except ValueError as exc:
            raise ValueError(f"{CLUSTER_VARIABLE}: {exc}") from None
    return WorkersFolder(_workers_folder) if _workers_folder else None


def find_redis_cluster(cluster: Any) -> "Cluster | None":
    """Return the cluster of a server if it is on Redis. `cluster` is the value of `cluster=`."""
    cluster = find_default_cluster() if cluster is None else cluster
    return None if getattr(cluster, "is_local", True) else cluster


def check_environment() -> None:
    """Raise ValueError if an environment variable of the cluster is not valid."""
    find_default_cluster()
    _read_environment_keys()


def _read_environment_keys() -> list[str]:
    keys = [key for part in os.environ.get(SECRET_KEYS_VARIABLE, "").split(",") if (key := part.strip())]
    if any(len(key.encode()) < MIN_SECRET_BYTES for key in keys):
        raise ValueError(f"each key in {SECRET_KEYS_VARIABLE} must have at least {MIN_SECRET_BYTES} bytes")
    return keys


def find_secret_keys(secret_keys: Sequence[str | bytes], cluster: Any) -> Sequence[str | bytes]:
    """Return the secret keys of a server. The defaults are the keys of the environment, and the key of a local cluster.

    `cluster` is the value of `cluster=`. The workers of a cluster must have the same keys.
    """
    if secret_keys:
        return secret_keys
    if keys := _read_environment_keys():
        return keys
    cluster = find_default_cluster() if cluster is None else cluster
    if isinstance(cluster, WorkersFolder):
        from dovetail.cluster.local.local_folder import read_key

        return [read_key(cluster.path)]
    if getattr(cluster, "is_local", False):
        from dovetail.cluster.local.local_folder import read_user_key

        return [read_user_key()]
    return ()


def create_cluster_worker(cluster: Any, server_name: str, secret_keys: Sequence[str | bytes]) -> "ClusterWorker":
    """Return this process as a worker of a cluster. Raise ValueError if the workers would have different keys."""
    from dovetail.cluster.cluster_worker import ClusterWorker

    if isinstance(cluster, WorkersFolder):
        from dovetail.cluster.local.local_backend import LocalBackend
        from dovetail.cluster.local.local_folder import read_key

        keys = secret_keys or [read_key(cluster.path)]
        return ClusterWorker(LocalBackend(cluster.path, secret_keys=keys), keys)
    if not secret_keys:
        raise ValueError(
            "cluster= requires secret keys, and all workers must have the same keys. Pass secret_keys=[...] to Server, "
            f"or set the environment variable {SECRET_KEYS_VARIABLE}. Create a key with: "
            "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    if not hasattr(cluster, "is_local"):
        return ClusterWorker(cluster, secret_keys)
    return ClusterWorker(cluster.__shared_state__(server_name, secret_keys), secret_keys)
