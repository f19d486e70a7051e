"""`dovetail lint`: check tool schemas and descriptions, and count their tokens."""

from typing import Any

import click

from dovetail.cli import error_report
from dovetail.cli.command_runner import CommandRun, list_items, run_command
from dovetail.cli.target_argument import list_restricted_items, read_target_options, target_options
from dovetail.client.validator import UnusableSchema, compile_schema
from dovetail.schemas.provider_rules import PROVIDER_RULES, UNMODIFIED_RULE_SETS
from dovetail.server.lint import LintIssue, LintReport, lint_declaration
from dovetail.terminal import output
from dovetail.wire.tools import Tool


@click.command("lint")
@target_options()
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    type=click.Choice([*PROVIDER_RULES]),
    help="Schema profile to check. Defaults to all.",
)
@click.option("--strict", is_flag=True, help="Also fail on missing descriptions.")
@click.pass_context
def command(ctx: click.Context, profiles: tuple[str, ...], strict: bool, **params: Any) -> int:
    """Check tool schemas and descriptions.

    Finds schemas that model providers reject, hidden characters and missing descriptions, and counts the tokens of each
    tool. Exits with 6 if a schema would be rejected. With --strict, exits with 6 if any issue is found.

    \b
    dovetail lint server.py
    dovetail lint https://example.com/mcp --profile openai-strict
    """

    async def execute(command_run: CommandRun) -> int:
        reports = lint_tools(await list_items(command_run.client, "tools"), profiles)
        token_count, skipped = sum(lint_report.tokens for lint_report in reports), command_run.client.skipped_items
        summary = {"tokens": token_count, "tools": reports, "skipped_items": skipped}
        command_run.print_result(summary, lambda: _format_reports(reports, token_count, skipped))
        if skipped:
            return error_report.EXIT_VALIDATION
        issues = [issue for lint_report in reports for issue in lint_report.issues]
        return (
            error_report.EXIT_VALIDATION
            if any(strict or issue.rule != "description" for issue in issues)
            else error_report.EXIT_OK
        )

    return run_command(list_restricted_items(read_target_options(ctx, **params)), execute)


def lint_tools(tools: list[Tool], profiles: tuple[str, ...] = ()) -> list[LintReport]:
    """Return the problems of each tool."""
    names = [tool.name for tool in tools]
    return [
        _add_protocol_issues(lint_declaration(tool, profiles or UNMODIFIED_RULE_SETS), tool, names) for tool in tools
    ]


def _add_protocol_issues(report: LintReport, tool: Tool, names: list[str]) -> LintReport:
    issues: list[LintIssue] = []
    if names.count(tool.name) > 1:
        issues.append(LintIssue("protocol", "another tool has the same name"))
    for field, value in (("name", tool.name), ("description", tool.description or ""), ("title", tool.title or "")):
        if output.escape_text(value) != value.replace("\r\n", "\n"):
            issues.append(LintIssue("protocol", f"the {field} contains hidden characters: {output.escape_line(value)}"))
    for field, schema in (("input", tool.input_schema), ("output", tool.output_schema)):
        if schema is not None and (problem := _find_schema_error(schema)):
            issues.append(LintIssue("protocol", f"the {field} schema: {problem}"))
    return LintReport(report.name, report.tokens, [*report.issues, *issues])


def _find_schema_error(schema: Any) -> str | None:
    try:
        compile_schema(schema)
    except UnusableSchema as exc:
        return str(exc) if str(exc).startswith("invalid schema") else None
    return None


def _format_reports(reports: list[LintReport], token_count: int, skipped: list[str]) -> str:
    rows = [(lint_report.name, str(lint_report.tokens), str(len(lint_report.issues) or "")) for lint_report in reports]
    table = output.format_table(rows, ("tool", "tokens", "issues")) or "no tools"
    lines = [
        f"{output.escape_line(lint_report.name)}: {output.escape_line(issue.message)} ({issue.rule})"
        for lint_report in reports
        for issue in _merge_issues(lint_report.issues)
    ]
    lines += [f"{output.escape_line(item)} (protocol)" for item in skipped]
    return f"{table}\n" + output.fit_to_stdout("\n".join([*lines, f"about {token_count} tokens in total"]))


def _merge_issues(issues: list[LintIssue]) -> list[LintIssue]:
    by_text: dict[str, list[str]] = {}
    for issue in issues:
        by_text.setdefault(issue.message, []).append(issue.rule)
    return [LintIssue(", ".join(rules), message) for message, rules in by_text.items()]
