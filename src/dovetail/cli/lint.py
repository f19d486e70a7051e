"""`dovetail lint`: what hosts and models may stumble over in what a server offers, and what it costs them."""

from typing import Any

import click

from dovetail.cli import exits, text
from dovetail.cli.list import listed
from dovetail.cli.speaking import Spoken, converse
from dovetail.cli.targets import asked, options
from dovetail.client.checking import Unusable, compile_schema
from dovetail.protocol.profiles import AS_PUBLISHED, RULES
from dovetail.server.lint import Finding, ToolReport, declared
from dovetail.wire.tools import Tool


@click.command("lint")
@options()
@click.option("--rules", multiple=True, type=click.Choice([*RULES]), help="Whose rules; else those of all makers.")
@click.option("--strict", is_flag=True, help="Missing words count as well.")
@click.pass_context
def command(ctx: click.Context, rules: tuple[str, ...], strict: bool, **given: Any) -> int:
    """Look for schemas that makers of models refuse, missing words, hidden characters, and what the tools cost.

    Exits with 6 if something would be refused; with --strict, if there is anything to say at all.

    \b
    dovetail lint server.py
    dovetail lint https://example.com/mcp --rules openai-strict
    """

    async def work(spoken: Spoken) -> int:
        reports = examined(await listed(spoken.client, "tools"), rules)
        total, missing = sum(one.tokens for one in reports), spoken.client.left_out
        said = {"tokens": total, "tools": reports, "left_out": missing}
        spoken.print(said, lambda: _shown(reports, total, missing))
        if missing:
            return exits.CONTRACT
        found = [finding for one in reports for finding in one.findings]
        return exits.CONTRACT if any(strict or one.about != "words" for one in found) else exits.OK

    return converse(asked(ctx, **given), work)


def examined(tools: list[Tool], rules: tuple[str, ...] = ()) -> list[ToolReport]:
    """What there is to say about each tool."""
    names = [tool.name for tool in tools]
    return [_with_names(declared(tool, rules or AS_PUBLISHED), tool, names) for tool in tools]


def _with_names(report: ToolReport, tool: Tool, names: list[str]) -> ToolReport:
    more: list[Finding] = []
    if names.count(tool.name) > 1:
        more.append(Finding("protocol", "another tool has the same name"))
    for what, said in (("name", tool.name), ("description", tool.description or ""), ("title", tool.title or "")):
        if text.safe(said) != said.replace("\r\n", "\n"):
            more.append(Finding("protocol", f"the {what} hides characters: {text.line(said)}"))
    for what, schema in (("input", tool.input_schema), ("output", tool.output_schema)):
        if schema is not None and (why := _misfit(schema)):
            more.append(Finding("protocol", f"the {what} schema: {why}"))
    return ToolReport(report.name, report.tokens, [*report.findings, *more])


def _misfit(schema: Any) -> str | None:
    """Why a schema is none; one that is only too much, or asks for what is elsewhere, is not judged."""
    try:
        compile_schema(schema)
    except Unusable as exc:
        return str(exc) if str(exc).startswith(("not a schema", "refers to what is not there")) else None
    return None


def _shown(reports: list[ToolReport], total: int, missing: list[str]) -> str:
    rows = [(one.name, str(one.tokens), str(len(one.findings) or "")) for one in reports]
    parts = [text.table(rows, ("tool", "tokens", "findings")) or "no tools"]
    for one in reports:
        parts += [
            f"{text.line(one.name)}: {text.line(finding.text)} ({finding.about})" for finding in _unique(one.findings)
        ]
    parts += [f"{text.line(one)} (protocol)" for one in missing]
    return "\n".join([*parts, f"about {total} tokens in all"])


def _unique(findings: list[Finding]) -> list[Finding]:
    """Each thing once, with all who mind it."""
    by_text: dict[str, list[str]] = {}
    for one in findings:
        by_text.setdefault(one.text, []).append(one.about)
    return [Finding(", ".join(about), said) for said, about in by_text.items()]
