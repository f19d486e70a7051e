"""The servers of a host, for its user and for gateway callers."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from dovetail.client.client import Client
from dovetail.client.targets import Target, set_stderr_handler
from dovetail.errors import InvalidParams, MCPError, NotFound
from dovetail.host.authorization import RequestAuthorizer
from dovetail.host.caller_clients import CallerClients, CredentialsProvider
from dovetail.host.catalog import explain_unknown_server
from dovetail.host.config.secret_lookup import SecretResolver, get_secret_lookup, mask_data, mask_start
from dovetail.host.config.server_entry import ConfigProblem
from dovetail.host.events import EventEmitter, HostEvent
from dovetail.host.input_handlers import HostInputHandlers
from dovetail.host.managed_server import ManagedServer
from dovetail.host.policy.policy import PolicyRequest
from dovetail.host.qualified_names import check_server_name
from dovetail.host.search_tools import HOST_SERVER_NAME
from dovetail.host.server_settings import ServerSettings
from dovetail.host.supervisor import ServerSupervisor
from dovetail.protocol.interfaces.client_transport import InProcessServer
from dovetail.protocol.interfaces.language_model import Model
from dovetail.wire.base import replace
from dovetail.wire.codec import encode
from dovetail.wire.logs import LoggingMessageNotificationParams
from dovetail.wire.roots import Root

HOST_NOT_OPEN: Final = "the host is not open. Use it within `async with`"


class ManagedServers:
    """The servers of one host."""

    def __init__(
        self,
        authorizer: RequestAuthorizer,
        events: EventEmitter,
        secrets: SecretResolver,
        *,
        model: Model | None,
        roots: Sequence[str | Path | Root],
    ) -> None:
        self.is_open = False  # servers can start only while the host is open
        self.config_problems: tuple[ConfigProblem, ...] = ()
        self._authorizer = authorizer
        self._events = events
        self._secrets = secrets
        self._model = model
        self._roots = roots
        self._servers_by_name: dict[str, ServerSupervisor] = {}
        self._views_by_name: dict[str, ManagedServer] = {}
        self._caller_clients: dict[str, CallerClients] = {}

    def add(
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
        """Add a server and return its `ManagedServer`.

        `target` may be a function that resolves secrets and returns the target.
        """
        check_server_name(name)
        if name == HOST_SERVER_NAME:
            raise ValueError(f"the name {HOST_SERVER_NAME!r} is reserved for the host's own tools")
        if name in self._servers_by_name:
            raise ValueError(f"a server named {name!r} already exists")
        input_handlers = HostInputHandlers(
            name,
            self._authorizer,
            self._model,
            self._roots if settings.roots is None else settings.roots,
            is_trusted=settings.trusted,
            server_identity=identity,
            check_rate=self._authorizer.check_rate,
        )

        async def create_client(**extra_options: Any) -> Client:
            # Reading a secret may take long, so the function runs in a thread.
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
            monitored_target = set_stderr_handler(resolved_target, partial(self._emit_stderr, name))
            return Client(monitored_target, name=name, log_handler=partial(self._emit_log, name), **client_options)

        async def authorize_start() -> None:
            request = PolicyRequest(
                server=name,
                kind="server.start",
                server_identity=identity,
                trusted=settings.trusted,
                from_project=from_project,
            )
            await self._authorizer.authorize(request, details=consent_details)

        def find_start_obstacle() -> str:
            if not self.is_open:
                return HOST_NOT_OPEN
            return "" if self._servers_by_name.get(name) is supervisor else "the server was removed"

        supervisor = ServerSupervisor(
            name,
            create_client,
            settings,
            self._events.emit,
            identity=identity,
            source=source,
            enabled=enabled,
            authorize_start=authorize_start,
            find_start_obstacle=find_start_obstacle,
            mask=self._secrets.mask,
            input_filter=input_handlers.filter_request,
        )
        if credentials is not None:
            self._caller_clients[name] = CallerClients(supervisor, create_client, credentials)
        self._servers_by_name[name] = supervisor
        view = self._views_by_name[name] = ManagedServer(supervisor)
        self._events.emit(HostEvent(kind="server.added", server=name))
        if self.is_open and settings.start == "eager":
            self.start_in_background(supervisor)
        return view

    def _emit_log(self, server: str, message: LoggingMessageNotificationParams) -> None:
        if not self._events.has_listeners("server.log"):
            return  # Without listeners, avoid the slow masking.
        mask = self._secrets.mask
        text = message.data if isinstance(message.data, str) else encode(message.data).decode()
        masked = replace(
            message,
            data=mask_data(message.data, mask),
            logger=mask_data(message.logger, mask),
            meta=mask_data(message.meta, mask),
        )
        self._events.emit(HostEvent(kind="server.log", server=server, message=mask_start(text, mask), details=masked))

    def _emit_stderr(self, server: str, line: str) -> None:
        self._events.emit(HostEvent(kind="server.stderr", server=server, message=self._secrets.mask(line)))

    def _register_secrets(self, settings: Any) -> None:
        for key in ("env", "headers"):
            members = settings.get(key) if isinstance(settings, Mapping) else getattr(settings, key, None)
            if isinstance(members, Mapping):
                get_secret_lookup(self._secrets).remember_named(members)

    async def remove(self, name: str) -> None:
        """Stop a server and remove it."""
        supervisor = self.get(name)
        servers = self.list_for_callers(supervisor)
        del self._servers_by_name[name], self._views_by_name[name]
        self._caller_clients.pop(name, None)
        self._events.emit(HostEvent(kind="server.removed", server=name))
        await asyncio.gather(*(server.stop() for server in servers))

    async def stop_all(self) -> None:
        """Stop all servers concurrently, within a time limit."""
        await asyncio.gather(
            *(server.stop() for supervisor in self.list() for server in self.list_for_callers(supervisor))
        )

    def start_in_background(self, supervisor: ServerSupervisor) -> None:
        """Start a server in the background."""

        async def start() -> None:
            with contextlib.suppress(MCPError):  # The state of the server contains the error.
                await supervisor.ready()

        supervisor.spawn(start())

    def find(self, name: str) -> ServerSupervisor | None:
        """Return the supervisor of the server with this name, or None."""
        return self._servers_by_name.get(name)

    def get(self, name: str) -> ServerSupervisor:
        """Return the supervisor of the server with this name. Raise NotFound if the name is unknown."""
        supervisor = self._servers_by_name.get(name)
        if supervisor is None:
            raise NotFound(InvalidParams.code, explain_unknown_server(name, self.list(), self.config_problems))
        return supervisor

    def list(self) -> tuple[ServerSupervisor, ...]:
        """Return the supervisors of all servers, sorted by server name."""
        return tuple(self._servers_by_name[name] for name in sorted(self._servers_by_name))

    def list_views(self) -> tuple[ManagedServer, ...]:
        """Return the `ManagedServer` of each server, sorted by name."""
        return tuple(self._views_by_name[name] for name in sorted(self._views_by_name))

    def has_caller_clients(self, name: str) -> bool:
        """Return whether each caller of the gateway has a separate connection to this server."""
        return name in self._caller_clients

    def get_for_caller(self, supervisor: ServerSupervisor, principal: Any) -> ServerSupervisor:
        """Return the supervisor that a gateway caller uses for a server.

        Raise PolicyError if the caller may not use the server.
        """
        caller_clients = self._caller_clients.get(supervisor.name)
        return supervisor if caller_clients is None else caller_clients.get_server(principal)

    def list_for_callers(self, supervisor: ServerSupervisor) -> tuple[ServerSupervisor, ...]:
        """Return the shared supervisor of a server, and one supervisor for each caller that has its own credentials."""
        caller_clients = self._caller_clients.get(supervisor.name)
        return (supervisor,) if caller_clients is None else (supervisor, *caller_clients.servers)
