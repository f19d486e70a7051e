"""What is known of a server from its lists: the names of things, and of its tools which headers mirror a call, what a
result must look like, whether a call may be repeated.

Compiled when first needed; a definition that cannot be used safely costs a warning, never a call.
"""

import logging
from collections.abc import Iterable
from typing import Any

from dovetail.client.option_checks import suggest_match
from dovetail.client.validator import SchemaValidator, UnusableSchema, compile_schema
from dovetail.error_context import clip
from dovetail.errors import InvalidResult
from dovetail.protocol.client_transport import Headers
from dovetail.protocol.headers import HeaderPath, build_param_headers, compile_header_paths
from dovetail.wire.base import UNSET
from dovetail.wire.raw_message import copy_value
from dovetail.wire.tools import CallToolResult, Tool

log = logging.getLogger("dovetail")


class ToolEntry:
    """One tool, as far as calling it goes."""

    __slots__ = ("_is_compiled", "_validator", "can_repeat", "header_paths", "sends_headers", "tool")

    def __init__(self, tool: Tool, paths: tuple[HeaderPath, ...], *, sends_headers: bool) -> None:
        self.tool = tool
        self.header_paths = paths
        self.sends_headers = sends_headers  # whether the paths were compiled
        hints = tool.annotations
        self.can_repeat = hints is not None and (hints.read_only_hint is True or hints.idempotent_hint is True)
        self._is_compiled = False
        self._validator: SchemaValidator | None = None

    def build_headers(self, arguments: dict[str, Any]) -> Headers:
        """The headers of a call."""
        try:
            return build_param_headers(self.header_paths, arguments) if self.header_paths else ()
        except ValueError:
            return ()  # the server will say what is wrong with the argument

    def validate_result(self, result: CallToolResult, server: str) -> None:
        """Hold a result against the schema the tool promised; InvalidResult if it breaks the promise."""
        if self.tool.output_schema is None or result.is_error:
            return
        if result.structured_content is UNSET:
            raise InvalidResult(f"the tool {clip(self.tool.name)} promises structured content and sent none")
        validator = self._compile_validator(server)
        try:
            problem = validator.find_error(result.structured_content) if validator is not None else None
        except UnusableSchema as exc:
            log.warning("%s: a result of %s is not checked: %s", server, clip(self.tool.name), exc)
            return
        if problem is not None:
            raise InvalidResult(f"the result of {clip(self.tool.name)} breaks its own schema: {problem}")

    def _compile_validator(self, server: str) -> SchemaValidator | None:
        if not self._is_compiled:
            self._is_compiled = True
            try:
                self._validator = compile_schema(self.tool.output_schema)
            except UnusableSchema as exc:
                log.warning("%s: results of %s are not checked: %s", server, clip(self.tool.name), exc)
        return self._validator

    def is_wrapped(self, *, is_stateless: bool) -> bool | None:
        """Whether the value of a result stands under `result`; None if its schema leaves that open.

        Only handshake revisions need that, for what is no object; their servers say it by a schema with nothing else.
        """
        schema = self.tool.output_schema
        if schema is None or schema.get("x-fastmcp-wrap-result") is True:
            return None if schema is None and is_stateless else True
        if not _has_only_result(schema):
            return False
        return None if is_stateless else True


def _has_only_result(schema: dict[str, Any]) -> bool:
    """Whether `result` is all an object of this schema holds, and no object itself."""
    properties: Any = schema.get("properties")
    if type(properties) is not dict or properties.keys() != {"result"}:
        return False
    result_schema: Any = properties["result"]
    return type(result_schema) is not dict or result_schema.get("type") != "object"


class ToolIndex:
    """The tools listed last, by name."""

    def __init__(self) -> None:
        self._entries: dict[str, ToolEntry] = {}
        self._stale_names: frozenset[str] = frozenset()

    def get(self, name: str) -> ToolEntry | None:
        """The tool of this name, if it was listed."""
        return self._entries.get(name)

    def add_listed(
        self, tools: Iterable[Tool], server: str, *, sends_headers: bool, is_complete: bool = False
    ) -> list[Tool]:
        """Learn what is listed, and leave out what must not be used. `is_complete`: these are all tools there are.

        One broken header annotation spoils the tool where headers are sent. spec: streamable-http#schema-extension
        """
        if is_complete:
            self._stale_names = frozenset()
        usable_tools: list[Tool] = []
        for tool in tools:
            entry = self._entries.get(tool.name)
            if entry is not None and entry.sends_headers is sends_headers and entry.tool == tool:
                usable_tools.append(tool)
                continue
            paths: tuple[HeaderPath, ...] = ()
            if sends_headers:
                try:
                    paths = compile_header_paths(tool.input_schema)
                except ValueError as exc:
                    log.warning("%s: the tool %s is left out: %s", server, clip(tool.name), clip(str(exc), 200))
                    self._entries.pop(tool.name, None)
                    continue
            # The caller may change its own copy.
            self._entries[tool.name] = ToolEntry(copy_value(tool), paths, sends_headers=sends_headers)
            usable_tools.append(tool)
        return usable_tools

    def is_stale(self, name: str) -> bool:
        """Whether something was known of this tool, and may not be true any more."""
        return name in self._stale_names

    def mark_stale(self) -> None:
        """What is known may not be true any more."""
        self._stale_names = self._stale_names.union(self._entries)
        self._entries.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._stale_names = frozenset()


_LIST_METHODS = {"tools/call": "tools/list", "prompts/get": "prompts/list", "resources/read": "resources/list"}
_LIST_CALLS = {
    "tools/list": "list_tools()",
    "prompts/list": "list_prompts()",
    "resources/list": "list_resources() and list_resource_templates()",
}
_MAX_SHOWN_NAMES = 10


class NameIndex:
    """What the lists named last, for those who ask for something that is not there."""

    def __init__(self) -> None:
        self._names_by_method: dict[str, list[str]] = {}

    def add_page(self, method: str, items: Iterable[Any], *, is_first_page: bool) -> None:
        """Names on one page of a list."""
        if is_first_page:
            self._names_by_method[method] = []
        names = [item.uri if method == "resources/list" else item.name for item in items]
        self._names_by_method.setdefault(method, []).extend(names)

    def suggest(self, method: str, name: str) -> str | None:
        """What may have been meant by a name that the server does not know."""
        list_method = _LIST_METHODS.get(method)
        if list_method is None:
            return None
        listed_names = self._names_by_method.get(list_method)
        if listed_names is None:
            return f"what there is, you learn by {_LIST_CALLS[list_method]}"
        if not listed_names:
            return "the server listed none at all"
        suggestion = suggest_match(name, listed_names)
        if suggestion:
            return suggestion.removeprefix("; ")
        hidden_count = len(listed_names) - _MAX_SHOWN_NAMES
        names = ", ".join(clip(candidate) for candidate in listed_names[:_MAX_SHOWN_NAMES])
        return f"there are {names}{f' and {hidden_count} more' if hidden_count > 0 else ''}"

    def clear(self) -> None:
        """Forget everything."""
        self._names_by_method.clear()
