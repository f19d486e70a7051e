"""Measure gateways: the CPU time of a call in the gateway compared with that of the client and the server.

Client and server are dovetail's. The figures contain the CPU time of each process without its children, so a server
that a gateway starts does not count. All gateways have the same number of connections. They use the stateless era if
they support it. dovetail's gateway runs in both eras, so that each peer has a row of dovetail with the same era.
"""

import contextlib
import sys
from collections.abc import Generator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import request_kinds
from clients import ClientScenario, run_scenario
from load import Bounds
from paired_runs import MAX_CALLS, Plan
from request_kinds import HANDSHAKE, STATELESS
from server_process import HERE, OURS, SERVERS, ServerProcess, ServerSettings

WIDTH = 32  # connections at once, and concurrent calls of the client
# How a peer differs from dovetail's gateway, as it comes. The table prints these notes.
PEER_NOTES = {
    "fastmcp": "opens a new session with the server for every call. uvicorn with asyncio and h11",
    "mcp-proxy": "supports only the handshake era. One session with the server. uvicorn with asyncio and h11",
}
_STDIO_SERVER = [sys.executable, str(SERVERS / "with_dovetail.py"), "stdio"]
_MCP_PROXY = HERE.parent / ".venv-peers" / ("Scripts" if sys.platform == "win32" else "bin") / "mcp-proxy"


class Sample(NamedTuple):
    """The figures of one run: CPU microseconds per call, and the median latency of sequential calls."""

    cpu_us: float
    p50_us: float | None


class Gateway:
    """A gateway process between the load generator and a server."""

    def __init__(self, name: str, upstream: str, command: list[str], tool: str, era: str) -> None:
        self.name = name
        self.upstream = upstream  # the transport to the server
        self.era = era
        self._process = ServerProcess(name, ServerSettings("http"), command)
        self._request_kind = request_kinds.echo(tool)

    def run(self, seconds: float) -> Sample:
        """Call the gateway from many connections, then from one."""
        return _run(self._process, self._request_kind, self.era, WIDTH, seconds)

    def stop(self) -> None:
        """Stop the process."""
        self._process.stop()


def measure(plan: Plan, *, with_peers: bool) -> dict[str, Any]:
    """Return the figures of all processes, and our ratios of each round."""
    with _start_all(with_peers) as (server, gateways):
        request_kind = request_kinds.echo()
        for gateway in gateways:
            gateway.run(plan.warm)
        samples: dict[str, list[Sample]] = {}
        ratios: dict[str, list[float]] = {}
        for _ in range(plan.rounds):
            direct = _run(server, request_kind, STATELESS, WIDTH, plan.seconds)
            samples.setdefault("server", []).append(direct)
            clients = {transport: _run_client(transport, server, plan.seconds) for transport in ("http", "stdio")}
            for transport, sample in clients.items():
                samples.setdefault(f"client-{transport}", []).append(sample)
            for gateway in gateways:
                sample = gateway.run(plan.seconds)
                samples.setdefault(gateway.name, []).append(sample)
                if gateway.name.endswith(OURS) and gateway.era == STATELESS:
                    name = gateway.name.removesuffix(f":{OURS}")
                    ends_us = direct.cpu_us + clients[gateway.upstream].cpu_us
                    ratios.setdefault(name, []).append(sample.cpu_us / ends_us)
                    if not name.endswith("policy"):
                        assert sample.p50_us is not None
                        assert direct.p50_us is not None
                        ratios.setdefault(f"{name}-latency", []).append(sample.p50_us / direct.p50_us)
    eras = {gateway.name: gateway.era for gateway in gateways}
    figures = {name: _summarize(values) | {"era": eras.get(name, STATELESS)} for name, values in samples.items()}
    peers = {name.rpartition(":")[2] for name in figures}
    notes = {peer: note for peer, note in PEER_NOTES.items() if peer in peers}
    return {"figures": figures, "ratios": ratios, "connections": WIDTH, "notes": notes}


@contextlib.contextmanager
def _start_all(with_peers: bool) -> Generator[tuple[ServerProcess, list[Gateway]]]:
    with contextlib.ExitStack() as stack:
        server = ServerProcess(OURS, ServerSettings("http"))
        stack.callback(server.stop)
        targets = {"http": [f"http://127.0.0.1:{server.port}/mcp"], "stdio": _STDIO_SERVER}
        gateways: list[Gateway] = []

        def start(name: str, upstream: str, command: list[str], tool: str, era: str) -> None:
            gateway = Gateway(name, upstream, [*command, *targets[upstream]], tool, era)
            stack.callback(gateway.stop)
            gateways.append(gateway)

        for upstream in targets:
            ours = [sys.executable, str(SERVERS / "gateway_dovetail.py")]
            start(f"gateway-http-{upstream}:{OURS}", upstream, [*ours, "allow"], "up__echo", STATELESS)
            start(f"gateway-http-{upstream}-policy:{OURS}", upstream, [*ours, "policy"], "up__echo", STATELESS)
            if with_peers:
                start(f"gateway-http-{upstream}-handshake:{OURS}", upstream, [*ours, "allow"], "up__echo", HANDSHAKE)
                fastmcp = [sys.executable, str(SERVERS / "gateway_fastmcp.py")]
                start(f"gateway-http-{upstream}:fastmcp", upstream, fastmcp, "echo", STATELESS)
        if with_peers and Path(_MCP_PROXY).exists():  # mcp-proxy serves stdio servers over HTTP
            mcp_proxy = [str(_MCP_PROXY), "--host=127.0.0.1", "--port=0", "--pass-environment", "--"]
            start("gateway-http-stdio:mcp-proxy", "stdio", mcp_proxy, "echo", HANDSHAKE)
        yield server, gateways


def _run(process: ServerProcess, kind: request_kinds.RequestKind, era: str, width: int, seconds: float) -> Sample:
    p50_us: float | None = None
    cpu_us = 0.0
    for connections in (width, 1):
        web = process.web(era, connections)  # new connections each time: servers close idle ones
        try:
            web.open()
            started = process.own_cpu()
            result = web.run(kind, Bounds(MAX_CALLS, seconds))
        finally:
            web.close()
        if connections == width:
            cpu_us = (process.own_cpu() - started) / result.calls * 1e6
        elif result.p50 is not None:
            p50_us = result.p50 * 1e6
    return Sample(cpu_us, p50_us)


def _run_client(transport: str, server: ServerProcess, seconds: float) -> Sample:
    scenario = ClientScenario(transport, transport, "stateless", "echo", WIDTH)
    result = run_scenario(OURS, scenario, seconds, f"http://127.0.0.1:{server.port}/mcp")
    return Sample(result["cpu"] / result["calls"] * 1e6, None)


def _summarize(samples: list[Sample]) -> dict[str, Any]:
    figures: dict[str, Any] = {"cpu_us": median(sample.cpu_us for sample in samples)}
    latencies = [sample.p50_us for sample in samples if sample.p50_us is not None]
    return figures | ({"p50_us": median(latencies)} if latencies else {})
