"""Find the address of a client behind proxies. Only the headers of trusted proxies count."""

import ipaddress
from functools import lru_cache
from typing import Final

from dovetail.transports.http_server.http_request import Headers

_MAX_ADDRESS_CHARS: Final = 64
Address = tuple[str, int]


class TrustedProxies:
    """The proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` headers count.

    Args:
        names: Addresses and networks, separated by commas. "*" trusts every client.
    """

    def __init__(self, names: str) -> None:
        self._trusts_all = names.strip() == "*"
        self._names: set[str] = set()
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for name in [] if self._trusts_all else filter(None, map(str.strip, names.split(","))):
            try:
                self._networks.append(ipaddress.ip_network(name, strict=False))
            except ValueError:
                self._names.add(name)
        self._is_trusted = lru_cache(1024)(self._check_trusted)

    def find_client(self, peer: Address | None, headers: Headers) -> Address | None:
        """Return the client address: the last address in `X-Forwarded-For` that is not a trusted proxy."""
        if not self._trusts_peer(peer):
            return peer
        values = [value for name, value in headers if name == b"x-forwarded-for"]
        hosts = [host for host in map(str.strip, b",".join(values).decode("latin-1").split(",")) if host]
        if not hosts:
            return peer
        if self._trusts_all:
            return _parse_address(hosts[0])
        addresses = map(_parse_address, reversed(hosts))
        return next((address for address in addresses if not self.trusts(address[0])), _parse_address(hosts[0]))

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
            return host in self._names
        return any(address in network for network in self._networks)


def _parse_address(text: str) -> Address:
    """Split a text into host and port. If the format is unknown, return the text as the host."""
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            return text, 0
        return host, int(port[1:]) if port[1:].isdecimal() else 0
    host, _, port = text.rpartition(":")
    return (host, int(port)) if text.count(":") == 1 and port.isdecimal() else (text, 0)
