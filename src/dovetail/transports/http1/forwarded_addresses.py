"""Find the address of a client behind proxies. Only the headers of trusted proxies count."""

import ipaddress
import os
from functools import lru_cache
from typing import Final

from dovetail.error_context import clip
from dovetail.transports.http1.server_request import Headers

# This environment variable lists the trusted proxies. uvicorn and gunicorn use the same variable.
PROXIES_VARIABLE: Final = "FORWARDED_ALLOW_IPS"
_MAX_ADDRESS_CHARS: Final = 64
_MAX_PORT_DIGITS: Final = 5
_MAX_CACHED_BYTES: Final = 256  # the longest header value that is cached
_MAPPED_NETWORK: Final = ipaddress.IPv6Network("::ffff:0:0/96")  # IPv4 addresses in the form ::ffff:127.0.0.1
Address = tuple[str, int]


class TrustedProxies:
    """The proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` headers count.

    Args:
        names: Addresses and networks, separated by commas. "*" trusts every client.

    Raises:
        ValueError: A name is not an address or a network.
    """

    def __init__(self, names: str) -> None:
        self._trusts_all = names.strip() == "*"
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for name in [] if self._trusts_all else filter(None, map(str.strip, names.split(","))):
            try:
                self._networks.append(_unmap_network(ipaddress.ip_network(name, strict=False)))
            except ValueError:
                raise ValueError(
                    f"{PROXIES_VARIABLE} contains {clip(name)!r}, which is not an IP address or network. Separate them "
                    'with commas, such as "127.0.0.1,10.0.0.0/8", or write "*" to trust every client'
                ) from None
        self._is_trusted = lru_cache(1024)(self._check_trusted)
        self._find_cached_client = lru_cache(1024)(self._find_forwarded_client)

    def find_client(self, peer: Address | None, headers: Headers) -> Address | None:
        """Return the client address: the last address in `X-Forwarded-For` that is not a trusted proxy.

        If this entry is not an address, return the address of the peer.
        """
        if not self._trusts_peer(peer):
            return peer
        forwarded = b""
        for name, value in headers:
            if name == b"x-forwarded-for":
                forwarded = value if not forwarded else forwarded + b"," + value
        if len(forwarded) <= _MAX_CACHED_BYTES:
            return self._find_cached_client(forwarded) or peer
        return self._find_forwarded_client(forwarded) or peer

    def _find_forwarded_client(self, forwarded: bytes) -> Address | None:
        hosts = [host for host in map(str.strip, forwarded.decode("latin-1").split(",")) if host]
        if not hosts:
            return None
        first = _parse_address(hosts[0])
        addresses = [] if self._trusts_all else map(_parse_address, reversed(hosts))
        client = next((address for address in addresses if not self.trusts(address[0])), first)
        return client if _is_address(client[0]) else None

    def find_scheme(self, peer: Address | None, headers: Headers, scheme: str) -> str:
        """Return the scheme that the client used."""
        if not self._trusts_peer(peer):
            return scheme
        values = [value.decode("latin-1").strip() for name, value in headers if name == b"x-forwarded-proto"]
        return values[-1] if values and values[-1] in ("http", "https") else scheme

    def _trusts_peer(self, peer: Address | None) -> bool:
        return self._trusts_all or (peer is not None and self.trusts(peer[0]))

    def trusts(self, host: str) -> bool:
        """Return whether this host is a trusted proxy."""
        return self._trusts_all or (len(host) <= _MAX_ADDRESS_CHARS and self._is_trusted(host))

    def _check_trusted(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        # A socket for both versions of IP reports an IPv4 address as an IPv6 address, such as ::ffff:127.0.0.1.
        ipv4_address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network or ipv4_address in network for network in self._networks)


def read_trusted_proxies() -> TrustedProxies | None:
    """Return the proxies in the environment variable, or None. Raise ValueError if its value is invalid."""
    names = os.environ.get(PROXIES_VARIABLE)
    return TrustedProxies(names) if names else None


def _unmap_network(
    network: ipaddress.IPv4Network | ipaddress.IPv6Network,
) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Return a network such as ::ffff:10.0.0.0/104 as an IPv4 network. Return all other networks unchanged."""
    if network.version == 6 and network.subnet_of(_MAPPED_NETWORK):
        first_address = int(network.network_address) - int(_MAPPED_NETWORK.network_address)
        return ipaddress.IPv4Network((first_address, network.prefixlen - _MAPPED_NETWORK.prefixlen))
    return network


def _is_address(host: str) -> bool:
    # The part of an IPv6 address after "%" is the name of a network interface, which can be any text.
    return len(host) <= _MAX_ADDRESS_CHARS and "%" not in host and _parses_as_address(host)


@lru_cache(1024)
def _parses_as_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _parse_address(text: str) -> Address:
    """Split a text into host and port. If the format is unknown, return the text as the host."""
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            return text, 0
        return host, _parse_port(port[1:])
    host, _, port = text.rpartition(":")
    return (host, _parse_port(port)) if text.count(":") == 1 and port.isdecimal() else (text, 0)


def _parse_port(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) <= _MAX_PORT_DIGITS else 0
