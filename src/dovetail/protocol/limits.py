"""Limits on the messages, calls and connections of a peer. Each limit has a default.

Sizes are in bytes, times in seconds.
"""

from dovetail.errors import ServerBusy
from dovetail.wire.base import Struct

KiB = 1024
MiB = 1024 * KiB


class ServerLimits(Struct, frozen=True, kw_only=True):
    """Limits of a server. Pass only the limits you want to change: `Server(limits=ServerLimits(...))`. Times are in
    seconds.
    """

    max_body_bytes: int = 4 * MiB  # maximum size of a request body. Larger bodies get 413
    max_message_bytes: int = 10 * MiB  # maximum size of a message on stdio or a socket. Larger messages get -32600
    max_header_block_bytes: int = 32 * KiB  # maximum size of all headers or trailers of a request. Larger ones get 431
    max_header_bytes: int = 8 * KiB  # maximum size of one header. Larger headers get 431, as in nginx and Apache
    header_timeout: float = 10.0  # a client must send the headers within this time. Slower requests get 408
    body_timeout: float = 30.0  # a client must send the body within this time. Slower requests get 408
    write_timeout: float = 30.0  # a connection is closed if the client reads nothing for this time
    max_buffered_bytes: int = 8 * MiB  # maximum memory for messages that wait to be sent. More messages go to disk
    max_uri_bytes: int = 8 * KiB  # longest URI in a request
    max_cursor_bytes: int = 4 * KiB  # longest cursor of a list
    max_meta_bytes: int = 64 * KiB  # maximum size of the `_meta` of a request
    max_calls: int = 2000  # calls that run in one event loop. More calls get 503. As many again may wait for users
    max_calls_per_connection: int = 256  # requests that run on one connection or session. More requests get 429
    # calls of one principal or address. More calls get 429. As many again may wait for users
    max_calls_per_principal: int = 256
    max_inflight_bytes: int = 64 * MiB  # total size of large messages in running calls. More calls get 503
    max_threads: int = 64  # sync functions that run at once. Four times as many may wait for users
    max_thread_queue: int = 256  # sync functions that may wait for a thread
    thread_queue_timeout: float = 5.0  # maximum time that a sync function waits for a thread
    call_timeout: float = 300.0  # maximum time for a tool, prompt or resource. Waiting for a user does not count
    max_result_bytes: int = 10 * MiB  # largest result of a tool
    max_sessions: int = 10_000  # handshake sessions in the process. A new session replaces an idle one, or gets 503
    max_sessions_per_principal: int = 100  # handshake sessions of one principal. More sessions get 429
    max_sessions_per_address: int = 50  # anonymous handshake sessions from one address. More sessions get 429
    initialize_timeout: float = 30.0  # maximum time between `initialize` and `notifications/initialized`
    session_idle_timeout: float = 30 * 60.0  # a handshake session ends after this time without requests
    session_lifetime: float = 24 * 3600.0  # every handshake session ends after this time
    max_streams_per_principal: int = 100  # open event streams of one principal. More streams get 429
    # open subscriptions of one principal or address. More subscriptions get 429
    max_subscriptions_per_principal: int = 32
    max_replay_events: int = 1000  # events stored for each stream, for clients that reconnect
    max_replay_bytes: int = 10 * MiB  # size of the events stored for each stream
    max_replay_total_bytes: int = 32 * MiB  # size of all stored events. The oldest finished streams are deleted first
    replay_ttl: float = 300.0  # how long to store a finished stream, or a question that no client reads
    keep_alive_interval: float = 15.0  # time between comments on an idle event stream
    request_state_ttl: float = 600.0  # how long the client has to answer a question
    drain_timeout: float = 5.0  # how long running calls may continue when the server stops
    shutdown_timeout: float = 10.0  # the process ends at most this long after the stop signal

    def __post_init__(self) -> None:
        _check_not_negative(self)


class CallerBusy(ServerBusy):
    """The caller has reached its share of a limit. Over HTTP, the status is 429 instead of 503."""


class FetchLimits(Struct, frozen=True, kw_only=True):
    """Limits for the HTTP client."""

    max_body_bytes: int = 32 * MiB  # maximum size of a body after decompression. Streams are not limited
    max_ratio: int = 100  # maximum ratio of decompressed to received bytes, checked after `ratio_check_bytes`
    ratio_check_bytes: int = MiB
    max_header_block_bytes: int = 64 * KiB  # maximum size of all headers, trailers and chunk extensions
    max_headers: int = 100
    max_queued_bytes: int = 256 * KiB  # stop reading from a connection while more bytes than this are unread
    max_connections: int = 256  # maximum number of open connections. More requests wait

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ValueError(f"the limit {name} must be at least 1")


class Timeouts(Struct, frozen=True, kw_only=True):
    """Timeouts of a client in seconds. A progress notification restarts `call` and `request`, but not `total`."""

    connect: float = 10.0  # maximum time for connecting to the server
    discover: float = 2.0  # how long to wait for `server/discover` before also trying a handshake
    initialize: float = 30.0  # maximum time for starting the server and negotiating the version
    call: float = 60.0  # maximum time for a tool call. Each progress notification restarts it
    request: float = 30.0  # maximum time for any other request
    total: float = 600.0  # maximum time for a request, regardless of progress
    close: float = 2.0  # maximum time for closing an HTTP or socket connection

    def __post_init__(self) -> None:
        _check_not_negative(self)


class ClientLimits(Struct, frozen=True, kw_only=True):
    """Limits for what a server may send or ask. Pass only the limits you want to change:
    `Client(limits=ClientLimits(...))`.
    """

    max_response_bytes: int = 32 * MiB  # maximum size of an HTTP response after decompression, an event or a line
    max_pages: int = 100  # maximum pages of one list
    max_items: int = 10_000  # maximum items of one list
    max_input_rounds: int = 10  # how often the server may ask for input during one request
    max_input_requests: int = 32  # how many questions the server may ask at once
    max_queued_notifications: int = 1000  # notifications that may wait for a slow handler. The oldest are dropped first
    max_cached_results: int = 256  # maximum number of cached results
    max_retries: int = 2  # how often a request is retried, if it is safe to repeat
    max_reconnects: int = 5  # how often a stream without messages is opened again
    reconnect_delay: float = 0.5  # seconds before the first reconnect. The delay doubles each time
    max_reconnect_delay: float = 30.0  # maximum seconds before a reconnect

    def __post_init__(self) -> None:
        _check_not_negative(self)


def _check_not_negative(limits: Struct) -> None:
    for name in limits.__struct_fields__:
        value = getattr(limits, name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise TypeError(f"the limit {name} must be a number, not {value!r}")
        if not value >= 0:
            raise ValueError(f"the limit {name} must not be negative")
