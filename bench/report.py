"""The results in words, as JSON and as a picture: bars on a logarithmic scale, shorter is better."""

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

from scenarios import LIMITS
from server_process import FLOORS, HERE, IMPLEMENTATIONS, OURS

RESULTS = HERE / "results"
_NODE_PACKAGES = ("@modelcontextprotocol/sdk", "@modelcontextprotocol/server", "@modelcontextprotocol/node")
_PYTHON_PACKAGES = ("dovetail-mcp", "mcp", "fastmcp", "msgspec", "uvicorn", "uvloop", "httptools")


class Verdict(NamedTuple):
    """A ratio and its limit: at most, or at least."""

    name: str
    ratio: float
    most: float | None
    least: float | None
    low: float | None = None  # the least and the greatest that a turn found
    high: float | None = None
    beside: float | None = None  # the same ratio of the floor

    @property
    def is_met(self) -> bool:
        """Whether it is kept."""
        return self.ratio <= self.most if self.most is not None else self.ratio >= (self.least or 0)

    @property
    def limit_text(self) -> str:
        """The limit in words."""
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
    """Print the tables; keep the numbers and the picture."""
    out = sys.stdout
    for scene, cast in results.items():
        out.write(f"\n{scene}\n{_table(cast)}")
    out.write(_still_tables(figures))
    out.write("\n")
    for one in verdicts:
        spread = "" if one.low is None else f"{one.low:.2f} to {one.high:.2f}"
        out.write(f"{one.name:52} {one.ratio:9.2f}  {spread:16} {one.limit_text:14} {'' if one.is_met else 'MISSED'}\n")
    record: dict[str, Any] = {
        **about(plan),
        "web": {name: one.web for name, one in IMPLEMENTATIONS.items() if "http" in one.transports},
        "floors": {limit.scene: limit.against for limit in LIMITS if limit.against in FLOORS},
        "verdicts": [one._asdict() | {"good": one.is_met} for one in verdicts],
        "scenes": results,
        "ratios": ratios,
        "still": figures,
    }
    RESULTS.mkdir(exist_ok=True)
    names = [record["date"][:16].replace(":", ""), *(["published"] if publish else [])]
    for name in names:
        (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        (RESULTS / f"{name}.svg").write_text(picture(results), encoding="utf-8")
    written = [str((RESULTS / name).relative_to(HERE.parent)) for name in names]
    out.write(f"\nwritten: {', '.join(written)} (.json, .svg)\n")


def _table(cast: dict[str, dict[str, Any]]) -> str:
    ours = cast.get(OURS, {}).get("cpu_us")
    lines = [f"  {'':16}{'CPU us/call':>12}{'to ours':>9}{'calls/s':>10}{'p50 us':>9}{'load us':>9}{'foreign':>9}"]
    for name, one in sorted(cast.items(), key=lambda item: item[1]["cpu_us"]):
        to_ours = f"{one['cpu_us'] / ours:.2f}" if ours else ""
        p50 = "" if one["p50_us"] is None else f"{one['p50_us']:.0f}"
        lines.append(
            f"  {name:16}{one['cpu_us']:12.1f}{to_ours:>9}{one['calls_s']:10.0f}{p50:>9}"
            f"{one['load_us']:9.1f}{one['foreign']:9.2f}"
        )
    return "\n".join(lines) + "\n"


def _still_tables(figures: dict[str, Any]) -> str:
    lines: list[str] = []
    for kind in ("import", "spawn"):
        if kind in figures:
            lines.append(f"\n{kind}, ms{'CPU':>17}{'wall':>9}")
            lines += [f"  {name:16}{one['cpu_ms']:8.1f}{one['wall_ms']:9.1f}" for name, one in figures[kind].items()]
    if "memory" in figures:
        lines.append(f"\nmemory{'idle stdio MB':>25}{'idle HTTP MB':>14}{'KB/session':>12}{'MB more after calls':>27}")
        for name, one in figures["memory"].items():
            more = f"{_mega(one['after_calls'] - one['before_calls'])} ({one['calls']})" if "calls" in one else ""
            session = f"{one['per_session'] / 1024:.1f}" if "per_session" in one else ""
            stdio, web = (_mega(one[key]) if key in one else "" for key in ("idle_stdio", "idle_http"))
            lines.append(f"  {name:16}{stdio:>13}{web:>14}{session:>12}{more:>27}")
    return "\n".join(lines) + "\n"


def _mega(size: float) -> str:
    return f"{size / 2**20:.1f}"


def about(plan: dict[str, Any]) -> dict[str, Any]:
    """When, where and what was measured."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": _machine(),
        "versions": _versions(),
        "plan": plan,
    }


def commit() -> str:
    """The state of the sources, and whether it is a state anybody else can have."""
    try:
        named = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--", "src", "bench", ":!bench/results")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return named + (" with changes" if changed else "")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True, check=True).stdout.strip()


def _machine() -> dict[str, Any]:
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        named = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = named[0] if named else model
    return {"cpu": model, "cores": os.cpu_count(), "system": f"{platform.system()} {platform.release()}"}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()} | {name: version(name) for name in _PYTHON_PACKAGES}
    for name in _NODE_PACKAGES:
        package = HERE / "node_modules" / name / "package.json"
        if package.exists():
            found[name] = json.loads(package.read_text(encoding="utf-8"))["version"]
    node = IMPLEMENTATIONS["ts1"].program[0]
    found["node"] = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return found


# The picture

_ROW, _GAP, _LEFT, _WIDTH = 15, 10, 120, 700
_COLOURS = {"ours": "#1f6f4a", "floor": "#b9b9b9", "peer": "#c8803c"}
_PLOTTED_SCENARIOS = ("stdio-x64-handshake", "stdio-x64-stateless", "stdio-x1-handshake",
    "http-c32-handshake", "http-c32-stateless",
          "http-c1-stateless", "sse-c32", "http-call-1000-tools", "http-list-1000-tools")  # fmt: skip


def picture(results: dict[str, Any]) -> str:
    """CPU microseconds per call, one group of bars for each scene."""
    groups = [(scene, results[scene]) for scene in _PLOTTED_SCENARIOS if results.get(scene)]
    figures = [one["cpu_us"] for _, cast in groups for one in cast.values()]
    low, high = (math.floor(math.log10(min(figures))), math.log10(max(figures))) if figures else (0, 1)
    scale = (_WIDTH - _LEFT - 70) / max(high - low, 1)
    title = "CPU microseconds of the server per call, on a logarithmic scale; shorter is better"
    y, marks = 40, [_svg_text(10, 20, title, bold=True)]
    for scene, cast in groups:
        marks.append(_svg_text(10, y + 11, scene, bold=True))
        y += _ROW
        for name, one in sorted(cast.items(), key=lambda item: item[1]["cpu_us"]):
            wide = max((math.log10(one["cpu_us"]) - low) * scale, 1)
            kind = "ours" if name == OURS else "floor" if name.startswith("floor") else "peer"
            marks.append(_svg_text(_LEFT - 6, y + 11, name, end=True))
            marks.append(f'<rect x="{_LEFT}" y="{y}" width="{wide:.1f}" height="{_ROW - 3}" fill="{_COLOURS[kind]}"/>')
            marks.append(_svg_text(_LEFT + wide + 5, y + 11, f"{one['cpu_us']:,.1f}"))
            y += _ROW
        y += _GAP
    size = f'width="{_WIDTH}" height="{y}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
    return "\n".join([head, f'<rect {size} fill="white"/>', *marks, "</svg>", ""])


def _svg_text(x: float, y: float, text: str, *, bold: bool = False, end: bool = False) -> str:
    style = (' font-weight="bold"' if bold else "") + (' text-anchor="end"' if end else "")
    return f'<text x="{x:.1f}" y="{y:.1f}"{style}>{escape(text)}</text>'
