"""Writes the generated pages and tables from the code and from published measurements.

- reference.md and reference/: every public name, from signatures, docstrings and comments (`reference_pages.py`)
- protocol.md: tables of methods and error codes
- schemas.md: the rules of model providers
- guide/types.md, guide/client.md: tables of types and limits
- performance.md: the published results of the benchmarks
- commands/: the help of each command

Run it after you change one of these. A test compares the result with the files. `--unexplained` lists the options of
public functions and classes that have no explanation, and writes nothing.
"""

import ast
import importlib
import json
import sys
from collections.abc import Iterator
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

# One of each error a server sends; `code` tells what it is called in each revision.
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
    errors.ServerBusy(""),
    CallerBusy(""),
)

RULE_LABELS = {
    "name_pattern": "name of a tool",
    "parameter_pattern": "name of a parameter",
    "max_description_chars": "longest description",
    "keywords": "keywords",
    "formats": "formats",
    "allows_references": "`$ref` is taken",
    "allows_recursion": "a type may contain itself",
    "needs_items": "arrays need `items`",
    "needs_type": "every schema needs a type, every object properties",
    "only_text_enums": "only texts are enumerated",
    "requires_closed_objects": "every object is closed",
    "requires_all_properties": "every property is required",
    "limits_min_items": "`minItems` is 0 or 1",
}


def pages() -> dict[Path, str]:
    """Every generated page, as it should be."""
    protocol = DOCS / "protocol.md"
    text = protocol.read_text(encoding="utf-8")
    for name, table in (("methods", methods()), ("codes", codes())):
        text = _replaced(text, name, table)
    return {
        protocol: text,
        **_import_neighbor("reference_pages").create_pages(DOCS),
        DOCS / "guide" / "types.md": types(),
        DOCS / "guide" / "client.md": client(),
        DOCS / "schemas.md": schemas(),
        DOCS / "performance.md": performance(),
        **commands(),
    }


def client() -> str:
    """The page on clients, with every limit."""
    text = (DOCS / "guide" / "client.md").read_text(encoding="utf-8")
    for name, kind, head in (
        ("timeouts", dovetail.Timeouts, ["limit", "seconds", ""]),
        ("limits", dovetail.ClientLimits, ["limit", "default", ""]),
    ):
        text = _replaced(text, name, _table(head, list(_limits(kind))))
    return text


def _limits(kind: type) -> Iterator[list[str]]:
    """The fields of a struct of limits: each with its default and the comment beside it."""
    source = Path(str(importlib.import_module(kind.__module__).__file__)).read_text(encoding="utf-8").splitlines()
    (node,) = [one for one in ast.parse("\n".join(source)).body if getattr(one, "name", "") == kind.__name__]
    assert isinstance(node, ast.ClassDef)
    for member in node.body:
        if isinstance(member, ast.AnnAssign) and member.value is not None:
            default = ast.unparse(member.value).replace(" * ", " ").removesuffix(".0")
            meaning = source[member.lineno - 1].partition("  # ")[2]
            yield [f"`{ast.unparse(member.target)}`", f"{int(default):,}" if default.isdigit() else default, meaning]


def commands() -> dict[Path, str]:
    """The pages of the command line: each with its help, the first with all commands and what exits mean."""
    folder = DOCS / "commands"
    first = (folder / "README.md").read_text(encoding="utf-8")
    groups = [
        f"**{title}**: " + " · ".join(f"[`{name}`]({name}.md)" for name in group)
        for title, group in COMMAND_GROUPS.items()
    ]
    meanings = [[str(code), description] for code, description in EXIT_CODE_DESCRIPTIONS.items()]
    first = _replaced(_replaced(first, "commands", "\n\n".join(groups)), "exits", _table(["code", "meaning"], meanings))
    made = {folder / "README.md": first}
    for name in COMMAND_SUMMARIES:
        page = folder / f"{name}.md"
        command = load_command(name)
        text = page.read_text(encoding="utf-8") if page.exists() else f"# dovetail {name}\n"
        made[page] = _replaced(text, "help", "\n\n".join(f"```text\n{one}\n```" for one in _helps(name, command)))
    return made


def _helps(name: str, command: click.Command) -> Iterator[str]:
    with click.Context(command, info_name=f"dovetail {name}", terminal_width=100, help_option_names=HELP) as ctx:
        yield command.get_help(ctx)
    if isinstance(command, click.Group):
        for inner, one in command.commands.items():
            yield from _helps(f"{name} {inner}", one)


