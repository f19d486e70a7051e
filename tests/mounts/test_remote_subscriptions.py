"""Test subscriptions to resources of remote mounts: they end with their session, are shared, limited and honest."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from dovetail import Client, Server
from dovetail.auth import Principal
from dovetail.errors import NotSupported, ServerBusy
from dovetail.mounts import remote_subscriptions
from dovetail.mounts.mountable import ResourceWatch
from dovetail.protocol.exchange import ChangeCallback, IncomingExchange
from dovetail.protocol.item_kinds import ItemKind
from dovetail.protocol.limits import CallerBusy
from dovetail.server.server import get_dispatcher
from dovetail.wire.base import Result
from dovetail.wire.lifecycle import ResourcesCapability, ServerCapabilities
from support.fake_service import wait_until

OLD, NEW = "2025-11-25", "2026-07-28"
BOB = Principal("bob")


class FakeRemote:
    """A remote server that remembers the subscriptions to its resources."""

    name = "far"
    is_remote = True

    def __init__(self, *refused: str) -> None:
        self.refused = refused
        self.watched: list[str] = []
        self.requests = 0

    def __mountable__(self) -> "FakeRemote":
        return self

    async def start(self) -> None: ...
    async def stop(self) -> None: ...

    def capabilities(self) -> ServerCapabilities:
        return ServerCapabilities(resources=ResourcesCapability(subscribe=True))

    async def list_items(self, kind: ItemKind, exchange: IncomingExchange) -> Mapping[str, Any]:
        return {}

    async def has_item(self, kind: ItemKind, name: str, exchange: IncomingExchange) -> bool:
        return True

    async def handle(self, exchange: IncomingExchange) -> Result | bytes:
        raise NotImplementedError

    def watch_changes(self, callback: ChangeCallback) -> Callable[[], None]:
        return lambda: None

    def can_receive_updates(self, uri: str, principal: Principal | None) -> bool:
        return True

    async def watch_resources(self, uris: list[str], principal: Principal | None) -> ResourceWatch:
        self.requests += 1
        accepted = [uri for uri in uris if uri not in self.refused]
        if not accepted:
            raise NotSupported("refused")
        self.watched += accepted

        def stop() -> None:
            for uri in accepted:
                self.watched.remove(uri)

        return ResourceWatch(accepted, stop)


def mount_on(far: FakeRemote) -> Server:
    app = Server("near")
    app.mount(far, "far")
    return app


def watch(app: Server, uri: str, principal: Principal | None = None, origin: str | None = None) -> Callable[[], None]:
    stop = get_dispatcher(app).watch_resource(uri, principal, origin)
    assert stop is not None
    return stop


@pytest.mark.parametrize("end", ["unsubscribe", "close"])
async def test_a_subscription_ends_with_that_of_the_session(end: str) -> None:
    far = FakeRemote()
    async with Client(mount_on(far), protocol_version=OLD) as client:
        async with client.listen(tools=False, prompts=False, resources=False, uris=["far+note:1"]) as _:
            await wait_until(lambda: far.watched == ["note:1"])
            if end == "close":
                await client.close()
        await wait_until(lambda: far.watched == [])


async def test_sessions_share_a_subscription_until_the_last_one_ends_it() -> None:
    far = FakeRemote()
    app = mount_on(far)
    first, second = watch(app, "far+note:1", BOB), watch(app, "far+NOTE:1", BOB)
    await wait_until(lambda: far.watched == ["note:1"])
    first()
    first()  # the second call does nothing
    assert far.watched == ["note:1"]
    second()
    assert far.watched == []


async def test_a_resource_of_this_server_needs_no_subscription() -> None:
    app = mount_on(FakeRemote())
    assert get_dispatcher(app).watch_resource("own://a", None, None) is None


async def test_one_caller_cannot_take_all_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_subscriptions, "_MAX_WATCHES", 4)
    monkeypatch.setattr(remote_subscriptions, "_MAX_WATCHES_PER_ORIGIN", 3)
    app = mount_on(FakeRemote())
    stops = [watch(app, f"far+note:{number}", BOB, "bob") for number in range(3)]
    with pytest.raises(CallerBusy):
        watch(app, "far+note:3", BOB, "bob")
    watch(app, "far+note:4", None, "10.0.0.1")
    with pytest.raises(ServerBusy):
        watch(app, "far+note:5", None, "10.0.0.2")
    stops[0]()
    watch(app, "far+note:6", BOB, "bob")


async def test_a_refused_subscription_is_tried_again_by_the_next_session() -> None:
    far = FakeRemote("note:1")
    app = mount_on(far)
    watch(app, "far+note:1")
    await wait_until(lambda: far.requests == 1)
    await asyncio.sleep(0)
    far.refused = ()
    stop = watch(app, "far+note:1")
    await wait_until(lambda: far.watched == ["note:1"])
    stop()
    assert far.watched == []


async def test_a_stateless_client_learns_which_resources_the_remote_server_refused() -> None:
    far = FakeRemote("note:2")
    app = mount_on(far)

    @app.resource("own://a")
    def own() -> str:
        return "own"

    uris = ["far+note:1", "far+note:2", "own://a"]
    async with Client(app, protocol_version=NEW) as client:
        async with client.listen(tools=False, prompts=False, resources=False, uris=uris) as changes:
            assert changes.acknowledged_filter is not None
            assert changes.acknowledged_filter.resource_subscriptions == ["far+note:1", "own://a"]
        await wait_until(lambda: far.watched == [])


async def test_a_client_learns_that_a_server_refuses_a_mounted_clients_subscription() -> None:
    """The server behind the client has no resources, so it cannot have subscriptions to them."""
    behind = Server("behind")
    behind.add_tool(lambda: "x", name="x")
    app = Server("near")
    app.mount(Client(behind, protocol_version=NEW), "far")

    @app.resource("own://a")
    def own() -> str:
        return "own"

    client = Client(app, protocol_version=NEW)
    uris = ["far+x:1", "own://a"]
    async with client, client.listen(tools=False, prompts=False, resources=False, uris=uris) as changes:
        assert changes.acknowledged_filter is not None
        assert changes.acknowledged_filter.resource_subscriptions == ["own://a"]
    await app.stop()
