"""Limits for messages, calls and connections of servers and clients. Each limit has a default.

Sizes are in bytes, and times are in seconds.
"""

from collections.abc import Collection
from math import inf

from dovetail.errors import ServerBusy
from dovetail.wire.base import Struct

KiB = 1024
MiB = 1024 * KiB

# This ratio is an estimate for English text and JSON. Each model counts tokens differently.
BYTES_PER_TOKEN = 4


class ServerLimits(Struct, frozen=True, kw_only=True):
    """The limits of a server. Pass only the limits that you want to change: `Server(limits=ServerLimits(...))`.

    Sizes are in bytes, and times are in seconds.
    """

    max_body_bytes: int = 4 * MiB  # the maximum size of an HTTP request body. Larger bodies get status 413
    # The maximum size of a message on stdio or a socket. Larger messages get the error code -32600.
    max_message_bytes: int = 10 * MiB
    # The maximum size of the target and all headers of a request. Larger requests get status 431.
    # The same limit applies to the trailers. The number of headers has no limit.
    max_header_block_bytes: int = 32 * KiB
    # The maximum size of one header. Larger headers get status 431, as in nginx and Apache.
    max_header_bytes: int = 8 * KiB
    header_timeout: float = 10.0  # the time that a client has for sending the headers. Slower clients get status 408
    body_timeout: float = 30.0  # the time that a client has for sending the body. Slower clients get status 408
    write_timeout: float = 30.0  # the time after which a connection is closed if the client reads almost nothing
    # The time after which an idle HTTP connection is closed. Proxies and load balancers must close theirs earlier.
    idle_timeout: float = 75.0
    # The maximum memory for messages that wait to be sent. Further messages are stored on disk.
    max_buffered_bytes: int = 8 * MiB
    # The maximum length of a resource URI. Longer URIs get the error code -32602.
    # This limit does not apply to the URL of an HTTP request. For URLs, see `max_header_block_bytes`.
    max_uri_bytes: int = 8 * KiB
    max_cursor_bytes: int = 4 * KiB  # the maximum length of a list cursor. Longer cursors get the error code -32602
    # The maximum size of the `_meta` of a request. Larger values get the error code -32602.
    max_meta_bytes: int = 64 * KiB
    # The maximum number of calls that run in one event loop. Further calls get status 503.
    # Calls that wait for a user are not counted here. They have their own limit with the same value.
    max_calls: int = 2000
    # The maximum number of requests that run on one connection or session. Further requests get status 429.
    max_calls_per_connection: int = 256
    # The maximum number of running calls of one principal or address. Further calls get status 429.
    # Calls that wait for a user are not counted here. They have their own limit with the same value.
    max_calls_per_principal: int = 256
    # The maximum total size of large messages in running calls. Further calls get status 503.
    # One caller can use at most half of this size.
    max_inflight_bytes: int = 64 * MiB
    # The maximum number of threads that run sync functions. Up to four times as many threads may wait for users.
    max_threads: int = 64
    # The maximum number of sync functions that wait for a thread. Further calls get status 503.
    max_thread_queue: int = 256
    # The maximum time that a sync function waits for a thread. After this time, the call gets status 503.
    thread_queue_timeout: float = 5.0
    # The maximum time for a tool, prompt or resource. Waiting for a user does not count.
    # After this time, a tool call gets a result with `isError`. Other requests get the error code -32603.
    call_timeout: float = 300.0
    max_result_bytes: int = 10 * MiB  # the maximum size of a tool result. Larger results get the error code -32603
    # The maximum number of sessions in the process. A new session replaces an idle session or gets status 503.
    # In a cluster, the replaced session continues, because other workers can open it again.
    max_sessions: int = 10_000
    # The maximum number of sessions of one principal. Further sessions get status 429.
    max_sessions_per_principal: int = 100
    # The maximum number of anonymous sessions from one address. Further sessions get status 429.
    max_sessions_per_address: int = 50
    # The maximum time between `initialize` and `notifications/initialized`. After this time, the session ends.
    initialize_timeout: float = 30.0
    # The time without requests after which a session ends. Requests of an ended session get status 404.
    session_idle_timeout: float = 30 * 60.0
    session_lifetime: float = 24 * 3600.0  # the time after which every session ends
    # The maximum number of open event streams of one principal. Further streams get status 429.
    max_streams_per_principal: int = 100
    # The maximum number of open subscriptions of one principal or address. Further subscriptions get status 429.
    max_subscriptions_per_principal: int = 32
    max_replay_events: int = 1000  # the maximum number of events that are stored per stream for clients that reconnect
    max_replay_bytes: int = 10 * MiB  # the maximum size of the events that are stored per stream
    # The maximum size of all stored events. The oldest finished streams are deleted first.
    max_replay_total_bytes: int = 32 * MiB
    # The time for which the server keeps a finished stream or an unread input request.
    replay_ttl: float = 300.0
    keep_alive_interval: float = 15.0  # the time between comments on an idle event stream
    request_state_ttl: float = 600.0  # the time that a client has to answer an input request
    drain_timeout: float = 5.0  # the time that running calls may continue when the server stops
    shutdown_timeout: float = 10.0  # the maximum time between the stop signal and the end of the process

    def __post_init__(self) -> None:
        _check_numbers(self, positive_times=("idle_timeout",))


