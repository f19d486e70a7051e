"""Write the generated parts of pages, from the code and from published measurements.

- protocol.md: tables of methods and error codes
- schemas.md: the rules of model providers
- guide/types.md, guide/client.md: tables of types and limits
- performance.md: the published results of the benchmarks
- commands/: the help of each command

Run it after you change one of these. A test compares the result with the files. The reference is not one of them:
`make docs` writes it with `reference_pages.py`.
"""

import ast
import importlib
import json
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import click

import dovetail
from dovetail import errors
from dovetail.cli.error_report import EXIT_CODE_DESCRIPTIONS
from dovetail.cli.main import COMMAND_GROUPS, COMMAND_SUMMARIES, load_command
from dovetail.protocol import downgrade
from dovetail.protocol.http_checks import get_http_status
from dovetail.protocol.limits import CallerBusy
from dovetail.schemas.provider_rules import PROVIDER_RULES
from dovetail.wire.methods import BATCH_REVISIONS, METHODS, Method
from dovetail.wire.revisions import REVISIONS, is_stateless

DOCS = Path(__file__).parent
PACKAGE = Path(dovetail.__file__).parent

YES, NO, INLINE = "●", "", "○"
HELP = ["-h", "--help"]

# One of each error that a server sends.
REFUSALS = (
    errors.ParseError(""),
    errors.InvalidRequest(""),
    errors.MethodNotFound(""),
    errors.InvalidParams(""),
    errors.ToolNotFound(""),
    errors.PromptNotFound(""),
    errors.ResourceNotFound(""),
    errors.InternalError(""),
    errors.HeaderMismatch(""),
    errors.MissingClientCapability({}),
    errors.UnsupportedProtocolVersion("", []),
    errors.URLElicitationRequired("", "", ""),
    errors.InsufficientScope(()),
    errors.ServerBusy(""),
    CallerBusy(""),
)

RULE_LABELS = {
    "name_pattern": "tool name matches",
    "parameter_pattern": "parameter name matches",
    "max_description_chars": "maximum description length",
    "keywords": "allowed keywords",
    "formats": "allowed formats",
    "allows_references": "`$ref` is allowed",
    "allows_recursion": "recursive types are allowed",
    "needs_items": "arrays must have `items`",
    "needs_type": "schemas must have a type, objects must have properties",
    "only_text_enums": "`enum` can contain only strings",
    "requires_closed_objects": "objects must have `additionalProperties: false`",
    "requires_all_properties": "all properties must be required",
    "limits_min_items": "`minItems` must be 0 or 1",
}


# Sections of performance.md that explain why limits are missed. The first pattern that matches the name applies.
MISSED_LIMIT_SECTIONS = (
    ("stdio-x64-*", "One call over stdio"),
    ("http-c*:floor-*", "One call over HTTP"),
    ("sse-*:floor-*", "One call over HTTP"),
    ("http-c1-*", "One connection"),
    ("*MB*", "Large messages"),
    ("import", "Import"),
    ("spawn*", "Import"),
    ("stdio-*-x1:mcp", "One call of a client over stdio"),
    ("memory-*", "Calls in memory"),
    ("gateway-*", "Gateways"),
    ("notice-us-*", "Open streams"),
    ("stream-KB-*", "Open streams"),
)


def create_pages() -> dict[Path, str]:
    """Return the current text of every page with a generated part."""
    protocol = DOCS / "protocol.md"
    text = protocol.read_text(encoding="utf-8")
    for name, table in (("methods", create_methods_table()), ("codes", create_codes_table())):
        text = _replace_table(text, name, table)
    return {
        protocol: text,
        DOCS / "guide" / "types.md": create_types_page(),
        DOCS / "guide" / "client.md": create_client_page(),
        DOCS / "schemas.md": create_schemas_page(),
        DOCS / "performance.md": create_performance_page(),
        **create_command_pages(),
    }


def create_client_page() -> str:
    """Return the page on clients with the tables of limits."""
    text = (DOCS / "guide" / "client.md").read_text(encoding="utf-8")
    for name, kind, head in (
        ("timeouts", dovetail.Timeouts, ["limit", "seconds", ""]),
        ("limits", dovetail.ClientLimits, ["limit", "default", ""]),
    ):
        text = _replace_table(text, name, _table(head, list(_list_limits(kind))))
    return text


