"""The satellites that `Server` can attach. Each function imports its satellite when it is called.

A server without the feature does not load the satellite.
"""

from typing import TYPE_CHECKING

from dovetail.server.dispatch.dispatcher import Dispatcher

if TYPE_CHECKING:
    from dovetail.tasks.tool_tasks import ToolTasks


def add_search(dispatcher: Dispatcher) -> None:
    """List search tools instead of all tools."""
    from dovetail.search.tool_search import SEARCH_TOOL_NAMES, ToolSearch

    dispatcher.registry.reserved_tool_names = SEARCH_TOOL_NAMES
    dispatcher.add_part(ToolSearch(dispatcher.list_tools, dispatcher.visibility.build_page))


def switch_to_task(dispatcher: Dispatcher, tasks: "ToolTasks", tool: str) -> None:
    """Start the calls of a tool in the foreground, and turn those that take longer into tasks."""
    if tasks.add_switched_tool(tool):
        dispatcher.add_part(tasks)
