"""Test the granted filter of a subscription, and the notifications it matches."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import InvalidParams
from dovetail.protocol import subscription_filter
from dovetail.protocol.subscription_filter import (
    LIST_CHANGED_METHODS,
    PROMPTS_LIST_CHANGED,
    RESOURCE_UPDATED,
    RESOURCES_LIST_CHANGED,
    TOOLS_LIST_CHANGED,
    create_matcher,
    read_filter,
    restrict_filter,
)
from dovetail.wire.lifecycle import ListChangedCapability, ResourcesCapability, ServerCapabilities
from dovetail.wire.methods import METHODS
from dovetail.wire.subscriptions import SubscriptionFilter

uris = st.sampled_from(["a:1", "a:2", "b:1"])
filters = st.builds(
    SubscriptionFilter,
    tools_list_changed=st.booleans(),
    prompts_list_changed=st.booleans(),
    resources_list_changed=st.booleans(),
    resource_subscriptions=st.none() | st.lists(uris, max_size=5),
)
lists = st.none() | st.builds(ListChangedCapability, list_changed=st.booleans())
offers = st.builds(
    ServerCapabilities,
    tools=lists,
    prompts=lists,
    resources=st.none() | st.builds(ResourcesCapability, subscribe=st.booleans(), list_changed=st.booleans()),
)


@given(filters, offers)
def test_what_is_granted_is_what_was_asked_and_is_offered(asked: SubscriptionFilter, offer: ServerCapabilities) -> None:
    granted = restrict_filter(asked, offer)
    assert granted.tools_list_changed == (asked.tools_list_changed and bool(offer.tools and offer.tools.list_changed))
    assert granted.prompts_list_changed == (
        asked.prompts_list_changed and bool(offer.prompts and offer.prompts.list_changed)
    )
    assert granted.resources_list_changed == (
        asked.resources_list_changed and bool(offer.resources and offer.resources.list_changed)
    )
    named = asked.resource_subscriptions if offer.resources and offer.resources.subscribe else None
    assert (granted.resource_subscriptions or []) == sorted(set(named or []), key=(named or []).index)


@given(filters)
def test_a_subscription_hears_exactly_what_its_filter_names(filter: SubscriptionFilter) -> None:
    matches = create_matcher(filter)
    assert matches(TOOLS_LIST_CHANGED, None) == filter.tools_list_changed
    assert matches(PROMPTS_LIST_CHANGED, None) == filter.prompts_list_changed
    assert matches(RESOURCES_LIST_CHANGED, None) == filter.resources_list_changed
    for uri in ("a:1", "a:2", "b:1", "a:", ""):
        for spelling in (uri, uri.replace("a:", "A:"), uri.replace("1", "%31")):
            assert matches(RESOURCE_UPDATED, spelling) == (uri in (filter.resource_subscriptions or []))
    assert not matches(RESOURCE_UPDATED, None)
    assert not matches("notifications/message", None)


def test_an_empty_filter_hears_nothing() -> None:
    matches = create_matcher(SubscriptionFilter())
    assert not any(
        matches(*one)
        for one in itertools.product(
            (TOOLS_LIST_CHANGED, PROMPTS_LIST_CHANGED, RESOURCES_LIST_CHANGED, RESOURCE_UPDATED), (None, "a:1")
        )
    )


def test_a_matcher_keeps_what_it_was_made_of() -> None:
    wanted = ["a:1"]
    matches = create_matcher(SubscriptionFilter(resource_subscriptions=wanted))
    wanted.append("a:2")
    assert not matches(RESOURCE_UPDATED, "a:2")


def test_topics_are_methods_of_the_table() -> None:
    assert {*LIST_CHANGED_METHODS.values(), subscription_filter.RESOURCE_UPDATED} <= set(METHODS)
    assert all(METHODS[method].sender == "server" for method in LIST_CHANGED_METHODS.values())


@pytest.mark.parametrize(
    ("count", "length", "is_accepted"),
    [(1000, 10, True), (1001, 10, False), (4, 64 * 1024, True), (5, 64 * 1024, False), (1, 64 * 1024 + 1, False)],
)
def test_a_subscription_has_a_limited_size(count: int, length: int, is_accepted: bool) -> None:
    uris = ["u" * length] * count
    params = {"notifications": {"resourceSubscriptions": uris}}
    if is_accepted:
        assert read_filter(params, 64 * 1024).resource_subscriptions == uris
    else:
        with pytest.raises(InvalidParams) as info:
            read_filter(params, 64 * 1024)
        assert info.value.data == {"field": "notifications.resourceSubscriptions"}
