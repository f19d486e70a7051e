"""An immutable catalog of the tools, resources and prompts of all servers, with unambiguous names.

A name in a catalog always refers to the same item. The order of the items depends only on their names.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

from dovetail.error_context import clip, find_similar, suggest_match
from dovetail.host.catalog_item import (
    CatalogEntry,
    Definition,
    ServerDefinitions,
    copy_entries,
    estimate_tokens,
    get_item_name,
)
from dovetail.host.config.server_entry import ConfigProblem
from dovetail.host.qualified_names import make_full_name, make_model_name
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
from dovetail.search.search_index import SearchIndex
from dovetail.wire.base import Struct, replace
from dovetail.wire.codec import encode_canonical

__all__ = ["Catalog", "CatalogEntry", "ServerDefinitions"]


class Catalog(Struct, frozen=True, kw_only=True, dict=True):
    """All tools, resources and prompts that the servers of a host offer."""

    tools: tuple[CatalogEntry, ...] = ()  # the tools of all servers
    resources: tuple[CatalogEntry, ...] = ()  # the resources of all servers
    resource_templates: tuple[CatalogEntry, ...] = ()  # the resource templates of all servers
    prompts: tuple[CatalogEntry, ...] = ()  # the prompts of all servers
    problems: tuple[str, ...] = ()  # the items that were left out, each with the reason

    @classmethod
    def from_servers(cls, servers: Mapping[str, ServerDefinitions]) -> "Catalog":
        """Create a catalog from the items of each server. The keys are server names."""
        problems: list[str] = []
        ordered = sorted(servers.items())
        return cls(
            tools=_merge_entries("tool", ((name, items.tools) for name, items in ordered), problems),
            resources=_merge_entries("resource", ((name, items.resources) for name, items in ordered), problems),
            resource_templates=_merge_entries(
                "resource template", ((name, items.resource_templates) for name, items in ordered), problems
            ),
            prompts=_merge_entries("prompt", ((name, items.prompts) for name, items in ordered), problems),
            problems=tuple(problems),
        )

    def find(self, name: str) -> CatalogEntry | None:
        """Return the tool with this full name or model name, or None if it is unknown.

        A bare tool name works if only one server has the tool.
        """
        entry = self._by_name.get(name)
        if entry is not None:
            return entry
        candidates = self._by_bare_name.get(name, ())
        return candidates[0] if len(candidates) == 1 else None

    def find_prompt(self, name: str) -> CatalogEntry | None:
        """Return the prompt with this full name or model name, or None if it is unknown."""
        return next((prompt for prompt in self.prompts if name in (prompt.full_name, prompt.model_name)), None)

    @property
    def tokens(self) -> int:
        """Return the estimated number of tokens of all tool definitions."""
        return sum(tool.tokens for tool in self.tools)

    def search(self, text: str, limit: int = 10) -> list[CatalogEntry]:
        """Return the tools that match a search text, best first.

        Args:
            limit: The maximum number of tools.
        """
        return [self.tools[position] for position in self._index.search(text, limit)]

    def filter(self, names: Iterable[str]) -> "Catalog":
        """Return a catalog that contains only the tools with these full names."""
        full_names = set(names)
        return Catalog(
            tools=tuple(tool for tool in self.tools if tool.full_name in full_names),
            resources=self.resources,
            resource_templates=self.resource_templates,
            prompts=self.prompts,
            problems=self.problems,
        )

    def to_openai(self, *, api: str = "chat") -> list[dict[str, Any]]:
        """Return the tools in the format of OpenAI.

        Args:
            api: The OpenAI API, "chat" or "responses".
        """
        return to_openai_tools(self.tools, api)

    def to_anthropic(self) -> list[dict[str, Any]]:
        """Return the tools in the format of Anthropic."""
        return to_anthropic_tools(self.tools)

    def to_gemini(self) -> list[dict[str, Any]]:
        """Return the tools in the format of Gemini, as one group of function declarations."""
        return to_gemini_tools(self.tools)

    def parse_openai_call(self, call: object) -> tuple[str, dict[str, Any]]:
        """Return the full name and the arguments of an OpenAI tool call. Raise ValueError if the call is invalid."""
        return self._resolve_call(*parse_openai_call(call))

    def parse_anthropic_call(self, block: object) -> tuple[str, dict[str, Any]]:
        """Return the full name and the arguments of an Anthropic `tool_use` block. Raise ValueError if the block is
        invalid.
        """
        return self._resolve_call(*parse_anthropic_call(block))

    def parse_gemini_call(self, call: object) -> tuple[str, dict[str, Any]]:
        """Return the full name and the arguments of a Gemini function call. Raise ValueError if the call is invalid."""
        return self._resolve_call(*parse_gemini_call(call))

    def lint(self, profile: str) -> list[tuple[str, str]]:
        """Find tools that a model provider would reject. Return pairs of a full name and the reason."""
        return lint_tools(self.tools, profile)

    def _resolve_call(self, name: str, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        entry = self._by_name.get(name)
        if entry is None:
            raise ValueError(f"unknown tool {name!r}")
        return entry.full_name, arguments

    @cached_property
    def _by_name(self) -> dict[str, CatalogEntry]:
        # A model name never equals a full name, because only full names contain a dot.
        return {tool.model_name: tool for tool in self.tools} | {one.full_name: one for one in self.tools}

    @cached_property
    def _by_bare_name(self) -> dict[str, list[CatalogEntry]]:
        tools_by_name: dict[str, list[CatalogEntry]] = {}
        for tool in self.tools:
            tools_by_name.setdefault(tool.name, []).append(tool)
        return tools_by_name

    @cached_property
    def _index(self) -> SearchIndex:
        original = self.__dict__.get("_original")
        if original is not None:
            return original._index  # All copies share one index, because it takes long to build.
        return SearchIndex([tool.definition for tool in self.tools], [one.server for one in self.tools])


def copy_catalog(catalog: Catalog) -> Catalog:
    """Return a copy of a catalog with separate definitions, so that the caller may change the definitions."""
    copied = replace(
        catalog,
        tools=copy_entries(catalog.tools),
        resources=copy_entries(catalog.resources),
        resource_templates=copy_entries(catalog.resource_templates),
        prompts=copy_entries(catalog.prompts),
    )
    cast("dict[str, Any]", copied.__dict__)["_original"] = catalog
    return copied


def _merge_entries(
    kind: str, definitions_by_server: Iterable[tuple[str, Sequence[Definition]]], problems: list[str]
) -> tuple[CatalogEntry, ...]:
    entries: dict[str, CatalogEntry] = {}
    ambiguous: set[str] = set()
    for server, definitions in definitions_by_server:
        for entry in _drop_ambiguous(kind, server, definitions, problems):
            if (other := entries.get(entry.model_name)) is not None:
                problems.append(
                    f"{kind} {entry.full_name!r} and {other.full_name!r} have the same model name {entry.model_name}"
                )
                ambiguous.add(entry.model_name)
            else:
                entries[entry.model_name] = entry
    unique = (entry for name, entry in entries.items() if name not in ambiguous)
    return tuple(sorted(unique, key=lambda entry: (entry.server, entry.name)))


def _drop_ambiguous(
    kind: str, server: str, definitions: Sequence[Definition], problems: list[str]
) -> Iterable[CatalogEntry]:
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
            problems.append(f"{server} has two different definitions of {kind} {name!r}")
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
    """Return the error message for an unknown server."""
    message = f"unknown server {clip(name)}"
    for problem in problems:
        if problem.is_error and problem.message.startswith(f"{name}: "):
            return f"{message}: {problem.message.removeprefix(f'{name}: ')}"
    names = [server.name for server in servers]
    return message + (suggest_match(name, names) or f". Known servers: {', '.join(names) or 'none'}")


def explain_unknown_tool(
    name: str, catalog: Catalog, servers: Sequence[ServerSupervisor], problems: Sequence[ConfigProblem]
) -> str:
    """Return the error message for an unknown tool."""
    server, dot, _ = name.partition(".")
    if dot:
        return explain_unknown_server(server, servers, problems)
    full_names = [tool.full_name for tool in catalog.tools if tool.name == name]
    if full_names:
        return f"several servers have a tool {clip(name)}. Use one of {', '.join(full_names)}"
    message = f"unknown tool {clip(name)}"
    matches = find_similar(name, dict.fromkeys(tool.name for tool in catalog.tools))[:1]
    if matches:
        return (
            f"{message}. Did you mean {' or '.join(tool.full_name for tool in catalog.tools if tool.name in matches)}?"
        )
    failed_servers = [
        supervisor for supervisor in servers if supervisor.last_error is not None and "tool" not in supervisor.known
    ]
    return ". ".join(
        [
            message,
            *(
                f"The tools of {supervisor.name} are not known: {_format_reason(supervisor)}"
                for supervisor in failed_servers
            ),
        ]
    )


def _format_reason(supervisor: ServerSupervisor) -> str:
    return clip(
        str(supervisor.last_error.args[0] if supervisor.last_error and supervisor.last_error.args else supervisor.state)
    )
