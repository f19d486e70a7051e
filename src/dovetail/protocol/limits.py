"""Limits on what a peer may send or withhold. Each has a default.

Sizes are bytes, times are seconds.
"""

from dovetail.errors import ServerBusy
from dovetail.wire.base import Struct

KiB = 1024
MiB = 1024 * KiB


class ServerLimits(Struct, frozen=True, kw_only=True):
    """All of them; give `Server(limits=ServerLimits(...))` those you want otherwise."""

    max_body_bytes: int = 4 * MiB  # 413. As the official SDKs.
    max_message_bytes: int = 10 * MiB  # -32600, then skip to the next newline
    max_header_block_bytes: int = 32 * KiB  # 431. Trailers have the same limit.
    max_header_bytes: int = 8 * KiB  # 431. As nginx and Apache.
    header_timeout: float = 10.0  # 408
    body_timeout: float = 30.0  # 408
    write_timeout: float = 30.0  # the connection is dropped
    max_buffered_bytes: int = 8 * MiB  # of slow requests and replies in memory, all together; beyond that on disk
    max_uri_bytes: int = 8 * KiB
    max_cursor_bytes: int = 4 * KiB
    max_meta_bytes: int = 64 * KiB
    max_calls: int = 2000  # at work in one event loop: 503. As many again may wait for a user's answer.
    max_calls_per_connection: int = 256  # in flight on one duplex connection or session: 429
    max_calls_per_principal: int = 256  # of one principal or remote address: 429. As many again may wait for an answer.
    max_inflight_bytes: int = 64 * MiB  # of large messages being worked on, all together: 503 for one more
    max_threads: int = 64  # synchronous functions at work. Four times as many may wait for a user's answer.
    max_thread_queue: int = 256  # synchronous functions that wait for a thread
    thread_queue_timeout: float = 5.0
    call_timeout: float = 300.0  # of one tool, prompt or resource; the time a user takes to answer is not counted
    max_result_bytes: int = 10 * MiB  # of one tool
    max_sessions: int = 10_000  # handshake sessions in the process: the longest unused one gives way, else 503
    max_sessions_per_principal: int = 100  # 429
    max_sessions_per_address: int = 50  # anonymous and not loopback: 429
    initialize_timeout: float = 30.0  # from `initialize` to `initialized`
    session_idle_timeout: float = 30 * 60.0
    session_lifetime: float = 24 * 3600.0
    max_streams_per_principal: int = 100  # open event streams of one principal: 429
    max_subscriptions_per_principal: int = 32  # subscriptions/listen of one principal or remote address: 429
    max_replay_events: int = 1000
    max_replay_bytes: int = 10 * MiB
    max_replay_total_bytes: int = 32 * MiB  # of all streams; the oldest finished ones give way
    replay_ttl: float = 300.0  # of a finished stream, and of a question whose stream nobody reads
    keep_alive_interval: float = 15.0  # between comments on a quiet event stream; a silent reply begins one after 10 s
    request_state_ttl: float = 600.0  # for the answer to a question, asked directly or with a requestState
    drain_timeout: float = 5.0  # for running calls at shutdown
    shutdown_timeout: float = 10.0  # then the process ends whatever happens

    def __post_init__(self) -> None:
        _check_not_negative(self)


class CallerBusy(ServerBusy):
    """The caller has used up its own share of a limit. Over HTTP, the status is 429 instead of 503."""


class FetchLimits(Struct, frozen=True, kw_only=True):
    """What the HTTP client takes from a server, and how much it keeps open."""

    max_body_bytes: int = 32 * MiB  # of one reply read as a whole, after decompression
    max_ratio: int = 100  # of decompressed to received bytes, looked at beyond `ratio_from` bytes
    ratio_check_bytes: int = MiB
    max_header_block_bytes: int = (
        64 * KiB
    )  # also what may come in a row without a byte of the body: trailers, chunk extensions
    max_headers: int = 100
    max_queued_bytes: int = 256 * KiB  # of a reply that is not being read; then the connection is not read either
    max_connections: int = 256  # open at the same time; a request beyond that waits

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ValueError(f"the limit {name} must be at least 1")


class Timeouts(Struct, frozen=True, kw_only=True):
    """How long to wait. The limits of a request count from the last sign of life; `total` counts from its beginning."""

    connect: float = 10.0  # to reach the server
    discover: float = 2.0  # for an answer to the first question, before an older way to open is tried beside it
    initialize: float = 30.0  # to start the server and agree with it
    call: float = 60.0  # for the result of a tool, since its last progress
    request: float = 30.0  # for the answer to anything else
    total: float = 600.0  # of one request, however much progress it makes
    close: float = 2.0  # to leave a server on the web or a socket in an orderly way; a process has its own times

    def __post_init__(self) -> None:
        _check_not_negative(self)


class ClientLimits(Struct, frozen=True, kw_only=True):
    """What a server may send or ask; give `Client(limits=ClientLimits(...))` those you want otherwise."""

    max_response_bytes: int = 32 * MiB  # one HTTP answer after decompression, one event, one line
    max_pages: int = 100  # pages of one list
    max_items: int = 10_000  # items of one list
    max_input_rounds: int = 10  # rounds of questions within one request
    max_input_requests: int = 32  # questions in one round, or open at the same time
    max_queued_notifications: int = 1000  # messages that a slow handler of yours has not yet seen; the oldest give way
    max_cached_results: int = 256  # results kept while they are fresh
    max_retries: int = 2  # further tries of a request that is safe to repeat
    max_reconnects: int = 5  # further tries of a stream that brings nothing
    reconnect_delay: float = 0.5  # seconds before a connection is tried again, at least; doubled each time
    max_reconnect_delay: float = 30.0  # seconds before a connection is tried again, at most

    def __post_init__(self) -> None:
        _check_not_negative(self)


def _check_not_negative(limits: Struct) -> None:
    for name in limits.__struct_fields__:
        value = getattr(limits, name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise TypeError(f"the limit {name} must be a number, not {value!r}")
        if not value >= 0:
            raise ValueError(f"the limit {name} must not be negative")
