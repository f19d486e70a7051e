"""What a subscription filter matches, and how much of it a server agrees to honour. Pure decisions.

A handshake session listens with a filter of its own: all list changes, and the resources it subscribed to.
"""

from collections.abc import Callable

from dovetail.wire.lifecycle import ServerCapabilities
from dovetail.wire.subscriptions import SubscriptionFilter

TOOLS = "notifications/tools/list_changed"
PROMPTS = "notifications/prompts/list_changed"
RESOURCES = "notifications/resources/list_changed"
UPDATED = "notifications/resources/updated"

LISTS = {"tools": TOOLS, "prompts": PROMPTS, "resources": RESOURCES}


def honoured(asked: SubscriptionFilter, capabilities: ServerCapabilities) -> SubscriptionFilter:
    """The part of a filter the server can serve. spec: subscriptions#acknowledgment"""
    tools, prompts, resources = capabilities.tools, capabilities.prompts, capabilities.resources
    uris = asked.resource_subscriptions if resources is not None and resources.subscribe else None
    return SubscriptionFilter(
        tools_list_changed=asked.tools_list_changed and tools is not None and tools.list_changed,
        prompts_list_changed=asked.prompts_list_changed and prompts is not None and prompts.list_changed,
        resources_list_changed=asked.resources_list_changed and resources is not None and resources.list_changed,
        resource_subscriptions=list(dict.fromkeys(uris)) if uris else None,
    )


def matcher(filter: SubscriptionFilter) -> Callable[[str, str | None], bool]:
    """A test for (method, uri) against the filter."""
    lists = {
        method
        for method, wanted in (
            (TOOLS, filter.tools_list_changed),
            (PROMPTS, filter.prompts_list_changed),
            (RESOURCES, filter.resources_list_changed),
        )
        if wanted
    }
    uris = frozenset(filter.resource_subscriptions or ())

    def matches(method: str, uri: str | None) -> bool:
        return uri in uris if method == UPDATED else method in lists

    return matches
