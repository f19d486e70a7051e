import msgspec
import pytest

from dovetail.wire.subscriptions import (
    AcknowledgedParams,
    ListenParams,
    ListenResult,
    ResourceUpdatedParams,
    SubscribeParams,
    SubscriptionFilter,
    UnsubscribeParams,
)


def test_a_filter_says_only_what_is_wanted() -> None:
    wanted = SubscriptionFilter(tools_list_changed=True, resource_subscriptions=["a://b"])
    text = b'{"notifications":{"toolsListChanged":true,"resourceSubscriptions":["a://b"]}}'
    assert msgspec.json.encode(ListenParams(notifications=wanted)) == text
    assert msgspec.json.decode(text, type=AcknowledgedParams).notifications == wanted


def test_a_filter_of_nothing_is_still_a_filter() -> None:
    assert msgspec.json.encode(AcknowledgedParams(notifications=SubscriptionFilter())) == b'{"notifications":{}}'
    with pytest.raises(msgspec.ValidationError, match="notifications"):
        msgspec.json.decode(b"{}", type=ListenParams)


def test_the_end_of_a_stream_says_which() -> None:
    text = b'{"_meta":{"io.modelcontextprotocol/subscriptionId":7}}'
    assert msgspec.json.encode(msgspec.json.decode(text, type=ListenResult)) == text


@pytest.mark.parametrize("kind", [SubscribeParams, UnsubscribeParams, ResourceUpdatedParams])
def test_a_resource_is_named_by_uri(
    kind: type[SubscribeParams] | type[UnsubscribeParams] | type[ResourceUpdatedParams],
) -> None:
    assert msgspec.json.encode(kind(uri="a://b")) == b'{"uri":"a://b"}'
    with pytest.raises(msgspec.ValidationError, match="uri"):
        msgspec.json.decode(b"{}", type=kind)
