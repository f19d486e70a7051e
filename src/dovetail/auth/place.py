"""Where a guarded server is, as its clients see it, and where its metadata can be fetched. RFC 9728, section 3

With a public URL everything follows from that. Without one only what the request cannot choose is believed: the port it
came in by, and a name that was checked.
"""

from typing import Any, Final
from urllib.parse import urlsplit

from dovetail.wire.shape import Struct

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"

_DEFAULT_PORTS: Final = {"https": 443, "http": 80}


class Place(Struct, frozen=True):
    """A server's address, and that of its metadata."""

    base: str  # under which the application is reached
    path: str  # of the endpoint, below that

    @property
    def resource(self) -> str:
        """What the server is called in tokens and metadata. spec: authorization#canonical-server-uri"""
        return self.at(self.path)

    @property
    def metadata(self) -> str:
        """Where its metadata is. Below a prefix, for the root of the origin may be somebody else's."""
        return self.at(WELL_KNOWN + ("" if self.path == "/" else self.path))

    def describes(self, path: str) -> bool:
        """Whether the metadata is to be given at this path: in the place the RFC names, inside the prefix, or first."""
        whole = urlsplit(self.resource).path
        return path in (WELL_KNOWN, WELL_KNOWN + whole, WELL_KNOWN + self.path)

    def at(self, path: str) -> str:
        """The address of a path of the application."""
        return self.base + ("" if path == "/" else path)


def public(public_url: str, path: str) -> Place:
    """The place behind a public URL: that of the endpoint, or that under which the whole application is reached."""
    parts = urlsplit(public_url)
    origin = f"{parts.scheme.lower()}://{parts.netloc.rpartition('@')[2].lower()}"
    prefix = parts.path.rstrip("/")
    if prefix.endswith(path):
        prefix = prefix.removesuffix(path)
    return Place(origin + prefix, path)


def seen(scheme: str, host: str, port: int | None, root: str, path: str) -> Place:
    """The place by which a request came in; the host is a name, without its port."""
    name = f"[{host}]" if ":" in host else host
    shown = "" if port is None or port == _DEFAULT_PORTS.get(scheme) else f":{port}"
    return Place(f"{scheme}://{name}{shown}{root.rstrip('/')}", path)


def host_name(header: Any) -> str:
    """The name in a Host header."""
    text = header.decode("latin-1").lower()
    return text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]
