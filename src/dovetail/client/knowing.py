"""What is known of a server from its lists: the names of things, and of its tools which headers mirror a call, what a
result must look like, whether a call may be repeated.

Compiled when first needed; a definition that cannot be used safely costs a warning, never a call.
"""

import logging
from collections.abc import Iterable
from typing import Any

from dovetail.client.checking import Checker, Unusable, compile_schema
from dovetail.client.options import nearest
from dovetail.errors import ResultError, clip
from dovetail.protocol.channel import Headers
from dovetail.protocol.headers import HeaderPath, header_paths, param_headers
from dovetail.wire.incoming import copied
from dovetail.wire.shape import UNSET
from dovetail.wire.tools import CallToolResult, Tool

log = logging.getLogger("dovetail")


class Known:
    """One tool, as far as calling it goes."""

    __slots__ = ("_checker", "_compiled", "headers", "safe", "tool")

    def __init__(self, tool: Tool, headers: tuple[HeaderPath, ...]) -> None:
        self.tool = tool
        self.headers = headers
        hints = tool.annotations
        self.safe = hints is not None and (hints.read_only_hint is True or hints.idempotent_hint is True)
        self._compiled = False
        self._checker: Checker | None = None

    def mirrored(self, arguments: dict[str, Any]) -> Headers:
        """The headers of a call."""
        try:
            return param_headers(self.headers, arguments) if self.headers else ()
        except ValueError:
            return ()  # the server will say what is wrong with the argument

    def check(self, result: CallToolResult, server: str) -> None:
        """Hold a result against the schema the tool promised; ResultError if it breaks the promise."""
        if self.tool.output_schema is None or result.is_error:
            return
        if result.structured_content is UNSET:
            raise ResultError(f"the tool {clip(self.tool.name)} promises structured content and sent none")
        checker = self._compile(server)
        try:
            fault = checker.check(result.structured_content) if checker is not None else None
        except Unusable as exc:
            log.warning("%s: a result of %s is not checked: %s", server, clip(self.tool.name), exc)
            return
        if fault is not None:
            raise ResultError(f"the result of {clip(self.tool.name)} breaks its own schema: {fault}")

    def _compile(self, server: str) -> Checker | None:
        if not self._compiled:
            self._compiled = True
            try:
                self._checker = compile_schema(self.tool.output_schema)
            except Unusable as exc:
                log.warning("%s: results of %s are not checked: %s", server, clip(self.tool.name), exc)
        return self._checker

    def wraps(self, *, stateless: bool) -> bool | None:
        """Whether the value of a result stands under `result`; None if its schema leaves that open.

        Only handshake revisions need that, for what is no object; their servers say it by a schema with nothing else.
        """
        schema = self.tool.output_schema
        if schema is None or schema.get("x-fastmcp-wrap-result") is True:
            return None if schema is None and stateless else True
        if not _holds_one(schema):
            return False
        return None if stateless else True


def _holds_one(schema: dict[str, Any]) -> bool:
    """Whether `result` is all an object of this schema holds, and no object itself."""
    properties: Any = schema.get("properties")
    if type(properties) is not dict or properties.keys() != {"result"}:
        return False
    inner: Any = properties["result"]
    return type(inner) is not dict or inner.get("type") != "object"


class Tools:
    """The tools listed last, by name."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}
        self._outdated: frozenset[str] = frozenset()

    def get(self, name: str) -> Known | None:
        """The tool of this name, if it was listed."""
        return self._known.get(name)

    def usable(self, tools: Iterable[Tool], server: str, *, mirrors: bool) -> list[Tool]:
        """Learn what is listed, and leave out what must not be used.

        One broken header annotation spoils the tool where headers are sent. spec: streamable-http#schema-extension
        """
        good: list[Tool] = []
        for tool in tools:
            paths: tuple[HeaderPath, ...] = ()
            if mirrors:
                try:
                    paths = header_paths(tool.input_schema)
                except ValueError as exc:
                    log.warning("%s: the tool %s is left out: %s", server, clip(tool.name), clip(str(exc), 200))
                    self._known.pop(tool.name, None)
                    continue
            known = self._known.get(tool.name)
            if known is None or known.tool != tool or known.headers != paths:
                self._known[tool.name] = Known(copied(tool), paths)  # theirs may be changed
            good.append(tool)
        return good

    def outdated(self, name: str) -> bool:
        """Whether something was known of this tool, and may not be true any more."""
        return name in self._outdated

    def outdate(self) -> None:
        """What is known may not be true any more."""
        self._outdated = self._outdated.union(self._known)
        self._known.clear()

    def up_to_date(self) -> None:
        """All tools have been listed."""
        self._outdated = frozenset()

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()
        self._outdated = frozenset()


_LISTS = {"tools/call": "tools/list", "prompts/get": "prompts/list", "resources/read": "resources/list"}
_ASKED_BY = {
    "tools/list": "list_tools()",
    "prompts/list": "list_prompts()",
    "resources/list": "list_resources() and list_resource_templates()",
}
_NAMES_SHOWN = 10


class Names:
    """What the lists named last, for those who ask for something that is not there."""

    def __init__(self) -> None:
        self._listed: dict[str, list[str]] = {}

    def learn(self, method: str, items: Iterable[Any], *, first: bool) -> None:
        """Names on one page of a list."""
        if first:
            self._listed[method] = []
        names = [one.uri if method == "resources/list" else one.name for one in items]
        self._listed.setdefault(method, []).extend(names)

    def advice(self, method: str, name: str) -> str | None:
        """What may have been meant by a name that the server does not know."""
        listing = _LISTS.get(method)
        if listing is None:
            return None
        known = self._listed.get(listing)
        if known is None:
            return f"what there is, you learn by {_ASKED_BY[listing]}"
        if not known:
            return "the server listed none at all"
        guess = nearest(name, known)
        if guess:
            return guess.removeprefix("; ")
        more = len(known) - _NAMES_SHOWN
        names = ", ".join(clip(one) for one in known[:_NAMES_SHOWN])
        return f"there are {names}{f' and {more} more' if more > 0 else ''}"

    def clear(self) -> None:
        """Forget everything."""
        self._listed.clear()
