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

    max_body_bytes: int = 4 * MiB  # largest body of a request, as in the official SDKs. Larger bodies get 413
    max_message_bytes: int = 10 * MiB  # largest message on stdio or a socket. Larger messages get -32600
    max_header_block_bytes: int = 32 * KiB  # total size of the headers or trailers of a request. Larger ones get 431
    max_header_bytes: int = 8 * KiB  # largest header. Larger headers get 431, as in nginx and Apache
    header_timeout: float = 10.0  # time in which a client must send the headers. Slower requests get 408
    body_timeout: float = 30.0  # time in which a client must send the body. Slower requests get 408
    write_timeout: float = 30.0  # the server closes a connection if the client reads nothing for this time
    max_buffered_bytes: int = 8 * MiB  # total size of buffered messages in memory. Further bytes go to disk
    max_uri_bytes: int = 8 * KiB  # longest URI in a request
    max_cursor_bytes: int = 4 * KiB  # longest cursor of a list
    max_meta_bytes: int = 64 * KiB  # largest `_meta` of a request
    max_calls: int = 2000  # running calls in one event loop, and as many that wait for users. Further calls get 503
    max_calls_per_connection: int = 256  # running requests on one connection or session. Further requests get 429
    max_calls_per_principal: int = 256  # calls of one principal or address, else 429. As many more may wait for users
    max_inflight_bytes: int = 64 * MiB  # total size of large messages of running calls. Further calls get 503
    max_threads: int = 64  # running synchronous functions. Up to four times as many may also wait for users
    max_thread_queue: int = 256  # synchronous functions that may wait for a thread
    thread_queue_timeout: float = 5.0  # longest time that a synchronous function waits for a thread
    call_timeout: float = 300.0  # run time of one tool, prompt or resource, without the time spent waiting for a user
    max_result_bytes: int = 10 * MiB  # largest result of a tool
    max_sessions: int = 10_000  # handshake sessions in the process. A new session ends an idle one, or gets 503
    max_sessions_per_principal: int = 100  # handshake sessions of one principal. Further sessions get 429
    max_sessions_per_address: int = 50  # anonymous handshake sessions of one remote address. Further sessions get 429
    initialize_timeout: float = 30.0  # longest time between `initialize` and `notifications/initialized`
    session_idle_timeout: float = 30 * 60.0  # a handshake session ends if the client does not use it for this time
    session_lifetime: float = 24 * 3600.0  # every handshake session ends after this time
    max_streams_per_principal: int = 100  # open event streams of one principal. Further streams get 429
    max_subscriptions_per_principal: int = 32  # open subscriptions of one principal or address. Further ones get 429
    max_replay_events: int = 1000  # stored events of one stream, for clients that reconnect
    max_replay_bytes: int = 10 * MiB  # size of the stored events of one stream
    max_replay_total_bytes: int = 32 * MiB  # size of all stored events. The oldest complete streams are dropped first
    replay_ttl: float = 300.0  # how long the server keeps a complete stream, or a question that no client reads
    keep_alive_interval: float = 15.0  # time between comments on an idle event stream
    request_state_ttl: float = 600.0  # time in which the client must answer a question
    drain_timeout: float = 5.0  # how long running calls may continue at shutdown
    shutdown_timeout: float = 10.0  # the process ends at the latest this long after the stop signal

    def __post_init__(self) -> None:
        _check_not_negative(self)


class CallerBusy(ServerBusy):
    """The caller has used up its share of a limit. Over HTTP, the status is 429 instead of 503."""


class FetchLimits(Struct, frozen=True, kw_only=True):
    """Limits of the HTTP client for responses and connections."""

    max_body_bytes: int = 32 * MiB  # largest whole body after decompression. Streams have no such limit
    max_ratio: int = 100  # largest ratio of decompressed to received bytes, checked after `ratio_check_bytes`
    ratio_check_bytes: int = MiB
    max_header_block_bytes: int = 64 * KiB  # total size of the headers, and of trailers and chunk extensions
    max_headers: int = 100
    max_queued_bytes: int = 256 * KiB  # the client stops reading the connection if more bytes of a response are unread
    max_connections: int = 256  # open connections. Further requests wait for a free connection

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ValueError(f"the limit {name} must be at least 1")


class Timeouts(Struct, frozen=True, kw_only=True):
    """Timeouts of a client in seconds. Each progress notification restarts `call` and `request`, but not `total`."""

    connect: float = 10.0  # time to connect to the server
    discover: float = 2.0  # time to wait for `server/discover` before the client also tries a handshake
    initialize: float = 30.0  # time to start the server and negotiate the version
    call: float = 60.0  # time to wait for the result of a tool, counted from its last progress
    request: float = 30.0  # time to wait for the response to any other request
    total: float = 600.0  # total time for one request, regardless of progress
    close: float = 2.0  # time to close a connection over HTTP or a socket. Processes have other timeouts

    def __post_init__(self) -> None:
        _check_not_negative(self)


class ClientLimits(Struct, frozen=True, kw_only=True):
    """Limits on the messages and questions of a server. Pass only the limits you want to change:
    `Client(limits=ClientLimits(...))`.
    """

    max_response_bytes: int = 32 * MiB  # largest decompressed HTTP response, event or line that the client reads
    max_pages: int = 100  # pages that the client reads of one list
    max_items: int = 10_000  # items that the client reads of one list
    max_input_rounds: int = 10  # rounds of input requests that the client answers for one request
    max_input_requests: int = 32  # input requests in one round, or open at the same time
    max_queued_notifications: int = 1000  # notifications that wait for a slow handler. The oldest are dropped first
    max_cached_results: int = 256  # results in the client's cache
    max_retries: int = 2  # retries of a request that is safe to repeat
    max_reconnects: int = 5  # reconnects of a stream that delivers no messages
    reconnect_delay: float = 0.5  # seconds before the first reconnect. The delay doubles each time
    max_reconnect_delay: float = 30.0  # longest delay in seconds before a reconnect

    def __post_init__(self) -> None:
        _check_not_negative(self)


def _check_not_negative(limits: Struct) -> None:
    for name in limits.__struct_fields__:
        value = getattr(limits, name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise TypeError(f"the limit {name} must be a number, not {value!r}")
        if not value >= 0:
            raise ValueError(f"the limit {name} must not be negative")
