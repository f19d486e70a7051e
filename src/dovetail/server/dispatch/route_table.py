"""Register the HTTP routes of a server, and find the route for a path."""

from collections.abc import Callable, Collection, Sequence

from dovetail.protocol.exchange import IncomingExchange
from dovetail.protocol.interfaces.routes import ROUTE_METHOD
from dovetail.protocol.middleware import Handler
from dovetail.server.dispatch.parts import Handlers, Position, ServerPart
from dovetail.server.items.access_rules import build_access_rule
from dovetail.server.routes import Route, RouteMatch
from dovetail.server.thread_pool import ThreadPool
from dovetail.wire.base import EmptyResult


class Routes(ServerPart):
    """All routes of one server. Middleware does not wrap them."""

    position = Position.ROUTES

    def __init__(self, handle: Handler, thread_pool: ThreadPool) -> None:
        self._handle = handle
        self._thread_pool = thread_pool
        self._routes: list[Route] = []

    def rewrite(self, handlers: Handlers) -> Handlers:
        # Clients cannot send the method of a route, because no protocol version and no extension has it.
        return {**handlers, ROUTE_METHOD: self.run}

    def add(
        self,
        path: str,
        function: Callable[..., object],
        methods: Sequence[str],
        scopes: Collection[str],
        *,
        allow_anonymous: bool,
    ) -> None:
        """Add a route. Raise ValueError if another route has the same path and method."""
        if allow_anonymous and scopes:
            raise ValueError("a route with allow_anonymous=True cannot have scopes=, because it does not check callers")
        route = Route(path, function, methods, None if allow_anonymous else build_access_rule(scopes, None))
        for other in self._routes:
            repeated = [method for method in route.methods if method in other.methods]
            if other.path == route.path and repeated:
                raise ValueError(f"the server already has a route for {repeated[0]} {route.path}")
        self._routes.append(route)

    def find_route(self, path: str, method: str) -> RouteMatch | None:
        """Return the best route for a path. Prefer routes with this method, and routes without placeholders."""
        matches = [(route, params) for route in self._routes if (params := route.match(path)) is not None]
        if not matches:
            return None
        route, params = min(matches, key=lambda match: (method not in match[0].methods, bool(match[1])))
        allowed_methods = tuple(dict.fromkeys(name for other, _ in matches for name in other.methods))
        return RouteMatch(route, params, self._handle, allowed_methods)

    def list_paths(self) -> list[str]:
        return [route.path for route in self._routes]

    def list_used_scopes(self) -> list[str]:
        return [scope for route in self._routes if route.rule is not None for scope in route.rule.scopes]

    async def run(self, exchange: IncomingExchange) -> EmptyResult:
        """Call the function of a route. `exchange.params["match"]` is the route that the transport found."""
        match: RouteMatch = exchange.params["match"]
        await match.route.run(exchange.params["call"], self._thread_pool, exchange.origin)
        return EmptyResult()
