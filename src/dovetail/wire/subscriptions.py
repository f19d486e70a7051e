"""subscriptions/listen, resources/subscribe, and the notification that a resource changed.

Says what is wished for; what a filter matches is decided in the protocol.
"""

from dovetail.wire.base import Params, Result, WireStruct


class SubscriptionFilter(WireStruct):
    """What a listener wants to hear; since 2026-07."""

    tools_list_changed: bool = False
    prompts_list_changed: bool = False
    resources_list_changed: bool = False
    resource_subscriptions: list[str] | None = None


class ListenParams(Params):
    """Open a stream of notices; since 2026-07."""

    notifications: SubscriptionFilter


class ListenResult(Result):
    """The stream is over; its subscription id stands in `_meta`. Since 2026-07."""


class AcknowledgedParams(Params):
    """The part of the filter the server will honour; since 2026-07."""

    notifications: SubscriptionFilter


class SubscribeParams(Params):
    """Begin to hear about one resource; until 2026-07."""

    uri: str


class UnsubscribeParams(Params):
    """Stop hearing about one resource; until 2026-07."""

    uri: str


class ResourceUpdatedParams(Params):
    """A resource changed."""

    uri: str
