"""Print the results, and write them as JSON and as an SVG chart."""

import datetime
import json
import math
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import streams
from scenarios import LIMITS
from server_process import FLOORS, HERE, IMPLEMENTATIONS, OURS

RESULTS = HERE / "results"
_NODE_PACKAGES = ("@modelcontextprotocol/sdk", "@modelcontextprotocol/server", "@modelcontextprotocol/node")
_PYTHON_PACKAGES = ("dovetail-mcp", "mcp", "fastmcp", "msgspec", "uvicorn", "uvloop", "httptools")


class Verdict(NamedTuple):
    """A ratio and its limit, which is an upper or a lower one."""

    name: str
    ratio: float
    most: float | None
    least: float | None
    low: float | None = None  # the lowest and the highest ratio of all runs
    high: float | None = None
    beside: float | None = None  # the same ratio for the floor

    @property
    def is_met(self) -> bool:
        """Whether the ratio is within its limit."""
        return self.ratio <= self.most if self.most is not None else self.ratio >= (self.least or 0)

    @property
    def limit_text(self) -> str:
        """The limit as text."""
        return f"at most {self.most:g}" if self.most is not None else f"at least {self.least:g}"


def write(
    results: dict[str, Any],
    ratios: dict[str, Any],
    figures: dict[str, Any],
    verdicts: list[Verdict],
    plan: dict[str, Any],
    *,
    publish: bool,
) -> None:
    """Print the tables, and write the results and the chart."""
    out = sys.stdout
    for scenario, by_implementation in results.items():
        out.write(f"\n{scenario}\n{_table(by_implementation)}")
    out.write(_startup_tables(figures))
    out.write("\n")
    for verdict in verdicts:
        spread = "" if verdict.low is None else f"{verdict.low:.2f} to {verdict.high:.2f}"
        missed = "" if verdict.is_met else "MISSED"
        out.write(f"{verdict.name:52} {verdict.ratio:9.2f}  {spread:16} {verdict.limit_text:14} {missed}\n")
    record: dict[str, Any] = {
        **describe_run(plan),
        "web": {
            name: implementation.web
            for name, implementation in IMPLEMENTATIONS.items()
            if "http" in implementation.transports
        },
        "floors": {limit.scenario: limit.against for limit in LIMITS if limit.against in FLOORS},
        "verdicts": [verdict._asdict() | {"good": verdict.is_met} for verdict in verdicts],
        "scenes": results,
        "ratios": ratios,
        "still": figures,
    }
    RESULTS.mkdir(exist_ok=True)
    names = [record["date"][:16].replace(":", ""), *(["published"] if publish else [])]
    for name in names:
        (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        (RESULTS / f"{name}.svg").write_text(draw_chart(results), encoding="utf-8")
    written = [str((RESULTS / name).relative_to(HERE.parent)) for name in names]
    out.write(f"\nwritten: {', '.join(written)} (.json, .svg)\n")


def _table(by_implementation: dict[str, dict[str, Any]]) -> str:
    ours = by_implementation.get(OURS, {}).get("cpu_us")
    lines = [f"  {'':16}{'CPU us/call':>12}{'to ours':>9}{'calls/s':>10}{'p50 us':>9}{'load us':>9}{'foreign':>9}"]
    for name, figures in sorted(by_implementation.items(), key=lambda item: item[1]["cpu_us"]):
        to_ours = f"{figures['cpu_us'] / ours:.2f}" if ours else ""
        p50 = "" if figures["p50_us"] is None else f"{figures['p50_us']:.0f}"
        lines.append(
            f"  {name:16}{figures['cpu_us']:12.1f}{to_ours:>9}{figures['calls_s']:10.0f}{p50:>9}"
            f"{figures['load_us']:9.1f}{figures['foreign']:9.2f}"
        )
    return "\n".join(lines) + "\n"


def _startup_tables(figures: dict[str, Any]) -> str:
    lines: list[str] = []
    for kind in ("import", "spawn", "spawn-http"):
        if kind in figures:
            lines.append(f"\n{kind + ', ms':10}{'CPU':>16}{'wall':>9}")
            lines += [f"  {name:16}{row['cpu_ms']:8.1f}{row['wall_ms']:9.1f}" for name, row in figures[kind].items()]
    if "memory" in figures:
        lines.append(f"\nmemory{'idle stdio MB':>25}{'idle HTTP MB':>14}{'KB/session':>12}{'MB more after calls':>27}")
        for name, row in figures["memory"].items():
            more = f"{_format_mb(row['after_calls'] - row['before_calls'])} ({row['calls']})" if "calls" in row else ""
            session = f"{row['per_session'] / 1024:.1f}" if "per_session" in row else ""
            stdio, web = (_format_mb(row[key]) if key in row else "" for key in ("idle_stdio", "idle_http"))
            lines.append(f"  {name:16}{stdio:>13}{web:>14}{session:>12}{more:>27}")
    if "gateway" in figures:
        lines += _format_gateways(figures["gateway"])
    if "streams" in figures:
        lines += streams.format_table(figures["streams"])
    return "\n".join(lines) + "\n"


def _format_gateways(gateway: dict[str, Any]) -> list[str]:
    """Return the table of the gateways, with the differences between them."""
    title = f"gateway, CPU with {gateway['connections']} connections, p50 with one"
    lines = ["", title, f"  {'':40}{'era':12}{'CPU us/call':>12}{'p50 us':>10}"]
    for name, row in gateway["figures"].items():
        latency = f"{row['p50_us']:.0f}" if "p50_us" in row else ""
        lines.append(f"  {name:40}{row['era']:12}{row['cpu_us']:12.1f}{latency:>10}")
    return lines + [f"  {peer}: {note}" for peer, note in gateway["notes"].items()]


def _format_mb(size: float) -> str:
    return f"{size / 2**20:.1f}"


def describe_run(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the date, commit, machine, versions and plan of a run."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": describe_commit(),
        "machine": _machine(),
        "versions": _versions(),
        "plan": plan,
    }


def describe_commit() -> str:
    """Return the commit, and whether the sources have uncommitted changes."""
    try:
        commit_id = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--", "src", "bench", ":!bench/results")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit_id + (" with changes" if changed else "")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=HERE, capture_output=True, text=True, check=True).stdout.strip()


def _machine() -> dict[str, Any]:
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = models[0] if models else model
    return {"cpu": model, "cores": os.cpu_count(), "system": f"{platform.system()} {platform.release()}"}


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()} | {name: version(name) for name in _PYTHON_PACKAGES}
    for name in _NODE_PACKAGES:
        package = HERE / "node_modules" / name / "package.json"
        if package.exists():
            versions[name] = json.loads(package.read_text(encoding="utf-8"))["version"]
    node = IMPLEMENTATIONS["ts1"].program[0]
    versions["node"] = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return versions


