"""A gateway isolates its servers: unknown names, headers and failures do not pass from one to another."""

import asyncio
import contextlib
import http.client
import itertools
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from harness import ACCEPT_JSON_AND_SSE, CAPABILITIES, NEWEST, TIMEOUT_S, VERSION, measure_cpu_unit, record_measurement

from dovetail import Client, MCPError, Policy, Server, testing
from dovetail.host import ServerSettings
from dovetail.host.host import Host
from dovetail.transports.http1.http_listener import bind_socket
from support.upstream_server import UpstreamServer

ALLOW = Policy("allow")
# What a caller may send along, each with something of its own that must not be found upstream.
SENT = (
    "Authorization", "X-Auth-Token", "Cookie", "X-Api-Key", "X-Forwarded-For", "X-Forwarded-Host", "Forwarded",
    "X-Real-IP", "X-User", "X-Tenant", "Referer", "User-Agent", "From", "Via", "X-Request-Id", "X-Amz-Security-Token",
)  # fmt: skip
ODD = (
    "/servers/none/mcp",
    "/servers//mcp",
    "/servers/mcp",
    "/servers/ONE/mcp",
    "/servers/one%00/mcp",
    "/servers/one%2f/mcp",
    "/servers/%2e%2e/mcp",
    "/servers/../mcp/x",
    "/servers/*/mcp",
    "/servers/one,two/mcp",
    "/servers/one;two/mcp",
    "/servers/one/../two/x",
    "/servers/one.two/mcp",
    "/servers/none",
    "/servers/host/mcp",
    "/servers/none/mcp?server=one",
    "/servers/-/mcp",
    "/servers/one/mcp/two",
    "/x/one/mcp",
    "/search/one/mcp",
    "/servers/" + "a" * 65 + "/mcp",
)
# Writes its process into a file, so that it can be killed.
PROGRAM = """
import os, sys
from dovetail import Server
app = Server("mortal")
open(sys.argv[1], "w").write(str(os.getpid()))

@app.tool
def alive() -> str:
    return "yes"

app.run()
"""


def one_of(name: str) -> Server:
    app = Server(name)
    app.tool(lambda: name, name="who", description=f"Tells that it is {name}.")
    return app


@contextlib.asynccontextmanager
async def served(host: Host) -> AsyncGenerator[int]:
    """The host as a gateway over HTTP: its port."""
    with bind_socket("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    serving = asyncio.create_task(host.serve("http", port=port))
    async with asyncio.timeout(TIMEOUT_S):
        while not await asyncio.to_thread(_reachable, port):  # noqa: ASYNC110 - a socket tells nobody that it is open
            await asyncio.sleep(0.01)
    yield port
    serving.cancel()


def _reachable(port: int) -> bool:
    return os.path.exists("/proc/net/tcp") and f":{port:04X} 00000000:0000 0A" in Path("/proc/net/tcp").read_text()


def listed(port: int, path: str) -> tuple[int, list[str]]:
    """The status, and the tools that a list at a path names; the path is sent as it is."""
    meta = {VERSION: NEWEST, CAPABILITIES: {}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}})
    headers = {"Content-Type": "application/json", "Accept": ACCEPT_JSON_AND_SSE, "MCP-Protocol-Version": NEWEST}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    connection.request("POST", path, body, headers | {"Mcp-Method": "tools/list"})
    answer = connection.getresponse()
    said = answer.read()
    connection.close()
    found = json.loads(said).get("result", {}).get("tools", []) if said.startswith(b"{") else []
    return answer.status, [one["name"] for one in found]


async def test_an_unknown_server_leads_nowhere() -> None:
    async with Host(policy=ALLOW) as host:
        for name in ("one", "two"):
            host.add(name, one_of(name))
        async with served(host) as port:
            assert await asyncio.to_thread(listed, port, "/servers/one/mcp") == (200, ["who"])
            assert await asyncio.to_thread(listed, port, "/mcp") == (200, ["one__who", "two__who"])
            answers = [await asyncio.to_thread(listed, port, path) for path in ODD]
    wider = [path for path, (status, names) in zip(ODD, answers, strict=True) if names or status < 400]
    record_measurement(f"names of no server that led to one, of {len(ODD)}", len(wider), "")
    assert wider == []