def _list_limits(kind: type) -> Iterator[list[str]]:
    """Yield each field of a struct of limits with its default and its comment."""
    source = Path(str(importlib.import_module(kind.__module__).__file__)).read_text(encoding="utf-8").splitlines()
    (node,) = [item for item in ast.parse("\n".join(source)).body if getattr(item, "name", "") == kind.__name__]
    assert isinstance(node, ast.ClassDef)
    read_comment = _import_neighbor("reference_pages").read_comment
    for member in node.body:
        if isinstance(member, ast.AnnAssign) and member.value is not None:
            default = ast.unparse(member.value).replace(" * ", " ").removesuffix(".0")
            meaning = read_comment(source, member)
            yield [f"`{ast.unparse(member.target)}`", f"{int(default):,}" if default.isdigit() else default, meaning]


def create_command_pages() -> dict[Path, str]:
    """Return the pages of the commands with their help, and the overview with all commands and exit codes."""
    folder = DOCS / "commands"
    first = (folder / "README.md").read_text(encoding="utf-8")
    groups = [
        f"**{title}**: " + " · ".join(f"[`{name}`]({name}.md)" for name in group)
        for title, group in COMMAND_GROUPS.items()
    ]
    meanings = [[str(code), description] for code, description in EXIT_CODE_DESCRIPTIONS.items()]
    first = _replace_table(
        _replace_table(first, "commands", "\n\n".join(groups)), "exits", _table(["code", "meaning"], meanings)
    )
    texts = {folder / "README.md": first}
    for name in COMMAND_SUMMARIES:
        page = folder / f"{name}.md"
        command = load_command(name)
        text = page.read_text(encoding="utf-8") if page.exists() else f"# dovetail {name}\n"
        help_texts = "\n\n".join(f"```text\n{help_text}\n```" for help_text in _list_help_texts(name, command))
        texts[page] = _replace_table(text, "help", help_texts)
    return texts


def _list_help_texts(name: str, command: click.Command) -> Iterator[str]:
    with click.Context(command, info_name=f"dovetail {name}", terminal_width=100, help_option_names=HELP) as ctx:
        yield command.get_help(ctx)
    if isinstance(command, click.Group):
        for inner, subcommand in command.commands.items():
            yield from _list_help_texts(f"{name} {inner}", subcommand)


def create_performance_page() -> str:
    """Return the page on performance with the published results."""
    results = DOCS.parent / "bench/results"
    published = json.loads((results / "published.json").read_text(encoding="utf-8"))
    clients = json.loads((results / "published-clients.json").read_text(encoding="utf-8"))
    text = (DOCS / "performance.md").read_text(encoding="utf-8")
    verdicts = list(_add_floor_ratios(published))
    for name, table in (
        ("plain-functions", _format_plain_functions(published["scenes"])),
        ("versions", _format_versions(published)),
        ("calls", _format_calls(published)),
        ("still", _format_startup(published["still"])),
        ("limits", _format_verdicts(verdicts)),
        ("clients", _format_clients(clients)),
        ("client-limits", _format_verdicts(clients["verdicts"])),
        ("gateways", _format_gateways(published["still"]["gateway"]["figures"])),
        ("missed", _format_missed([*verdicts, *clients["verdicts"]])),
    ):
        text = _replace_table(text, name, table)
    return text


def _format_versions(published: dict[str, Any]) -> str:
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
    }
    stacks = {f"{name} over HTTP": stack for name, stack in published["web"].items()}
    rows = [[name, str(value)] for name, value in (description | published["versions"] | stacks).items()]
    return _table(["", ""], rows)


def _format_calls(published: dict[str, Any]) -> str:
    """Return CPU microseconds per call: of dovetail, the floors, each peer and the load generator."""
    peers = ("mcp", "mcp-uvloop", "fastmcp", "ts1", "ts2")
    has_protocol_floor = any("floor-protocol" in by_name for by_name in published["scenes"].values())
    other_floors = ("floor-protocol",) if has_protocol_floor else ()
    rows = [
        [
            f"`{scenario}`",
            _format_micros(by_implementation.get("dovetail")),
            _format_floor(by_implementation, published["floors"].get(scenario)),
            *(_format_micros(by_implementation.get(name)) for name in (*other_floors, *peers)),
            f"{by_implementation['dovetail']['load_us']:,.0f}",
        ]
        for scenario, by_implementation in published["scenes"].items()
    ]
    return _table(["scenario", "dovetail", "floor", *other_floors, *peers, "generator"], rows)


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


