"""What is measured, and what must come out: scenes in blocks, and the limits on their ratios.

All scenes of a block are played in turns on servers that stay up: see turns.py.
"""

from collections.abc import Callable
from typing import NamedTuple

import request_kinds
from request_kinds import HANDSHAKE, STATELESS, RequestKind
from server_process import FLOORS, IMPLEMENTATIONS, OURS, ServerSettings

ERAS = {"handshake": HANDSHAKE, "stateless": STATELESS}
MANY_TOOLS = 1000


class Scenario(NamedTuple):
    """One kind of request to one kind of server, `width` at once."""

    name: str
    setting: ServerSettings
    era: str
    width: int
    ask: Callable[[], RequestKind]
    who: tuple[str, ...] = ()  # nobody named: everyone who can

    def participants(self, wanted: tuple[str, ...]) -> list[str]:
        """Who plays in it."""
        return [
            name
            for name in self.who or tuple(IMPLEMENTATIONS)
            if name in wanted
            and self.setting.transport in IMPLEMENTATIONS[name].transports
            and self.era in IMPLEMENTATIONS[name].eras
        ]


def _blocks() -> dict[str, list[Scenario]]:
    stdio, web, stream = ServerSettings("stdio"), ServerSettings("http"), ServerSettings("http", "sse")
    many, web_many = stdio._replace(tools=MANY_TOOLS), web._replace(tools=MANY_TOOLS)
    listing = lambda: request_kinds.list_tools(MANY_TOOLS)  # noqa: E731
    large = lambda: request_kinds.echo_large(1)  # noqa: E731
    resource = lambda: request_kinds.read_resource(5)  # noqa: E731
    huge = lambda: request_kinds.echo_large(20)  # noqa: E731
    huge_resource = lambda: request_kinds.read_resource(20)  # noqa: E731
    open_stdio, open_web = (one._replace(large=True, megabytes=20) for one in (stdio, web))
    locked, web_locked = (one._replace(filtered=True) for one in (many, web_many))
    lean = (OURS, "floor-inline", "floor-http")
    peers = tuple(name for name in IMPLEMENTATIONS if name not in FLOORS or name in lean)
    sync = (OURS, "mcp", "fastmcp")
    return {
        "stdio": [
            *(Scenario(f"stdio-x64-{era}", stdio, era, 64, request_kinds.echo) for era in ERAS),
            *(Scenario(f"stdio-x1-{era}", stdio, era, 1, request_kinds.echo) for era in ERAS),
            Scenario("stdio-x64-add", stdio, "handshake", 64, request_kinds.add),
        ],
        "http": [
            Scenario(f"http-c{width}-{era}", web, era, width, request_kinds.echo) for era in ERAS for width in (1, 32)
        ],
        "sse": [Scenario(f"sse-c{width}", stream, "handshake", width, request_kinds.echo) for width in (1, 32)],
        "tools": [
            Scenario("http-call-few-tools", web, "stateless", 1, request_kinds.echo),
            Scenario("http-call-1000-tools", web_many, "stateless", 1, request_kinds.echo),
            Scenario("stdio-call-few-tools", stdio, "handshake", 64, request_kinds.echo, peers),
            Scenario("stdio-call-1000-tools", many, "handshake", 64, request_kinds.echo, peers),
            Scenario("http-list-1000-tools", web_many, "stateless", 1, listing),
            Scenario("stdio-list-1000-tools", many, "handshake", 1, listing, peers),
            Scenario("http-list-filtered", web_locked, "stateless", 1, listing, lean),
            Scenario("stdio-list-filtered", locked, "handshake", 1, listing, lean),
        ],
        "large": [
            Scenario("stdio-echo-1MB", stdio, "handshake", 1, large),
            Scenario("http-echo-1MB-handshake", web, "handshake", 1, large),
            Scenario("http-echo-1MB-stateless", web, "stateless", 1, large),
            Scenario("stdio-resource-5MB", stdio, "handshake", 1, resource),
            Scenario("http-resource-5MB-handshake", web, "handshake", 1, resource),
            Scenario("http-resource-5MB-stateless", web, "stateless", 1, resource),
            Scenario("stdio-echo-20MB", open_stdio, "handshake", 1, huge, lean),
            Scenario("http-echo-20MB-stateless", open_web, "stateless", 1, huge, lean),
            Scenario("stdio-resource-20MB", open_stdio, "handshake", 1, huge_resource, lean),
            Scenario("http-resource-20MB-stateless", open_web, "stateless", 1, huge_resource, lean),
        ],
        "sync": [
            Scenario("stdio-async-tool", stdio, "handshake", 64, request_kinds.echo, sync),
            Scenario("stdio-sync-tool", stdio, "handshake", 64, lambda: request_kinds.echo("echo_sync"), sync),
            Scenario("stdio-inline-tool", stdio, "handshake", 64, lambda: request_kinds.echo("echo_inline"), (OURS,)),
            Scenario("http-async-tool", web, "stateless", 32, request_kinds.echo, sync),
            Scenario("http-sync-tool", web, "stateless", 32, lambda: request_kinds.echo("echo_sync"), sync),
            Scenario("http-inline-tool", web, "stateless", 32, lambda: request_kinds.echo("echo_inline"), (OURS,)),
        ],
    }


