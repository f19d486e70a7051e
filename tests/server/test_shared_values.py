"""Test that middleware of one request cannot change what later requests get from a server or a host."""

from typing import Any

import pytest

from dovetail import Client, Server
from dovetail.errors import MissingClientCapability, RemoteError
from dovetail.extensions import TaskConfig
from dovetail.host import Host
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.middleware import CallNext
from dovetail.types import ServerCapabilities

TASKS = "io.modelcontextprotocol/tasks"
EXTENSION = "com.example/extension"


def calculator(**options: Any) -> Server:
    app = Server("calculator", **options)

    @app.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @app.prompt
    async def greet(name: str) -> str:
        return name

    @app.resource("note://one")
    async def note() -> str:
        return ""

    @app.resource("note://{name}/more")
    async def notes(name: str) -> str:
        return name

    return app


def mounting(server: Server, **options: Any) -> Server:
    app = Server("outer", **options)
    app.mount(server)
    return app


@pytest.mark.parametrize("protocol_version", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("mounted", [False, True])
async def test_lists_come_encoded(protocol_version: str, *, mounted: bool) -> None:
    result_types: dict[str, type] = {}

    async def observe(exchange: Exchange, call_next: CallNext) -> object:
        result = await call_next(exchange)
        result_types[exchange.method] = type(result)
        return result

    app = mounting(calculator(), middleware=[observe]) if mounted else calculator(middleware=[observe])
    async with Client(app, protocol_version=protocol_version) as client:
        assert [tool.name for tool in await client.list_tools()] == ["add"]
        assert [prompt.name for prompt in await client.list_prompts()] == ["greet"]
        assert len(await client.list_resources()) == len(await client.list_resource_templates()) == 1
    methods = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")
    assert [result_types[method] for method in methods] == [bytes] * 4


@pytest.mark.parametrize("protocol_version", ["2025-11-25", "2026-07-28"])
async def test_search_tools_come_encoded(protocol_version: str) -> None:
    results: list[object] = []

    async def observe(exchange: Exchange, call_next: CallNext) -> object:
        results.append(await call_next(exchange))
        return results[-1]

    app = calculator(middleware=[observe], search=True)
    async with Client(app, protocol_version=protocol_version) as client:
        assert len(await client.list_tools()) == 3
    assert type(results[-1]) is bytes


async def test_a_request_cannot_change_the_capabilities_of_a_server() -> None:
    async def change(exchange: Exchange, call_next: CallNext) -> object:
        result: Any = await call_next(exchange)
        if exchange.method == "server/discover":
            for values in (
                result.capabilities.experimental,
                result.capabilities.extensions,
                result.capabilities.logging,
            ):
                values["com.example/changed"] = {}
            result.capabilities.extensions[EXTENSION]["changed"] = True
        return result

    declared = ServerCapabilities(experimental={"x": {}}, extensions={EXTENSION: {}}, logging={"y": {}})
    app = calculator(capabilities=declared, middleware=[change])
    for _ in range(2):
        async with Client(app) as client:
            assert set(client.server_capabilities.experimental or ()) == {"x", "com.example/changed"}
    assert declared == ServerCapabilities(experimental={"x": {}}, extensions={EXTENSION: {}}, logging={"y": {}})


async def test_a_request_cannot_change_the_error_of_a_required_task() -> None:
    calls: list[None] = []

    async def change(exchange: Exchange, call_next: CallNext) -> object:
        try:
            return await call_next(exchange)
        except MissingClientCapability as exc:
            calls.append(None)
            exc.data["requiredCapabilities"]["extensions"][f"com.example/{len(calls)}"] = {}
            raise

    app = Server("tasks", middleware=[change])

    @app.tool(task=TaskConfig(required=True))
    async def slow() -> str:
        return "ok"

    for _ in range(2):
        async with Client(app, tasks=False) as client:
            with pytest.raises(RemoteError) as error:
                await client.call_tool("slow")
            assert set(error.value.data["requiredCapabilities"]["extensions"]) == {TASKS, f"com.example/{len(calls)}"}


async def test_a_host_lists_copies() -> None:
    host = Host()
    host.add("calculator", calculator())
    async with host:
        for _ in range(2):
            catalog = await host.catalog()
            entries = [*await host.list_tools(), *catalog.tools, *catalog.search("add")]
            assert [set(entry.definition.input_schema["properties"]) for entry in entries] == [{"a", "b"}] * 3
            for entry in entries:
                entry.definition.input_schema["properties"].clear()
            for entry in (*await host.list_prompts(), *catalog.prompts):
                entry.definition.arguments.append(None)
        assert [len(entry.definition.arguments) for entry in await host.list_prompts()] == [1]
