"""Offers: what a server has to offer, and the decorators by which authors add to it.

Everything registered is compiled on the spot, so that a mistake shows where it was made. Knows nothing of requests.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, TypeVar, overload

from dovetail.errors import InvalidParams
from dovetail.protocol import topics
from dovetail.protocol.exchange import Listener
from dovetail.server.changes import Changes
from dovetail.server.complete import Completer
from dovetail.server.paging import Pages
from dovetail.server.prompt import Prompt
from dovetail.server.resource import Resource, ResourceTemplate
from dovetail.server.tool import Tool
from dovetail.wire.codec import convert, plain
from dovetail.wire.lifecycle import ListChangedCapability, ResourcesCapability, ServerCapabilities
from dovetail.wire.meta import valid_key
from dovetail.wire.shape import Wire

F = TypeVar("F", bound=Callable[..., Any])

_LISTS: Final = ("tools", "resources", "prompts")


class Offers:
    """The tools, resources, prompts and completions of one server."""

    def __init__(
        self,
        pages: Pages,
        *,
        always: Collection[str],
        experimental: dict[str, Any] | None,
        extensions: dict[str, Any] | None,
    ) -> None:
        self.changes = Changes()
        self._pages = pages
        self._always = _known_lists(always)
        self._experimental = experimental
        self._extensions = _known_keys(extensions)
        self._tools: dict[str, Tool] = {}
        self._resources: dict[str, Resource] = {}
        self._templates: dict[str, ResourceTemplate] = {}
        self._templates_by_precision: tuple[ResourceTemplate, ...] = ()
        self._prompts: dict[str, Prompt] = {}
        self._completers: dict[tuple[str, str], Completer] = {}

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(self, name: str | None = None, /, **options: Any) -> Callable[[F], F]: ...
    def tool(self, function: Any = None, /, **options: Any) -> Any:
        """Offer a function as a tool: `@app.tool`, `@app.tool()` or `@app.tool("name", title=...)`.

        Options: name, title, description, icons, annotations, input_schema, output_schema, meta, timeout, inline.
        """
        return self._registering(function, options, self.add_tool)

    def add_tool(self, function: Callable[..., Any], **options: Any) -> None:
        """Register a tool; options as for the decorator."""
        _known_keys(options.get("meta"))
        tool = Tool(function, **options)
        _check_sound(tool.declaration)
        _new(tool.name, self._tools, "tool")
        self._tools[tool.name] = tool
        self.changed("tools")

    def remove_tool(self, name: str) -> None:
        """Stop offering a tool."""
        del self._tools[name]
        self.changed("tools")

    def resource(self, uri: str, /, **options: Any) -> Callable[[F], F]:
        """Offer a function's value under a URI, or under every URI of a template such as `city://{name}/profile`.

        Options: name, title, description, mime_type, size, icons, annotations, meta, cache, timeout, inline.
        """

        if callable(uri):  # `@app.resource`, without its URI
            raise TypeError('a resource needs its URI: @app.resource("city://list")')

        def register(function: F) -> F:
            self.add_resource(function, uri, **options)
            return function

        return register

    def add_resource(self, function: Callable[..., Any], uri: str, **options: Any) -> None:
        """Register a resource or a template; options as for the decorator."""
        _known_keys(options.get("meta"))
        if "{" in uri:
            template = ResourceTemplate(function, uri, **options)
            _check_sound(template.declaration)
            _new(uri, self._templates, "resource template")
            self._templates[uri] = template
            self._sort_templates()
        else:
            resource = Resource(function, uri, **options)
            _check_sound(resource.declaration)
            _new(uri, self._resources, "resource")
            self._resources[uri] = resource
        self.changed("resources")

    def remove_resource(self, uri: str) -> None:
        """Stop offering a resource or a template."""
        del (self._templates if "{" in uri else self._resources)[uri]
        self._sort_templates()
        self.changed("resources")

    def _sort_templates(self) -> None:
        by_precision = sorted(self._templates.values(), key=lambda one: one.template.specificity, reverse=True)
        self._templates_by_precision = tuple(by_precision)

    @overload
    def prompt(self, function: F, /) -> F: ...
    @overload
    def prompt(self, name: str | None = None, /, **options: Any) -> Callable[[F], F]: ...
    def prompt(self, function: Any = None, /, **options: Any) -> Any:
        """Offer a function as a prompt; options: name, title, description, icons, meta, timeout, inline."""
        return self._registering(function, options, self.add_prompt)

    def add_prompt(self, function: Callable[..., Any], **options: Any) -> None:
        """Register a prompt; options as for the decorator."""
        _known_keys(options.get("meta"))
        prompt = Prompt(function, **options)
        _check_sound(prompt.declaration)
        _new(prompt.declaration.name, self._prompts, "prompt")
        self._prompts[prompt.declaration.name] = prompt
        self.changed("prompts")

    def remove_prompt(self, name: str) -> None:
        """Stop offering a prompt."""
        del self._prompts[name]
        self.changed("prompts")

    def complete(self, of: str, argument: str) -> Callable[[F], F]:
        """Suggest values for an argument of a prompt (by name) or of a template (by its URI)."""

        def register(function: F) -> F:
            self._completers[of, argument] = Completer(function)
            return function

        return register

    def _registering(self, function: Any, options: dict[str, Any], add: Callable[..., None]) -> Any:
        if callable(function):
            add(function, **options)
            return function

        def register(decorated: F) -> F:
            add(decorated, **({"name": function} if function is not None else {}) | options)
            return decorated

        return register

    # Telling of changes

    def changed(self, *lists: str) -> None:
        """Say that the list of tools, resources or prompts is another now. From any task or thread."""
        for name in _known_lists(lists):
            self._pages.clear()
            self.changes.publish(topics.LISTS[name])

    def updated(self, uri: str) -> None:
        """Say that a resource has new contents. From any task or thread."""
        self.changes.publish(topics.UPDATED, uri)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Register for changes; call what is returned to stop."""
        return self.changes.listen(listener)

    # What is there

    def capabilities(self) -> ServerCapabilities:
        """What is offered now."""
        always = self._always
        return ServerCapabilities(
            experimental=self._experimental,
            logging={},
            completions={} if self._completes() else None,
            prompts=ListChangedCapability(list_changed=True) if self._prompts or "prompts" in always else None,
            resources=ResourcesCapability(subscribe=True, list_changed=True)
            if self._resources or self._templates or "resources" in always
            else None,
            tools=ListChangedCapability(list_changed=True) if self._tools or "tools" in always else None,
            extensions=self._extensions,
        )

    def _completes(self) -> bool:
        return bool(self._completers) or any(
            one.signature.choices for one in (*self._prompts.values(), *self._templates.values())
        )


def _check_sound(declaration: Wire) -> None:
    """One malformed declaration would spoil the whole list for its readers."""
    try:
        convert(plain(declaration), type(declaration), what="declaration")
    except (InvalidParams, TypeError) as exc:
        raise TypeError(f"{getattr(declaration, 'name', 'it')!r} cannot be offered: {exc}") from None


def _new(name: str, registry: Mapping[str, Any], kind: str) -> None:
    if name in registry:
        raise ValueError(f"a {kind} called {name!r} is already registered")


def _known_lists(names: Iterable[str]) -> frozenset[str]:
    found = frozenset(names)
    if not found <= set(_LISTS):
        raise ValueError(f"expected some of {', '.join(_LISTS)}, got {', '.join(sorted(found))}")
    return found


def _known_keys(keyed: dict[str, Any] | None) -> dict[str, Any] | None:
    for key in keyed or {}:
        if not valid_key(key):
            raise ValueError(f"{key!r} is not a valid _meta key: expected [prefix/]name")
    return keyed