async def test_no_header_of_a_caller_goes_further() -> None:
    far = UpstreamServer()
    async with testing.serve(far, transport="http") as url, Host(policy=ALLOW) as host:
        host.add("far", url, headers={"Authorization": "Bearer of-the-gateway"})
        async with served(host) as port:
            given = {name: f"canary-{number}" for number, name in enumerate(SENT)}
            for era, path in itertools.product(("stateless", "handshake"), ("/mcp", "/servers/far/mcp")):
                async with Client(f"http://127.0.0.1:{port}{path}", headers=given, protocol_version=era) as client:
                    await client.call_tool("who" if path != "/mcp" else "far__who")
    assert len(far.headers) == 4
    leaked = [name for name, value in given.items() if value in repr(far.headers)]
    record_measurement(f"headers of a caller that reached a server, of {len(SENT)}", len(leaked), "")
    assert leaked == []
    assert {one["authorization"] for one in far.headers} == {"Bearer of-the-gateway"}


@pytest.mark.timeout(120)
async def test_a_server_that_dies_is_an_error_of_its_own_tools_and_never_an_empty_list(tmp_path: Path) -> None:
    program, pid = tmp_path / "mortal_program.py", tmp_path / "pid"
    program.write_text(PROGRAM)
    empty = wrong = 0
    outcomes: set[str] = set()
    async with Host(
        policy=ALLOW,
        defaults=ServerSettings(restart_delay=0.01, max_restart_delay=0.1, max_restarts=3),
        ready_timeout=2.0,
    ) as host:
        host.add("mortal", [sys.executable, str(program), str(pid)])
        host.add("good", one_of("good"))
        app = host.as_server()
        async with Client(app) as client:
            await client.list_tools()
            for round in range(12):
                if round == 8:
                    program.unlink()  # from now on it does not come back
                with contextlib.suppress(ProcessLookupError):  # it may not have come back yet
                    os.kill(int(pid.read_text()), signal.SIGKILL)
                names = {one.name for one in await client.list_tools()}
                empty += "good__who" not in names or "mortal__alive" not in names
                wrong += (await client.call("good__who")) != "good"
                try:
                    outcomes.add(str(await client.call("mortal__alive")))
                except MCPError as exc:
                    outcomes.add(type(exc).__name__)
        await app.stop()
    record_measurement("lists without the tools of a server that died, of 12", empty, "")
    record_measurement("calls of its neighbour that went wrong, of 12", wrong, "")
    assert (empty, wrong) == (0, 0)
    assert len(outcomes) > 1  # it was alive, and it was not


async def test_a_tool_that_was_renamed_is_gone() -> None:
    far = one_of("far")
    async with Host(policy=ALLOW) as host:
        host.add("far", far)
        app = host.as_server()
        async with Client(app) as client, client.listen(tools=True) as changes:
            assert await client.call("far__who") == "far"
            far.remove_tool("who")
            far.tool(lambda: "another", name="who_now", description="Another.")
            async for _ in changes:
                if "far__who_now" in {one.name for one in await client.list_tools()}:
                    break
            with pytest.raises(MCPError):
                await client.call("far__who")
            assert await client.call("far__who_now") == "another"
        await app.stop()


@pytest.mark.timeout(180)
async def test_calls_beside_a_server_that_hangs() -> None:
    slow = Server("slow")
    held = asyncio.Event()

    @slow.tool
    async def hang() -> str:
        await held.wait()
        return "at last"

    async def measured(client: Client) -> list[float]:
        times: list[float] = []
        for _ in range(300):
            began = time.perf_counter()
            assert await client.call("good__who") == "good"
            times.append(time.perf_counter() - began)
        return times

    async with Host(policy=ALLOW) as host:
        host.add("good", one_of("good"))
        host.add("slow", slow)
        async with served(host) as port, Client(f"http://127.0.0.1:{port}/mcp") as client:
            await measured(client)  # everything is started and warm
            alone = await measured(client)
            hanging = [asyncio.create_task(client.call("slow__hang")) for _ in range(50)]
            beside = await measured(client)
            held.set()
            assert {*await asyncio.gather(*hanging)} == {"at last"}
    usual, worst = statistics.median(alone), statistics.median(beside)
    record_measurement("median call through a gateway, alone", usual * 1000, "ms")
    record_measurement("median call through a gateway, beside 50 that hang", worst * 1000, "ms")
    record_measurement("99 of 100 calls, alone", statistics.quantiles(alone, n=100)[98] * 1000, "ms")
    record_measurement("99 of 100 calls, beside 50 that hang", statistics.quantiles(beside, n=100)[98] * 1000, "ms")
    assert worst < 3 * usual + measure_cpu_unit()
