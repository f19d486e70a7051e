"""The handshake era: a session opened by `initialize`, which remembers who the caller is.

The same three verbs as the stateless era. A session is a plain value; whoever holds the connection holds it.
"""

import os
from typing import Any, Final

from dovetail.errors import (
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    ProtocolError,
    ResourceNotFound,
    UnsupportedRevision,
)
from dovetail.protocol import downgrade
from dovetail.protocol.exchange import Caller, Exchange, Service, check_result
from dovetail.protocol.principal import Principal
from dovetail.protocol.topics import UPDATED, echoes
from dovetail.protocol.uri_key import uri_key
from dovetail.wire import jsonrpc
from dovetail.wire.codec import convert, encode
from dovetail.wire.jsonrpc import Id
from dovetail.wire.lifecycle import InitializeParams, InitializeResult
from dovetail.wire.logs import SetLevelParams, severity
from dovetail.wire.methods import BATCHES, REQUESTS
from dovetail.wire.revisions import HANDSHAKE, NEWEST_HANDSHAKE, order, stateless
from dovetail.wire.shape import Empty, Result
from dovetail.wire.subscriptions import SubscribeParams

INITIALIZE: Final = "initialize"
DEFAULT_LEVEL: Final = severity("info")
EMPTY: Final = Empty()

# Answered from the session itself, without troubling the server.
_OWN: Final = frozenset({"ping", "shutdown", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
_MAX_SUBSCRIPTIONS: Final = 1000


def negotiate(asked: str, served: tuple[str, ...]) -> str:
    """The revision to speak: the one asked for, else the newest. spec: handshake/lifecycle#version-negotiation"""
    offered = [one for one in served if not stateless(one)]
    if not offered:
        raise UnsupportedRevision(asked, tuple(reversed(served)))
    if asked in offered:
        return asked
    published = [one for one in offered if one in HANDSHAKE]
    return max(published or offered, key=order)


class Session:
    """What one handshake leaves behind."""

    __slots__ = ("caller", "ready", "subscriptions")

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.ready = False
        self.subscriptions: dict[str, list[str]] | None = None  # URIs as they were spelled, by key

    @property
    def batches(self) -> bool:
        """Whether several messages may come in one array."""
        return self.caller.revision in BATCHES

    def wants(self, method: str, uri: str | None) -> bool:
        """Whether a change is for this session: all lists, and the resources it subscribed to."""
        if not self.ready:
            return False
        if method != UPDATED:
            return True
        return self.subscriptions is not None and uri is not None and uri_key(uri) in self.subscriptions

    def echoes(self, uri: str | None) -> list[str | None]:
        """Return the URIs to name in the notices of one change: each as this session spelled it."""
        return echoes(self.subscriptions or {}, uri)

    def admit(self, message: dict[str, Any]) -> Exchange:
        """The exchange a request opens within this session."""
        method = message["method"]
        if method == INITIALIZE:
            raise InvalidRequest("Invalid request: this session is already initialized")
        if method not in REQUESTS[self.caller.revision]:
            raise MethodNotFound(method)
        params: dict[str, Any] = message.get("params") or {}
        meta = params.get("_meta")
        return Exchange(message["id"], method, params, meta if type(meta) is dict else {}, self.caller)

    def own(self, exchange: Exchange, service: Service) -> Result | None:
        """The answer to what concerns only the session; None for everything else."""
        if exchange.method not in _OWN:
            return None
        match exchange.method:
            case "logging/setLevel":
                if service.capabilities().logging is None:
                    raise MethodNotFound(exchange.method)
                self.caller.level = severity(convert(exchange.params, SetLevelParams).level)
            case "resources/subscribe" | "resources/unsubscribe":
                offered = service.capabilities().resources
                if offered is None or not offered.subscribe:
                    raise MethodNotFound(exchange.method)
                self._subscribe(exchange, service)
            case _:
                pass
        return EMPTY

    def _subscribe(self, exchange: Exchange, service: Service) -> None:
        uri = convert(exchange.params, SubscribeParams).uri
        if len(uri) > service.limits.uri:
            raise InvalidParams(f"Invalid params: uri is longer than {service.limits.uri} characters")
        if not service.readable(uri, exchange.caller.principal):
            raise ResourceNotFound(uri)
        if self.subscriptions is None:
            self.subscriptions = {}
        key = uri_key(uri)
        spelled = self.subscriptions.get(key, [])
        if exchange.method == "resources/unsubscribe":
            left = [one for one in spelled if one != uri] if uri in spelled else []  # another spelling ends them all
            self.subscriptions[key] = left
            if not left:
                del self.subscriptions[key]
        elif uri not in spelled:
            if sum(map(len, self.subscriptions.values())) >= _MAX_SUBSCRIPTIONS:
                raise InvalidRequest(f"Invalid request: more than {_MAX_SUBSCRIPTIONS} subscriptions in one session")
            self.subscriptions[key] = [*spelled, uri]


def open_session(
    message: dict[str, Any], service: Service, principal: Principal | None = None
) -> tuple[Session, bytes]:
    """The session an `initialize` request opens, and the response to it."""
    asked = convert(message.get("params") or {}, InitializeParams)
    if len(encode(asked)) > service.limits.meta:  # all of it is kept as long as the session
        raise InvalidParams(f"Invalid params: larger than {service.limits.meta} bytes")
    revision = negotiate(asked.protocol_version, service.revisions)
    mark = os.urandom(8).hex()
    caller = Caller(revision, False, asked.capabilities, DEFAULT_LEVEL, principal, asked.client_info, mark)
    result = InitializeResult(
        protocol_version=revision,
        capabilities=downgrade.capabilities(revision, service.capabilities()),
        server_info=downgrade.implementation(revision, service.implementation),
        instructions=service.instructions,
    )
    return Session(caller), jsonrpc.response(message["id"], result)


def assumed(revision: str | None, principal: Principal | None = None) -> Session:
    """A session for a caller who never shook hands: stateless serving of a handshake revision."""
    session = Session(Caller(revision or NEWEST_HANDSHAKE, False, level=DEFAULT_LEVEL, principal=principal))
    session.ready = True
    return session


def seal(exchange: Exchange, result: Result | bytes, result_limit: int) -> bytes:
    """The response, in the words of the caller's revision."""
    if exchange.method == "shutdown":
        return jsonrpc.result(exchange.id, b"null")
    if isinstance(result, bytes):
        data = jsonrpc.result(exchange.id, result)
    else:
        result = downgrade.result(exchange.caller.revision, exchange.method, result, wraps=exchange.wraps)
        data = jsonrpc.response(exchange.id, result)
    if len(data) > result_limit:
        check_result(exchange, result, result_limit)
    return data


def refuse(revision: str, id: Id | None, exc: ProtocolError) -> bytes:
    """The error response, with the code the revision has for it."""
    return jsonrpc.failure(id, downgrade.code(revision, exc), exc.message, exc.data)
