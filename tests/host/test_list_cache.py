"""What a server offered last: who is told when it is something else, and that nobody is told twice."""

from typing import Any

from dovetail.host.events import HostEvent
from dovetail.host.list_cache import ListCache

TOOLS = "notifications/tools/list_changed"


class Scene:
    """Lists, and all that was told of them."""

    def __init__(self) -> None:
        self.events: list[HostEvent] = []
        self.notices: list[Any] = []
        self.learned = ListCache("m", self.events.append)
        self.stop = self.learned.add_callback(lambda notice, uri: self.notices.append((notice, uri)))

    def learn(self, **found: Any) -> None:
        self.learned.update("tool", found, 1.0, self.learned.get_change_count("tool"))


def test_a_first_list_is_told_of_only_to_those_who_missed_it() -> None:
    scene = Scene()
    scene.learn(a=1)
    assert scene.notices == []
    late = Scene()
    late.learned.mark_awaited("tool")
    late.learn(a=1)
    late.learn(a=1)
    assert late.notices == [(TOOLS, None)]
    assert [event.kind for event in late.events] == ["tools.changed"]


def test_a_change_nobody_told_of_is_told_of_here() -> None:
    scene = Scene()
    scene.learn(a=1)
    scene.learn(a=2)
    assert scene.notices == [(TOOLS, None)]
    assert [event.kind for event in scene.events] == ["tools.changed", "definitions.changed"]


def test_a_change_the_server_told_of_is_told_once() -> None:
    scene = Scene()
    scene.learn(a=1)
    scene.learned.handle_change("tools")
    assert "tool" not in scene.learned.fetched_at
    scene.learn(a=2)
    assert scene.learned.fetched_at["tool"] == 1.0
    assert scene.notices == [(TOOLS, None)]
    scene.stop()
    scene.learn(a=3)
    assert len(scene.notices) == 1


def test_a_list_that_changed_while_it_was_told_is_not_fresh() -> None:
    scene = Scene()
    news = scene.learned.get_change_count("tool")
    scene.learned.handle_change("tools")
    scene.learned.update("tool", {"a": 1}, 1.0, news)
    assert "tool" not in scene.learned.fetched_at
