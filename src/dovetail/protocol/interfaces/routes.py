"""HTTP routes beside the MCP endpoint: the request that a route's function receives, and the response that it returns.

These types do not depend on an HTTP server. `server/dispatch/route_table.py` finds the route of a path, and
`transports/http_server/route_call.py` reads the request and sends the response.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeVar, overload

from dovetail.errors import InvalidRequest
from dovetail.protocol.principal import Principal
from dovetail.wire.base import Struct, field
from dovetail.wire.codec import convert, decode

T = TypeVar("T")

# The method of the exchange that runs the function of a route. No protocol version has it, so no client can send it.
ROUTE_METHOD: Final = "http route"


class RouteRequest(Struct, frozen=True, kw_only=True):
    """An HTTP request to a route of the server, with its complete body."""

    method: str  # the HTTP method, in capitals
    path: str  # the path, without the part under which the server is mounted
    headers: Mapping[str, str]  # the headers. Names are case-insensitive.
    query: Mapping[str, str]  # the parameters of the query. If a name is repeated, the last value counts.
    query_string: str  # the query as it was sent
    path_params: Mapping[str, str]  # the values of the placeholders in the path of the route
    body: bytes  # the body as it was sent
    principal: Principal | None  # the caller. None if the route or the server does not authenticate callers.
    # The IP address of the client. Behind a proxy, it is the address of the proxy, unless FORWARDED_ALLOW_IPS names it.
    client_address: str | None = None

    @property
    def text(self) -> str:
        """Return the body as text.

        Raises:
            InvalidRequest: the body is not UTF-8. If you do not catch it, the response has status 400.
        """
        try:
            return self.body.decode()
        except UnicodeDecodeError:
            raise InvalidRequest("The request body must be UTF-8") from None

    @overload
    def json(self) -> Any: ...
    @overload
    def json(self, into: type[T]) -> T: ...
    def json(self, into: Any = None) -> Any:
        """Decode the body as JSON.

        Args:
            into: The type to convert the value to, for example a dataclass. None returns plain JSON.

        Raises:
            ParseError: the body is not valid JSON. If you do not catch it, the response has status 400.
            InvalidParams: the value does not match the type. If you do not catch it, the response has status 400.
        """
        value = decode(self.body)
        return value if into is None else convert(value, into, label="request body")


class RouteResponse(Struct, frozen=True):
    """The response of a route, with a status code and headers.

    A function can also return the body alone.
    """

    # Text, bytes, or a value that is sent as JSON. None sends no body.
    body: object = None
    status_code: int = 200  # the status code of the response
    headers: Mapping[str, str] = field(default_factory=dict[str, str])  # additional headers of the response