def _format_clients(clients: dict[str, Any]) -> str:
    """Return CPU microseconds per call: of dovetail, the floor and each peer."""
    names, plan = ("dovetail", "floor", "mcp", "fastmcp"), clients["plan"]
    rows = [
        [f"`{scenario}`", *(_format_micros(by_implementation.get(name)) for name in names)]
        for scenario, by_implementation in clients["scenes"].items()
    ]
    commit = clients.get("commit", "unknown")
    description = f"Measured {clients['date']}, commit {commit}, {plan['rounds']} rounds of {plan['seconds']} s."
    return f"{_table(['scenario', *names], rows)}\n\n{description}"


def _format_gateways(figures: dict[str, Any]) -> str:
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
    return _table(["scenario", "implementation", "protocol version", "CPU µs", "latency µs"], rows)


def _format_startup(figures: dict[str, Any]) -> str:
    """Return the figures without load, with a column for each implementation."""
    names = [name for name in figures["memory"] if name in figures["spawn"] or name == "floor-http"]
    fields = [("idle_stdio", "idle on stdio, MB", 2**20), ("idle_http", "idle on HTTP, MB", 2**20),
              ("per_session", "one idle session, KB", 2**10)]  # fmt: skip
    rows = [
        [label, *(f"{figures[kind][name]['cpu_ms']:.0f}" if name in figures[kind] else "" for name in names)]
        for kind, label in (
            ("spawn", "start to first answer on stdio, CPU ms"),
            ("spawn-http", "start to first answer on HTTP, CPU ms"),
        )
    ]
    for field, label, unit in fields:
        sizes = [figures["memory"][name].get(field) for name in names]
        rows.append([label, *("" if size is None else f"{size / unit:.1f}" for size in sizes)])
    imports = {name: import_figures["cpu_ms"] for name, import_figures in figures["import"].items()}
    rows.append(["import, CPU ms", *(f"{imports[name]:.0f}" if name in imports else "" for name in names)])
    floor = f"`import asyncio, msgspec` takes {imports['floor']:.0f} ms, an empty Python {imports['python']:.0f}."
    return f"{_table(['', *names], rows)}\n\n{floor}"


def _format_plain_functions(scenarios: dict[str, Any]) -> str:
    rows = [
        [
            label,
            f"`*-{kind}-tool`",
            *(_format_micros(scenarios[f"{transport}-{kind}-tool"]["dovetail"]) for transport in ("stdio", "http")),
        ]
        for kind, label in (
            ("async", "coroutine"),
            ("sync", "plain function"),
            ("inline", "plain function, `run_in_thread=False`"),
        )
    ]
    return _table(["tool", "scenario", "stdio, 64 in flight", "HTTP, 32 connections"], rows)


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


def _format_verdicts(verdicts: list[dict[str, Any]]) -> str:
    rows = [
        [
            f"`{verdict['name']}`",
            f"{verdict['ratio']:.2f}",
            "" if verdict.get("low") is None else f"{verdict['low']:.2f} to {verdict['high']:.2f}",
            _format_floor_ratio(verdict),
            _format_limit(verdict),
            YES if verdict["good"] else "**missed**",
        ]
        for verdict in verdicts
    ]
    return _table(["ratio", "median", "range", "floor", "limit", "met"], rows)


def _format_missed(verdicts: list[dict[str, Any]]) -> str:
    """Return the missed limits, each with a link to the section that gives the reason."""
    rows: list[list[str]] = []
    for verdict in verdicts:
        if not verdict["good"]:
            name = verdict["name"]
            title = next((title for pattern, title in MISSED_LIMIT_SECTIONS if fnmatchcase(name, pattern)), None)
            link = "" if title is None else f"[{title}](#{title.lower().replace(' ', '-')})"
            rows.append(
                [f"`{name}`", f"{verdict['ratio']:.2f}", _format_floor_ratio(verdict), _format_limit(verdict), link]
            )
    return _table(["ratio", "median", "floor", "limit", "reason"], rows) if rows else "No limit is missed."


def _format_floor_ratio(verdict: dict[str, Any]) -> str:
    return "" if verdict.get("beside") is None else f"{verdict['beside']:.2f}"


