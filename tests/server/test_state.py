"""Test the state that functions keep for users and sessions."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import Client, Context, Server, ToolError
from dovetail.auth import Principal
from dovetail.cluster.memory_backend import MemoryBackend
from dovetail.errors import ServerBusy
from dovetail.server.call_state import CallState
from dovetail.server.state_stores import MemoryStateStore, SQLiteStateStore
from dovetail.testing import connect

KEYS = ["a key with enough bytes"]
ERAS = ["2025-11-25", "2026-07-28"]


def create_counter(**options: Any) -> Server:
    app = Server("counter", debug=True, **options)

    @app.tool
    async def count(ctx: Context, kind: str = "user") -> int:
        state = ctx.user_state if kind == "user" else ctx.session_state
        number = await state.get("count", 0, into=int) + 1
        await state.set("count", number)
        return number

    @app.tool
    async def forget(ctx: Context) -> None:
        await ctx.user_state.delete("count")

    return app


@pytest.fixture(params=["memory", "sqlite", "cluster"])
async def options(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if request.param == "memory":
        return {}
    return (
        {"state": tmp_path / "state.sqlite"}
        if request.param == "sqlite"
        else {"cluster": MemoryBackend(), "secret_keys": KEYS}
    )


@pytest.mark.parametrize("era", ERAS)
async def test_each_user_has_its_own_state(era: str, options: dict[str, Any]) -> None:
    app = create_counter(**options)
    ada, bob = Principal("ada"), Principal("bob")
    async with (
        connect(app, principal=ada, protocol_version=era) as first,
        connect(app, principal=ada, protocol_version=era) as second,
        connect(app, principal=bob, protocol_version=era) as other,
    ):
        assert [await first.call("count"), await second.call("count"), await other.call("count")] == [1, 2, 1]
        await first.call("forget")
        assert await second.call("count") == 1


async def test_each_session_has_its_own_state(options: dict[str, Any]) -> None:
    app = create_counter(**options)
    async with (
        connect(app, transport="http", protocol_version="2025-11-25") as first,
        connect(app, transport="tcp", protocol_version="2025-06-18") as second,
    ):
        assert [await first.call("count", kind="session") for _ in range(2)] == [1, 2]
        assert await second.call("count", kind="session") == 1


def create_notes(**options: Any) -> Server:
    app = Server("notes", **options)

    @app.tool
    async def write(key: str, value: str, ctx: Context) -> None:
        await ctx.user_state.set(key, value)

    @app.tool
    async def read(key: str, ctx: Context) -> str | None:
        return await ctx.user_state.get(key)

    return app


async def test_no_user_reaches_the_state_of_another_user_with_a_space(options: dict[str, Any]) -> None:
    app = create_notes(**options)
    async with (
        connect(app, principal=Principal("ada lovelace")) as owner,
        connect(app, principal=Principal("ada")) as other,
    ):
        await owner.call("write", key="diary", value="private")
        assert await other.call("read", key="lovelace diary") is None
        await other.call("write", key="lovelace diary", value="changed")
        assert await owner.call("read", key="diary") == "private"


@given(st.lists(st.tuples(*[st.text(st.sampled_from(" :%aus") | st.characters(), min_size=1, max_size=8)] * 3)))
async def test_values_are_apart_for_all_servers_owners_and_keys(names: list[tuple[str, str, str]]) -> None:
    store = MemoryStateStore()
    values = {name: index for index, name in enumerate(names)}
    for (server, owner, key), value in values.items():
        await CallState(store, server, "user", owner).set(key, value)
    for (server, owner, key), value in values.items():
        assert await CallState(store, server, "user", owner).get(key) == value
        assert await CallState(store, server, "session", owner).get(key) is None


async def test_a_missing_value_costs_one_read_and_values_of_format_1_are_forgotten() -> None:
    names: list[str] = []

    class CountingStore(MemoryStateStore):
        async def get(self, name: str) -> bytes | None:
            names.append(name)
            return await super().get(name)

    store = CountingStore()
    await store.set("notes user ada diary", b'\x01"old"', None)
    assert await CallState(store, "notes", "user", "ada").get("diary") is None
    assert len(names) == 1


async def test_a_principal_can_be_stored(options: dict[str, Any]) -> None:
    app = Server("notes", **options)

    @app.tool
    async def sign(ctx: Context) -> str:
        await ctx.user_state.set("author", {"name": ctx.principal})
        return (await ctx.user_state.get("author"))["name"]

    async with connect(app, principal=Principal("ada")) as client:
        assert await client.call("sign") == "ada"


async def test_a_stateless_client_has_no_session_state() -> None:
    async with connect(create_counter(), protocol_version="2026-07-28") as client:
        with pytest.raises(ToolError, match="user_state"):
            await client.call("count", kind="session")


async def test_an_anonymous_caller_has_no_user_state() -> None:
    async with Client(create_counter()) as client:
        with pytest.raises(ToolError, match="auth="):
            await client.call("count")


async def test_state_in_a_file_survives_a_restart(tmp_path: Path) -> None:
    for number in (1, 2):
        app = create_counter(state=str(tmp_path / "state.sqlite"))
        async with connect(app, principal=Principal("ada")) as client:
            assert await client.call("count") == number
    assert (tmp_path / "state.sqlite").stat().st_mode & 0o077 == 0


async def test_a_value_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for store in (MemoryStateStore(), SQLiteStateStore(tmp_path / "s.sqlite")):
        now = [1000.0]
        monkeypatch.setattr("time.time", lambda now=now: now[0])
        monkeypatch.setattr("time.monotonic", lambda now=now: now[0])
        state = CallState(store, "counter", "user", "ada")
        await state.set("short", 1, ttl=10)
        await state.set("long", 2)
        assert await state.get("short") == 1
        now[0] += 11
        assert [await state.get("short"), await state.get("long")] == [None, 2]
        monkeypatch.undo()


async def test_expired_values_make_room_in_memory() -> None:
    store = MemoryStateStore(max_bytes=1000)
    await store.set("a", b"x" * 500, 0.0)
    await store.set("b", b"x" * 500, None)
    with pytest.raises(ServerBusy):
        await store.set("c", b"x" * 500, None)
    await store.set("b", b"y" * 500, None)
    await store.delete("b")
    await store.set("c", b"x" * 500, None)
    assert await store.get("c") == b"x" * 500


@pytest.mark.parametrize("key", ["", "x" * 257, 3])
async def test_a_key_is_a_short_string(key: Any) -> None:
    state = CallState(MemoryStateStore(), "counter", "user", "ada")
    with pytest.raises(ValueError, match="256"):
        await state.set(key, 1)


async def test_invalid_values_are_refused() -> None:
    state = CallState(MemoryStateStore(), "counter", "user", "ada")
    with pytest.raises(ValueError, match="larger"):
        await state.set("a", "x" * 1_100_000)
    with pytest.raises(ValueError, match="ttl"):
        await state.set("a", 1, ttl=0)
    with pytest.raises(TypeError):
        await state.set("a", object())
    assert await state.get("a", "nothing") == "nothing"


async def test_a_value_of_a_newer_format_is_refused() -> None:
    class NewerStore(MemoryStateStore):
        async def get(self, name: str) -> bytes | None:
            return b"\x02[]"

    with pytest.raises(ValueError, match="format"):
        await CallState(NewerStore(), "counter", "user", "ada").get("a")


async def test_workers_of_a_cluster_share_state() -> None:
    first = MemoryBackend()
    second = MemoryBackend(first)
    apps = [create_counter(cluster=backend, secret_keys=KEYS) for backend in (first, second)]
    async with connect(apps[0], principal=Principal("ada")) as one, connect(apps[1], principal=Principal("ada")) as two:
        assert [await one.call("count"), await two.call("count")] == [1, 2]


async def test_a_closed_cluster_is_reported_as_busy() -> None:
    from dovetail.cluster.cluster_state_store import ClusterStateStore
    from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable

    backend = MemoryBackend()

    async def fail(name: str) -> Any:
        raise SharedStateUnavailable("away")

    backend.read = fail  # type: ignore[method-assign]
    with pytest.raises(ServerBusy):
        await ClusterStateStore(backend).get("a")
