"""Write the generated parts of pages, from the code and from published measurements.

- protocol.md: tables of methods and error codes
- schemas.md: the rules of model providers
- guide/types.md, guide/client.md: tables of types and limits
- performance.md, bench/results/published.md: the published results of the benchmarks (`performance_tables.py`)
- commands/: the help of each command

Run it after you change one of these. A test compares the result with the files. The reference is not one of them:
`make docs` writes it with `reference_pages.py`.
"""

import ast
import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from types import ModuleType

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
        **create_performance_pages(),
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
    common = _list_common_options()
    common_help = _format_help("dovetail COMMAND", click.Command("COMMAND", params=[*common.values()]))
    options_text = common_help[common_help.index("Options:") :]
    first = _replace_table(first, "common-options", f"```text\n{options_text}\n```")
    texts = {folder / "README.md": first}
    for name in COMMAND_SUMMARIES:
        page = folder / f"{name}.md"
        command = load_command(name)
        text = page.read_text(encoding="utf-8") if page.exists() else f"# dovetail {name}\n"
        texts[page] = _replace_table(text, "help", "\n\n".join(_list_help_texts(f"dovetail {name}", command, common)))
    return texts


def _list_common_options() -> dict[str, click.Option]:
    """Return the options that at least ten commands share, by their names."""
    options = [option for name in COMMAND_SUMMARIES for option in _list_options(load_command(name))]
    counts = Counter(map(_get_option_key, options))
    return {option.opts[-1]: option for option in options if counts[_get_option_key(option)] >= 10}


def _list_options(command: click.Command) -> Iterator[click.Option]:
    yield from (param for param in command.params if isinstance(param, click.Option))


def _get_option_key(option: click.Option) -> tuple[str, str | None]:
    return option.opts[-1], option.help


def _list_help_texts(name: str, command: click.Command, common: dict[str, click.Option]) -> Iterator[str]:
    """Yield the help of a command without the common options, and the names of these. Then that of its subcommands."""
    common_keys = set(map(_get_option_key, common.values()))
    shared = [option for option in _list_options(command) if _get_option_key(option) in common_keys]
    own_command = copy(command)
    own_command.params = [param for param in command.params if param not in shared]
    own_command.add_help_option = False
    yield f"```text\n{_format_help(name, own_command)}\n```"
    names = [option.opts[-1] for option in shared if option.opts[-1] != "--help"]
    if len(names) == len(common) - 1:
        yield "All [common options](README.md#common-options)."
    elif names:
        yield "[Common options](README.md#common-options): " + ", ".join(f"`{option}`" for option in names)
    if isinstance(command, click.Group):
        for inner, subcommand in command.commands.items():
            yield from _list_help_texts(f"{name} {inner}", subcommand, common)


def _format_help(name: str, command: click.Command) -> str:
    with click.Context(command, info_name=name, terminal_width=100, help_option_names=HELP) as ctx:
        return command.get_help(ctx)


def create_performance_pages() -> dict[Path, str]:
    """Return the page on performance with some published results, and the page with the others."""
    results, page = DOCS.parent / "bench" / "results", DOCS / "performance.md"
    text = page.read_text(encoding="utf-8")
    sections = ["# Published results", "docs/performance.md explains the tables. docs/generate.py writes this file."]
    for name, (head, rows) in _import_neighbor("performance_tables").create_tables(results).items():
        table = _table(head, rows)
        if f"<!-- generated: {name} -->" in text:
            text = _replace_table(text, name, table)
        else:
            sections += [f"## {name}", table]
    return {page: text, results / "published.md": "\n\n".join(sections) + "\n"}


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
    head = ["annotation", "returned", "content", "structured content"]
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
