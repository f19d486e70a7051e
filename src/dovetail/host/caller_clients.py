"""Callers of a gateway with credentials of their own: one client of a server for each, never shared.

What one of them may see, or holds at the server, is nobody else's business.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from dovetail.error_context import add_context
from dovetail.errors import PolicyError
from dovetail.host.supervisor import ServerSupervisor
from dovetail.protocol.principal import Principal
from dovetail.wire.base import replace

_IDLE_TIMEOUT_S: Final = 900.0  # seconds after which an unused client is closed
_MAX_CALLERS: Final = 256

# The options of a client that make it this caller's: headers, auth, env. None: this caller has no credentials.
CredentialsProvider = Callable[[Principal], Mapping[str, Any] | None]


class CallerClients:
    """The members of one server, by caller."""

    def __init__(
        self, shared_server: ServerSupervisor, create_client: Callable[..., Any], credentials: CredentialsProvider
    ) -> None:
        self._shared_server = shared_server
        self._create_client = create_client
        self._credentials = credentials
        self._servers_by_caller: dict[str, ServerSupervisor] = {}

    @property
    def servers(self) -> tuple[ServerSupervisor, ...]:
        """All of them."""
        return tuple(self._servers_by_caller.values())

    def get_server(self, principal: Any) -> ServerSupervisor:
        """The member of one caller; PolicyError for one nobody knows."""
        if principal is None:
            raise add_context(
                PolicyError(f"{self._shared_server.name} is only for callers who are logged in"),
                server=self._shared_server.name,
            )
        server = self._servers_by_caller.pop(str(principal), None) or self._create_server(principal)
        self._servers_by_caller[str(principal)] = server  # the last used stands last
        return server

    def _create_server(self, principal: Any) -> ServerSupervisor:
        client_options = self._credentials(principal)
        if client_options is None:
            raise add_context(
                PolicyError(f"{self._shared_server.name} is not for this caller"), server=self._shared_server.name
            )
        self._drop_idle()
        settings = replace(
            self._shared_server.settings, idle_timeout=self._shared_server.settings.idle_timeout or _IDLE_TIMEOUT_S
        )
        server = self._shared_server.sibling(lambda: self._create_client(**client_options), settings)
        server.shared = True
        return server

    def _drop_idle(self) -> None:
        for caller, server in tuple(self._servers_by_caller.items()):
            if len(self._servers_by_caller) < _MAX_CALLERS:
                return
            if server.asleep:
                del self._servers_by_caller[caller]