def performance() -> str:
    """The page on performance, with the published results."""
    results = DOCS.parent / "bench/results"
    published = json.loads((results / "published.json").read_text(encoding="utf-8"))
    clients = json.loads((results / "published-clients.json").read_text(encoding="utf-8"))
    text = (DOCS / "performance.md").read_text(encoding="utf-8")
    for name, table in (
        ("versions", _versions(published)),
        ("calls", _calls(published)),
        ("still", _still(published["still"])),
        ("limits", _verdicts(published["verdicts"])),
        ("clients", _clients(clients)),
        ("client-limits", _verdicts(clients["verdicts"])),
    ):
        text = _replaced(text, name, table)
    return text


def _versions(published: dict[str, Any]) -> str:
    machine, plan = published["machine"], published["plan"]
    foreign = median(one["foreign"] for cast in published["scenes"].values() for one in cast.values())
    about = {
        "date": published["date"],
        "commit": published["commit"],
        "machine": f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}",
        "plan": f"{plan['rounds']} rounds of {plan['seconds']} s",
        "other work on the machine": f"{foreign:.1f} of {machine['cores']} cores, in the median",
    }
    stacks = {f"{name} over HTTP": stack for name, stack in published["web"].items()}
    rows = [[name, str(value)] for name, value in (about | published["versions"] | stacks).items()]
    return _table(["", ""], rows)


def _calls(published: dict[str, Any]) -> str:
    """CPU microseconds per call: ours, the floor it is held against, each peer, and the load generator's own."""
    peers = ("mcp", "mcp-uvloop", "fastmcp", "ts1", "ts2")
    rows = [
        [
            f"`{scene}`",
            _micros(cast.get("dovetail")),
            _floor(cast, published["floors"].get(scene)),
            *(_micros(cast.get(name)) for name in peers),
            f"{cast['dovetail']['load_us']:,.0f}",
        ]
        for scene, cast in published["scenes"].items()
    ]
    return _table(["scene", "dovetail", "floor", *peers, "generator"], rows)


def _floor(cast: dict[str, Any], against: str | None) -> str:
    """The floor a limit names, or else the best there is."""
    floors = {name: one["cpu_us"] for name, one in cast.items() if name.startswith("floor")}
    if not floors:
        return ""
    name = against or min(floors, key=lambda one: floors[one])
    return f"{_micros(cast[name])} {name.removeprefix('floor-')}"


def _micros(figures: dict[str, Any] | None) -> str:
    if figures is None:
        return ""
    return f"{figures['cpu_us']:.1f}" if figures["cpu_us"] < 100 else f"{figures['cpu_us']:,.0f}"


def _clients(clients: dict[str, Any]) -> str:
    """CPU microseconds per call: ours, the floor, and each peer."""
    names, plan = ("dovetail", "floor", "mcp", "fastmcp"), clients["plan"]
    rows = [[f"`{scene}`", *(_micros(cast.get(name)) for name in names)] for scene, cast in clients["scenes"].items()]
    commit = clients.get("commit", "unknown")
    about = f"Measured {clients['date']}, commit {commit}, {plan['rounds']} rounds of {plan['seconds']} s."
    return f"{_table(['scene', *names], rows)}\n\n{about}"


def _still(still: dict[str, Any]) -> str:
    """What is measured at rest, a column for each implementation."""
    names = [name for name in still["memory"] if name in still["spawn"]]
    fields = [("idle_stdio", "idle on stdio, MB", 2**20), ("idle_http", "idle on HTTP, MB", 2**20),
              ("per_session", "one idle session, KB", 2**10)]  # fmt: skip
    rows = [["spawn to first answer, CPU ms", *(f"{still['spawn'][name]['cpu_ms']:.0f}" for name in names)]]
    for field, label, unit in fields:
        found = [still["memory"][name].get(field) for name in names]
        rows.append([label, *("" if size is None else f"{size / unit:.1f}" for size in found)])
    imports = {name: one["cpu_ms"] for name, one in still["import"].items()}
    rows.append(["import, CPU ms", *(f"{imports[name]:.0f}" if name in imports else "" for name in names)])
    floor = f"`import asyncio, msgspec` takes {imports['floor']:.0f} ms, an empty Python {imports['python']:.0f}."
    return f"{_table(['', *names], rows)}\n\n{floor}"


