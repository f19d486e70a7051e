"""Catalog: what all servers offer, as one immutable snapshot with names that never clash.

Whoever works with a snapshot keeps it: a name in it cannot change its meaning. The order depends on names alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from typing import Any

from dovetail.error_context import clip
from dovetail.host.catalog_item import CatalogEntry, Definition, Manifest, estimate_tokens, get_item_name
from dovetail.host.config.server_entry import ConfigProblem
from dovetail.host.qualified_names import make_full_name, make_model_name
from dovetail.host.search_index import SearchIndex
from dovetail.host.supervisor import ServerSupervisor
from dovetail.host.tool_formats import (
    lint_tools,
    parse_anthropic_call,
    parse_gemini_call,
    parse_openai_call,
    to_anthropic_tools,
    to_gemini_tools,
    to_openai_tools,
)
from dovetail.wire.base import Struct
from dovetail.wire.codec import encode_canonical

__all__ = ["Catalog", "CatalogEntry", "Manifest"]


class Catalog(Struct, frozen=True, kw_only=True, dict=True):
    """Everything of every server; `problems` are the things left out, with the reason."""

    tools: tuple[CatalogEntry, ...] = ()
    resources: tuple[CatalogEntry, ...] = ()
    resource_templates: tuple[CatalogEntry, ...] = ()
    prompts: tuple[CatalogEntry, ...] = ()
    problems: tuple[str, ...] = ()

    @classmethod
    def from_manifests(cls, manifests: Mapping[str, Manifest]) -> "Catalog":
        """The catalog of some servers, by name."""
        problems: list[str] = []
        ordered = sorted(manifests.items())
        return cls(
            tools=_merge_entries("tool", ((name, manifest.tools) for name, manifest in ordered), problems),
            resources=_merge_entries("resource", ((name, manifest.resources) for name, manifest in ordered), problems),
            resource_templates=_merge_entries(
                "resource template", ((name, manifest.resource_templates) for name, manifest in ordered), problems
            ),
            prompts=_merge_entries("prompt", ((name, manifest.prompts) for name, manifest in ordered), problems),
            problems=tuple(problems),
        )

    def find(self, name: str) -> CatalogEntry | None:
        """A tool by its full or exposed name, or by its bare one if no other server has it too."""
        entry = self._by_name.get(name)
        if entry is not None:
            return entry
        candidates = self._by_bare_name.get(name, ())
        return candidates[0] if len(candidates) == 1 else None

    def find_prompt(self, name: str) -> CatalogEntry | None:
        """A prompt by its full or exposed name."""
        return next((prompt for prompt in self.prompts if name in (prompt.full_name, prompt.model_name)), None)

    @property
    def tokens(self) -> int:
        """What all tools together take of a conversation, roughly."""
        return sum(tool.tokens for tool in self.tools)

    def search(self, text: str, limit: int = 10) -> list[CatalogEntry]:
        """The tools that fit a text best, best first."""
        return [self.tools[position] for position in self._index.search(text, limit)]

    def filter(self, names: Iterable[str]) -> "Catalog":
        """The same snapshot with some of its tools, by full name."""
        full_names = set(names)
        return Catalog(
            tools=tuple(tool for tool in self.tools if tool.full_name in full_names),
            resources=self.resources,
            resource_templates=self.resource_templates,
            prompts=self.prompts,
            problems=self.problems,
        )

    def to_openai(self, *, api: str = "chat") -> list[dict[str, Any]]:
        """The tools as OpenAI's interfaces take them: `api` is "chat" or "responses"."""
        return to_openai_tools(self.tools, api)

    def to_anthropic(self) -> list[dict[str, Any]]:
        """The tools as Anthropic's interface takes them."""
        return to_anthropic_tools(self.tools)

    def to_gemini(self) -> list[dict[str, Any]]:
        """The tools as Gemini's interface takes them: one group of function declarations."""
        return to_gemini_tools(self.tools)

    def parse_openai_call(self, call: Any) -> tuple[str, dict[str, Any]]:
        """A tool call of OpenAI's, as an object or a dict: the full name and the arguments; ValueError if unusable."""
        return self._resolve_call(*parse_openai_call(call))

    def parse_anthropic_call(self, block: Any) -> tuple[str, dict[str, Any]]:
        """A `tool_use` block of Anthropic's: the full name and the arguments; ValueError if unusable."""
        return self._resolve_call(*parse_anthropic_call(block))

    def parse_gemini_call(self, call: Any) -> tuple[str, dict[str, Any]]:
        """A function call of Gemini's: the full name and the arguments; ValueError if unusable."""
        return self._resolve_call(*parse_gemini_call(call))

    def lint(self, profile: str) -> list[tuple[str, str]]:
        """What a maker would refuse in the tools as they were declared, and what is therefore handed on otherwise."""
        return lint_tools(self.tools, profile)

    def _resolve_call(self, name: str, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        entry = self._by_name.get(name)
        if entry is None:
            raise ValueError(f"there is no tool {name!r}")
        return entry.full_name, arguments

    @cached_property
    def _by_name(self) -> dict[str, CatalogEntry]:
        # No full name is an exposed one: only full names have a dot.
        return {tool.model_name: tool for tool in self.tools} | {one.full_name: one for one in self.tools}

    @cached_property
    def _by_bare_name(self) -> dict[str, list[CatalogEntry]]:
        tools_by_name: dict[str, list[CatalogEntry]] = {}
        for tool in self.tools:
            tools_by_name.setdefault(tool.name, []).append(tool)
        return tools_by_name

    @cached_property
    def _index(self) -> SearchIndex:
        return SearchIndex([tool.definition for tool in self.tools], [one.server for one in self.tools])


def _merge_entries(
    kind: str, definitions_by_server: Iterable[tuple[str, Sequence[Definition]]], problems: list[str]
) -> tuple[CatalogEntry, ...]:
    entries: dict[str, CatalogEntry] = {}
    ambiguous: set[str] = set()
    for server, definitions in definitions_by_server:
        for entry in _drop_ambiguous(kind, server, definitions, problems):
            if (other := entries.get(entry.model_name)) is not None:
                problems.append(
                    f"{kind} {entry.full_name!r} and {other.full_name!r} would both be called {entry.model_name}"
                )
                ambiguous.add(entry.model_name)
            else:
                entries[entry.model_name] = entry
    unique = (entry for name, entry in entries.items() if name not in ambiguous)
    return tuple(sorted(unique, key=lambda entry: (entry.server, entry.name)))


def _drop_ambiguous(
    kind: str, server: str, definitions: Sequence[Definition], problems: list[str]
) -> Iterable[CatalogEntry]:
    """Each once. Of two that differ under one name neither is offered: nobody could say which one was meant."""
    definitions_by_name: dict[str, Definition] = {}
    ambiguous: set[str] = set()
    for definition in definitions:
        name = get_item_name(definition)
        if (
            name in definitions_by_name
            and encode_canonical(definitions_by_name[name]) != encode_canonical(definition)
            and name not in ambiguous
        ):
            ambiguous.add(name)
            problems.append(f"{server} offers two different things as {kind} {name!r}")
        definitions_by_name.setdefault(name, definition)
    return [
        _create_entry(server, name, definition)
        for name, definition in definitions_by_name.items()
        if name not in ambiguous
    ]


def _create_entry(server: str, name: str, definition: Definition) -> CatalogEntry:
    return CatalogEntry(
        server=server,
        name=name,
        full_name=make_full_name(server, name),
        model_name=make_model_name(server, name),
        definition=definition,
        tokens=estimate_tokens(definition),
    )


def explain_unknown_server(name: str, servers: Iterable[ServerSupervisor], problems: Sequence[ConfigProblem]) -> str:
    """Why there is no server of a name."""
    message = f"there is no server {clip(name)}"
    for problem in problems:
        if problem.is_error and problem.message.startswith(f"{name}: "):
            return f"{message}: {problem.message.removeprefix(f'{name}: ')}"
    names = [server.name for server in servers]
    return message + (suggest_name(name, names) or f"; there are: {', '.join(names) or 'none'}")


def explain_unknown_tool(
    name: str, catalog: Catalog, servers: Sequence[ServerSupervisor], problems: Sequence[ConfigProblem]
) -> str:
    """Why a name means no tool of any server."""
    server, dot, _ = name.partition(".")
    if dot:
        return explain_unknown_server(server, servers, problems)
    full_names = [tool.full_name for tool in catalog.tools if tool.name == name]
    if full_names:
        return f"several servers have a tool {clip(name)}: {', '.join(full_names)}"
    message = f"there is no tool {clip(name)}"
    matches = get_close_matches(name, {tool.name for tool in catalog.tools}, 1)
    if matches:
        return (
            f"{message}; did you mean {' or '.join(tool.full_name for tool in catalog.tools if tool.name in matches)}?"
        )
    failed_servers = [
        supervisor for supervisor in servers if supervisor.last_error is not None and "tool" not in supervisor.known
    ]
    return "; ".join(
        [
            message,
            *(f"{supervisor.name} could not be asked: {_format_reason(supervisor)}" for supervisor in failed_servers),
        ]
    )


def suggest_name(name: str, candidates: Iterable[str]) -> str:
    """What was meant by a name, to be put behind that there is none."""
    matches = get_close_matches(name, [*candidates], 1)
    return f"; did you mean {matches[0]}?" if matches else ""


def _format_reason(supervisor: ServerSupervisor) -> str:
    return clip(
        str(supervisor.last_error.args[0] if supervisor.last_error and supervisor.last_error.args else supervisor.state)
    )
