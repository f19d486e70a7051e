"""The public view of one server of a host."""

from dovetail.client.client import Client
from dovetail.error_context import clip
from dovetail.errors import MCPError
from dovetail.host.server_settings import ServerSettings, ServerState
from dovetail.host.supervisor import ServerSupervisor


class ManagedServer:
    """One server of a host, with its state and its last error. It can be stopped and restarted."""

    __slots__ = ("_supervisor",)

    def __init__(self, _supervisor: ServerSupervisor) -> None:
        self._supervisor = _supervisor

    def __repr__(self) -> str:
        return f"<{self.name}: {self.state}{f', {clip(str(self.last_error))}' if self.last_error else ''}>"

    @property
    def name(self) -> str:
        """Return the name of the server in its host."""
        return self._supervisor.name

    @property
    def state(self) -> ServerState:
        """Return the state of the server, such as "ready" or "failed". `last_error` contains the reason."""
        return self._supervisor.state

    @property
    def last_error(self) -> MCPError | None:
        """Return the error that led to the current state, or None."""
        return self._supervisor.last_error

    @property
    def identity(self) -> str:
        """Return a digest of the server's command or URL. Grants and pins use this digest instead of the name."""
        return self._supervisor.identity

    @property
    def source(self) -> str:
        """Return the configuration file that defines the server, or an empty string."""
        return self._supervisor.source

    @property
    def settings(self) -> ServerSettings:
        """Return the settings of the server."""
        return self._supervisor.settings

    @property
    def client(self) -> Client | None:
        """Return the client of the server, or None if the server is not connected."""
        return self._supervisor.client

    async def stop(self) -> None:
        """Stop the server within a time limit. The server starts again when it is needed."""
        await self._supervisor.stop()

    async def restart(self) -> None:
        """Stop the server and start it again immediately, even if it failed repeatedly."""
        await self._supervisor.restart()

    async def disable(self) -> None:
        """Stop the server. It stays stopped until you call `restart`."""
        await self._supervisor.disable()
