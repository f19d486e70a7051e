"""Lint checks for tools: they find problems that hosts and models may have, and estimate the number of tokens.

This module only reports problems. Tools with problems are registered, too.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence

from dovetail.log import log
from dovetail.protocol.limits import BYTES_PER_TOKEN
from dovetail.schemas.provider_rules import LONG_DESCRIPTION, PROVIDER_RULES, UNMODIFIED_RULE_SETS, find_violations
from dovetail.schemas.reader import as_object, get_mapping
from dovetail.server.items.tool import Tool
from dovetail.server.parameters import docstrings
from dovetail.wire import tools
from dovetail.wire.base import Struct
from dovetail.wire.codec import encode


class LintIssue(Struct, frozen=True):
    """A problem with a tool or a skill."""

    rule: str  # The broken rule: the name of a schema profile, "protocol", "description" or "skill".
    message: str  # A description of the problem.


class LintReport(Struct, frozen=True):
    """The problems of one tool."""

    name: str  # The name of the tool.
    tokens: int  # Estimated number of tokens of the tool's definition.
    issues: list[LintIssue]  # All problems of the tool.


def is_length_issue(issue: LintIssue) -> bool:
    """Return whether the issue is a long description, which some models accept."""
    return issue.message.startswith(LONG_DESCRIPTION)


def log_issues(tool: Tool) -> None:
    """Log the problems of a tool at registration."""
    tool_report = lint_tool(tool)
    if tool_report.issues:
        texts = "; ".join(f"{issue.rule}: {issue.message}" for issue in tool_report.issues)
        log.warning("%s, about %d tokens: %s", tool.signature.where, tool_report.tokens, texts)


def lint_tool(tool: Tool, profiles: Sequence[str] = ()) -> LintReport:
    """Check a tool against the schema rules of providers. The default providers are OpenAI, Gemini and Anthropic."""
    tool_report = lint_declaration(tool.declaration, profiles or UNMODIFIED_RULE_SETS)
    return LintReport(tool_report.name, tool_report.tokens, [*tool_report.issues, *_check_docstring(tool)])


def lint_declaration(declaration: tools.Tool, profiles: Sequence[str]) -> LintReport:
    """Check a tool definition against the schema rules of the given providers."""
    if unknown := [profile for profile in profiles if profile not in PROVIDER_RULES]:
        raise ValueError(f"unknown schema profile {', '.join(unknown)}. Choose from {', '.join(PROVIDER_RULES)}")
    published = {
        "name": declaration.name,
        "description": declaration.description or "",
        "input_schema": declaration.input_schema,
    }
    findings = [
        LintIssue(profile, text)
        for profile in profiles
        for text in find_violations(profile, declaration.name, declaration.description, declaration.input_schema)
    ]
    return LintReport(declaration.name, estimate_tokens(published), [*findings, *_check_descriptions(declaration)])


def estimate_tokens(definition: Mapping[str, object]) -> int:
    """Return the estimated number of tokens in a definition."""
    return -(-len(encode(definition)) // BYTES_PER_TOKEN)


def _check_descriptions(declaration: tools.Tool) -> Iterator[LintIssue]:
    if not declaration.description:
        yield LintIssue("description", "the tool has no description")
    for name, raw_schema in get_mapping(declaration.input_schema).items():
        schema = as_object(raw_schema)
        if not schema.get("description") and "$ref" not in schema:
            yield LintIssue("description", f"`{name}` has no description")


def _check_docstring(tool: Tool) -> Iterator[LintIssue]:
    properties = tool.declaration.input_schema.get("properties", {})
    for name in docstrings.parse(inspect.getdoc(tool.runner.function)).parameters:
        if name not in properties and name not in inspect.signature(tool.runner.function).parameters:
            yield LintIssue("description", f"the docstring describes `{name}`, which is not a parameter")
