"""Registry of one server's items: tools, resources, templates, prompts and completers, with their access rules.

Items are compiled at registration, so that the traceback of an error shows where the mistake is. The registry does not
handle requests.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, Protocol, Unpack

from dovetail.error_context import check_type
from dovetail.errors import InvalidParams
from dovetail.log import log
from dovetail.protocol import subscription_filter
from dovetail.protocol.item_kinds import ItemKind
from dovetail.protocol.uri_key import template_key, uri_key
from dovetail.server.dispatch.change_notices import Subscriptions
from dovetail.server.items.completer import Completer
from dovetail.server.items.item_options import PromptOptions, ResourceOptions, ToolOptions, check_options, check_tags
from dovetail.server.items.page_cache import PageCache
from dovetail.server.items.prompt import Prompt
from dovetail.server.items.resource import Resource, ResourceTemplate
from dovetail.server.items.tool import TaskSupport, Tool
from dovetail.wire.base import WireStruct, replace
from dovetail.wire.codec import convert, to_plain
from dovetail.wire.lifecycle import ListChangedCapability, ResourcesCapability, ServerCapabilities
from dovetail.wire.meta import is_reserved, is_valid_key
from dovetail.wire.resources import Resource as ResourceDeclaration

if TYPE_CHECKING:  # Few servers need these modules, so only type checkers import them here.
    from dovetail.protocol.interfaces.shared_state import SharedWorker
    from dovetail.schemas.provider_rules import SchemaProfile
    from dovetail.server.items.access_rules import AccessRule, AccessRules, Predicate
    from dovetail.server.items.lint import LintReport
    from dovetail.server.large_results import LargeResultSettings, ResultStore

_LIST_NAMES: Final = ("tools", "resources", "prompts")
_MAX_TOOL_NAME_CHARS: Final = 128  # The specification defines this limit.
_LIST_CHANGED: Final = ListChangedCapability(list_changed=True)
_RESOURCES: Final = ResourcesCapability(subscribe=True, list_changed=True)
_NORMALIZE_BY_KIND: Final = {"resource": uri_key, "resource template": template_key}


class MountedNames(Protocol):
    """The names of the items that are mounted on a server."""

    def list_names(self) -> list[str] | None:
        """Return the names and URIs of all mounted items. Return None if a mounted server is remote."""
        ...

    def may_have_item(self, name: str) -> bool:
        """Return whether a mounted server may have a name or URI. A remote server may have any name
        with its prefix.
        """
        ...


class Registry:
    """The tools, resources, templates, prompts and completion functions of one server."""

    def __init__(
        self,
        name: str,
        page_cache: PageCache,
        *,
        capabilities: ServerCapabilities | None,
        large_results: "LargeResultSettings | None",
        schema_profile: "SchemaProfile | None",
        wrap_results: bool,
        lint: bool,
        show_locked: bool,
    ) -> None:
        self.subscriptions = Subscriptions()  # the listeners for change notifications
        self.mounted_names: MountedNames | None = None
        self._server_name = name
        self._lock = RLock()  # Code that changes the registry must hold this lock.
        self._page_cache = page_cache
        self.declared_capabilities = _check_capabilities(capabilities)
        # These dicts contain the enabled items. A change replaces a dict, so running requests can use the old dict.
        self.tools: dict[str, Tool] = {}
        self.reserved_tool_names: frozenset[str] = frozenset()  # names that no tool may have
        self.resources: dict[str, Resource] = {}
        self.templates: dict[str, ResourceTemplate] = {}
        self.templates_by_specificity: tuple[ResourceTemplate, ...] = ()
        # The templates, and an index of their names. The keys of the index are normalized templates.
        # If several templates have the same normalized form, the value in the index is None.
        self._template_index: tuple[Mapping[str, ResourceTemplate], dict[str, str | None]] = ({}, {})
        self.prompts: dict[str, Prompt] = {}
        # This dict contains all items in the order of registration, including disabled items.
        self._registered: dict[str, dict[str, Any]] = {kind: {} for kind in subscription_filter.LIST_BY_KIND}
        # The URIs of disabled resources in all spellings. Templates must not give access to these URIs.
        self.disabled_uris: frozenset[str] = frozenset()
        # Items with these tags or names are disabled, even if they are mounted or are added later.
        self.disabled_tags: frozenset[str] = frozenset()
        self.disabled_names: frozenset[str] = frozenset()
        self.completers: dict[tuple[str, str], Completer] = {}
        self._profile: SchemaProfile | None = _check_profile(schema_profile)
        self._wrap_results = wrap_results
        self._is_lint_enabled = lint
        self._show_locked = show_locked
        self.access_rules: AccessRules | None = None  # The rules for callers. None if all callers may use all items.
        self.result_store = None if large_results is None else self._make_result_store(large_results)

    def add_tool(
        self, function: Callable[..., Any], task_support: TaskSupport | None = None, /, **options: Unpack[ToolOptions]
    ) -> Tool:
        access, item_options = _split_access_options("tool", options)
        item_options["task"] = task_support
        tool = Tool(function, wrap_results=self._wrap_results, **item_options)
        if self._profile is not None:
            from dovetail.schemas.provider_rules import fit_schema

            tool.declaration = replace(tool.declaration, input_schema=fit_schema(self._profile, tool.signature.schema))
        if tool.name in self.reserved_tool_names:
            raise ValueError(f"a server with search=True cannot have a tool named {tool.name!r}. Choose another name")
        self._register("tool", tool.name, tool, access)
        _warn_tool_name(tool.name)
        if self._is_lint_enabled:
            from dovetail.server.items.lint import log_issues

            log_issues(tool)
        return tool

    def add_resource(
        self, function: Callable[..., Any], uri: str, **options: Unpack[ResourceOptions]
    ) -> Resource | ResourceTemplate:
        access, item_options = _split_access_options("resource", options)
        check_type("a resource's URI", uri, str, "a string")
        if "{" in uri:
            if item_options.pop("size", None) is not None:
                raise TypeError(
                    f"size= cannot be set for the template {uri}, because its resources have different sizes"
                )
            template = ResourceTemplate(function, uri, **item_options)
            self._register("resource template", uri, template, access)
            return template
        resource = Resource(function, uri, **item_options)
        self._register("resource", uri, resource, access)
        return resource

    def add_prompt(self, function: Callable[..., Any], **options: Unpack[PromptOptions]) -> None:
        access, item_options = _split_access_options("prompt", options)
        prompt = Prompt(function, **item_options)
        self._register("prompt", prompt.declaration.name, prompt, access)

    def add_completer(self, ref: str, argument: str, function: Callable[..., Any]) -> None:
        self.completers[ref, argument] = Completer(function)

    def check_completable(self, ref: str, argument: str) -> str:
        """Return the registered name of a prompt or template.

        Raise ValueError if the name or the argument is unknown.
        """
        from dovetail.server.parameters.argument_errors import format_names

        ref = self._find_registered_name("resource template", ref)
        items = self._registered["prompt"] | self._registered["resource template"]
        if ref not in items:
            raise ValueError(
                f"unknown prompt or template {format_names([ref], items)}. Register it before its completion function"
            )
        names = items[ref].signature.parameters
        if argument not in names:
            raise ValueError(f"{ref} has no argument {format_names([argument], names)}")
        return ref

    def restrict(
        self,
        names: Collection[str],
        *,
        tags: Collection[str],
        scopes: Collection[str],
        visible_to: "Predicate | None",
    ) -> None:
        """Add an access rule for items by name, URI or tag. The rule also applies to items that are added or mounted
        later.
        """
        from dovetail.server.items.access_rules import build_access_rule

        if not (names or tags) or not (scopes or visible_to):
            raise ValueError(
                "restrict() needs items and a rule. Pass names or tags= for the items, and scopes= or visible_to= for "
                "the rule"
            )
        check_tags(tags)
        rule = build_access_rule(scopes, visible_to)
        with self._lock:
            access_rules = self.ensure_access_rules()
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
        self.notify_all_lists_changed()

    def warn_unused_rules(self) -> None:
        """Warn about access rules that match no item. Do nothing until all mounted servers have listed their items."""
        if self.access_rules is None or not self.access_rules.has_unchecked_names:
            return
        mounted_names = [] if self.mounted_names is None else self.mounted_names.list_names()
        if mounted_names is not None:
            self.access_rules.warn_unused(self._server_name, self.list_names() + mounted_names, lambda _: False)

    def set_enabled(self, names: Collection[str], tags: Collection[str], *, enabled: bool) -> None:
        """Enable or disable items by name, URI or tag. Raise ValueError if a name is unknown."""
        mounted_names = self.mounted_names
        with self._lock:
            registered_names = self.list_names()
            names = [self._find_any_name(name) for name in names]
            if unknown := [
                name
                for name in names
                if name not in registered_names and (mounted_names is None or not mounted_names.may_have_item(name))
            ]:
                from dovetail.server.parameters.argument_errors import format_names

                raise ValueError(f"unknown tool, resource or prompt {format_names(unknown, registered_names)}")
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
            self.notify_list_changed(subscription_filter.LIST_BY_KIND[kind])
        if mounted_names is not None and (tags or not set(names).issubset(self.list_names())):
            self.notify_all_lists_changed()

    def _find_any_name(self, name: str) -> str:
        found = (self._find_registered_name(kind, name) for kind in _NORMALIZE_BY_KIND)
        return next((registered for registered in found if registered != name), name)

    def list_names(self) -> list[str]:
        """Return the names and URIs of all items, including disabled items."""
        return [name for items in self._registered.values() for name in items]

    def list_registered(self, kind: "ItemKind") -> dict[str, Any]:
        """Return the definitions of all items of one kind, including disabled and hidden items."""
        return {name: item.declaration for name, item in self._registered[kind].copy().items()}

    def _select_items(self, names: Collection[str], tags: Collection[str]) -> Iterator[tuple[str, str, Any]]:
        check_tags(tags)
        for kind, items in self._registered.items():
            for name, item in items.items():
                if name in names or not item.tags.isdisjoint(tags):
                    yield kind, name, item

    def _make_result_store(self, settings: "LargeResultSettings") -> "ResultStore":
        from dovetail.server.large_results import RESULT_URI_TEMPLATE, LargeResultSettings, ResultStore

        check_type("large_results=", settings, LargeResultSettings, "a LargeResultSettings(...)")
        store = ResultStore(settings)
        self.add_resource(
            store.fetch,
            RESULT_URI_TEMPLATE,
            name="result",
            description="A result that is too large to send.",
        )
        return store

    def _register(self, kind: str, name: str, item: Any, access_rule: "AccessRule | None") -> None:
        _check_declaration(item.declaration)
        with self._lock:
            if name in self._registered[kind]:
                raise ValueError(f"a {kind} named {name!r} is already registered")
            self._registered[kind][name] = item
            if name in self.disabled_names or not self.disabled_tags.isdisjoint(item.tags):
                item.enabled = False
            if access_rule is not None:
                self.ensure_access_rules().add(kind, name, access_rule)
            if self.access_rules is not None:
                for rule in (self.access_rules.find_by_tags(item.tags), self.access_rules.find_by_name(kind, name)):
                    if rule is not None:
                        self.access_rules.add(kind, name, rule)
            if item.enabled:
                self._replace_items(kind, self.get_items(kind) | {name: item})
            elif kind == "resource":
                self.disabled_uris |= _list_rule_keys([name])
        self.notify_list_changed(subscription_filter.LIST_BY_KIND[kind])

    def ensure_access_rules(self) -> "AccessRules":
        """Return the access rules, and create them on the first call."""
        from dovetail.server.items.access_rules import AccessRules

        if self.access_rules is None:
            self.access_rules = AccessRules(show_locked=self._show_locked)
        return self.access_rules

    def remove(self, kind: str, name: str) -> None:
        with self._lock:
            name = self._find_registered_name(kind, name)
            if name not in self._registered[kind]:
                from dovetail.server.parameters.argument_errors import format_names

                raise ValueError(f"unknown {kind} {format_names([str(name)], self._registered[kind])}")
            del self._registered[kind][name]
            self._refresh_enabled(kind)
            if self.access_rules is not None:
                # Remove the item before its rule. Otherwise every caller could use the item for a moment.
                self.access_rules.remove(kind, name)
        self.notify_list_changed(subscription_filter.LIST_BY_KIND[kind])

    def replace_declaration(self, resource: Resource, declaration: ResourceDeclaration) -> None:
        """Replace the definition that clients receive for a resource."""
        _check_declaration(declaration)
        resource.declaration = declaration
        self.notify_list_changed("resources")

    def get_template_name(self, name: str) -> str:
        """Return the registered spelling of a template. If no template or several templates match, return `name`."""
        templates = self.templates
        if name in templates or not templates:
            return name
        indexed, index = self._template_index
        if indexed is not templates:
            index = dict[str, str | None]()
            for text in templates:
                key = template_key(text)
                index[key] = None if key in index else text
            self._template_index = templates, index
        return index.get(template_key(name)) or name

    def _find_registered_name(self, kind: str, name: str) -> str:
        """Return the registered spelling of a name. If there is none, or more than one, return the name unchanged."""
        items = self._registered[kind]
        if name in items or kind not in _NORMALIZE_BY_KIND:
            return name
        normalize = _NORMALIZE_BY_KIND[kind]
        matches = [other for other in items if normalize(other) == normalize(name)]
        return matches[0] if len(matches) == 1 else name

    def get_items(self, kind: str) -> dict[str, Any]:
        if kind == "tool":
            return self.tools
        if kind == "resource":
            return self.resources
        return self.prompts if kind == "prompt" else self.templates

    def _refresh_enabled(self, kind: str) -> None:
        if kind == "resource":
            disabled = [name for name, item in self._registered[kind].items() if not item.enabled]
            self.disabled_uris = _list_rule_keys(disabled)
        self._replace_items(kind, {name: item for name, item in self._registered[kind].items() if item.enabled})

    def _replace_items(self, kind: str, enabled: dict[str, Any]) -> None:
        match kind:
            case "tool":
                self.tools = enabled
            case "prompt":
                self.prompts = enabled
            case "resource":
                self.resources = enabled
            case _:
                self.templates = enabled
                by_specificity = sorted(
                    self.templates.values(), key=lambda template: template.template.specificity, reverse=True
                )
                self.templates_by_specificity = tuple(by_specificity)
        self._page_cache.clear()

    # The following methods send change notifications. Any task or thread may call them.

    def notify_list_changed(self, list_name: str) -> None:
        """Notify listeners that the list of "tools", "resources" or "prompts" has changed."""
        self._page_cache.clear()
        self.subscriptions.publish(subscription_filter.LIST_CHANGED_METHODS[list_name])

    def notify_all_lists_changed(self) -> None:
        for list_name in _LIST_NAMES:
            self.notify_list_changed(list_name)

    def notify_resource_updated(self, uri: str) -> None:
        """Notify listeners that the contents of a resource have changed."""
        self.subscriptions.publish(subscription_filter.RESOURCE_UPDATED, uri)

    def on_mounted_change(self, method: str, uri: str | None) -> None:
        """Notify listeners about a change on a mounted server."""
        self._page_cache.clear()
        self.subscriptions.publish(method, uri)

    def join_cluster(self, cluster: "SharedWorker") -> None:
        """Send each change to the other workers of a cluster, until `leave_cluster` is called."""
        if self.subscriptions.cluster_changes is None:
            self.subscriptions.cluster_changes = cluster.create_change_log(self.receive_change)
        self.subscriptions.cluster_changes.start()

    async def leave_cluster(self) -> None:
        """Send the remaining changes to the other workers of the cluster. After this call, send no more changes."""
        if self.subscriptions.cluster_changes is not None:
            await self.subscriptions.cluster_changes.close()

    def receive_change(self, method: str, uri: str | None) -> None:
        """Handle a change on another worker of the cluster. EVERYTHING means that any change may have been missed."""
        self._page_cache.clear()
        self.subscriptions.receive(method, uri)

    def lint(self, *profiles: str) -> "list[LintReport]":
        from dovetail.server.items.lint import lint_tool

        return [lint_tool(tool, profiles) for tool in self.tools.values()]

    def capabilities(self) -> ServerCapabilities:
        """Return the capabilities of this server. The capabilities of mounted servers are not included.

        Each caller gets a separate copy and may change it.
        """
        declared = convert(to_plain(self.declared_capabilities), ServerCapabilities)
        return replace(
            declared,
            logging=declared.logging or {},
            completions={} if self.has_completions() else declared.completions,
            prompts=_LIST_CHANGED if self.prompts or declared.prompts is not None else None,
            resources=_RESOURCES if self.resources or self.templates or declared.resources is not None else None,
            tools=_LIST_CHANGED if self.tools or declared.tools is not None else None,
        )

    def has_completions(self) -> bool:
        return bool(self.completers) or any(
            item.signature.choices for item in (*self.prompts.values(), *self.templates.values())
        )


def _split_access_options(kind: str, options: Mapping[str, Any]) -> "tuple[AccessRule | None, dict[str, Any]]":
    item_options = check_options(kind, options)
    for key in _check_meta_keys(item_options.get("meta")) or ():
        if is_reserved(key):
            raise ValueError(f"the _meta key {key!r} has a prefix that MCP reserves. Use a prefix such as com.example/")
    scopes, visible_to = item_options.pop("scopes", ()), item_options.pop("visible_to", None)
    if not scopes and visible_to is None:
        return None, item_options
    from dovetail.server.items.access_rules import build_access_rule

    return build_access_rule(scopes, visible_to), item_options


def _warn_tool_name(name: str) -> None:
    """Warn if some clients may reject the name of a tool. spec: tools#tool-names"""
    folded = name.translate({ord(char): "a" for char in "_-."})
    if len(name) > _MAX_TOOL_NAME_CHARS or not (folded.isascii() and folded.isalnum()):
        log.warning(
            "clients may reject the tool name %r. Use only letters, digits, _, - and ., and at most %d characters",
            name,
            _MAX_TOOL_NAME_CHARS,
        )


def _check_declaration(declaration: WireStruct) -> None:
    """Raise TypeError if a definition is invalid, because clients would reject the whole list."""
    try:
        convert(to_plain(declaration), type(declaration), label="declaration")
    except (InvalidParams, TypeError) as exc:
        raise TypeError(f"invalid definition of {getattr(declaration, 'name', 'an item')!r}: {exc}") from None


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
            raise ValueError(f"invalid _meta key {key!r}: a key must be 'name' or 'prefix/name'")
    return meta


def _list_rule_keys(uris: list[str]) -> frozenset[str]:
    if not uris:
        return frozenset()
    from dovetail.protocol.uri_readings import rule_keys  # Few servers disable resources.

    return frozenset(key for uri in uris for key in rule_keys(uri))
