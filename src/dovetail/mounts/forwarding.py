"""The steps before and after a request is forwarded: check the request, and finish the result for its caller.

Mounts, proxies and gateways share these steps. A finished result is valid in the caller's protocol version, even if the
mounted server has another version or leaves out required members. Members that this module does not know are kept.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dovetail.mounts.local_server import MountingServer
from dovetail.mounts.name_map import parse_result, rewrite_links
from dovetail.mounts.resolver import Mount
from dovetail.mounts.transforms import Transform, rename_header_paths
from dovetail.protocol.exchange import ForwardedResult, IncomingExchange
from dovetail.protocol.headers import HeaderPath, check_param_headers
from dovetail.wire.base import CacheableResult, Result, Struct, replace
from dovetail.wire.meta import SERVER_INFO
from dovetail.wire.methods import METHODS
from dovetail.wire.raw_message import decode_body, set_members

_PRIVATE: Final = "private"


class _ReceivedHint(Struct, rename="camel"):
    """The cache hint of an encoded result. Its values are not checked yet."""

    ttl_ms: Any = None
    cache_scope: Any = None
    result_type: Any = None


def check_headers(
    paths: Sequence[HeaderPath], transform: Transform, arguments: Mapping[str, Any], exchange: IncomingExchange
) -> None:
    """Compare the headers of a call with its arguments, before the transform renames the arguments.

    Raises:
        HeaderMismatch: A header is missing, malformed, unexpected, or differs from the argument.
    """
    check_param_headers(rename_header_paths(transform, paths), arguments, exchange.headers or {})


def finish_result(
    result: Result | bytes, exchange: IncomingExchange, mount: Mount, server: MountingServer
) -> Result | bytes:
    """Translate the links of a result, and add or remove what the caller's protocol version requires."""
    result = rewrite_links(result, exchange.method, mount.name_map)
    if isinstance(result, bytes) and server.handler_table.inspects_results:
        result = parse_result(result, exchange.method)
    if not exchange.caller.is_stateless:
        return _drop_stateless_meta(result)
    if not METHODS[exchange.method].is_cacheable:
        return result
    default_ttl_ms = server.visibility.get_cache_hint(exchange.method).ttl_ms
    if isinstance(result, bytes):  # Only remote servers return encoded results.
        return _add_encoded_hint(result, exchange.method, default_ttl_ms)
    # The mounted server does not know which callers this server accepts. A shared cache must not store a result that
    # other callers may not receive.
    is_private = mount.target.is_remote or server.registry.access_rules is not None
    return _add_hint(result, default_ttl_ms, is_private=is_private)


def _drop_stateless_meta(result: Result | bytes) -> Result | bytes:
    if isinstance(result, bytes) or not result.meta or SERVER_INFO not in result.meta:
        return result
    return replace(result, meta={name: value for name, value in result.meta.items() if name != SERVER_INFO} or None)


def _add_hint(result: Result, default_ttl_ms: int, *, is_private: bool) -> Result:
    if not isinstance(result, CacheableResult):  # for example, a result that asks for input
        return result
    ttl_ms = result.ttl_ms if result.ttl_ms is not None and result.ttl_ms >= 0 else default_ttl_ms
    scope = result.cache_scope if result.cache_scope is not None and not is_private else _PRIVATE
    return replace(result, ttl_ms=ttl_ms, cache_scope=scope)


def _add_encoded_hint(result: bytes, method: str, default_ttl_ms: int) -> bytes:
    received = decode_body(result, _ReceivedHint, f"the result of {method}")
    if received.result_type == "input_required":
        return result
    ttl_ms = received.ttl_ms if type(received.ttl_ms) is int and received.ttl_ms >= 0 else default_ttl_ms
    if ttl_ms == received.ttl_ms and received.cache_scope == _PRIVATE:
        return result
    return ForwardedResult(set_members(result, {"ttlMs": ttl_ms, "cacheScope": _PRIVATE}))
