"""Test that a context variable of one caller is never visible where another caller or the server runs code."""

import asyncio
import contextvars
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dovetail import Client, Context, Server, testing
from dovetail.host import Host, Policy, rule
from dovetail.protocol.exchange import Caller, Exchange, IncomingExchange
from dovetail.protocol.middleware import CallNext
from dovetail.server.server import get_dispatcher

TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("TENANT", default="")
HEADER = "x-tenant"
VERSIONS = ["2025-11-25", "2026-07-28"]


class Observed:
    """The values of the variable that code beside the tools has seen."""

    def __init__(self) -> None:
        self.values: set[str] = set()

    def add(self, *_: object) -> None:
        self.values.add(TENANT.get())

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        self.add()
        task = asyncio.create_task(self.watch())
        yield
        task.cancel()

    async def watch(self) -> None:
        while True:
            self.add()
            await asyncio.sleep(0.01)


async def set_tenant(exchange: Exchange, call_next: CallNext) -> object:
    """Set the variable as a program with tenants does. A variable that is set already belongs to another request."""
    tenant = (exchange.headers or {}).get(HEADER.encode(), b"").decode()
    assert TENANT.get() in ("", tenant), f"{tenant} sees {TENANT.get()}"
    TENANT.set(tenant)
    return await call_next(exchange)


def build_server(observed: Observed, **options: Any) -> Server:
    app, numbers = Server("inner", lifespan=observed.lifespan, **options), itertools.count()

    @app.tool
    async def whoami(ctx: Context) -> str:
        await ctx.info("called")
        await asyncio.sleep(0)
        return TENANT.get()

    @app.tool
    async def add_tool() -> str:
        app.add_tool(lambda: 1, name=f"tool_{next(numbers)}")
        return TENANT.get()

    return app


async def call_as(target: Any, tenant: str, protocol_version: str, prefix: str = "") -> list[Any]:
    async with Client(target, headers={HEADER: tenant}, protocol_version=protocol_version) as client:
        await client.list_tools()
        return [await client.call(f"{prefix}{tool}") for tool in ("whoami", "add_tool", "whoami")]


async def check_callers(
    target: Any, protocol_version: str, prefix: str = "", expected: list[str] | None = None
) -> None:
    for tenant in ("ada", "bob", "ada", "eve"):
        values = await call_as(target, tenant, protocol_version, prefix)
        assert values == (expected or [tenant] * 3)


@pytest.mark.parametrize("protocol_version", VERSIONS)
async def test_callers_of_a_server(protocol_version: str) -> None:
    observed = Observed()
    app = build_server(observed, middleware=[set_tenant])
    async with testing.serve(app, transport="http") as target:
        await check_callers(target, protocol_version)
    assert observed.values == {""}


async def test_a_request_opens_the_lifespan() -> None:
    observed = Observed()
    app = build_server(observed)
    TENANT.set("ada")
    caller = Caller("2026-07-28", is_stateless=True)
    await get_dispatcher(app).handle(IncomingExchange(1, "tools/call", {"name": "whoami"}, {}, caller))
    await app.stop()
    assert observed.values == {""}


@pytest.mark.parametrize("protocol_version", VERSIONS)
async def test_callers_of_a_mounted_server(protocol_version: str) -> None:
    observed, app = Observed(), Server("outer", middleware=[set_tenant])
    async with testing.serve(app, transport="http") as target:
        app.mount(build_server(observed), "in")  # The first request starts a server that is mounted late.
        await check_callers(target, protocol_version, "in_")
    assert observed.values == {""}


@pytest.mark.parametrize("protocol_version", VERSIONS)
async def test_callers_of_a_mounted_client(protocol_version: str) -> None:
    """Changes that a remote server announces are not reported in the context of a caller."""
    observed, changes = Observed(), Observed()

    class ObserveChanges:
        async def __call__(self, exchange: Exchange, call_next: CallNext) -> object:
            return await call_next(exchange)

        def on_change(self, method: str, uri: str | None) -> None:
            changes.add()

    app = Server("outer", middleware=[set_tenant, ObserveChanges()])
    async with (
        testing.serve(build_server(observed), transport="http") as remote,
        testing.serve(app, transport="http") as target,
    ):
        mounted = Client(remote, protocol_version=protocol_version)
        app.mount(mounted, "in")
        changes.values.clear()
        await check_callers(target, protocol_version, "in_", ["", "", ""])
        for _ in range(500):
            if changes.values:
                break
            await asyncio.sleep(0.01)
    assert (observed.values, changes.values) == ({""}, {""})


@pytest.mark.parametrize("protocol_version", VERSIONS)
async def test_callers_of_a_gateway(protocol_version: str) -> None:
    observed, events = Observed(), Observed()
    host = Host(policy=Policy(rules=[rule("allow")]))
    host.add("in", build_server(observed))
    for kind in ("server.state", "tools.changed"):  # Other events belong to the call of a caller.
        host.on(kind, events.add)
    async with host:
        app = host.as_server()
        app.middleware(set_tenant)
        async with testing.serve(app, transport="http") as target:
            await check_callers(target, protocol_version, "in__")
    assert (observed.values, events.values) == ({""}, {""})
