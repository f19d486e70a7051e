"""The satellites that `Server` can attach. Each function imports its satellite when it is called.

A server without the feature does not load the satellite.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from dovetail.server.dispatch.dispatcher import Dispatcher

if TYPE_CHECKING:
    from pathlib import Path

    from dovetail.mounts.mountable import SupportsMount
    from dovetail.mounts.name_map import NameMap
    from dovetail.protocol.interfaces.message_tap import Recorder
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
