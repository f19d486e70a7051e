"""Lint: what hosts and models may stumble over in a server's tools, and what the tools cost in tokens.

Quiet unless asked, and nothing is refused.
"""

import inspect
import logging
from collections.abc import Iterator, Sequence
from typing import Final

from dovetail.protocol.profiles import AS_PUBLISHED, RULES, refusals
from dovetail.protocol.resolving import as_object, named
from dovetail.server import docstrings
from dovetail.server.tool import Tool
from dovetail.wire import tools
from dovetail.wire.codec import encode
from dovetail.wire.shape import Struct

log = logging.getLogger("dovetail")

_BYTES_A_TOKEN: Final = 4  # a rule of thumb for English and JSON; each maker counts in its own way


class Finding(Struct, frozen=True):
    """One thing somebody may stumble over: `about` is a rule set, or "words" for what a model is not told."""

    about: str
    text: str


class ToolReport(Struct, frozen=True):
    """What there is to say about one tool; `tokens` is an estimate of what its definition takes of a conversation."""

    name: str
    tokens: int
    findings: list[Finding]


def tell(tool: Tool) -> None:
    """Log what there is to say about a tool that is being registered, if there is anything."""
    found = report(tool)
    if found.findings:
        texts = "; ".join(f"{one.about}: {one.text}" for one in found.findings)
        log.warning("%s, about %d tokens: %s", tool.signature.where, found.tokens, texts)


def report(tool: Tool, rules: Sequence[str] = ()) -> ToolReport:
    """A tool held against some rule sets; if none is named, against those a published schema meets."""
    found = declared(tool.declaration, rules or AS_PUBLISHED)
    return ToolReport(found.name, found.tokens, [*found.findings, *_stray(tool)])


def declared(shown: tools.Tool, rules: Sequence[str]) -> ToolReport:
    """A tool as it is published, of whatever server, held against some rule sets."""
    if unknown := [one for one in rules if one not in RULES]:
        raise ValueError(f"no rule set is called {', '.join(unknown)}; there are {', '.join(RULES)}")
    told = {"name": shown.name, "description": shown.description or "", "input_schema": shown.input_schema}
    findings = [
        Finding(about, text)
        for about in rules
        for text in refusals(about, shown.name, shown.description, shown.input_schema)
    ]
    return ToolReport(shown.name, -(-len(encode(told)) // _BYTES_A_TOKEN), [*findings, *_words(shown)])


def _words(shown: tools.Tool) -> Iterator[Finding]:
    if not shown.description:
        yield Finding("words", "the tool has no description")
    for name, given in named(shown.input_schema).items():
        schema = as_object(given)
        if not schema.get("description") and "$ref" not in schema:
            yield Finding("words", f"`{name}` has no description")


def _stray(tool: Tool) -> Iterator[Finding]:
    properties = tool.declaration.input_schema.get("properties", {})
    for name in docstrings.read(inspect.getdoc(tool.runner.function)).parameters:
        if name not in properties and name not in inspect.signature(tool.runner.function).parameters:
            yield Finding("words", f"the docstring describes `{name}`, which is no parameter")