def _verdicts(verdicts: list[dict[str, Any]]) -> str:
    rows = [
        [
            f"`{one['name']}`",
            f"{one['ratio']:.2f}",
            "" if one.get("low") is None else f"{one['low']:.2f} to {one['high']:.2f}",
            "" if one.get("beside") is None else f"{one['beside']:.2f}",
            f"at most {one['most']:g}" if one["most"] is not None else f"at least {one['least']:g}",
            YES if one["good"] else "**missed**",
        ]
        for one in verdicts
    ]
    return _table(["ratio", "found", "in the turns", "floor's own", "wanted", ""], rows)


def schemas() -> str:
    """The page on schemas, with the rules as the code has them."""
    text = (DOCS / "schemas.md").read_text(encoding="utf-8")
    head = ["", *(f"`{name}`" for name in PROVIDER_RULES)]
    rows = [
        [label, *(_rule(getattr(rule, field)) for rule in PROVIDER_RULES.values())]
        for field, label in RULE_LABELS.items()
    ]
    return _replaced(text, "rules", _table(head, rows))


def _rule(value: object) -> str:
    match value:
        case frozenset():
            return ", ".join(f"`{one}`" for one in sorted(value))
        case bool():
            return YES if value else NO
        case None:
            return "*any*"
        case int():
            return str(value)
        case _:
            return f"`{value}`"


def types() -> str:
    """The page on types, with its tables."""
    text = (DOCS / "guide" / "types.md").read_text(encoding="utf-8")
    tables = _import_neighbor("type_tables")
    text = _replaced(text, "parameters", _table(["annotation", "schema"], tables.parameters()))
    head = ["annotation", "returned", "content", "structured content", "output schema"]
    return _replaced(text, "results", _table(head, tables.results()))


def _import_neighbor(name: str) -> ModuleType:
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(DOCS))


def _replaced(text: str, name: str, table: str) -> str:
    start, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
    before, _, rest = text.partition(start)
    _, _, after = rest.partition(end)
    return f"{before}{start}\n{table}\n{end}{after}"


# Tables


def methods() -> str:
    """The support matrix: one row a method, one column a revision."""
    head = ["method", "sent by", *REVISIONS, "notes"]
    rows = [
        [f"`{row.name}`", _sender(row), *(_mark(row, revision) for revision in REVISIONS), _notes(row)]
        for row in METHODS.values()
    ]
    batches = [
        "*several messages in one array*",
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
        notes.append(f"`Mcp-Name` is its `{row.name_parameter}`")
    return ", ".join(notes)


def codes() -> str:
    """What each error is called in each revision, and its HTTP status."""
    head = ["error", *REVISIONS, "HTTP, stateless"]
    rows = [[_name(exc), *(_code(exc, one) for one in REVISIONS), _status(exc)] for exc in REFUSALS]
    rows.append(_draft_only("a cancelled request", downgrade.DRAFT_CANCELLED, "no answer"))
    rows.append(_draft_only("an id already in flight", downgrade.DRAFT_DUPLICATE_ID, str(errors.InvalidRequest.code)))
    return _table(head, rows)


def _name(exc: errors.ProtocolError) -> str:
    name = f"`{type(exc).__name__}`"
    return f"{name}, the caller's own share" if isinstance(exc, CallerBusy) else name


def _code(exc: errors.ProtocolError, revision: str) -> str:
    if isinstance(exc, errors.HeaderMismatch) and not is_stateless(revision):
        return ""
    return str(downgrade.get_error_code(revision, exc))


def _status(exc: errors.ProtocolError) -> str:
    return str(get_http_status(exc))


def _draft_only(what: str, code: int, elsewhere: str) -> list[str]:
    return [what, *(str(code) if one == "draft" else elsewhere for one in REVISIONS), ""]


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def main() -> int:
    """Write the pages that differ, or list the options without an explanation."""
    unexplained: list[str] = _import_neighbor("reference_pages").list_unexplained_options()
    if "--unexplained" in sys.argv[1:]:
        sys.stdout.write("".join(f"{option}\n" for option in unexplained))
        return 0
    texts = pages()
    stale = {
        page: text for page, text in texts.items() if not page.exists() or page.read_text(encoding="utf-8") != text
    }
    for page, text in stale.items():
        page.parent.mkdir(exist_ok=True)
        page.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{len(stale)} of {len(texts)} pages written.\n")
    sys.stdout.write(f"{len(unexplained)} options have no explanation (--unexplained lists them).\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
