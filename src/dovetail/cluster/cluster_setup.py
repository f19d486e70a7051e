"""Connect a server to the cluster that its options or the environment name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.cluster.cluster_options import Cluster
from dovetail.cluster.cluster_worker import ClusterWorker
from dovetail.error_context import describe_value
from dovetail.protocol.interfaces.shared_state import SharedState
from dovetail.server.environment import CLUSTER_VARIABLE, SECRET_KEYS_VARIABLE


class WorkersFolder:
    """The cluster of the workers that one process starts. It is the default if there are several workers."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)


def read_cluster_option(cluster: Cluster | SharedState | str) -> Cluster | SharedState:
    """Return the value of `cluster=`. Raise an error if it is not valid."""
    if isinstance(cluster, str):
        return Cluster(cluster)
    if not hasattr(cluster, "is_local") and not hasattr(cluster, "end_lost_stream"):
        raise TypeError(f'cluster= must be "local", a Redis URL or a Cluster(...), not {describe_value(cluster)}')
    return cluster


def read_cluster_variable(url: str) -> Cluster:
    """Return the cluster that the environment names. Raise ValueError if the URL is not valid."""
    try:
        return Cluster(url)
    except ValueError as exc:
        raise ValueError(f"{CLUSTER_VARIABLE}: {exc}") from None


def read_local_keys(cluster: Any) -> Sequence[bytes]:
    """Return the secret keys of a cluster on this machine. Other clusters have no keys of their own."""
    from dovetail.cluster.local.local_folder import read_key, read_user_key

    if isinstance(cluster, WorkersFolder):
        return [read_key(cluster.path)]
    return [read_user_key()] if getattr(cluster, "is_local", False) else ()


def create_cluster_worker(cluster: Any, server_name: str, secret_keys: Sequence[str | bytes]) -> ClusterWorker:
    """Return this process as a worker of a cluster. Raise ValueError if the workers would have different keys."""
    if isinstance(cluster, WorkersFolder):
        from dovetail.cluster.local.local_backend import LocalBackend

        keys = secret_keys or read_local_keys(cluster)
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
