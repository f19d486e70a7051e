"""Test subscriptions: each change arrives once, gaps are reported, and the end is never silent."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import ChangeEvent, Client, ClientLimits, Timeouts
from dovetail.client.subscription import CHANGE_KINDS, ReconnectingSubscription
from dovetail.client.targets import ResolvedTarget
from dovetail.errors import NotSupported
from dovetail.wire.subscriptions import SubscriptionFilter
from support.fake_service import wait_until
from support.scripted_server import (
    SILENCE,
    STREAM_HEAD,
    ScriptedServer,
    create_notification,
    encode_event,
    encode_http_reply,
    encode_message,
    serve_on_socket,
    serve_over_http,
)

TOOLS = "notifications/tools/list_changed"
UPDATED = "notifications/resources/updated"
SOON = ClientLimits(reconnect_delay=0.01, max_reconnect_delay=0.02, max_reconnects=2)
PATIENT = Timeouts(discover=20)


def alone(limits: ClientLimits | None = None, **wanted: Any) -> ReconnectingSubscription:
    """A listener that no client has."""

    async def here(work: Callable[..., Any], *args: Any) -> Any:
        return await work(*args)

    filter = SubscriptionFilter(**wanted)
    return ReconnectingSubscription(None, filter, limits or ClientLimits(), 5.0, set(), here, lambda _: None)  # pyright: ignore[reportArgumentType]


async def taken(listening: ReconnectingSubscription) -> list[ChangeEvent]:
    """What waits to be taken."""
    found: list[ChangeEvent] = []
    await listening.aclose()
    # Private: it listens to no server, and so it cannot be iterated over.
    while (change := await listening._next()) is not None:  # pyright: ignore[reportPrivateUsage]
        found.append(change)
    return found


said = st.lists(
    st.sampled_from([*CHANGE_KINDS]).flatmap(lambda method: st.tuples(st.just(method), st.sampled_from("abc")))
)


@given(said, st.integers(1, 6))
def test_each_change_waits_once_in_the_order_of_its_first_and_the_oldest_give_way(
    heard: list[tuple[str, str]], most: int
) -> None:
    async def run() -> None:
        wanted = {"tools_list_changed": True, "resource_subscriptions": ["a", "b"]}
        listening = alone(ClientLimits(max_queued_notifications=most), **wanted)
        expected: dict[tuple[str, str | None], None] = {}
        for method, uri in heard:
            params = b'{"uri":"%s"}' % uri.encode() if method == UPDATED else b"{}"
            listening.handle_notification(method, params)
            if method == TOOLS or (method == UPDATED and uri in "ab"):
                expected.setdefault((CHANGE_KINDS[method], uri if method == UPDATED else None))
                if len(expected) > most:
                    del expected[next(iter(expected))]
        assert [(change.kind, change.uri) for change in await taken(listening)] == [*expected]

    asyncio.run(run())


async def test_an_invalid_notification_is_ignored() -> None:
    listening = alone(tools_list_changed=True)
    for params in (b"[]", b'{"uri":7}', b'{"_meta":{"io.modelcontextprotocol/subscriptionId":"another"}}'):
        listening.handle_notification(TOOLS, params)
    listening.handle_notification("notifications/subscriptions/acknowledged", b'{"notifications":7}')
    assert await taken(listening) == []
    assert listening.acknowledged_filter is None


async def test_a_gap_before_anything_was_agreed_is_none() -> None:
    listening = alone(tools_list_changed=True)
    listening.handle_gap()
    assert await taken(listening) == []


# The stream of a handshake session over HTTP


class Streams:
    """What a server does each time its stream is opened; the last of it again and again."""

    def __init__(self, *stretches: Callable[[], Any]) -> None:
        self.opened = 0
        self._stretches = stretches

    def __call__(self) -> Any:
        self.opened += 1
        return self._stretches[min(self.opened, len(self._stretches)) - 1]()


async def says(*messages: Any, ends: asyncio.Event | None = None, id: str | None = None) -> AsyncIterator[bytes]:
    """One stretch of the stream: some messages, then quiet until it ends."""
    yield STREAM_HEAD
    for message in messages:
        yield encode_event(encode_message(message), **({"id": id} if id else {}))
    if ends is not None:
        await ends.wait()


def listening_client(at: str, **options: Any) -> Client:
    return Client(at, name="it", **({"protocol_version": "handshake", "limits": SOON, "timeout": PATIENT} | options))


async def test_a_gap_in_the_stream_is_reported_as_missed() -> None:
    gap, never = asyncio.Event(), asyncio.Event()
    script = ScriptedServer(
        "handshake", session="s", http_get_reaction=Streams(lambda: says(ends=gap), lambda: says(ends=never))
    )
    wanted = {"tools": True, "uris": ["a"]}
    async with (
        serve_over_http(script) as at,
        listening_client(at) as one,
        one.listen(**wanted) as changes,
        asyncio.timeout(20),
    ):
        gap.set()
        found = [await anext(aiter(changes)) for _ in range(2)]
    assert found == [ChangeEvent("tools", maybe_missed=True), ChangeEvent("resource", "a", maybe_missed=True)]


async def test_what_was_kept_may_have_changed_in_a_gap() -> None:
    gap, never = asyncio.Event(), asyncio.Event()
    streams = Streams(lambda: says(ends=gap), lambda: says(ends=never))
    script = ScriptedServer(
        "handshake", {"tools/list": {"tools": [], "ttlMs": 60_000}}, session="s", http_get_reaction=streams
    )
    async with serve_over_http(script) as at, listening_client(at) as one:
        await wait_until(lambda: streams.opened == 1)
        for _ in range(2):
            await one.list_tools()
        assert script.count("tools/list") == 1
        async with one.listen() as changes, asyncio.timeout(20):
            gap.set()
            await anext(aiter(changes))
        await one.list_tools()
        assert script.count("tools/list") == 2


async def test_a_stream_taken_up_by_its_ids_has_no_gap() -> None:
    gap, never = asyncio.Event(), asyncio.Event()
    first = create_notification(UPDATED, uri="a")
    second = create_notification(UPDATED, uri="b")
    streams = Streams(lambda: says(first, ends=gap, id="1"), lambda: says(second, ends=never, id="2"))
    script = ScriptedServer("handshake", session="s", http_get_reaction=streams)
    wanted = {"uris": ["a", "b"]}
    async with (
        serve_over_http(script) as at,
        listening_client(at) as one,
        one.listen(**wanted) as changes,
        asyncio.timeout(20),
    ):
        found = [await anext(aiter(changes))]
        gap.set()
        found.append(await anext(aiter(changes)))
    assert found == [ChangeEvent("resource", "a"), ChangeEvent("resource", "b")]
    assert [head.get("last-event-id") for verb, head in script.heads if verb == "GET"] == [None, "1"]


async def test_a_stream_that_does_not_last_is_reported_and_opened_again_and_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    say, never = asyncio.Event(), asyncio.Event()
    vain = [says] * 8  # more than the number of attempts after which it is reported

    async def at_last() -> AsyncIterator[bytes]:
        yield STREAM_HEAD
        await say.wait()
        yield encode_event(encode_message(create_notification(UPDATED, uri="b")))
        await never.wait()

    streams = Streams(*vain, at_last)
    script = ScriptedServer("handshake", session="s", http_get_reaction=streams)
    async with serve_over_http(script) as at, listening_client(at) as one, asyncio.timeout(20):
        async with one.listen(tools=False, prompts=False, resources=False, uris=["a", "b"]) as changes:
            async for change in changes:
                if streams.opened == 9:
                    say.set()
                if not change.maybe_missed:
                    break
        assert change == ChangeEvent("resource", "b")
        assert one.is_connected
    reports = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    # On a slow machine, a stream can last long enough to count as a success. Then the next failures are reported again.
    assert 1 <= len(reports) < len(vain)
    assert all(at.split("/")[2] in report for report in reports)


async def test_a_stream_that_is_refused_for_a_while_is_opened_again() -> None:
    never = asyncio.Event()
    refusals = [
        lambda: encode_http_reply(b"", status=429),
        lambda: encode_http_reply(b"", status=503),
        lambda: encode_http_reply(b"", status=403),
    ]
    streams = Streams(lambda: says(), *refusals, lambda: says(create_notification(TOOLS), ends=never))
    script = ScriptedServer("handshake", session="s", http_get_reaction=streams)
    wanted = {"prompts": False, "resources": False}
    async with (
        serve_over_http(script) as at,
        listening_client(at) as one,
        one.listen(**wanted) as changes,
        asyncio.timeout(20),
    ):
        await anext(aiter(changes))
    assert streams.opened == 5


@pytest.mark.parametrize("status", [404, 405])
async def test_a_server_without_such_a_stream_cannot_be_listened_to(status: int) -> None:
    script = ScriptedServer("handshake", session="s", http_get_reaction=encode_http_reply(b"", status=status))
    async with serve_over_http(script) as at, listening_client(at) as one, asyncio.timeout(20):
        with pytest.raises(NotSupported):
            async with one.listen():
                pass
        assert await one.call("go") == "ok"
        assert script.count("initialize") == 1


async def test_a_server_that_goes_away_is_lost_and_so_is_the_session() -> None:
    script = ScriptedServer("handshake", session="s", http_get_reaction=SILENCE)
    async with serve_over_http(script) as at:
        one = listening_client(at, timeout=Timeouts(discover=0.1))
        await one.connect()
        assert one.is_connected
    await wait_until(lambda: not one.is_connected)
    await one.close()


async def test_a_failed_open_is_reported_to_the_listener() -> None:
    def dial() -> Any:
        raise FileNotFoundError("there is no certificate file")

    one = Client(ResolvedTarget("s", None, dial))
    async with asyncio.timeout(5):
        with pytest.raises(FileNotFoundError):
            async with one.listen():
                pass
        with pytest.raises(FileNotFoundError):
            await anext(aiter(one.listen()))


async def test_a_client_that_leaves_waits_for_no_answer_to_its_listeners() -> None:
    script = ScriptedServer("handshake", {"resources/unsubscribe": SILENCE})
    async with serve_on_socket(script) as at, asyncio.timeout(20):
        one = Client(at, timeout=Timeouts(discover=5, request=60, close=2))
        listeners = [one.listen(uris=[f"a:{number}"]) for number in range(3)]
        for listener in listeners:
            await listener.__aenter__()
        await one.close()
        assert not one.is_connected
        assert script.count("resources/subscribe") == 3
        assert script.count("resources/unsubscribe") == 0
        for listener in listeners:
            assert [change async for change in listener] == []


async def test_a_listener_that_stops_alone_says_so() -> None:
    script = ScriptedServer("handshake")
    async with serve_on_socket(script) as at, Client(at, timeout=PATIENT) as one, asyncio.timeout(20):
        async with one.listen(uris=["a:1"]):
            pass
        assert script.count("resources/unsubscribe") == 1
