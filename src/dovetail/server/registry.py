"""Offers: what a server has to offer, and the decorators by which authors add to it.

Everything registered is compiled on the spot, so that a mistake shows where it was made. Knows nothing of requests.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, cast, overload

from dovetail.errors import InvalidParams
from dovetail.protocol import subscription_filter
from dovetail.protocol.exchange import ChangeListener
from dovetail.server.change_notices import Subscriptions
from dovetail.server.completer import Completer
from dovetail.server.item_options import (
    PromptOptions,
    ResourceOptions,
    ToolOptions,
    check_options,
    check_type,
    warn_tool_name,
)
from dovetail.server.page_cache import PageCache
from dovetail.server.parameters.signature import METHOD_HINT
from dovetail.server.prompt import Prompt
from dovetail.server.resource import Resource, ResourceTemplate
from dovetail.server.tool import Tool
from dovetail.wire.base import WireStruct, replace
from dovetail.wire.codec import convert, to_plain
from dovetail.wire.lifecycle import ListChangedCapability, ResourcesCapability, ServerCapabilities
from dovetail.wire.meta import is_valid_key

if TYPE_CHECKING:  # what few servers use is loaded by those who do
    from dovetail.schemas.provider_rules import SchemaProfile
    from dovetail.server.access_rules import AccessRule, AccessRules, Predicate
    from dovetail.server.large_results import LargeResults, ResultStore
    from dovetail.server.lint import LintReport

F = TypeVar("F", bound=Callable[..., Any])

_LIST_NAMES: Final = ("tools", "resources", "prompts")
_LIST_CHANGED: Final = ListChangedCapability(list_changed=True)
_RESOURCES: Final = ResourcesCapability(subscribe=True, list_changed=True)
_LIST_BY_KIND: Final = {"tool": "tools", "resource": "resources", "resource template": "resources", "prompt": "prompts"}


class Registry:
    """The tools, resources, prompts and completions of one server."""

    def __init__(
        self,
        page_cache: PageCache,
        *,
        capabilities: ServerCapabilities | None,
        large_results: "LargeResults | None",
        schema_profile: "SchemaProfile | None",
        lint: bool,
        show_locked: bool,
    ) -> None:
        self.changes = Subscriptions()
        self._lock = RLock()  # one thread at a time changes what is offered; nobody waits to read it
        self._page_cache = page_cache
        self._declared_capabilities = _check_capabilities(capabilities)
        self._tools: dict[str, Tool] = {}
        self._resources: dict[str, Resource] = {}
        self._templates: dict[str, ResourceTemplate] = {}
        self._templates_by_specificity: tuple[ResourceTemplate, ...] = ()
        self._prompts: dict[str, Prompt] = {}
        # Everything registered, in order, what is not enabled too; the registries above hold what is.
        self._registered: dict[str, dict[str, Any]] = {kind: {} for kind in _LIST_BY_KIND}
        # What is mounted here with one of these is not offered.
        self.disabled_tags: frozenset[str] = frozenset()
        self.disabled_names: frozenset[str] = frozenset()
        self._completers: dict[tuple[str, str], Completer] = {}
        self._profile: SchemaProfile | None = _check_profile(schema_profile)
        self._is_lint_enabled = lint
        self._show_locked = show_locked
        self._access_rules: AccessRules | None = None  # who may use what, once something is not for everyone
        self._result_store = None if large_results is None else self._make_result_store(large_results)

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(self, called: str | None = None, /, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...
    def tool(self, function: Any = None, /, **options: Any) -> Any:
        """Offer a function as a tool: `@app.tool`, `@app.tool()` or `@app.tool("name", title=...)`.

        Options: see `ToolOptions`.
        """
        return self._make_decorator(function, options, self.add_tool)

    def add_tool(self, function: Callable[..., Any], **options: Unpack[ToolOptions]) -> None:
        """Register a tool; options as for the decorator."""
        access, item_options = _split_access_options("tool", options)
        tool = Tool(function, **item_options)
        if self._profile is not None:
            from dovetail.schemas.provider_rules import fit_schema

            tool.declaration = replace(tool.declaration, input_schema=fit_schema(self._profile, tool.signature.schema))
        self._register("tool", tool.name, tool, access)
        warn_tool_name(tool.name)
        if self._is_lint_enabled:
            from dovetail.server.lint import log_issues

            log_issues(tool)

    def remove_tool(self, name: str) -> None:
        """Stop offering a tool."""
        self._unregister("tool", name)

    def resource(self, uri: str, /, **options: Unpack[ResourceOptions]) -> Callable[[F], F]:
        """Offer a function's value under a URI, or under every URI of a template such as `city://{name}/profile`.

        Options: see `ResourceOptions`.
        """

        if callable(uri):  # `@app.resource`, without its URI
            raise TypeError('a resource needs its URI: @app.resource("city://list")')

        def register(function: F) -> F:
            self.add_resource(function, uri, **options)
            return function

        return register

    def add_resource(self, function: Callable[..., Any], uri: str, **options: Unpack[ResourceOptions]) -> None:
        """Register a resource or a template; options as for the decorator."""
        access, item_options = _split_access_options("resource", options)
        check_type("a resource's URI", uri, str, "a text")
        if "{" in uri:
            if item_options.pop("size", None) is not None:
                raise TypeError(f"{uri} is a template, and its resources have sizes of their own: leave out size=")
            template = ResourceTemplate(function, uri, **item_options)
            self._register("resource template", uri, template, access)
        else:
            self._register("resource", uri, Resource(function, uri, **item_options), access)

    def remove_resource(self, uri: str) -> None:
        """Stop offering a resource or a template."""
        self._unregister("resource template" if "{" in uri else "resource", uri)

    @overload
    def prompt(self, function: F, /) -> F: ...
    @overload
    def prompt(self, called: str | None = None, /, **options: Unpack[PromptOptions]) -> Callable[[F], F]: ...
    def prompt(self, function: Any = None, /, **options: Any) -> Any:
        """Offer a function as a prompt: `@app.prompt`, `@app.prompt()` or `@app.prompt("name", title=...)`.

        Options: see `PromptOptions`.
        """
        return self._make_decorator(function, options, self.add_prompt)

    def add_prompt(self, function: Callable[..., Any], **options: Unpack[PromptOptions]) -> None:
        """Register a prompt; options as for the decorator."""
        access, item_options = _split_access_options("prompt", options)
        prompt = Prompt(function, **item_options)
        self._register("prompt", prompt.declaration.name, prompt, access)

    def remove_prompt(self, name: str) -> None:
        """Stop offering a prompt."""
        self._unregister("prompt", name)

    def completion(self, ref: str, argument: str) -> Callable[[F], F]:
        """Suggest values for an argument of a prompt (by name) or of a template (by its URI), registered before."""
        self._check_completable(ref, argument)

        def register(function: F) -> F:
            self._completers[ref, argument] = Completer(function)
            return function

        return register

    def _check_completable(self, ref: str, argument: str) -> None:
        from dovetail.server.parameters.argument_errors import format_names

        items = self._registered["prompt"] | self._registered["resource template"]
        if ref not in items:
            raise ValueError(
                f"no prompt or template is called {format_names([ref], items)}; register it before its completions"
            )
        names = items[ref].signature.parameters
        if argument not in names:
            raise ValueError(f"{ref} has no argument {format_names([argument], names)}")

    def include(self, source: object, *, prefix: str = "") -> None:
        """Offer the functions of a module or object that are marked with `tool`, `resource` or `prompt`.

        If none is marked, every public function becomes a tool. A prefix goes before the names of tools and prompts.
        """
        from dovetail.server.decorators import find_registrations

        add_by_kind = {"tool": self.add_tool, "prompt": self.add_prompt}
        for name, function, registration in find_registrations(source):
            if registration.kind == "resource":
                self.add_resource(function, registration.uri, **cast("ResourceOptions", registration.options))
            else:
                named_options: Any = registration.options | {
                    "name": prefix + (registration.options.get("name") or name)
                }
                add_by_kind[registration.kind](function, **named_options)

    def enable(self, *names: str, tags: Collection[str] = ()) -> None:
        """Offer again what was disabled: tools and prompts by name, resources by URI, or all with one of the tags.

        What is mounted here is meant too, by the name it has here; a tag that nothing has changes nothing.
        """
        self._set_enabled(names, tags, enabled=True)

    def disable(self, *names: str, tags: Collection[str] = ()) -> None:
        """Stop offering, without forgetting, what `enable` would offer again."""
        self._set_enabled(names, tags, enabled=False)

    def restrict(
        self,
        *names: str,
        tags: Collection[str] = (),
        scopes: Collection[str] = (),
        visible_to: "Predicate | None" = None,
    ) -> None:
        """Limit who may see and use items, by name, URI or tag. Items registered or mounted later are included.

        A caller needs all `scopes`. `visible_to` is a function that takes the principal and returns a bool. If several
        rules match an item, all of them apply.
        """
        from dovetail.server.access_rules import build_access_rule

        if not (names or tags) or not (scopes or visible_to):
            raise ValueError("restrict() needs names or tags=, and scopes= or visible_to=")
        _check_tags(tags)
        rule = build_access_rule(scopes, visible_to)
        with self._lock:
            access_rules = self._ensure_access_rules()
            if tags:
                access_rules.add_for_tags(tags, rule)
            for name in names:
                access_rules.add_for_name(name, rule)
            new_names = frozenset(names)
            for kind, items in self._registered.items():
                for name, item in items.items():
                    if not item.tags.isdisjoint(tags) or (
                        new_names and not new_names.isdisjoint(access_rules.find_rule_names(kind, name))
                    ):
                        access_rules.add(kind, name, rule)
        for list_name in _LIST_NAMES:
            self._notify_list_changed(list_name)

    def _set_enabled(self, names: Collection[str], tags: Collection[str], *, enabled: bool) -> None:
        with self._lock:
            registered_names = self._list_names()
            if unknown := [name for name in names if name not in registered_names and not self._may_be_mounted(name)]:
                from dovetail.server.parameters.argument_errors import format_names

                raise ValueError(f"nothing is called {format_names(unknown, registered_names)}")
            changed_items = [
                (kind, item) for kind, _, item in self._select_items(names, tags) if item.enabled is not enabled
            ]
            for _, item in changed_items:
                item.enabled = enabled
            kinds = dict.fromkeys(kind for kind, _ in changed_items)
            for kind in kinds:
                self._refresh_enabled(kind)
            self.disabled_tags = self.disabled_tags.difference(tags) if enabled else self.disabled_tags.union(tags)
            self.disabled_names = self.disabled_names.difference(names) if enabled else self.disabled_names.union(names)
        for kind in kinds:
            self._notify_list_changed(_LIST_BY_KIND[kind])

    def _list_names(self) -> list[str]:
        """Everything registered here, enabled or not."""
        return [name for items in self._registered.values() for name in items]

    def _may_be_mounted(self, name: str) -> bool:
        """Whether something mounted here has, or may have, a name or URI."""
        return False

    def _select_items(self, names: Collection[str], tags: Collection[str]) -> Iterator[tuple[str, str, Any]]:
        """What has one of the names or tags: its kind, its name or URI, and itself."""
        _check_tags(tags)
        for kind, items in self._registered.items():
            for name, item in items.items():
                if name in names or not item.tags.isdisjoint(tags):
                    yield kind, name, item

    def _make_result_store(self, settings: "LargeResults") -> "ResultStore":
        from dovetail.server.large_results import RESULT_URI_TEMPLATE, LargeResults, ResultStore

        check_type("large_results=", settings, LargeResults, "a LargeResults(...)")
        store = ResultStore(settings)
        self.add_resource(
            store.fetch,
            RESULT_URI_TEMPLATE,
            name="result",
            description="A result too large to send.",
            run_in_thread=False,
        )
        return store

    def _register(self, kind: str, name: str, item: Any, access_rule: "AccessRule | None") -> None:
        _check_declaration(item.declaration)
        with self._lock:
            if name in self._registered[kind]:
                raise ValueError(f"a {kind} called {name!r} is already registered")
            self._registered[kind][name] = item
            if access_rule is not None:
                self._ensure_access_rules().add(kind, name, access_rule)
            if self._access_rules is not None:
                for rule in (self._access_rules.find_by_tags(item.tags), self._access_rules.find_by_name(kind, name)):
                    if rule is not None:
                        self._access_rules.add(kind, name, rule)
            if item.enabled:
                self._set_enabled_items(kind, self._get_enabled_items(kind) | {name: item})
        self._notify_list_changed(_LIST_BY_KIND[kind])

    def _ensure_access_rules(self) -> "AccessRules":
        from dovetail.server.access_rules import AccessRules

        if self._access_rules is None:
            self._access_rules = AccessRules(show_locked=self._show_locked)
        return self._access_rules

    def _unregister(self, kind: str, name: str) -> None:
        with self._lock:
            if name not in self._registered[kind]:
                from dovetail.server.parameters.argument_errors import format_names

                raise ValueError(f"no {kind} is called {format_names([str(name)], self._registered[kind])}")
            del self._registered[kind][name]
            self._refresh_enabled(kind)
            if self._access_rules is not None:
                self._access_rules.remove(kind, name)  # last: nothing is offered without its rule
        self._notify_list_changed(_LIST_BY_KIND[kind])

    def _get_enabled_items(self, kind: str) -> dict[str, Any]:
        if kind == "tool":
            return self._tools
        if kind == "resource":
            return self._resources
        return self._prompts if kind == "prompt" else self._templates

    def _refresh_enabled(self, kind: str) -> None:
        """What is enabled is offered."""
        self._set_enabled_items(kind, {name: item for name, item in self._registered[kind].items() if item.enabled})

    def _set_enabled_items(self, kind: str, enabled: dict[str, Any]) -> None:
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
                by_specificity = sorted(
                    self._templates.values(), key=lambda template: template.template.specificity, reverse=True
                )
                self._templates_by_specificity = tuple(by_specificity)
        self._page_cache.clear()

    def _make_decorator(self, function: Any, options: dict[str, Any], add: Callable[..., None]) -> Any:
        if callable(function):
            add(function, **options)
            return function
        _check_registrable(function)
        check_type("a name", function, str, "a text")

        def register(decorated: F) -> F:
            _check_registrable(decorated)
            add(decorated, **({"name": function} if function is not None else {}) | options)
            return decorated

        return register

    # Change notices. Any task or thread may send them.

    def notify_tools_changed(self) -> None:
        """Notify clients that the list of tools has changed. Registering and removing tools does this for you."""
        self._notify_list_changed("tools")

    def notify_resources_changed(self) -> None:
        """Notify clients that the list of resources or templates has changed. Registering and removing does this."""
        self._notify_list_changed("resources")

    def notify_prompts_changed(self) -> None:
        """Notify clients that the list of prompts has changed. Registering and removing prompts does this for you."""
        self._notify_list_changed("prompts")

    def _notify_list_changed(self, list_name: str) -> None:
        self._page_cache.clear()
        self.changes.publish(subscription_filter.LIST_CHANGED_METHODS[list_name])

    def notify_resource_updated(self, uri: str) -> None:
        """Notify clients that subscribed to a resource that its contents have changed."""
        self.changes.publish(subscription_filter.RESOURCE_UPDATED, uri)

    def heard(self, method: str, uri: str | None) -> None:
        """A server mounted here has changed."""
        self._page_cache.clear()
        self.changes.publish(method, uri)

    def listen(self, listener: ChangeListener) -> Callable[[], None]:
        """Register for changes; call what is returned to stop."""
        return self.changes.subscribe(listener)

    def lint(self, *profiles: str) -> "list[LintReport]":
        """Return the problems that hosts and models may have with each tool, and an estimate of its size in tokens.

        Checks the rules of OpenAI, Gemini and Anthropic unless you name other profiles.
        """
        from dovetail.server.lint import lint_tool

        return [lint_tool(tool, profiles) for tool in self._tools.values()]

    # What is there

    def capabilities(self) -> ServerCapabilities:
        """What is offered now."""
        declared = self._declared_capabilities
        return replace(
            declared,
            logging=declared.logging or {},
            completions={} if self._has_completions() else declared.completions,
            prompts=_LIST_CHANGED if self._prompts or declared.prompts is not None else None,
            resources=_RESOURCES if self._resources or self._templates or declared.resources is not None else None,
            tools=_LIST_CHANGED if self._tools or declared.tools is not None else None,
        )

    def _has_completions(self) -> bool:
        return bool(self._completers) or any(
            item.signature.choices for item in (*self._prompts.values(), *self._templates.values())
        )


def _split_access_options(kind: str, options: Mapping[str, Any]) -> "tuple[AccessRule | None, dict[str, Any]]":
    """The rule of who may use it, None for everyone, and the other options."""
    item_options = check_options(kind, options)
    _check_meta_keys(item_options.get("meta"))
    scopes, visible_to = item_options.pop("scopes", ()), item_options.pop("visible_to", None)
    if not scopes and visible_to is None:
        return None, item_options
    from dovetail.server.access_rules import build_access_rule

    return build_access_rule(scopes, visible_to), item_options


def _check_tags(tags: Collection[str]) -> None:
    if isinstance(tags, str):
        raise TypeError(f"tags are several: write tags=[{tags!r}]")


def _check_registrable(value: Any) -> None:
    if isinstance(value, classmethod | property):
        raise TypeError(f"a {type(value).__name__} cannot be offered from the body of its class{METHOD_HINT}")


def _check_declaration(declaration: WireStruct) -> None:
    """One malformed declaration would spoil the whole list for its readers."""
    try:
        convert(to_plain(declaration), type(declaration), label="declaration")
    except (InvalidParams, TypeError) as exc:
        raise TypeError(f"{getattr(declaration, 'name', 'it')!r} cannot be offered: {exc}") from None


def _check_profile(profile: "SchemaProfile | None") -> "SchemaProfile | None":
    if profile is None:
        return None
    from dovetail.schemas.provider_rules import PROFILES

    if profile not in PROFILES:
        raise ValueError(f"schema_profile must be one of {', '.join(PROFILES)}, not {profile!r}")
    return profile


def _check_capabilities(capabilities: ServerCapabilities | None) -> ServerCapabilities:
    check_type("capabilities=", capabilities, ServerCapabilities, "a ServerCapabilities(...)")
    capabilities = capabilities or ServerCapabilities()
    for field in ("experimental", "extensions"):
        check_type(f"ServerCapabilities.{field}", getattr(capabilities, field), Mapping, "a dict")
    _check_meta_keys(capabilities.extensions)
    return capabilities


def _check_meta_keys(meta: dict[str, Any] | None) -> dict[str, Any] | None:
    for key in meta or {}:
        if not is_valid_key(key):
            raise ValueError(f"{key!r} is not a valid _meta key: expected [prefix/]name")
    return meta
