"""Offers: what a server has to offer, and the decorators by which authors add to it.

Everything registered is compiled on the spot, so that a mistake shows where it was made. Knows nothing of requests.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, cast, overload

from dovetail.errors import InvalidParams
from dovetail.protocol import topics
from dovetail.protocol.exchange import Listener
from dovetail.server.changes import Changes
from dovetail.server.complete import Completer
from dovetail.server.options import PromptOptions, ResourceOptions, ToolOptions, check_name, check_options, expect
from dovetail.server.paging import Pages
from dovetail.server.prompt import Prompt
from dovetail.server.resource import Resource, ResourceTemplate
from dovetail.server.signature import METHOD
from dovetail.server.tool import Tool
from dovetail.wire.codec import convert, plain
from dovetail.wire.lifecycle import ListChangedCapability, ResourcesCapability, ServerCapabilities
from dovetail.wire.meta import valid_key
from dovetail.wire.shape import Wire, replace

if TYPE_CHECKING:  # what few servers use is loaded by those who do
    from dovetail.server.access import Access, Predicate, Rules
    from dovetail.server.lint import ToolReport
    from dovetail.server.offload import Offload, Shelf

F = TypeVar("F", bound=Callable[..., Any])

_LISTS: Final = ("tools", "resources", "prompts")
_LIST_OF: Final = {"tool": "tools", "resource": "resources", "resource template": "resources", "prompt": "prompts"}


class Offers:
    """The tools, resources, prompts and completions of one server."""

    def __init__(
        self,
        pages: Pages,
        *,
        always: Collection[str],
        experimental: dict[str, Any] | None,
        extensions: dict[str, Any] | None,
        offload: "Offload | None",
        profile: str | None,
        lint: bool,
        show_locked: bool,
    ) -> None:
        self.changes = Changes()
        self._changing = RLock()  # one thread at a time changes what is offered; nobody waits to read it
        self._pages = pages
        self._always = _known_lists(always)
        self._experimental = experimental
        self._extensions = _known_keys(extensions)
        self._tools: dict[str, Tool] = {}
        self._resources: dict[str, Resource] = {}
        self._templates: dict[str, ResourceTemplate] = {}
        self._templates_by_precision: tuple[ResourceTemplate, ...] = ()
        self._prompts: dict[str, Prompt] = {}
        # Everything registered, in order, what is not enabled too; the registries above hold what is.
        self._all: dict[str, dict[str, Any]] = {kind: {} for kind in _LIST_OF}
        # What is mounted here with one of these is not offered.
        self.disabled_tags: frozenset[str] = frozenset()
        self.disabled_names: frozenset[str] = frozenset()
        self._completers: dict[tuple[str, str], Completer] = {}
        self._profile = _known_profile(profile)
        self._lint = lint
        self._show_locked = show_locked
        self._rules: Rules | None = None  # who may use what, once something is not for everyone
        self._shelf = None if offload is None else self._keeping(offload)

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(self, called: str | None = None, /, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...
    def tool(self, function: Any = None, /, **options: Any) -> Any:
        """Offer a function as a tool: `@app.tool`, `@app.tool()` or `@app.tool("name", title=...)`.

        Options: name, title, description, icons, annotations or read_only, destructive, idempotent and open_world,
        input_schema, output_schema, tags, version, meta, timeout, limit (calls at once), inline, reveal, scopes (a
        caller needs them all), visible (a function of the principal), enabled.
        """
        return self._registering(function, options, self.add_tool)

    def add_tool(self, function: Callable[..., Any], **options: Unpack[ToolOptions]) -> None:
        """Register a tool; options as for the decorator."""
        access, rest = _split("tool", options)
        tool = Tool(function, **rest)
        if self._profile is not None:
            from dovetail.protocol.profiles import fitted

            tool.declaration = replace(tool.declaration, input_schema=fitted(self._profile, tool.signature.schema))
        self._register("tool", tool.name, tool, access)
        check_name(tool.name)
        if self._lint:
            from dovetail.server.lint import tell

            tell(tool)

    def remove_tool(self, name: str) -> None:
        """Stop offering a tool."""
        self._unregister("tool", name)

    def resource(self, uri: str, /, **options: Unpack[ResourceOptions]) -> Callable[[F], F]:
        """Offer a function's value under a URI, or under every URI of a template such as `city://{name}/profile`.

        Options: name, title, description, mime_type, size (not of a template), icons, annotations, tags, version, meta,
        cache, timeout, limit (reads at once), inline, reveal, scopes, visible, enabled.
        """

        if callable(uri):  # `@app.resource`, without its URI
            raise TypeError('a resource needs its URI: @app.resource("city://list")')

        def register(function: F) -> F:
            self.add_resource(function, uri, **options)
            return function

        return register

    def add_resource(self, function: Callable[..., Any], uri: str, **options: Unpack[ResourceOptions]) -> None:
        """Register a resource or a template; options as for the decorator."""
        access, rest = _split("resource", options)
        expect("a resource's URI", uri, str, "a text")
        if "{" in uri:
            if rest.pop("size", None) is not None:
                raise TypeError(f"{uri} is a template, and its resources have sizes of their own: leave out size=")
            template = ResourceTemplate(function, uri, **rest)
            self._register("resource template", uri, template, access)
        else:
            self._register("resource", uri, Resource(function, uri, **rest), access)

    def remove_resource(self, uri: str) -> None:
        """Stop offering a resource or a template."""
        self._unregister("resource template" if "{" in uri else "resource", uri)

    @overload
    def prompt(self, function: F, /) -> F: ...
    @overload
    def prompt(self, called: str | None = None, /, **options: Unpack[PromptOptions]) -> Callable[[F], F]: ...
    def prompt(self, function: Any = None, /, **options: Any) -> Any:
        """Offer a function as a prompt.

        Options: name, title, description, icons, tags, version, meta, timeout, limit (calls at once), inline, reveal,
        scopes, visible, enabled.
        """
        return self._registering(function, options, self.add_prompt)

    def add_prompt(self, function: Callable[..., Any], **options: Unpack[PromptOptions]) -> None:
        """Register a prompt; options as for the decorator."""
        access, rest = _split("prompt", options)
        prompt = Prompt(function, **rest)
        self._register("prompt", prompt.declaration.name, prompt, access)

    def remove_prompt(self, name: str) -> None:
        """Stop offering a prompt."""
        self._unregister("prompt", name)

    def complete(self, of: str, argument: str) -> Callable[[F], F]:
        """Suggest values for an argument of a prompt (by name) or of a template (by its URI), registered before."""
        self._check_completable(of, argument)

        def register(function: F) -> F:
            self._completers[of, argument] = Completer(function)
            return function

        return register

    def _check_completable(self, of: str, argument: str) -> None:
        from dovetail.server.arguments import listed

        holders = self._all["prompt"] | self._all["resource template"]
        if of not in holders:
            raise ValueError(
                f"no prompt or template is called {listed([of], holders)}; register it before its completions"
            )
        names = holders[of].signature.parameters
        if argument not in names:
            raise ValueError(f"{of} has no argument {listed([argument], names)}")

    def add(self, source: Any, *, prefix: str = "") -> None:
        """Offer what a module, an object or a function has: what is marked with `tool`, `resource` or `prompt`, or,
        where nothing is, every public function as a tool. A prefix goes before the names of tools and prompts.
        """
        from dovetail.server.marks import offered

        add = {"tool": self.add_tool, "prompt": self.add_prompt}
        for name, function, mark in offered(source):
            if mark.kind == "resource":
                self.add_resource(function, mark.uri, **cast("ResourceOptions", mark.options))
            else:
                named: Any = mark.options | {"name": prefix + (mark.options.get("name") or name)}
                add[mark.kind](function, **named)

    def enable(self, *names: str, tags: Collection[str] = ()) -> None:
        """Offer again what was disabled: tools and prompts by name, resources by URI, or all with one of the tags.

        What is mounted here is meant too, by the name it has here; a tag that nothing has changes nothing.
        """
        self._switch(names, tags, enabled=True)

    def disable(self, *names: str, tags: Collection[str] = ()) -> None:
        """Stop offering, without forgetting, what `enable` would offer again."""
        self._switch(names, tags, enabled=False)

    def restrict(
        self,
        *names: str,
        tags: Collection[str] = (),
        scopes: Collection[str] = (),
        visible: "Predicate | None" = None,
    ) -> None:
        """Say who may see and use things: those of some names or URIs, or with one of the tags, now and later.

        A caller needs all the `scopes`; `visible` is a function of the principal. All rules about a thing hold, for
        what is mounted here too.
        """
        from dovetail.server.access import access

        if not (names or tags) or not (scopes or visible):
            raise ValueError("restrict takes names or tags=, and scopes= or visible=")
        _check_tags(tags)
        rule = access(scopes, visible)
        with self._changing:
            rules = self._ruled()
            if tags:
                rules.add_tagged(tags, rule)
            for name in names:
                rules.add_named(name, rule)
            new = frozenset(names)
            for kind, registered in self._all.items():
                for name, one in registered.items():
                    if not one.tags.isdisjoint(tags) or (new and not new.isdisjoint(rules.names_about(kind, name))):
                        rules.add(kind, name, rule)
        self.changed(*_LISTS)

    def _switch(self, names: Collection[str], tags: Collection[str], *, enabled: bool) -> None:
        with self._changing:
            known = self._names()
            if unknown := [name for name in names if name not in known and not self._mounted(name)]:
                from dovetail.server.arguments import listed

                raise ValueError(f"nothing is called {listed(unknown, known)}")
            other = [(kind, one) for kind, _, one in self._meant(names, tags) if one.enabled is not enabled]
            for _, one in other:
                one.enabled = enabled
            kinds = dict.fromkeys(kind for kind, _ in other)
            for kind in kinds:
                self._refresh(kind)
            self.disabled_tags = self.disabled_tags.difference(tags) if enabled else self.disabled_tags.union(tags)
            self.disabled_names = self.disabled_names.difference(names) if enabled else self.disabled_names.union(names)
        for kind in kinds:
            self.changed(_LIST_OF[kind])

    def _names(self) -> list[str]:
        """Everything registered here, enabled or not."""
        return [name for registered in self._all.values() for name in registered]

    def _mounted(self, name: str) -> bool:
        """Whether something mounted here has, or may have, a name or URI."""
        return False

    def _meant(self, names: Collection[str], tags: Collection[str]) -> Iterator[tuple[str, str, Any]]:
        """What has one of the names or tags: its kind, its name or URI, and itself."""
        _check_tags(tags)
        for kind, registered in self._all.items():
            for name, one in registered.items():
                if name in names or not one.tags.isdisjoint(tags):
                    yield kind, name, one

    def _keeping(self, policy: "Offload") -> "Shelf":
        from dovetail.server.offload import TEMPLATE, Offload, Shelf

        expect("offload=", policy, Offload, "an Offload(...)")
        shelf = Shelf(policy)
        self.add_resource(shelf.fetch, TEMPLATE, name="result", description="A result too large to send.", inline=True)
        return shelf

    def _register(self, kind: str, name: str, made: Any, access: "Access | None") -> None:
        _check_sound(made.declaration)
        with self._changing:
            if name in self._all[kind]:
                raise ValueError(f"a {kind} called {name!r} is already registered")
            self._all[kind][name] = made
            if access is not None:
                self._ruled().add(kind, name, access)
            if self._rules is not None:
                for rule in (self._rules.tagged(made.tags), self._rules.named(kind, name)):
                    if rule is not None:
                        self._rules.add(kind, name, rule)
            if made.enabled:
                self._offer(kind, self._registry(kind) | {name: made})
        self.changed(_LIST_OF[kind])

    def _ruled(self) -> "Rules":
        from dovetail.server.access import Rules

        if self._rules is None:
            self._rules = Rules(show_locked=self._show_locked)
        return self._rules

    def _unregister(self, kind: str, name: str) -> None:
        with self._changing:
            if name not in self._all[kind]:
                from dovetail.server.arguments import listed

                raise ValueError(f"no {kind} is called {listed([str(name)], self._all[kind])}")
            del self._all[kind][name]
            self._refresh(kind)
            if self._rules is not None:
                self._rules.drop(kind, name)  # last: nothing is offered without its rule
        self.changed(_LIST_OF[kind])

    def _registry(self, kind: str) -> dict[str, Any]:
        if kind == "tool":
            return self._tools
        if kind == "resource":
            return self._resources
        return self._prompts if kind == "prompt" else self._templates

    def _refresh(self, kind: str) -> None:
        """What is enabled is offered."""
        self._offer(kind, {name: one for name, one in self._all[kind].items() if one.enabled})

    def _offer(self, kind: str, enabled: dict[str, Any]) -> None:
        """Another registry in place of the one there was, which requests at work, of any thread, keep as it is."""
        match kind:
            case "tool":
                self._tools = enabled
            case "prompt":
                self._prompts = enabled
            case "resource":
                self._resources = enabled
            case _:
                self._templates = enabled
                by_precision = sorted(self._templates.values(), key=lambda one: one.template.specificity, reverse=True)
                self._templates_by_precision = tuple(by_precision)
        self._pages.clear()

    def _registering(self, function: Any, options: dict[str, Any], add: Callable[..., None]) -> Any:
        if callable(function):
            add(function, **options)
            return function
        _check_function(function)
        expect("a name", function, str, "a text")

        def register(decorated: F) -> F:
            _check_function(decorated)
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

    def heard(self, method: str, uri: str | None) -> None:
        """A server mounted here has changed."""
        self._pages.clear()
        self.changes.publish(method, uri)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Register for changes; call what is returned to stop."""
        return self.changes.listen(listener)

    def lint(self, *rules: str) -> "list[ToolReport]":
        """What hosts and models may stumble over in the tools, and an estimate of what each costs in tokens.

        Checked is what OpenAI, Gemini and Anthropic take, or the rule sets named.
        """
        from dovetail.server.lint import report

        return [report(tool, rules) for tool in self._tools.values()]

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


