"""Information from the lists of a server that the client needs to call tools and to suggest names.

Schemas are compiled when they are first used. An unsafe schema causes a warning, but does not fail the call.
"""

from collections.abc import Iterable
from typing import Any

from dovetail.client.pagination import ListMethod
from dovetail.error_context import clip, make_name_hint
from dovetail.errors import InvalidResult
from dovetail.log import log
from dovetail.protocol.headers import HeaderPath, build_param_headers, compile_header_paths, read_header_paths
from dovetail.protocol.interfaces.client_transport import Headers
from dovetail.schemas.validator import SchemaValidator, UnusableSchema, compile_schema
from dovetail.wire.base import UNSET
from dovetail.wire.raw_message import copy_value
from dovetail.wire.tools import WRAPPED_RESULT_KEYWORD, CallToolResult, Tool


class ToolEntry:
    __slots__ = (
        "_declared_paths",
        "_is_compiled",
        "_validator",
        "can_repeat",
        "header_paths",
        "is_wrapped",
        "sends_headers",
        "tool",
    )

    def __init__(self, tool: Tool, paths: tuple[HeaderPath, ...], *, sends_headers: bool) -> None:
        self.tool = tool
        self.header_paths = paths
        self._declared_paths = paths if sends_headers else None
        self.sends_headers = sends_headers  # True if arguments are also sent as HTTP headers
        hints = tool.annotations
        self.can_repeat = hints is not None and (hints.read_only_hint is True or hints.idempotent_hint is True)
        self.is_wrapped = _is_wrapped(tool.output_schema)
        self._is_compiled = False
        self._validator: SchemaValidator | None = None

    def build_headers(self, arguments: dict[str, Any]) -> Headers:
        try:
            return build_param_headers(self.header_paths, arguments) if self.header_paths else ()
        except ValueError:
            # The call is sent without headers, so that the server reports the invalid argument.
            return ()

    def get_declared_paths(self) -> tuple[HeaderPath, ...]:
        """Return the headers that the definition declares, even if this client sends no headers to the server."""
        if self._declared_paths is None:
            self._declared_paths = read_header_paths(self.tool.input_schema)
        return self._declared_paths

    def validate_result(self, result: CallToolResult, server: str) -> None:
        """Check a result against the tool's output schema. Raise InvalidResult if the result does not match."""
        if self.tool.output_schema is None or result.is_error:
            return
        if result.structured_content is UNSET:
            raise InvalidResult(
                f"the tool {clip(self.tool.name)} has an output schema but returned no structured content"
            )
        validator = self._validator if self._is_compiled else self._compile_validator(server)
        try:
            problem = validator.find_error(result.structured_content) if validator is not None else None
        except UnusableSchema as exc:
            log.warning("%s: the result of %s was not validated: %s", server, clip(self.tool.name), exc)
            return
        if problem is not None:
            raise InvalidResult(
                f"the result of the tool {clip(self.tool.name)} does not match its output schema: {problem}"
            )

    def _compile_validator(self, server: str) -> SchemaValidator | None:
        self._is_compiled = True
        try:
            self._validator = compile_schema(self.tool.output_schema)
        except UnusableSchema as exc:
            log.warning("%s: results of %s are not validated: %s", server, clip(self.tool.name), exc)
        return self._validator


def _is_wrapped(schema: dict[str, Any] | None) -> bool | None:
    """Return whether the server wraps the value of a result as `{"result": ...}`. Return None if this is unclear.

    Not every server marks the schemas of wrapped values.
    """
    if schema is None or schema.get(WRAPPED_RESULT_KEYWORD) is True:
        return None if schema is None else True
    properties: Any = schema.get("properties")
    return None if type(properties) is dict and properties.keys() == {"result"} else False


class ToolIndex:
    """The tools from the server's last list."""

    def __init__(self) -> None:
        self.entries: dict[str, ToolEntry] = {}
        self.stale_names: frozenset[str] = frozenset()  # the tools whose definitions may be outdated
        self.is_complete = False  # True if all tools were listed on this connection

    def add_listed(
        self, tools: Iterable[Tool], server: str, *, sends_headers: bool, is_complete: bool = False
    ) -> list[Tool]:
        """Store the tools of a list, and return the usable tools. Set `is_complete` if the list contains all tools.

        If arguments are sent as headers, a tool with an invalid header annotation is left out.

        spec: streamable-http#schema-extension
        """
        if is_complete:
            self.stale_names = frozenset()
            self.is_complete = True
        usable_tools: list[Tool] = []
        for tool in tools:
            entry = self.entries.get(tool.name)
            if entry is not None and entry.sends_headers is sends_headers and entry.tool == tool:
                usable_tools.append(tool)
                continue
            paths: tuple[HeaderPath, ...] = ()
            if sends_headers:
                try:
                    paths = compile_header_paths(tool.input_schema)
                except ValueError as exc:
                    log.warning("%s: the tool %s is left out: %s", server, clip(tool.name), clip(str(exc), 200))
                    self.entries.pop(tool.name, None)
                    continue
            # The caller may change the tool, so the index stores a copy.
            self.entries[tool.name] = ToolEntry(copy_value(tool), paths, sends_headers=sends_headers)
            usable_tools.append(tool)
        return usable_tools

    def mark_stale(self) -> None:
        self.stale_names = self.stale_names.union(self.entries)
        self.entries.clear()
        self.is_complete = False

    def clear(self) -> None:
        self.entries.clear()
        self.stale_names = frozenset()
        self.is_complete = False


class NameIndex:
    """The names from the server's last lists. A hint about an unknown name suggests similar names from these lists."""

    def __init__(self) -> None:
        self._names_by_method: dict[str, list[str]] = {}

    def add_page(self, listing: ListMethod, page: Any, *, is_first_page: bool) -> None:
        """Store the names in one page of a list."""
        method = listing.method.name
        if is_first_page:
            self._names_by_method[method] = []
        names = [getattr(item, listing.key) for item in getattr(page, listing.field)]
        self._names_by_method.setdefault(method, []).extend(names)

    def suggest(self, listing: ListMethod, name: str) -> str | None:
        """Return a hint with similar names for an unknown name.

        Return None if the name is in the list. The server then means another name, such as an argument of `call_tool`.
        """
        listed_names = self._names_by_method.get(listing.method.name)
        if listed_names is None:
            return f"call {listing.calls} to see what is available"
        if name in listed_names:
            return None
        if not listed_names:
            return "check the server, which lists no such items"
        return make_name_hint(
            listing.shorten(name), {listing.shorten(listed_name): listed_name for listed_name in listed_names}
        )

    def clear(self) -> None:
        """Remove all names."""
        self._names_by_method.clear()
