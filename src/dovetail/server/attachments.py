"""The satellites that `Server` can attach. Each function imports its satellite when it is called.

A server without the feature does not load the satellite.
"""

import contextlib
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

from dovetail.server.dispatch.dispatcher import Dispatcher
from dovetail.server.environment import (
    CLUSTER_VARIABLE,
    WORKERS_FOLDER_VARIABLE,
    get_workers_folder,
    read_secret_keys,
)

if TYPE_CHECKING:
    from pathlib import Path

    from dovetail.cluster import Cluster
    from dovetail.cluster.cluster_setup import WorkersFolder
    from dovetail.mounts.mountable import SupportsMount
    from dovetail.mounts.name_map import NameMap
    from dovetail.protocol.interfaces.message_tap import Recorder
    from dovetail.protocol.interfaces.shared_state import SharedState, SharedWorker
    from dovetail.server.items.access_rules import AccessRule
    from dovetail.tasks.tool_tasks import ToolTasks

# This environment variable sets the recording file of all servers and clients.
_RECORDING_VARIABLE: Final = "DOVETAIL_RECORDING"


def add_search(dispatcher: Dispatcher) -> None:
    """Let a server list search tools instead of all its tools."""
    from dovetail.search.tool_search import SEARCH_TOOL_NAMES, ToolSearch

    dispatcher.registry.reserved_tool_names = SEARCH_TOOL_NAMES
    dispatcher.handler_table.add_part(
        ToolSearch(lambda exchange: dispatcher.items.list_items("tool", exchange), dispatcher.visibility.build_page)
    )


def switch_to_task(dispatcher: Dispatcher, tasks: "ToolTasks", tool: str) -> None:
    """Start the calls of a tool in the foreground, and turn slow calls into tasks."""
    if tasks.add_switched_tool(tool):
        dispatcher.handler_table.add_part(tasks)


def mount(
    dispatcher: Dispatcher, server: "Dispatcher | SupportsMount", name_map: "NameMap", access_rule: "AccessRule | None"
) -> Callable[[], None]:
    """Add the items of another server to this one. Return a function that removes them."""
    from dovetail.mounts.combined_items import check_cycle, open_mounts
    from dovetail.mounts.local_server import LocalServer

    if isinstance(server, Dispatcher):
        target = LocalServer(server)
        check_cycle(target, dispatcher)
        # Mounted servers use the keys of this server, so that every worker process can decrypt the request states.
        server.item_handlers.use_sealer(dispatcher.item_handlers.sealer)
    else:
        target = server.__mountable__()
    if access_rule is not None:
        dispatcher.registry.ensure_access_rules()
    unmount = open_mounts(dispatcher).add(target, name_map, access_rule)
    dispatcher.handler_table.connect_limits()
    return unmount


def create_message_tap(recording: "str | Path | None", get_name: Callable[[], str]) -> "Callable[[], Recorder | None]":
    """Return a function that returns the recorder of a server. It is None if recording is not enabled."""
    recorder: Recorder | None = None

    def find_recorder() -> "Recorder | None":
        nonlocal recorder
        path = recording or os.environ.get(_RECORDING_VARIABLE)
        if path and recorder is None:
            from dovetail.recording.trace import RecordingWriter

            recorder = RecordingWriter(path, get_name()).record
        return recorder

    return find_recorder


def read_cluster_option(cluster: "Cluster | SharedState | str | None") -> "Cluster | SharedState | None":
    """Return the value of `cluster=`. Raise an error if it is not valid."""
    if cluster is None:
        return None
    from dovetail.cluster import cluster_setup

    return cluster_setup.read_cluster_option(cluster)


def find_default_cluster() -> "Cluster | WorkersFolder | None":
    """Return the cluster that the environment names, or None."""
    url, folder = os.environ.get(CLUSTER_VARIABLE), get_workers_folder()
    if not url and not folder:
        return None
    from dovetail.cluster import cluster_setup

    return cluster_setup.read_cluster_variable(url) if url else cluster_setup.WorkersFolder(folder or "")


def find_redis_cluster(cluster: "Cluster | SharedState | None") -> "Cluster | None":
    """Return the cluster of a server if it is on Redis. `cluster` is the value of `cluster=`."""
    used = find_default_cluster() if cluster is None else cluster
    return None if getattr(used, "is_local", True) else cast("Cluster", used)


def find_secret_keys(
    secret_keys: Sequence[str | bytes], cluster: "Cluster | SharedState | str | None"
) -> Sequence[str | bytes]:
    """Return the secret keys of a server. The defaults are the keys of the environment, and the key of a local cluster.

    `cluster` is the value of `cluster=`. The workers of a cluster must have the same keys.
    """
    if secret_keys or (secret_keys := read_secret_keys()):
        return secret_keys
    used = find_default_cluster() if cluster is None else cluster
    if used is None:
        return ()
    from dovetail.cluster import cluster_setup

    return cluster_setup.read_local_keys(used)


def join_cluster(
    dispatcher: Dispatcher, cluster: "Cluster | SharedState | WorkersFolder", secret_keys: Sequence[str | bytes]
) -> None:
    """Make this process a worker of a cluster."""
    from dovetail.cluster import cluster_setup

    dispatcher.use_cluster(cluster_setup.create_cluster_worker(cluster, dispatcher.name, secret_keys))


@contextlib.contextmanager
def open_workers_cluster() -> "Generator[SharedWorker]":
    """Create a cluster for the workers that this process starts, and remove it at the end."""
    from dovetail.cluster import cluster_setup
    from dovetail.cluster.local.local_folder import create_workers_folder

    with create_workers_folder() as folder:
        yield cluster_setup.create_cluster_worker(cluster_setup.WorkersFolder(folder), "", ())


@contextlib.contextmanager
def open_workers_environment() -> Generator[Mapping[str, str]]:
    """Return the environment of workers that share their state. They use it unless their server has another cluster."""
    if os.environ.get(CLUSTER_VARIABLE):
        yield os.environ
        return
    from dovetail.cluster.local.local_folder import create_workers_folder

    with create_workers_folder() as folder:
        yield {**os.environ, WORKERS_FOLDER_VARIABLE: str(folder)}