def _split(kind: str, options: Mapping[str, Any]) -> "tuple[Access | None, dict[str, Any]]":
    """The rule of who may use it, None for everyone, and the other options."""
    rest = check_options(kind, options)
    _known_keys(rest.get("meta"))
    scopes, visible = rest.pop("scopes", ()), rest.pop("visible", None)
    if not scopes and visible is None:
        return None, rest
    from dovetail.server.access import access

    return access(scopes, visible), rest


def _check_tags(tags: Collection[str]) -> None:
    if isinstance(tags, str):
        raise TypeError(f"tags are several: write tags=[{tags!r}]")


def _check_function(given: Any) -> None:
    if isinstance(given, classmethod | property):
        raise TypeError(f"a {type(given).__name__} cannot be offered from the body of its class{METHOD}")


def _check_sound(declaration: Wire) -> None:
    """One malformed declaration would spoil the whole list for its readers."""
    try:
        convert(plain(declaration), type(declaration), what="declaration")
    except (InvalidParams, TypeError) as exc:
        raise TypeError(f"{getattr(declaration, 'name', 'it')!r} cannot be offered: {exc}") from None


def _known_profile(profile: str | None) -> str | None:
    if profile is None:
        return None
    from dovetail.protocol.profiles import PROFILES

    if profile not in PROFILES:
        raise ValueError(f"profile must be one of {', '.join(PROFILES)}, not {profile!r}")
    return profile


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
