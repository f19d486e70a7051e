"""Test the cached lists of a server, and that each change is reported once."""

from typing import Any

from dovetail.callbacks import add_callback
from dovetail.host.events import HostEvent
from dovetail.host.list_cache import ListCache
from dovetail.protocol.exchange import ChangeCallback

TOOLS = "notifications/tools/list_changed"


class Environment:
    """Lists, and all that was told of them."""

    def __init__(self) -> None:
        self.events: list[HostEvent] = []
        self.notices: list[Any] = []
        callbacks: dict[object, ChangeCallback] = {}
        self.learned = ListCache("m", self.events.append, callbacks)
        self.stop = add_callback(callbacks, lambda notice, uri: self.notices.append((notice, uri)))

    def learn(self, **found: Any) -> None:
        self.learned.update("tool", found, 1.0, self.learned.get_version("tool"))


def test_a_first_list_is_reported_only_if_it_was_awaited() -> None:
    environment = Environment()
    environment.learn(a=1)
    assert environment.notices == []
    late = Environment()
    late.learned.mark_awaited("tool")
    late.learn(a=1)
    late.learn(a=1)
    assert late.notices == [(TOOLS, None)]
    assert [event.kind for event in late.events] == ["tools.changed"]


def test_a_change_without_a_notification_is_reported() -> None:
    environment = Environment()
    environment.learn(a=1)
    environment.learn(a=2)
    assert environment.notices == [(TOOLS, None)]
    assert [event.kind for event in environment.events] == ["tools.changed", "definitions.changed"]


def test_a_change_with_a_notification_is_reported_once() -> None:
    environment = Environment()
    environment.learn(a=1)
    environment.learned.handle_change("tools")
    assert "tool" not in environment.learned.fetched_at
    environment.learn(a=2)
    assert environment.learned.fetched_at["tool"] == 1.0
    assert environment.notices == [(TOOLS, None)]
    environment.stop()
    environment.learn(a=3)
    assert len(environment.notices) == 1


def test_a_list_that_changed_during_the_request_is_not_fresh() -> None:
    environment = Environment()
    news = environment.learned.get_version("tool")
    environment.learned.handle_change("tools")
    environment.learned.update("tool", {"a": 1}, 1.0, news)
    assert "tool" not in environment.learned.fetched_at


def test_a_list_that_was_requested_before_a_reconnect_is_not_fresh() -> None:
    environment = Environment()
    environment.learn(a=1)
    version = environment.learned.get_version("tool")
    environment.learned.invalidate()
    environment.learned.update("tool", {"a": 2}, 1.0, version)
    assert "tool" not in environment.learned.fetched_at
    assert environment.notices == [(TOOLS, None)]  # the change itself is reported
    environment.learn(a=2)
    assert environment.learned.fetched_at["tool"] == 1.0


def test_an_update_of_a_resource_makes_no_list_outdated() -> None:
    environment = Environment()
    environment.learned.update("resource", {"x:a": 1}, 1.0, environment.learned.get_version("resource"))
    environment.learned.handle_change("resource", "x:a")
    assert "resource" in environment.learned.fetched_at
    assert environment.notices == [("notifications/resources/updated", "x:a")]
