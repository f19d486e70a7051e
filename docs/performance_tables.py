"""Build the tables of benchmark results: some for performance.md, the others for bench/results/published.md."""

import json
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import Any

Table = tuple[list[str], list[list[str]]]  # the head and the rows

MET = "●"
PEERS = ("mcp", "mcp-uvloop", "fastmcp", "ts1", "ts2")
MAIN_SCENARIOS = (
    "stdio-x1-handshake", "stdio-x1-stateless", "stdio-x64-handshake", "stdio-x64-stateless",
    "http-c1-handshake", "http-c1-stateless", "http-c32-handshake", "http-c32-stateless", "sse-c32",
    "http-call-1000-tools", "http-list-1000-tools", "stdio-echo-1MB", "http-echo-1MB-stateless",
    "http-resource-5MB-stateless",
)  # fmt: skip
MAIN_CLIENT_SCENARIOS = (
    "memory-stateless-x1", "stdio-stateless-x1", "stdio-stateless-x16", "http-stateless-x1", "http-stateless-x16",
    "stdio-5MB", "http-5MB",
)  # fmt: skip
# Why limits are missed. performance.md explains each reason. The first pattern that matches the name applies.
MISSED_LIMIT_REASONS = (
    ("*MB*", "large messages"),
    ("http-c1-*", "one call at a time"),
    ("stdio-*-x1:mcp", "one call at a time"),
    ("import", "import"),
    ("spawn*", "import"),
    ("memory-*", "calls in memory"),
    ("gateway-*", "gateways"),
    ("stream-KB-*", "open streams"),
)


def create_tables(results: Path) -> dict[str, Table]:
    """Return the tables of the published results by their names."""
    published = json.loads((results / "published.json").read_text(encoding="utf-8"))
    clients = json.loads((results / "published-clients.json").read_text(encoding="utf-8"))
    go = json.loads((results / "go.json").read_text(encoding="utf-8"))
    verdicts = list(_add_floor_ratios(published))
    scenarios, client_scenarios = published["scenes"], clients["scenes"]
    return {
        "versions": _list_versions(published, clients),
        "main-calls": _list_calls(published, MAIN_SCENARIOS),
        "calls": _list_calls(published, scenarios, "floor-protocol"),
        "plain-functions": _list_plain_functions(scenarios),
        "startup": _list_startup(published["still"]),
        "main-clients": _list_clients(client_scenarios, MAIN_CLIENT_SCENARIOS),
        "clients": _list_clients(client_scenarios, client_scenarios),
        "gateways": _list_gateways(published["still"]["gateway"]["figures"]),
        "ratios": _list_verdicts([*verdicts, *clients["verdicts"]]),
        "missed": _list_missed([*verdicts, *clients["verdicts"]]),
        "go": _list_go(go),
    }


def _list_versions(published: dict[str, Any], clients: dict[str, Any]) -> Table:
    machine, plan = published["machine"], published["plan"]
    foreign = median(
        figures["foreign"]
        for by_implementation in published["scenes"].values()
        for figures in by_implementation.values()
    )
    description = {
        "date": published["date"],
        "commit": published["commit"],
        "machine": f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}",
        "plan": f"{plan['rounds']} rounds of {plan['seconds']} s",
        "load by other programs": f"{foreign:.1f} of {machine['cores']} cores (median)",
        "date of the clients": clients["date"],
        "commit of the clients": clients.get("commit", "unknown"),
    }
    stacks = {f"{name} over HTTP": stack for name, stack in published["web"].items()}
    return ["", ""], [[name, str(value)] for name, value in (description | published["versions"] | stacks).items()]


def _list_calls(published: dict[str, Any], names: Iterable[str], *other_floors: str) -> Table:
    """Return CPU microseconds per call: of dovetail, the floors, each peer and the load generator."""
    rows = [
        [
            f"`{name}`",
            _format_micros(by_implementation.get("dovetail")),
            _format_floor(by_implementation, published["floors"].get(name)),
            *(_format_micros(by_implementation.get(column)) for column in (*other_floors, *PEERS)),
            f"{by_implementation['dovetail']['load_us']:,.0f}",
        ]
        for name, by_implementation in ((name, published["scenes"][name]) for name in names)
    ]
    return ["scenario", "dovetail", "floor", *other_floors, *PEERS, "generator"], rows


def _format_floor(by_implementation: dict[str, Any], against: str | None) -> str:
    """Return the floor that the limit names, or else the fastest floor."""
    floors = {name: figures["cpu_us"] for name, figures in by_implementation.items() if name.startswith("floor")}
    if not floors:
        return ""
    name = against or min(floors, key=lambda floor: floors[floor])
    return f"{_format_micros(by_implementation[name])} {name.removeprefix('floor-')}"


def _format_micros(figures: dict[str, Any] | None) -> str:
    if figures is None:
        return ""
    return f"{figures['cpu_us']:.1f}" if figures["cpu_us"] < 100 else f"{figures['cpu_us']:,.0f}"


