"""What a subscription filter matches, and how much of it a server agrees to honour. Pure decisions.

A handshake session listens with a filter of its own: all list changes, and the resources it subscribed to.
"""

from collections.abc import Callable, Iterable, Mapping

from dovetail.protocol.uri_key import uri_key
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
    keys = frozenset(map(uri_key, filter.resource_subscriptions or ()))

    def matches(method: str, uri: str | None) -> bool:
        if method != UPDATED:
            return method in lists
        return uri is not None and uri_key(uri) in keys

    return matches


def spellings(uris: Iterable[str]) -> dict[str, list[str]]:
    """Group URIs by their key, as a listener spelled them."""
    found: dict[str, list[str]] = {}
    for uri in dict.fromkeys(uris):
        found.setdefault(uri_key(uri), []).append(uri)
    return found


def echoes(spelled: Mapping[str, list[str]], uri: str | None) -> list[str | None]:
    """Return the URIs to name in the notices of one change: each in the listener's own spelling."""
    return [None] if uri is None else [*spelled.get(uri_key(uri), (uri,))]