def _format_limit(verdict: dict[str, Any]) -> str:
    return f"at most {verdict['most']:g}" if verdict["most"] is not None else f"at least {verdict['least']:g}"


def create_schemas_page() -> str:
    """Return the page on schemas with the rules of the model providers."""
    text = (DOCS / "schemas.md").read_text(encoding="utf-8")
    head = ["", *(f"`{name}`" for name in PROVIDER_RULES)]
    rows = [
        [label, *(_format_rule(getattr(rule, field)) for rule in PROVIDER_RULES.values())]
        for field, label in RULE_LABELS.items()
    ]
    return _replace_table(text, "rules", _table(head, rows))


def _format_rule(value: object) -> str:
    match value:
        case frozenset():
            return ", ".join(f"`{item}`" for item in sorted(value))
        case bool():
            return YES if value else NO
        case None:
            return "*any*"
        case int():
            return str(value)
        case _:
            return f"`{value}`"


def create_types_page() -> str:
    """Return the page on types with its tables."""
    text = (DOCS / "guide" / "types.md").read_text(encoding="utf-8")
    tables = _import_neighbor("type_tables")
    text = _replace_table(text, "parameters", _table(["annotation", "schema"], tables.list_parameter_rows()))
    head = ["annotation", "returned", "content", "structured content", "output schema"]
    return _replace_table(text, "results", _table(head, tables.list_result_rows()))


def _import_neighbor(name: str) -> ModuleType:
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(DOCS))


def _replace_table(text: str, name: str, table: str) -> str:
    start, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
    before, _, rest = text.partition(start)
    _, _, after = rest.partition(end)
    return f"{before}{start}\n{table}\n{end}{after}"


# Tables


def create_methods_table() -> str:
    """Return a table with a row for each method and a column for each protocol version."""
    head = ["method", "sent by", *REVISIONS, "notes"]
    rows = [
        [f"`{row.name}`", _sender(row), *(_mark(row, revision) for revision in REVISIONS), _notes(row)]
        for row in METHODS.values()
    ]
    batches = [
        "*batches: several messages in one array*",
        "both",
        *(YES if revision in BATCH_REVISIONS else NO for revision in REVISIONS),
        "",
    ]
    return _table(head, [*rows, batches])


def _sender(row: Method) -> str:
    return "either" if row.sender == "both" else row.sender


def _mark(row: Method, revision: str) -> str:
    if not row.exists_in(revision):
        return NO
    return INLINE if row.result is not None and row.sender == "server" and is_stateless(revision) else YES


def _notes(row: Method) -> str:
    notes: list[str] = []
    if row.may_require_input:
        notes.append("may ask")
    if row.is_cacheable:
        notes.append("lifetime")
    if row.name_parameter is not None:
        notes.append(f"`Mcp-Name` contains `{row.name_parameter}`")
    return ", ".join(notes)


def create_codes_table() -> str:
    """Return the code of each error in each protocol version, and its HTTP status."""
    head = ["error", *REVISIONS, "HTTP, stateless"]
    rows = [[_name(exc), *(_code(exc, revision) for revision in REVISIONS), _status(exc)] for exc in REFUSALS]
    rows.append(_draft_only("a cancelled request", downgrade.DRAFT_CANCELLED, "no answer"))
    rows.append(_draft_only("a duplicate request id", downgrade.DRAFT_DUPLICATE_ID, str(errors.InvalidRequest.code)))
    return _table(head, rows)


def _name(exc: errors.ProtocolError) -> str:
    name = f"`{type(exc).__name__}`"
    return f"{name} (limit of one caller)" if isinstance(exc, CallerBusy) else name


def _code(exc: errors.ProtocolError, revision: str) -> str:
    if isinstance(exc, errors.HeaderMismatch) and not is_stateless(revision):
        return ""
    return str(downgrade.get_error_code(revision, exc))


def _status(exc: errors.ProtocolError) -> str:
    return str(get_http_status(exc))


def _draft_only(label: str, code: int, other: str) -> list[str]:
    return [label, *(str(code) if revision == "draft" else other for revision in REVISIONS), ""]


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def main() -> int:
    """Write the pages that changed."""
    texts = create_pages()
    stale = {
        page: text for page, text in texts.items() if not page.exists() or page.read_text(encoding="utf-8") != text
    }
    for page, text in stale.items():
        page.parent.mkdir(exist_ok=True)
        page.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{len(stale)} of {len(texts)} pages written.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
