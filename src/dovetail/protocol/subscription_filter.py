"""Match changes with subscription filters, and limit a filter to the changes that a server supports.

A session has an implicit filter: all list changes, and updates of the resources to which it subscribed.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Literal

from dovetail.errors import InvalidParams
from dovetail.protocol.exchange import make_uri_length_error
from dovetail.protocol.uri_key import uri_key
from dovetail.wire.codec import convert
from dovetail.wire.lifecycle import ServerCapabilities
from dovetail.wire.subscriptions import ListenParams, SubscriptionFilter

TOOLS_LIST_CHANGED = "notifications/tools/list_changed"
PROMPTS_LIST_CHANGED = "notifications/prompts/list_changed"
RESOURCES_LIST_CHANGED = "notifications/resources/list_changed"
RESOURCE_UPDATED = "notifications/resources/updated"
EVERYTHING = ""  # The method of the notice that reports missed changes. After it, assume that everything has changed.

# This maps each kind of item to the list that contains it.
LIST_BY_KIND: Mapping[str, Literal["tools", "prompts", "resources"]] = {
    "tool": "tools",
    "resource": "resources",
    "resource template": "resources",
    "prompt": "prompts",
}
LIST_CHANGED_METHODS = {
    "tools": TOOLS_LIST_CHANGED,
    "prompts": PROMPTS_LIST_CHANGED,
    "resources": RESOURCES_LIST_CHANGED,
}


MAX_SUBSCRIPTIONS = 1000  # maximum number of URIs of one session or one subscription
MAX_SUBSCRIPTION_BYTES = 256 * 1024  # total size of these URIs
_URIS_FIELD = "notifications.resourceSubscriptions"


def read_filter(params: dict[str, Any], max_uri_bytes: int) -> SubscriptionFilter:
    """Return the filter of a subscription. Raise InvalidParams if it has too many URIs or a URI is too long."""
    requested = convert(params, ListenParams).notifications
    uris = requested.resource_subscriptions or ()
    if any(len(uri) > max_uri_bytes for uri in uris):
        raise make_uri_length_error(max_uri_bytes, _URIS_FIELD)
    if len(uris) > MAX_SUBSCRIPTIONS or sum(map(len, uris)) > MAX_SUBSCRIPTION_BYTES:
        limits = f"{MAX_SUBSCRIPTIONS} URIs and {MAX_SUBSCRIPTION_BYTES} bytes"
        raise InvalidParams(f"Invalid params: a subscription can have at most {limits}", {"field": _URIS_FIELD})
    return requested


def restrict_filter(requested: SubscriptionFilter, capabilities: ServerCapabilities) -> SubscriptionFilter:
    """Return the parts of a subscription filter that the server supports. spec: subscriptions#acknowledgment"""
    tools, prompts, resources = capabilities.tools, capabilities.prompts, capabilities.resources
    uris = requested.resource_subscriptions if resources is not None and resources.subscribe else None
    return SubscriptionFilter(
        tools_list_changed=requested.tools_list_changed and tools is not None and tools.list_changed,
        prompts_list_changed=requested.prompts_list_changed and prompts is not None and prompts.list_changed,
        resources_list_changed=requested.resources_list_changed and resources is not None and resources.list_changed,
        resource_subscriptions=list(dict.fromkeys(uris)) if uris else None,
    )


def get_list_methods(subscription_filter: SubscriptionFilter) -> frozenset[str]:
    """Return the notification methods for the lists that a filter selects."""
    return _select_list_methods(
        subscription_filter.tools_list_changed,
        subscription_filter.prompts_list_changed,
        subscription_filter.resources_list_changed,
    )


def get_declared_list_methods(capabilities: ServerCapabilities) -> frozenset[str]:
    """Return the notification methods for all lists that a server has."""
    every_list = SubscriptionFilter(tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True)
    return get_list_methods(restrict_filter(every_list, capabilities))


@cache  # Subscriptions with the same filter share one frozenset.
def _select_list_methods(tools: bool, prompts: bool, resources: bool) -> frozenset[str]:
    requested = (TOOLS_LIST_CHANGED, tools), (PROMPTS_LIST_CHANGED, prompts), (RESOURCES_LIST_CHANGED, resources)
    return frozenset(method for method, is_requested in requested if is_requested)


def create_matcher(subscription_filter: SubscriptionFilter) -> Callable[[str, str | None], bool]:
    """Return a function that takes (method, uri) and returns whether the filter matches."""
    list_methods = get_list_methods(subscription_filter)
    keys = frozenset(map(uri_key, subscription_filter.resource_subscriptions or ()))

    def matches(method: str, uri: str | None) -> bool:
        if method != RESOURCE_UPDATED:
            return method in list_methods
        return uri is not None and uri_key(uri) in keys

    return matches


def group_spellings(uris: Iterable[str]) -> dict[str, list[str]]:
    """Group URIs that name the same resource. The spelling of each URI is kept."""
    uris_by_key: dict[str, list[str]] = {}
    for uri in dict.fromkeys(uris):
        uris_by_key.setdefault(uri_key(uri), []).append(uri)
    return uris_by_key


def find_subscribed_uris(uris_by_key: Mapping[str, list[str]], uri: str | None) -> list[str | None]:
    """Return the subscribed URIs that a change affects, exactly as the listener wrote them."""
    return [None] if uri is None else [*uris_by_key.get(uri_key(uri), (uri,))]
