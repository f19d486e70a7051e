"""The types of subscriptions/listen, resources/subscribe, and the notification that a resource changed.

The protocol package decides which changes a subscription filter matches.
"""

from dovetail.wire.base import Params, Result, WireStruct


class SubscriptionFilter(WireStruct):
    """The kinds of changes that a client subscribes to. Added in protocol version 2026-07."""

    tools_list_changed: bool = False
    prompts_list_changed: bool = False
    resources_list_changed: bool = False
    resource_subscriptions: list[str] | None = None


class ListenParams(Params):
    """The parameters of subscriptions/listen. Added in protocol version 2026-07."""

    notifications: SubscriptionFilter


class ListenResult(Result):
    """The result of subscriptions/listen. A server sends it to end a subscription stream.

    `_meta` contains the ID of the subscription. Added in protocol version 2026-07.
    """


class AcknowledgedParams(Params):
    """The parameters of notifications/subscriptions/acknowledged. Added in protocol version 2026-07.

    They contain the part of the subscription filter that the server accepts.
    """

    notifications: SubscriptionFilter


class SubscribeParams(Params):
    """The parameters of resources/subscribe. Only in protocol versions before 2026-07."""

    uri: str


class UnsubscribeParams(Params):
    """The parameters of resources/unsubscribe. Only in protocol versions before 2026-07."""

    uri: str


class ResourceUpdatedParams(Params):
    """The parameters of notifications/resources/updated."""

    uri: str
