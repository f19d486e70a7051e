"""The numbers of open connections and running calls of a server, a client or a host.

After a complete cleanup, all numbers are 0.
"""

from dovetail.wire.base import Struct


class EndpointStats(Struct, frozen=True, kw_only=True):
    """The numbers of open sessions and streams of one HTTP endpoint."""

    sessions: int = 0
    streams: int = 0
    buffered_bytes: int = 0
    replay_bytes: int = 0


class ServerStats(Struct, frozen=True, kw_only=True):
    """The numbers of open connections and running calls of a server, in all event loops of this process.

    running_calls: requests that are not finished, except subscriptions.
    open_questions: requests to clients without an answer, such as elicitations.
    subscriptions: open `subscriptions/listen` streams.
    busy_threads: threads that run synchronous functions.
    sessions: sessions over HTTP.
    streams: event streams of sessions that a client reads.
    buffered_bytes: bytes of HTTP messages in memory that wait for slow clients.
    replay_bytes: bytes of events kept for clients that reconnect.
    """

    running_calls: int = 0
    open_questions: int = 0
    subscriptions: int = 0
    busy_threads: int = 0
    sessions: int = 0
    streams: int = 0
    buffered_bytes: int = 0
    replay_bytes: int = 0


class ClientStats(Struct, frozen=True, kw_only=True):
    """The numbers of open connections and running requests of a client.

    connections: 1 while the client is connected, otherwise 0.
    running_requests: requests without a response, including those of stateless subscriptions.
    open_questions: requests from the server that a handler is answering, such as elicitations.
    subscriptions: open `listen` calls.
    queued_callbacks: calls of asynchronous log and progress handlers that have not started.
    """

    connections: int = 0
    running_requests: int = 0
    open_questions: int = 0
    subscriptions: int = 0
    queued_callbacks: int = 0


class HostStats(Struct, frozen=True, kw_only=True):
    """The numbers of open connections and running calls of a host.

    connected_servers: servers with a running client. It counts once for each gateway caller with separate credentials.
    running_calls: calls and subscriptions that use a server now.
    open_questions: consent requests without an answer.
    gateways: HTTP servers that `serve` started.
    """

    connected_servers: int = 0
    running_calls: int = 0
    open_questions: int = 0
    gateways: int = 0