BLOCKS = _blocks()
QUICK = ("stdio", "http", "sse", "tools", "large")
QUICK_WHO = (OURS, *FLOORS)


class Limit(NamedTuple):
    """Our figure over another's: at most `most`; or another's over ours: at least `least`."""

    scene: str
    against: str  # an implementation; "best": whoever is, but us; or another scene, of ours
    most: float | None = None
    least: float | None = None
    scale: float = 1.0  # how many times the work of the other scene this one does
    beside: str = ""  # a floor whose own ratio of the two scenes is shown beside ours

    @property
    def name(self) -> str:
        """How it is called in the output."""
        return f"{self.scene}:{self.against}"


def _limits() -> list[Limit]:
    http = [f"http-c{width}-{era}" for era in ERAS for width in (1, 32)]
    found = [
        *(Limit(f"stdio-x64-{what}", "floor-inline", most=4) for what in (*ERAS, "add")),
        *(Limit(f"stdio-x1-{era}", "floor-task", most=1.4) for era in ERAS),
        *(Limit(scene, "floor-http", most=1.6) for scene in http),
        *(Limit(f"sse-c{width}", "floor-http", most=1.8) for width in (1, 32)),
        Limit("http-call-1000-tools", "http-call-few-tools", most=1.1),
        Limit("stdio-call-1000-tools", "stdio-call-few-tools", most=1.1),
        Limit("http-list-1000-tools", "floor-http", most=3),
        Limit("stdio-list-1000-tools", "floor-inline", most=3),
        Limit("http-list-filtered", "floor-http", most=3),
        Limit("stdio-list-filtered", "floor-inline", most=3),
        *(Limit(one.name, "best", most=1.5) for one in BLOCKS["large"] if "20MB" not in one.name),
        Limit("stdio-echo-20MB", "stdio-echo-1MB", most=1.2, scale=20, beside="floor-inline"),
        Limit("http-echo-20MB-stateless", "http-echo-1MB-stateless", most=1.2, scale=20, beside="floor-http"),
        Limit("stdio-resource-20MB", "stdio-resource-5MB", most=1.2, scale=4, beside="floor-inline"),
        Limit("http-resource-20MB-stateless", "http-resource-5MB-stateless", most=1.2, scale=4, beside="floor-http"),
        Limit("stdio-x64-handshake", "ts1", least=1),
        *(Limit(f"stdio-x64-{era}", "mcp", least=60) for era in ERAS),
    ]
    wanted = {"mcp": 8, "mcp-uvloop": 6, "fastmcp": 20, "ts1": 5, "ts2": 5}
    found += [Limit(scene, peer, least=least) for scene in http for peer, least in wanted.items()]
    return [one for one in found if not (one.against == "ts1" and one.scene.endswith("stateless"))]


LIMITS = _limits()

# The figures that are no calls: see still.py. Ratios to the floor, but for the session, which is in kilobytes.
STARTUP_LIMITS = {"import": 1.3, "spawn": 1.8, "rss-idle-stdio": 1.4, "rss-per-session-KB": 4.0, "rss-100k-calls": 1.05}
QUICK_LIMITS = {"rss-20k-calls": 1.05}
