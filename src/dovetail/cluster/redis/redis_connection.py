"""Connections to Redis or Valkey, the prefixes of keys, and the conversion of Redis URLs and errors."""

import importlib
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from dovetail.keys import escape
from dovetail.log import log_and_suppress
from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable
from dovetail.wire.base import Struct

_DEFAULT_PORT: Final = 6379
_DEFAULT_SENTINEL_PORT: Final = 26379
# The time to wait for one Sentinel. If it does not answer, the next one is asked.
_MAX_SENTINEL_TIMEOUT_S: Final = 1.0
REDIS_SCHEMES: Final = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")


class RedisAddress(Struct, frozen=True, kw_only=True):
    """The address of a Redis server. If `sentinel_service` is set, the hosts are Sentinel servers."""

    hosts: tuple[tuple[str, int], ...] = ()
    path: str | None = None  # the path of a Unix socket
    username: str | None = None
    password: str | None = None
    database: int = 0
    uses_tls: bool = False
    ca_file: str | None = None
    sentinel_service: str | None = None
    sentinel_password: str | None = None

    def __str__(self) -> str:
        """Return the address without the password."""
        if self.path is not None:
            return f"unix:{self.path}"
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        scheme = ("rediss" if self.uses_tls else "redis") + ("+sentinel" if self.sentinel_service else "")
        return f"{scheme}://{hosts}" + (f"/{self.sentinel_service}" if self.sentinel_service else "")


def parse_redis_url(url: str) -> RedisAddress:
    """Return the address in a URL. Raise ValueError if the URL is invalid. The error does not contain the password.

    Use `redis://user:password@host:6379/0`, `rediss://` for TLS, `unix:///path?db=0` for a socket, and
    `redis+sentinel://host1:26379,host2:26379/service/0` for Sentinel. The options `ca_file` and `sentinel_password`
    follow after `?`.
    """
    parts = urlsplit(url)
    if parts.scheme not in REDIS_SCHEMES:
        raise ValueError(f"the scheme of a Redis URL must be one of {', '.join(REDIS_SCHEMES)}, not {parts.scheme!r}")
    options = dict(parse_qsl(parts.query))
    unknown = options.keys() - {"db", "ca_file", "sentinel_password"}
    if unknown:
        raise ValueError(f"unknown options in a Redis URL: {', '.join(sorted(unknown))}")
    credentials, _, hosts = parts.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    segments = [unquote(segment) for segment in parts.path.split("/") if segment]
    is_sentinel = parts.scheme.endswith("+sentinel")
    if is_sentinel and not segments:
        raise ValueError("a Sentinel URL must name the service: redis+sentinel://host:26379/service")
    service = segments.pop(0) if is_sentinel else None
    if parts.scheme == "unix":
        segments = []
    database = options.get("db", segments[0] if segments else "0")
    if not database.isdecimal():
        raise ValueError(f"the database of a Redis URL must be a number, not {database!r}")
    default_port = _DEFAULT_SENTINEL_PORT if is_sentinel else _DEFAULT_PORT
    return RedisAddress(
        hosts=() if parts.scheme == "unix" else tuple(_parse_host(host, default_port) for host in hosts.split(",")),
        path=unquote(parts.path) if parts.scheme == "unix" else None,
        username=unquote(username) or None,
        password=unquote(password) or None,
        database=int(database),
        uses_tls=parts.scheme.startswith("rediss"),
        ca_file=options.get("ca_file"),
        sentinel_service=service,
        sentinel_password=options.get("sentinel_password"),
    )


def build_deployment_prefix(prefix: str, server: str) -> str:
    """Return the prefix of the keys of one server. It contains no braces, which have a meaning in Redis Cluster."""
    return f"{escape(prefix, ':{}')}:{escape(server, '{}')}"


def _parse_host(text: str, default_port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("a Redis URL must contain a host, for example redis://127.0.0.1:6379")
    try:
        return parts.hostname, parts.port or default_port
    except ValueError:
        port = parts.netloc.rpartition(":")[2]
        raise ValueError(f"the port of a Redis URL must be a number up to 65535, not {port!r}") from None


def import_redis() -> None:
    """Import redis-py, which takes some time. Raise ImportError if it is not installed."""
    try:
        importlib.import_module("redis.asyncio")
    except ImportError:
        message = "a cluster on Redis needs redis-py. Run: pip install 'dovetail-mcp[redis]'"
        raise ImportError(message, name="redis") from None


def open_client(address: RedisAddress, timeout: float) -> Any:
    """Return a redis-py client that creates connections. It never repeats a command."""
    import redis.asyncio as redis
    from redis.asyncio.retry import Retry
    from redis.asyncio.sentinel import Sentinel
    from redis.backoff import NoBackoff

    tls: dict[str, Any] = {}
    if address.uses_tls:
        tls = {
            "ssl": True,
            "ssl_ca_certs": address.ca_file,
            "ssl_cert_reqs": "required",
            "ssl_check_hostname": True,
        }
    options: dict[str, Any] = {
        "username": address.username,
        "password": address.password,
        "db": address.database,
        "protocol": 2,
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        # If `use_once` were sent twice, the second attempt would refuse the ID.
        "retry": Retry(NoBackoff(), 0),
    }
    if address.sentinel_service is not None:
        sentinel_timeout = min(timeout, _MAX_SENTINEL_TIMEOUT_S)
        sentinel_options = {
            "password": address.sentinel_password,
            "socket_timeout": sentinel_timeout,
            "socket_connect_timeout": sentinel_timeout,
            "retry": Retry(NoBackoff(), 0),
            **tls,
        }
        sentinel = Sentinel(list(address.hosts), sentinel_kwargs=sentinel_options)
        return sentinel.master_for(address.sentinel_service, **options, **tls)
    if address.path is not None:
        return redis.Redis(unix_socket_path=address.path, **options)
    host, port = address.hosts[0]
    return redis.Redis(host=host, port=port, **options, **tls)


async def close_client(client: Any) -> None:
    """Close all connections of a client, including the connections to Sentinel."""
    sentinel = getattr(client.connection_pool, "sentinel_manager", None)
    for opened in (client, *(sentinel.sentinels if sentinel is not None else ())):
        with log_and_suppress(Exception):  # Closing a broken connection may fail.
            await opened.aclose(close_connection_pool=True)


class RedisAway(SharedStateUnavailable):
    """Raised if Redis does not answer. The connections must be opened again."""


class ScriptMissing(SharedStateUnavailable):
    """Raised if Redis does not know a script by its digest."""


def convert_error(exc: Exception) -> SharedStateUnavailable:
    """Return RedisAway if Redis does not answer, or another SharedStateUnavailable if Redis refuses a command."""
    from redis.exceptions import ConnectionError, NoScriptError, ReadOnlyError, ResponseError, TimeoutError

    if isinstance(exc, SharedStateUnavailable):
        return exc
    text = str(exc).partition(" script: ")[0][:200] or type(exc).__name__
    if isinstance(exc, NoScriptError):
        return ScriptMissing(text)
    # After a failover, the former primary is read-only. A new connection finds the new primary.
    if isinstance(exc, ConnectionError | TimeoutError | ReadOnlyError | OSError):
        return RedisAway(f"Redis does not answer: {text}")
    if isinstance(exc, ResponseError):
        return SharedStateUnavailable(f"Redis refused a command: {text}")
    return RedisAway(f"Redis cannot be used: {text}")
