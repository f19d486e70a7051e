"""One server of a host, as the user of the host sees it."""

from dovetail.client.client import Client
from dovetail.error_context import clip
from dovetail.errors import MCPError
from dovetail.host.server_settings import ServerSettings, ServerState
from dovetail.host.supervisor import ServerSupervisor


class ManagedServer:
    """One server of a host: its state, the reason for it, and the means to stop or restart it."""

    __slots__ = ("_supervisor",)

    def __init__(self, _supervisor: ServerSupervisor) -> None:
        self._supervisor = _supervisor

    def __repr__(self) -> str:
        return f"<{self.name}: {self.state}{f', {clip(str(self.last_error))}' if self.last_error else ''}>"

    @property
    def name(self) -> str:
        """The name of the server in its host."""
        return self._supervisor.name

    @property
    def state(self) -> ServerState:
        """The present state: "ready", for example, or "failed". `last_error` has the reason."""
        return self._supervisor.state

    @property
    def last_error(self) -> MCPError | None:
        """The reason for the state, if it is an error."""
        return self._supervisor.last_error

    @property
    def identity(self) -> str:
        """The digest of the command or URL. Grants and pins belong to it, not to the name."""
        return self._supervisor.identity

    @property
    def source(self) -> str:
        """The configuration file that names the server, or an empty string."""
        return self._supervisor.source

    @property
    def settings(self) -> ServerSettings:
        """How the host treats the server."""
        return self._supervisor.settings

    @property
    def client(self) -> Client | None:
        """The client of the server, while it is connected."""
        return self._supervisor.client

    async def stop(self) -> None:
        """Stop the server, in bounded time. It starts again when it is needed."""
        await self._supervisor.stop()

    async def restart(self) -> None:
        """Stop the server and start it again now, however often it has failed."""
        await self._supervisor.restart()

    async def disable(self) -> None:
        """Stop the server and do not start it again until `restart`."""
        await self._supervisor.disable()