def _list_clients(scenarios: dict[str, Any], names: Iterable[str]) -> Table:
    """Return CPU microseconds per call: of dovetail, the floor and each peer."""
    columns = ("dovetail", "floor", "mcp", "fastmcp")
    rows = [[f"`{name}`", *(_format_micros(scenarios[name].get(column)) for column in columns)] for name in names]
    return ["scenario", *columns], rows


def _list_gateways(figures: dict[str, Any]) -> Table:
    """Return CPU time and latency of each gateway, and then of the server and the clients without a gateway."""
    rows = [
        [
            f"`{name.partition(':')[0]}`",
            name.partition(":")[2] or "dovetail",
            row["era"],
            _format_micros(row),
            f"{row['p50_us']:,.0f}" if "p50_us" in row else "",
        ]
        for name, row in sorted(figures.items(), key=lambda item: not item[0].startswith("gateway-"))
    ]
    return ["scenario", "implementation", "protocol version", "CPU µs", "latency µs"], rows


def _list_startup(figures: dict[str, Any]) -> Table:
    """Return the figures without load, with a column for each implementation."""
    names = ["dovetail", "mcp", "fastmcp", "ts1", "ts2", "floor-inline", "floor-http"]
    rows = [
        [label, *(f"{figures[kind][name]['cpu_ms']:.0f}" if name in figures[kind] else "" for name in names)]
        for kind, label in (
            ("import", "import, CPU ms"),
            ("spawn", "start to first answer on stdio, CPU ms"),
            ("spawn-http", "start to first answer on HTTP, CPU ms"),
        )
    ]
    for field, label, unit in (
        ("idle_stdio", "idle on stdio, MB", 2**20),
        ("idle_http", "idle on HTTP, MB", 2**20),
        ("per_session", "one idle session, KB", 2**10),
    ):
        sizes = [figures["memory"][name].get(field) for name in names]
        rows.append([label, *("" if size is None else f"{size / unit:.1f}" for size in sizes)])
    return ["", *names], rows


def _list_plain_functions(scenarios: dict[str, Any]) -> Table:
    rows = [
        [
            label,
            *(_format_micros(scenarios[f"{transport}-{kind}-tool"]["dovetail"]) for transport in ("stdio", "http")),
        ]
        for kind, label in (
            ("async", "coroutine"),
            ("sync", "plain function"),
            ("inline", "plain function, `run_in_thread=False`"),
        )
    ]
    return ["tool", "stdio, 64 in flight", "HTTP, 32 connections"], rows


def _add_floor_ratios(published: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the verdicts. If a verdict compares a peer with dovetail, add the ratio of the peer to the floor."""
    ratios = published["ratios"]
    for verdict in published["verdicts"]:
        scenario, _, peer = verdict["name"].partition(":")
        floor = published["floors"].get(scenario)
        if verdict["least"] is not None and floor is not None:
            peer_to_floor = ratios[f"{scenario}:{floor}"]["ratio"] / ratios[f"{scenario}:{peer}"]["ratio"]
            yield verdict | {"beside": peer_to_floor}
        else:
            yield verdict


def _list_verdicts(verdicts: list[dict[str, Any]]) -> Table:
    rows = [
        [
            f"`{verdict['name']}`",
            f"{verdict['ratio']:.2f}",
            "" if verdict.get("low") is None else f"{verdict['low']:.2f} to {verdict['high']:.2f}",
            _format_floor_ratio(verdict),
            _format_limit(verdict),
            MET if verdict["good"] else "**missed**",
        ]
        for verdict in verdicts
    ]
    return ["ratio", "median", "range", "floor", "limit", "met"], rows


def _list_missed(verdicts: list[dict[str, Any]]) -> Table:
    """Return the missed limits, each with its reason."""
    rows = [
        [
            f"`{verdict['name']}`",
            f"{verdict['ratio']:.2f}",
            _format_floor_ratio(verdict),
            _format_limit(verdict),
            next((reason for pattern, reason in MISSED_LIMIT_REASONS if fnmatchcase(verdict["name"], pattern)), ""),
        ]
        for verdict in verdicts
        if not verdict["good"]
    ]
    return ["ratio", "median", "floor", "limit", "reason"], rows


def _list_go(go: dict[str, Any]) -> Table:
    names = ("dovetail", "Go SDK", "mcp-go")
    rows = [
        [row["scenario"], *("" if row[name] is None else f"{row[name]:,}" for name in names)] for row in go["calls"]
    ]
    return ["scenario", *names], rows


def _format_floor_ratio(verdict: dict[str, Any]) -> str:
    return "" if verdict.get("beside") is None else f"{verdict['beside']:.2f}"


def _format_limit(verdict: dict[str, Any]) -> str:
    return f"at most {verdict['most']:g}" if verdict["most"] is not None else f"at least {verdict['least']:g}"
