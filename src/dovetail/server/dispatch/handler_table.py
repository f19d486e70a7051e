"""The handlers of a server by method, with everything that wraps them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from dovetail.keys import build_key
from dovetail.protocol.middleware import Handler, Middleware, compose_middleware, reads_results, validate_middleware
from dovetail.server.dispatch.parts import Handlers, ServerPart
from dovetail.server.items.registry import Registry
from dovetail.wire.methods import METHODS, REQUESTS, Method

if TYPE_CHECKING:  # Few servers have extensions or a cluster.
    from dovetail.protocol.interfaces.extension import Extension
    from dovetail.protocol.interfaces.shared_state import SharedWorker
    from dovetail.server.dispatch.extension_handlers import ServerExtensions
    from dovetail.server.dispatch.lifespan import Lifespan

# The transports handle these notifications.
_SESSION_NOTIFICATIONS = frozenset({"notifications/cancelled", "notifications/initialized", "notifications/progress"})


class HandlerTable:
    """Composes the handlers of a server, its middleware and its parts. A request only looks up its handler.

    A call passes, from the outside to the inside: the rewriting of parts, the middleware of the server, the wrapping
    of parts (extensions are the outermost), and the server's own handler.
    """

    def __init__(self, registry: Registry) -> None:
        self.handlers: Handlers = {}  # what requests use
        self.notification_handlers: dict[str, Handler] = {}
        self.requests: Mapping[str, Mapping[str, Method]] = REQUESTS
        self.parts: tuple[ServerPart, ...] = ()  # from the innermost to the outermost
        self.has_middleware = False
        self.inspects_results = registry.result_store is not None
        self._registry = registry
        self._own_handlers: Handlers = {}
        self._middleware: list[Middleware] = []
        # The workers with which this server shares limits, and its name at all of them.
        self._shared_limits: tuple[SharedWorker, str] | None = None

    def set_own_handlers(self, handlers: Handlers) -> None:
        """Set the handlers of the server itself."""
        self._own_handlers = handlers
        self._compose()

    def add_part(self, part: ServerPart) -> None:
        """Add a part. Its position decides which parts are inside it."""
        self.parts = tuple(sorted((*self.parts, part), key=lambda part: part.position))
        self._compose()

    def add_middleware(self, function: Middleware) -> None:
        """Wrap all requests in a middleware function. The function that was added first is the outermost."""
        self._middleware.append(validate_middleware(function))
        self._connect_middleware(function)
        self._compose()

    def add_extension(self, extension: "Extension") -> "Lifespan | None":
        """Serve the methods of an extension, and return its lifespan. Raise ValueError if a name is already in use."""
        extensions = self._open_extensions()
        used_names = (*self._own_handlers, *extensions.handlers, *self.notification_handlers)
        parts = extensions.add(extension, used_names)
        self.requests = extensions.requests
        self.notification_handlers |= extensions.notification_handlers
        for function in parts.middleware:
            self._connect_middleware(function)
        self._compose()
        return parts.lifespan

    def _open_extensions(self) -> "ServerExtensions":
        from dovetail.server.dispatch.extension_handlers import ServerExtensions

        extensions = next((part for part in self.parts if isinstance(part, ServerExtensions)), None)
        if extensions is None:
            extensions = ServerExtensions(self._registry)
            self.add_part(extensions)
        return extensions

    def add_notification_handler(self, method: str, handler: Handler) -> None:
        """Call a handler for each notification with this method. Raise ValueError if the method cannot be handled."""
        row = METHODS.get(method)
        if method in _SESSION_NOTIFICATIONS or not method.startswith("notifications/"):
            raise ValueError(
                f"on_notification() cannot handle {method!r}. The method must start with 'notifications/', and must "
                "not be a notification that dovetail handles itself"
            )
        if row is not None and (row.result is not None or row.sender == "server"):
            raise ValueError(f"on_notification() cannot handle {method!r}, because clients do not send it")
        if method in self.notification_handlers:
            raise ValueError(f"on_notification() already has a function for {method!r}")
        self.notification_handlers[method] = handler
        self._compose()

    def share_limits(self, cluster: "SharedWorker", path: str) -> None:
        """Share large results, the limits of middleware, and the open calls of mounted servers, with all workers.

        `path` identifies this server at all workers, because the same cluster may have several servers.
        """
        self._shared_limits = cluster, path
        self.connect_limits()

    def connect_limits(self) -> None:
        """Share the limits of everything that was added since the last call. Do nothing without a cluster."""
        if self._shared_limits is None:
            return
        cluster, path = self._shared_limits
        if self._registry.result_store is not None:
            self._registry.result_store.share(cluster.state, path)
        for index, function in enumerate((*self._middleware, *self._list_part_middleware())):
            if callable(join_cluster := getattr(function, "_join_cluster", None)):
                join_cluster(cluster, build_key("rate", path, str(index)))
        for part in self.parts:
            part.share_limits(cluster, path)

    def _connect_middleware(self, function: Middleware) -> None:
        self.inspects_results = self.inspects_results or reads_results(function)
        if callable(getattr(function, "on_change", None)):
            self._registry.subscriptions.add_callback(cast("Any", function).on_change)

    def _list_part_middleware(self) -> list[Middleware]:
        return [function for part in self.parts for function in part.middleware]

    def _compose(self) -> None:
        handlers = self._own_handlers
        for part in self.parts:
            handlers = part.wrap(handlers)
        handlers = {method: compose_middleware(self._middleware, handler) for method, handler in handlers.items()}
        handlers |= self.notification_handlers
        for part in self.parts:
            handlers = part.rewrite(handlers)
        self.has_middleware = bool(self._middleware or self._list_part_middleware())
        self.handlers = handlers
        self.connect_limits()
