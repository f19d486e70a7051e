"""Find the address of a client behind proxies. Only the headers of trusted proxies count."""

import ipaddress
import os
from functools import lru_cache
from typing import Final

from dovetail.error_context import clip
from dovetail.transports.http_server.http_request import Headers

# This environment variable lists the trusted proxies. uvicorn and gunicorn use the same variable.
PROXIES_VARIABLE: Final = "FORWARDED_ALLOW_IPS"
_MAX_ADDRESS_CHARS: Final = 64
_MAX_PORT_DIGITS: Final = 5
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
                self._networks.append(ipaddress.ip_network(name, strict=False))
            except ValueError:
                raise ValueError(
                    f"{PROXIES_VARIABLE} contains {clip(name)!r}, which is not an IP address or network. Separate them "
                    'with commas, such as "127.0.0.1,10.0.0.0/8", or write "*" to trust every client'
                ) from None
        self._is_trusted = lru_cache(1024)(self._check_trusted)

    def find_client(self, peer: Address | None, headers: Headers) -> Address | None:
        """Return the client address: the last address in `X-Forwarded-For` that is not a trusted proxy.

        If this entry is not an address, return the address of the peer.
        """
        if not self._trusts_peer(peer):
            return peer
        values = [value for name, value in headers if name == b"x-forwarded-for"]
        hosts = [host for host in map(str.strip, b",".join(values).decode("latin-1").split(",")) if host]
        if not hosts:
            return peer
        first = _parse_address(hosts[0])
        addresses = [] if self._trusts_all else map(_parse_address, reversed(hosts))
        client = next((address for address in addresses if not self.trusts(address[0])), first)
        return client if _is_address(client[0]) else peer

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
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self._networks)


def read_trusted_proxies() -> TrustedProxies | None:
    """Return the proxies in the environment variable, or None. Raise ValueError if its value is invalid."""
    names = os.environ.get(PROXIES_VARIABLE)
    return TrustedProxies(names) if names else None


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
