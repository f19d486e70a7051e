"""Lint: what hosts and models may stumble over in a server's tools, and what the tools cost in tokens.

Quiet unless asked, and nothing is refused.
"""

import inspect
import logging
from collections.abc import Iterator, Sequence
from typing import Final

from dovetail.schemas.provider_rules import PROVIDER_RULES, UNMODIFIED_RULE_SETS, find_violations
from dovetail.schemas.reader import as_object, get_mapping
from dovetail.server.parameters import docstrings
from dovetail.server.tool import Tool
from dovetail.wire import tools
from dovetail.wire.base import Struct
from dovetail.wire.codec import encode

log = logging.getLogger("dovetail")

_BYTES_PER_TOKEN: Final = 4  # a rule of thumb for English and JSON; each maker counts in its own way


class LintIssue(Struct, frozen=True):
    """A problem with a tool. `rule` is a schema profile, "protocol", or "description" for a missing description."""

    rule: str
    message: str


class LintReport(Struct, frozen=True):
    """What there is to say about one tool; `tokens` is an estimate of what its definition takes of a conversation."""

    name: str
    tokens: int
    issues: list[LintIssue]


def log_issues(tool: Tool) -> None:
    """Log what there is to say about a tool that is being registered, if there is anything."""
    tool_report = lint_tool(tool)
    if tool_report.issues:
        texts = "; ".join(f"{issue.rule}: {issue.message}" for issue in tool_report.issues)
        log.warning("%s, about %d tokens: %s", tool.signature.where, tool_report.tokens, texts)


def lint_tool(tool: Tool, profiles: Sequence[str] = ()) -> LintReport:
    """A tool held against some rule sets; if none is named, against those a published schema meets."""
    tool_report = lint_declaration(tool.declaration, profiles or UNMODIFIED_RULE_SETS)
    return LintReport(tool_report.name, tool_report.tokens, [*tool_report.issues, *_check_docstring(tool)])


def lint_declaration(declaration: tools.Tool, profiles: Sequence[str]) -> LintReport:
    """A tool as it is published, of whatever server, held against some rule sets."""
    if unknown := [profile for profile in profiles if profile not in PROVIDER_RULES]:
        raise ValueError(f"no rule set is called {', '.join(unknown)}; there are {', '.join(PROVIDER_RULES)}")
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
    return LintReport(
        declaration.name, -(-len(encode(published)) // _BYTES_PER_TOKEN), [*findings, *_check_descriptions(declaration)]
    )


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
