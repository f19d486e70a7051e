"""A server's schemas for results and forms do not block the client.

A schema that cannot be checked at a bounded cost is not checked, and the log says so.
"""

import asyncio
import contextlib
import gc
import time
from typing import Any

import pytest
from harness import measure_cpu_unit, record_measurement
from test_costly_schemas import ARGUMENTS, SCHEMAS, doubling, nested

from dovetail import Client, MCPError, Timeouts
from support.scripted_server import ERAS, ScriptedServer, serve_on_socket, text_result, tool_definition

BOUND = 10  # units of work beyond reading the answer; the target is one
ATTEMPTS = 5

HOSTILE: dict[str, tuple[Any, Any]] = {
    **{f"{name} {n}": (SCHEMAS[name], value) for name in ARGUMENTS for n, value in enumerate(ARGUMENTS[name])},
    "doubling": (doubling("anyOf", 30), {"a": 1}),
    "doubling all": (doubling("allOf", 40), {"a": 1}),
    "remote": ({"$ref": "http://127.0.0.1:9/schema"}, {"a": 1}),
    "file": ({"$ref": "file:///etc/passwd"}, {"a": 1}),
    "dialect": ({"$schema": "http://evil.example/schema", "type": "object"}, {"a": 1}),
    "deep": (nested(5000), {"a": 1}),
    "itself": ({"$ref": "#"}, {"a": 1}),
    "behind": ({"properties": {"a": {"pattern": "(?=(a+))\\1$"}}}, {"a": "a" * 50}),
    "not one": ({"type": 5}, {"a": 1}),
    "repetition": ({"properties": {"a": {"pattern": "((a{1,500}){1,500}){1,500}"}}}, {"a": "a" * 1000}),
}


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_schema_of_results(name: str, era: str) -> None:
    schema, value = HOSTILE[name]
    deep = name == "deep"
    listed: Any = {
        "tools": [tool_definition("go", outputSchema={} if deep else schema), tool_definition("fine")],
        "resultType": "complete",
    }
    if deep:  # too deep for the encoder of the test
        schema_text = "{}"
        for _ in range(5000):
            schema_text = '{"a":' + schema_text + "}"
        listed = None
    script = ScriptedServer(era, {"tools/call": text_result("x", structuredContent=value)})
    if listed is not None:
        script.reactions = {**script.reactions, "tools/list": listed}
    else:
        script.reactions = {**script.reactions, "tools/list": lambda message: _raw(message, schema_text)}
    excess: list[float] = []  # CPU beyond the bound. Other load only adds to it, so one good attempt is enough.
    for _ in range(ATTEMPTS):
        async with serve_on_socket(script) as at, Client(at, timeout=Timeouts(request=2)) as client:
            with contextlib.suppress(MCPError):
                await client.list_tools()
            judged = await _spent(client, "go")
            plain = await _spent(client, "fine")  # the same answer, by a tool that declares nothing
        excess.append(judged - (4 * plain + BOUND * measure_cpu_unit()))
        if excess[-1] < 0:
            record_measurement(f"client, {name}, {era}", (judged - plain) * 1000, "ms")
            return
    pytest.fail(f"checking a result took too much CPU in each of {ATTEMPTS} attempts: {excess}")


async def _spent(client: Client, tool: str) -> float:
    """Return the CPU of one call, of the client and of the server, which is in the same thread.

    A garbage collection would walk through the objects of all earlier tests.
    """
    gc.disable()
    try:
        before = time.thread_time()
        with contextlib.suppress(MCPError):
            await client.call_tool(tool)
        return time.thread_time() - before
    finally:
        gc.enable()


def _raw(message: Any, schema: str) -> bytes:
    one = '{"name":"go","inputSchema":{"type":"object"},"outputSchema":' + schema + "}"
    return b'{"jsonrpc":"2.0","id":%d,"result":{"tools":[%s]}}\n' % (message["id"], one.encode())


async def test_nothing_a_schema_names_is_fetched() -> None:
    reached: list[Any] = []

    async def accept(reader: Any, writer: asyncio.StreamWriter) -> None:
        reached.append(1)
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    schema = {"$ref": f"http://127.0.0.1:{port}/schema.json"}
    script = ScriptedServer("stateless", {"tools/list": {"tools": [tool_definition("go", outputSchema=schema)]}})
    script.reactions = {**script.reactions, "tools/call": text_result("x", structuredContent={"a": 1})}
    async with serve_on_socket(script) as at, Client(at) as client:
        await client.list_tools()
        assert await client.call("go") == {"a": 1}
    server.close()
    assert not reached
