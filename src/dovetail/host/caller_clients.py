"""Separate clients for gateway callers, so that each caller uses its own credentials.

A client is never shared, so no caller sees the data or the session of another caller.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from dovetail.error_context import add_context
from dovetail.errors import PolicyError
from dovetail.host.supervisor import ServerSupervisor
from dovetail.protocol.principal import Principal, as_principal
from dovetail.wire.base import replace

_IDLE_TIMEOUT_S: Final = 900.0  # the seconds after which an unused client is closed
_MAX_CALLERS: Final = 256

# A function that returns the client options for a caller, such as headers, auth or env.
# The function returns None if the caller has no credentials.
CredentialsProvider = Callable[[Principal], Mapping[str, Any] | None]


CallerKey: TypeAlias = tuple[str, str | None, frozenset[str]]  # the principal, the client ID and the scopes of a caller


class CallerClients:
    """The clients of one server. Each caller of the gateway has a separate client.

    A user may have several tokens, and the credentials may depend on the client and the scopes of a token. Tokens that
    differ in these points therefore have separate clients.
    """

    def __init__(
        self, shared_server: ServerSupervisor, create_client: Callable[..., Any], credentials: CredentialsProvider
    ) -> None:
        self._shared_server = shared_server
        self._create_client = create_client
        self._credentials = credentials
        self._servers_by_caller: dict[CallerKey, ServerSupervisor] = {}

    @property
    def servers(self) -> tuple[ServerSupervisor, ...]:
        """Return the server supervisors of all callers."""
        return tuple(self._servers_by_caller.values())

    def get_server(self, principal: Any) -> ServerSupervisor:
        """Return the server supervisor for a caller. Raise PolicyError for a caller without credentials."""
        if principal is None:
            raise add_context(
                PolicyError(f"the server {self._shared_server.name} requires authentication"),
                server=self._shared_server.name,
            )
        key = _build_caller_key(principal)
        server = self._servers_by_caller.pop(key, None) or self._create_server(principal)
        self._servers_by_caller[key] = server
        return server

    def _create_server(self, principal: Any) -> ServerSupervisor:
        client_options = self._credentials(principal)
        if client_options is None:
            raise add_context(
                PolicyError(f"this caller has no access to {self._shared_server.name}"), server=self._shared_server.name
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


def _build_caller_key(principal: Any) -> CallerKey:
    caller = as_principal(principal)
    return str(caller), caller.client_id, caller.scopes