class CallerBusy(ServerBusy):
    """Raised if one caller has reached its limit. The HTTP status is 429."""


class FetchLimits(Struct, frozen=True, kw_only=True):
    """The limits of the HTTP client."""

    # The maximum size of a body after decompression. This limit does not apply to streams.
    max_body_bytes: int = 32 * MiB
    # The maximum number of decompressed bytes for each received byte.
    # The limit applies only after the first `ratio_check_bytes` bytes of decompressed data.
    max_ratio: int = 100
    ratio_check_bytes: int = MiB
    max_header_block_bytes: int = 64 * KiB  # the maximum size of all headers, trailers and chunk extensions
    max_headers: int = 100
    # The maximum number of unread bytes per connection. At this number, the client stops reading from the socket.
    max_queued_bytes: int = 256 * KiB
    max_connections: int = 256  # The maximum number of open connections. Further requests wait for a free connection.

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ValueError(f"the limit {name} must be at least 1")


class Timeouts(Struct, frozen=True, kw_only=True):
    """The timeouts of a client in seconds. Progress restarts the timeouts `call` and `request`, but not `total`."""

    connect: float = 10.0  # the maximum time for connecting to the server
    # If the result of `server/discover` takes longer than this, the client also tries a handshake.
    discover: float = 2.0
    initialize: float = 30.0  # the maximum time for starting the server and negotiating the protocol version
    call: float = 60.0  # the maximum time for a tool call, restarted by each progress notification
    request: float = 30.0  # the maximum time for any other request
    total: float = 600.0  # the maximum time for a request, regardless of progress
    close: float = 2.0  # the maximum time for closing an HTTP or socket connection

    def __post_init__(self) -> None:
        _check_numbers(self)


class ClientLimits(Struct, frozen=True, kw_only=True):
    """The limits for messages from a server. Pass only the limits that you want to change.

    For example: `Client(limits=ClientLimits(...))`.
    """

    # The maximum size of an event, of a line, or of an HTTP response after decompression.
    max_response_bytes: int = 32 * MiB
    max_pages: int = 100  # the maximum number of pages of one list
    max_items: int = 10_000  # the maximum number of items of one list
    max_input_rounds: int = 10  # the maximum number of times that the server may ask for input during one request
    max_input_requests: int = 32  # the maximum number of input requests that the server may send at once
    # The maximum number of notifications that wait for a slow handler. The oldest are dropped first.
    max_queued_notifications: int = 1000
    max_cached_results: int = 256  # the maximum number of cached results
    max_retries: int = 2  # the maximum number of retries of a request that is safe to repeat
    max_reconnects: int = 5  # how often in a row a stream is opened again if no messages arrive
    reconnect_delay: float = 0.5  # the seconds before the first reconnect. The delay doubles each time
    max_reconnect_delay: float = 30.0  # the maximum seconds before a reconnect

    def __post_init__(self) -> None:
        _check_numbers(self)


def _check_numbers(limits: Struct, positive_times: Collection[str] = ()) -> None:
    for name in limits.__struct_fields__:
        value = getattr(limits, name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise TypeError(f"the limit {name} must be a number, not {value!r}")
        if name in positive_times and not 0 < value < inf:
            raise ValueError(f"the limit {name} must be a number of seconds above 0, not {value:g}")
        if not value >= 0:
            raise ValueError(f"the limit {name} must be 0 or more, not {value:g}")
