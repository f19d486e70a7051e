"""Roster: the servers of a host, what all of them offer, and what may happen with it.

A server that is slow, broken or gone costs the others nothing: nobody waits for it longer than a list is willing to.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from dovetail.client.client import Client
from dovetail.client.targets import Target, as_command_target
from dovetail.error_context import add_context, clip
from dovetail.errors import InvalidParams, MCPError, NotFound, PolicyError
from dovetail.host.authorization import RequestAuthorizer
from dovetail.host.caller_clients import CallerClients, CredentialsProvider
from dovetail.host.catalog import Catalog, explain_unknown_server, explain_unknown_tool, suggest_name
from dovetail.host.catalog_item import CatalogEntry, Manifest
from dovetail.host.config.secret_lookup import SecretResolver, get_secret_lookup
from dovetail.host.config.server_entry import ConfigProblem
from dovetail.host.consent.consent import ConsentCallback, ConsentHandler, as_consent_handler
from dovetail.host.consent.grants import GrantStore
from dovetail.host.consent.pins import PinStore, fingerprint
from dovetail.host.events import HostEvent, check_event_kind
from dovetail.host.input_handlers import HostInputHandlers
from dovetail.host.managed_server import ManagedServer, ServerSettings, identify_server
from dovetail.host.policy.policy import Policy, PolicyRequest, as_policy, find_limits
from dovetail.host.policy.quotas import Meter, ToolLimits, combine_limits, parse_rate
from dovetail.host.qualified_names import check_server_name
from dovetail.host.search_tools import HOST_SERVER_NAME, create_search_catalog
from dovetail.protocol.client_transport import InProcessServer
from dovetail.protocol.language_model import Model
from dovetail.protocol.mountable import ITEM_KINDS, ItemKind
from dovetail.wire.base import replace
from dovetail.wire.codec import encode
from dovetail.wire.logs import LoggingMessageNotificationParams
from dovetail.wire.roots import Root

log = logging.getLogger("dovetail")

DEFAULT_READY_TIMEOUT_S: Final = 5.0  # seconds a list waits for servers that are not ready; they are in the next one
_NO_ITEMS: Final[dict[str, Any]] = {}
_MANIFEST_FIELDS: Final[Mapping[ItemKind, str]] = {
    "tool": "tools",
    "resource": "resources",
    "resource template": "resource_templates",
    "prompt": "prompts",
}


class ManagedServers:
    """The servers of a host."""

    def __init__(
        self,
        *,
        policy: Policy | str | Path | None,
        consent: ConsentHandler | ConsentCallback | None,
        model: Model | None,
        grants: GrantStore | str | Path | None,
        pins: PinStore | str | Path | None,
        roots: Sequence[str | Path | Root],
        ready_timeout: float,
        project: str | Path | None,
        secrets: SecretResolver | None,
        defaults: ServerSettings | None,
    ) -> None:
        self.policy = as_policy(policy)
        self.model = model
        self.patience = ready_timeout
        self.meter = Meter()
        self.config_problems: tuple[ConfigProblem, ...] = ()  # what of the configuration could not be read
        self._roots = roots
        self._project = "" if project is None else str(project)
        self.secrets = secrets or SecretResolver()  # what was looked up, so that it is masked wherever it would be told
        self._defaults = defaults or ServerSettings()
        self._servers_by_name: dict[str, ManagedServer] = {}
        self._caller_clients: dict[str, CallerClients] = {}
        self._listeners: list[tuple[str, Callable[[HostEvent], object]]] = []
        self._snapshots: dict[tuple[ItemKind, ...], tuple[list[Any], Catalog]] = {}
        self._open = False
        grant_store = grants if isinstance(grants, GrantStore) else GrantStore(grants)
        self.desk = RequestAuthorizer(
            self.policy, as_consent_handler(consent), grant_store, _create_pin_store(pins, grant_store), self.tell
        )

    # Servers

    def add(
        self,
        name: str,
        target: Target,
        *,
        settings: ServerSettings | None = None,
        trusted: bool | None = None,
        enabled: bool = True,
        credentials: CredentialsProvider | None = None,
        **client_options: Any,
    ) -> ManagedServer:
        """Add a server: any target of a `Client`, with the client's options.

        settings: instead of the `defaults` of the host. trusted: a shortcut for `settings.trusted`. credentials:
        returns the client options for one caller of a gateway, such as headers, or None if it may not use the server.
        """
        for option in client_options:
            if option in ServerSettings.__struct_fields__:
                raise TypeError(f"pass {option}= in settings=ServerSettings({option}=...)")
        settings = settings or self._defaults
        return self._add_server(
            name,
            target,
            settings if trusted is None else replace(settings, trusted=trusted),
            identity=identify_server(target),
            enabled=enabled,
            credentials=credentials,
            options=client_options,
        )

    def _add_server(
        self,
        name: str,
        target: "Target | Callable[[], Target]",
        settings: ServerSettings,
        *,
        identity: str,
        source: str = "",
        from_project: bool = False,
        consent_details: Mapping[str, Any] | None = None,
        enabled: bool = True,
        credentials: CredentialsProvider | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> ManagedServer:
        check_server_name(name)
        if name == HOST_SERVER_NAME:
            raise ValueError(f"the name {HOST_SERVER_NAME!r} is reserved for the host's own tools")
        if name in self._servers_by_name:
            raise ValueError(f"a server named {name!r} already exists")
        input_handlers = HostInputHandlers(
            name,
            self.desk,
            self.model,
            self._roots if settings.roots is None else settings.roots,
            is_trusted=settings.trusted,
            server_identity=identity,
            check_rate=self._check_rate,
        )

        async def create_client(**extra_options: Any) -> Client:
            # Looking up a secret may take a while.
            resolved_target: Any = (
                await asyncio.to_thread(target)
                if callable(target) and not isinstance(target, InProcessServer)
                else target
            )
            client_options: dict[str, Any] = {
                **({} if settings.timeouts is None else {"timeout": settings.timeouts}),
                **input_handlers.client_options(),
                **(options or {}),
                **extra_options,
            }
            for value in (resolved_target, client_options):
                self._register_secrets(value)
            monitored_target = as_command_target(resolved_target, stderr=emit_stderr)
            return Client(monitored_target, name=name, log_handler=emit_log, **client_options)

        def emit_log(message: LoggingMessageNotificationParams) -> None:
            text = message.data if isinstance(message.data, str) else encode(message.data).decode()
            self.tell(HostEvent(kind="server.log", server=name, message=self.secrets.mask(text), details=message))

        def emit_stderr(line: str) -> None:
            self.tell(HostEvent(kind="server.stderr", server=name, message=self.secrets.mask(line)))

        async def authorize_start() -> None:
            request = PolicyRequest(
                server=name,
                kind="server.start",
                server_identity=identity,
                trusted=settings.trusted,
                from_project=from_project,
            )
            await self.desk.authorize(request, details=consent_details)

        def find_start_obstacle() -> str:
            if not self._open:
                return "the host is not open: use it within `async with`"
            return "" if self._servers_by_name.get(name) is managed_server else "it was removed"

        managed_server = ManagedServer(
            name,
            create_client,
            settings,
            self.tell,
            identity=identity,
            source=source,
            enabled=enabled,
            authorize_start=authorize_start,
            find_start_obstacle=find_start_obstacle,
            mask=self.secrets.mask,
            input_filter=input_handlers.filter_request,
        )
        if credentials is not None:
            self._caller_clients[name] = CallerClients(managed_server, create_client, credentials)
        self._servers_by_name[name] = managed_server
        self.tell(HostEvent(kind="server.added", server=name))
        if self._open and settings.start == "eager":
            self._start_in_background(managed_server)
        return managed_server

    def _register_secrets(self, settings: Any) -> None:
        for key in ("env", "headers"):
            members = settings.get(key) if isinstance(settings, Mapping) else getattr(settings, key, None)
            if isinstance(members, Mapping):
                get_secret_lookup(self.secrets).remember_named(members)

    async def remove(self, name: str) -> None:
        """Stop a server and forget it."""
        managed_server = self._get_server(name)
        del self._servers_by_name[name]
        caller_clients = self._caller_clients.pop(name, None)
        self.tell(HostEvent(kind="server.removed", server=name))
        await asyncio.gather(
            managed_server.stop(),
            *(caller_server.stop() for caller_server in (caller_clients.servers if caller_clients else ())),
        )

    @property
    def servers(self) -> tuple[ManagedServer, ...]:
        """All of them, by name, with their states."""
        return tuple(self._servers_by_name[name] for name in sorted(self._servers_by_name))

    async def restart(self, name: str) -> None:
        """Start a server anew, now."""
        await self._get_server(name).restart()

    @asynccontextmanager
    async def client(self, name: str) -> AsyncGenerator[Client]:
        """The client of one server, for what the host has no method for. No policy stands before it."""
        async with self._get_server(name).using() as client:
            yield client

    def _get_server(self, name: str) -> ManagedServer:
        managed_server = self._servers_by_name.get(name)
        if managed_server is None:
            raise NotFound(InvalidParams.code, explain_unknown_server(name, self.servers, self.config_problems))
        return managed_server

    @property
    def is_open(self) -> bool:
        """Whether it has been entered and not been left."""
        return self._open

    def member_for(self, managed_server: ManagedServer, principal: str | None) -> ManagedServer:
        """The server as one caller of a gateway uses it; PolicyError if it does not know who that is."""
        caller_clients = self._caller_clients.get(managed_server.name)
        return managed_server if caller_clients is None else caller_clients.get_server(principal)

    def members_of(self, managed_server: ManagedServer) -> tuple[ManagedServer, ...]:
        """A server, and the same server as single callers use it."""
        caller_clients = self._caller_clients.get(managed_server.name)
        return (managed_server,) if caller_clients is None else (managed_server, *caller_clients.servers)

    async def _check_rate(self, server_name: str, operation: str) -> None:
        rate = find_limits(self.policy, server_name, operation).rate
        if rate is not None:
            self.meter.record_call(server_name, operation, parse_rate(rate))

    def _start_in_background(self, managed_server: ManagedServer) -> None:
        async def start() -> None:
            with contextlib.suppress(MCPError):  # its state says why
                await managed_server.ready()

        managed_server.spawn(start())

    # Events

    def on(self, event: str, callback: Callable[[HostEvent], object]) -> Callable[[], None]:
        """Hear of events of a kind, which may be a glob; call what is returned to stop."""
        listener = (check_event_kind(event), callback)
        self._listeners.append(listener)

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return stop

    def tell(self, event: HostEvent) -> None:
        """Tell everyone who wants to know."""
        for kind, callback in tuple(self._listeners):
            if fnmatchcase(event.kind, kind):
                try:
                    callback(event)
                except Exception as exc:
                    log.error("a listener of the host failed", exc_info=exc)

    # What all of them offer

    async def list_tools(self) -> tuple[CatalogEntry, ...]:
        """The tools of all servers, with names that cannot clash, in an order that does not change."""
        return (await self._list_catalog("tool")).tools

    async def list_resources(self) -> tuple[CatalogEntry, ...]:
        """The resources of all servers."""
        return (await self._list_catalog("resource")).resources

    async def list_resource_templates(self) -> tuple[CatalogEntry, ...]:
        """The resource templates of all servers."""
        return (await self._list_catalog("resource template")).resource_templates

    async def list_prompts(self) -> tuple[CatalogEntry, ...]:
        """The prompts of all servers."""
        return (await self._list_catalog("prompt")).prompts

    async def catalog(self, max_tokens: int | None = None) -> Catalog:
        """Everything, as a snapshot. Where the tools take more than a budget, three that search stand for them."""
        catalog = await self._list_catalog("tool", "resource", "resource template", "prompt")
        if max_tokens is not None and catalog.tokens > max_tokens:
            return create_search_catalog(catalog)
        return catalog

    async def _list_catalog(self, *kinds: ItemKind) -> Catalog:
        enabled_servers = [managed_server for managed_server in self.servers if managed_server.state != "disabled"]
        tasks = [
            asyncio.get_running_loop().create_task(self._fetch_lists(managed_server, kinds))
            for managed_server in enabled_servers
        ]
        if tasks:
            try:
                await asyncio.wait(tasks, timeout=self.patience)
            finally:
                for task in tasks:
                    task.cancel()  # the member goes on learning
        return self.known(*kinds)

    async def _fetch_lists(self, managed_server: ManagedServer, kinds: Sequence[ItemKind]) -> None:
        for kind in kinds:
            with contextlib.suppress(MCPError):
                await managed_server.listed(kind)

    def known(self, *kinds: ItemKind) -> Catalog:
        """What is known of all servers now, without asking any."""
        enabled_servers = [managed_server for managed_server in self.servers if managed_server.state != "disabled"]
        requested_kinds: Sequence[ItemKind] = kinds or ITEM_KINDS
        snapshot: list[tuple[ManagedServer, ItemKind, dict[str, Any]]] = [
            (managed_server, kind, managed_server.known.get(kind, _NO_ITEMS))
            for managed_server in enabled_servers
            for kind in requested_kinds
        ]
        cached = self._snapshots.get(kinds)
        if cached is not None and len(cached[0]) == len(snapshot) and all(map(_is_same_snapshot, cached[0], snapshot)):
            return cached[1]
        manifests: dict[str, dict[str, Any]] = {}
        for managed_server, kind, items in snapshot:
            visible = [
                definition for name, definition in items.items() if self.shows(managed_server, kind, name, definition)
            ]
            manifests.setdefault(managed_server.name, {})[_MANIFEST_FIELDS[kind]] = visible
        catalog = Catalog.from_manifests({name: Manifest(**fields) for name, fields in manifests.items()})
        self._snapshots[kinds] = snapshot, catalog
        return catalog

    def shows(self, managed_server: ManagedServer, kind: ItemKind, name: str, definition: Any) -> bool:
        """Whether something is offered at all: by the server's settings, and by the policy."""
        if kind == "tool" and not _is_included(name, managed_server.settings):
            return False
        request_kind = {"tool": "tool.call", "prompt": "prompt.get"}.get(kind, "resource.read")
        return self.desk.evaluate(self.question(managed_server, request_kind, name, None, definition)).action != "hide"

    # One thing of one server

    def question(
        self,
        managed_server: ManagedServer,
        kind: str,
        name: str,
        arguments: Mapping[str, Any] | None,
        definition: Any = None,
    ) -> PolicyRequest:
        """What the policy is asked about one thing of one server."""
        request = PolicyRequest(
            server=managed_server.name,
            tool=name,
            kind=kind,
            schema=getattr(definition, "input_schema", None) if kind == "tool.call" else None,
            annotations=getattr(definition, "annotations", None) if kind.startswith("tool.") else None,
            trusted=managed_server.settings.trusted,
            server_identity=managed_server.identity,
            project=self._project,
        )
        return request if arguments is None else request.with_arguments(arguments)

    def quota(self, managed_server: ManagedServer, tool: str) -> ToolLimits:
        """The limits of one tool."""
        return combine_limits(find_limits(self.policy, managed_server.name, tool), managed_server.settings.limits)

    async def find(self, name: str) -> tuple[ManagedServer, str]:
        """The server and the tool a name means."""
        server, dot, tool = name.partition(".")
        if dot and server in self._servers_by_name:
            return self._servers_by_name[server], tool
        entry = self.known("tool").find(name) or (await self._list_catalog("tool")).find(name)
        if entry is None:
            text = explain_unknown_tool(name, self.known("tool"), self.servers, self.config_problems)
            raise NotFound(InvalidParams.code, text)
        return self._servers_by_name[entry.server], entry.name

    async def declared(self, managed_server: ManagedServer, tool: str) -> Any:
        """Return the current definition of a tool. Raise NotFound if there is none."""
        tools = await managed_server.current("tool")
        definition = tools.get(tool)
        if definition is None or not self.shows(managed_server, "tool", tool, definition):
            visible_names = [
                name for name, candidate in tools.items() if self.shows(managed_server, "tool", name, candidate)
            ]
            raise add_context(
                NotFound(InvalidParams.code, f"unknown tool {clip(tool)!r}{suggest_name(tool, visible_names)}"),
                server=managed_server.name,
            )
        return definition

    async def check_same(self, managed_server: ManagedServer, definition: Any) -> None:
        """PolicyError if a tool is no longer what was agreed to: asking may have taken a while."""
        current_definition = await self.declared(managed_server, definition.name)
        if current_definition is not definition and fingerprint(current_definition) != fingerprint(definition):
            name = f"{managed_server.name}.{definition.name}"
            text = f"{name}: its definition changed while it was asked about; call it again"
            raise add_context(PolicyError(text), server=managed_server.name)


def _create_pin_store(pins: PinStore | str | Path | None, grants: GrantStore) -> PinStore:
    """Where definitions are kept: unless it is said, beside what was agreed to for them."""
    if pins is None and grants.path is not None:
        return PinStore(grants.path.with_name("pins.json"))
    return pins if isinstance(pins, PinStore) else PinStore(pins)


def _is_same_snapshot(left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    return all(a is b for a, b in zip(left, right, strict=True))


def _is_included(tool: str, settings: ServerSettings) -> bool:
    return any(fnmatchcase(tool, glob) for glob in settings.include_tools) and not any(
        fnmatchcase(tool, glob) for glob in settings.exclude_tools
    )
