"""`dovetail lint`: check tools and skills, and count the tokens of their definitions."""

from typing import Any

import click

from dovetail.cli import error_report
from dovetail.cli.command_runner import CommandRun, list_items, run_command
from dovetail.cli.item_lint import lint_folder, lint_skills, lint_tools, merge_issues
from dovetail.cli.target_argument import find_folder, list_restricted_items, read_target_options, target_options
from dovetail.schemas.provider_rules import PROVIDER_RULES
from dovetail.server.items.lint import LintReport
from dovetail.terminal import output


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
    """Check tools and skills.

    Finds schemas that model providers reject, hidden characters, missing descriptions, and links of skills to files
    that do not exist, and counts the tokens of each tool and skill. Exits with 6 if a schema would be rejected or a
    skill has an issue. With --strict, exits with 6 if any issue is found. TARGET may also be a folder of skills.

    \b
    dovetail lint server.py
    dovetail lint https://example.com/mcp --profile openai-strict
    dovetail lint ./skills
    """
    options = read_target_options(ctx, **params)
    if (folder := find_folder(options)) is not None:
        skill_reports = lint_folder(folder)
        summary = _summarize([], skill_reports, [])
        click.echo(output.format_json(summary) if options.json else _format_reports([], skill_reports, []))
        return _get_exit_code(skill_reports, [], strict=strict)

    async def execute(command_run: CommandRun) -> int:
        client = command_run.client
        reports = lint_tools(await list_items(client, "tools"), profiles)
        skill_reports = await lint_skills(await client.list_skills())
        skipped = client.skipped_items
        command_run.print_result(
            _summarize(reports, skill_reports, skipped), lambda: _format_reports(reports, skill_reports, skipped)
        )
        return _get_exit_code([*reports, *skill_reports], skipped, strict=strict)

    return run_command(list_restricted_items(options), execute)


def _summarize(reports: list[LintReport], skill_reports: list[LintReport], skipped: list[str]) -> dict[str, Any]:
    tokens = _count_tokens([*reports, *skill_reports])
    return {"tokens": tokens, "tools": reports, "skills": skill_reports, "skipped_items": skipped}


def _count_tokens(reports: list[LintReport]) -> int:
    return sum(lint_report.tokens for lint_report in reports)


def _get_exit_code(reports: list[LintReport], skipped: list[str], *, strict: bool) -> int:
    issues = [issue for lint_report in reports for issue in lint_report.issues]
    has_failed = bool(skipped) or any(strict or issue.rule != "description" for issue in issues)
    return error_report.EXIT_VALIDATION if has_failed else error_report.EXIT_OK


def _format_reports(reports: list[LintReport], skill_reports: list[LintReport], skipped: list[str]) -> str:
    tables = [_format_table("tool", reports), _format_table("skill", skill_reports)]
    lines = [
        f"{output.escape_line(lint_report.name)}: {output.escape_line(issue.message)} ({issue.rule})"
        for lint_report in [*reports, *skill_reports]
        for issue in merge_issues(lint_report.issues)
    ]
    lines += [f"{output.escape_line(item)} (protocol)" for item in skipped]
    lines.append(f"about {_count_tokens([*reports, *skill_reports])} tokens in total")
    tables = [table for table in tables if table] or ["no tools"]
    return "\n".join([*tables, output.fit_to_stdout("\n".join(lines))])


def _format_table(kind: str, reports: list[LintReport]) -> str:
    rows = [(lint_report.name, str(lint_report.tokens), str(len(lint_report.issues) or "")) for lint_report in reports]
    return output.format_table(rows, (kind, "tokens", "issues"))
