"""The checks of `dovetail lint` for tools and for skills, of a server or in a folder."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import click

from dovetail.cli.error_report import is_insufficient_scope
from dovetail.errors import InvalidResult, RemoteError
from dovetail.schemas.provider_rules import UNMODIFIED_RULE_SETS
from dovetail.schemas.validator import UnusableSchema, compile_schema
from dovetail.server.items.lint import LintIssue, LintReport, estimate_tokens, lint_declaration
from dovetail.skills.front_matter import import_yaml
from dovetail.skills.remote_skill import Skill
from dovetail.skills.served_skill import SkillProblem
from dovetail.skills.skill import MANIFEST
from dovetail.skills.skill_folder import SkillFolder
from dovetail.skills.skill_links import find_broken_links
from dovetail.skills.skill_writer import check_paths, find_unsafe_path
from dovetail.terminal import output
from dovetail.wire.tools import Tool

_MAX_LINKS: Final = 20  # At most this many broken links of one skill are reported.


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


def merge_issues(issues: list[LintIssue]) -> list[LintIssue]:
    """Merge the issues with the same message. The merged issue lists all rules."""
    by_text: dict[str, list[str]] = {}
    for issue in issues:
        by_text.setdefault(issue.message, []).append(issue.rule)
    return [LintIssue(", ".join(rules), message) for message, rules in by_text.items()]


async def lint_skills(skills: list[Skill]) -> list[LintReport]:
    """Return the problems of each skill. Read only the SKILL.md files."""
    if skills:
        require_yaml()
    return [await _lint_remote_skill(skill) for skill in skills]


def lint_folder(path: Path) -> list[LintReport]:
    """Return the problems of each skill in a folder."""
    require_yaml()
    problems: dict[str, list[str]] = {}
    reports: list[LintReport] = []
    try:
        folder = SkillFolder(path, lambda name, problem: problems.setdefault(name, []).append(problem))
    except SkillProblem as exc:
        problems[str(path)] = [str(exc)]
    else:
        for skill in folder.skills.values():
            text = (folder.read(skill.entry.uri) or b"").decode(errors="replace")
            issues = [*_check_files(skill.files), *_check_links(text, skill.files)]
            reports.append(_build_report(skill.entry.uri, skill.entry.frontmatter, issues))
    for name, texts in problems.items():
        reports.append(LintReport(name, 0, [LintIssue("skill", problem) for problem in texts]))
    return reports


def get_skill_path(uri: str) -> str:
    """Return the path of a skill on its server, such as "acme/refunds". The path ends with the name of the skill."""
    return unquote(uri.partition("://")[2].removesuffix(f"/{MANIFEST}"))


def require_yaml() -> None:
    """Raise UsageError if no YAML parser is installed. The front matter of skills is YAML."""
    try:
        import_yaml()
    except ImportError as exc:
        raise click.UsageError(str(exc)) from None


async def _lint_remote_skill(skill: Skill) -> LintReport:
    issues = [*_check_files(skill.files)]
    try:
        content = await skill.read()
    except InvalidResult as exc:
        issues.append(LintIssue("skill", str(exc.args[0])))
    except RemoteError as exc:
        # A skill that requires scopes cannot be read here. This is not a problem of the skill.
        if not is_insufficient_scope(exc):
            issues.append(LintIssue("skill", f"cannot read {MANIFEST}: {exc.message}"))
    else:
        text = content if isinstance(content, str) else content.decode(errors="replace")
        # A dynamic skill does not list its files, so its links cannot be checked.
        issues += [] if skill.is_dynamic else _check_links(text, skill.files)
    return _build_report(skill.uri, skill.front_matter, issues)


def _build_report(uri: str, front_matter: Mapping[str, Any], issues: Iterable[LintIssue]) -> LintReport:
    """Create a report. The token count covers only what hosts show to the model: the name and the description."""
    name, description = front_matter["name"], front_matter["description"]
    if output.escape_text(description) != description.replace("\r\n", "\n"):
        hidden = LintIssue("skill", f"the description contains hidden characters: {output.escape_line(description)}")
        issues = [hidden, *issues]
    return LintReport(get_skill_path(uri), estimate_tokens({"name": name, "description": description}), [*issues])


def _check_files(paths: Collection[str]) -> Iterable[LintIssue]:
    unsafe = {path: reason for path in paths if (reason := find_unsafe_path(path)) is not None}
    for path, reason in unsafe.items():
        yield LintIssue("skill", f"clients cannot save {path}, because {reason}")
    try:
        check_paths(path for path in paths if path not in unsafe)
    except SkillProblem as exc:
        yield LintIssue("skill", str(exc))


def _check_links(text: str, paths: Collection[str]) -> Iterable[LintIssue]:
    for link in find_broken_links(text, paths)[:_MAX_LINKS]:
        yield LintIssue("skill", f"{MANIFEST} links to {link}, which is not a file of the skill")