# The chart

_ROW, _GAP, _LEFT, _WIDTH = 15, 10, 120, 700
_COLOURS = {"ours": "#1f6f4a", "floor": "#b9b9b9", "peer": "#c8803c"}
_PLOTTED_SCENARIOS = ("stdio-x64-handshake", "stdio-x64-stateless", "stdio-x1-handshake",
    "http-c32-handshake", "http-c32-stateless",
          "http-c1-stateless", "sse-c32", "http-call-1000-tools", "http-list-1000-tools")  # fmt: skip


def draw_chart(results: dict[str, Any]) -> str:
    """Draw the CPU microseconds per call, one group of bars per scenario."""
    groups = [(scenario, results[scenario]) for scenario in _PLOTTED_SCENARIOS if results.get(scenario)]
    costs = [row["cpu_us"] for _, by_implementation in groups for row in by_implementation.values()]
    low, high = (math.floor(math.log10(min(costs))), math.log10(max(costs))) if costs else (0, 1)
    scale = (_WIDTH - _LEFT - 70) / max(high - low, 1)
    title = "CPU microseconds of the server per call, on a logarithmic scale; shorter is better"
    y, elements = 40, [_svg_text(10, 20, title, bold=True)]
    for scenario, by_implementation in groups:
        elements.append(_svg_text(10, y + 11, scenario, bold=True))
        y += _ROW
        for name, row in sorted(by_implementation.items(), key=lambda item: item[1]["cpu_us"]):
            width = max((math.log10(row["cpu_us"]) - low) * scale, 1)
            kind = "ours" if name == OURS else "floor" if name.startswith("floor") else "peer"
            elements.append(_svg_text(_LEFT - 6, y + 11, name, end=True))
            bar = f'x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_ROW - 3}" fill="{_COLOURS[kind]}"'
            elements.append(f"<rect {bar}/>")
            elements.append(_svg_text(_LEFT + width + 5, y + 11, f"{row['cpu_us']:,.1f}"))
            y += _ROW
        y += _GAP
    size = f'width="{_WIDTH}" height="{y}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
    return "\n".join([head, f'<rect {size} fill="white"/>', *elements, "</svg>", ""])


def _svg_text(x: float, y: float, text: str, *, bold: bool = False, end: bool = False) -> str:
    style = (' font-weight="bold"' if bold else "") + (' text-anchor="end"' if end else "")
    return f'<text x="{x:.1f}" y="{y:.1f}"{style}>{escape(text)}</text>'
