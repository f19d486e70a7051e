"""The client of a model provider. The provider's package is imported at the first request."""

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from dovetail.agent.models.provider_messages import describe_failure
from dovetail.error_context import add_context
from dovetail.errors import ModelError


class ProviderClient:
    """Sends requests to a model provider, and converts the provider's errors.

    Each event loop has its own client, because a connection works only in the event loop that opened it.
    """

    def __init__(self, package: str, client_class: str, error_class: str, options: Mapping[str, Any]) -> None:
        self._package = package
        self._client_class = client_class
        self._error_class = error_class
        self._options = options
        # A WeakKeyDictionary would never free an event loop, because each client refers to its event loop.
        self._clients: dict[asyncio.AbstractEventLoop, Any] = {}

    async def send(self, model: str, request: Callable[[Any], Awaitable[Any]]) -> Any:
        """Call `request` with the provider's client and return the response. Raise ModelError if the call fails."""
        try:
            module = importlib.import_module(self._package)
        except ImportError:
            hint = f'pip install "dovetail-mcp[{self._package}]"'
            raise add_context(ModelError(f"the package {self._package} is not installed"), hint=hint) from None
        try:
            return await request(self._get_client(module))
        except getattr(module, self._error_class) as exc:
            raise ModelError(f"{model}: {describe_failure(exc)}") from exc

    def _get_client(self, module: Any) -> Any:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            for other_loop in tuple(self._clients):
                if other_loop.is_closed():
                    self._clients.pop(other_loop, None)
            client = self._clients[loop] = getattr(module, self._client_class)(**self._options)
        return client

    async def close(self) -> None:
        """Close the client of this event loop. The next request creates a new one."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()
