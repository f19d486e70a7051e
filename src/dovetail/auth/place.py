"""Where a guarded server is, as its clients see it, and where its metadata can be fetched. RFC 9728, section 3

With a public URL everything follows from that. Without one only what the request cannot choose is believed: the port it
came in by, and a name that was checked.
"""

from typing import Any, Final
from urllib.parse import urlsplit

from dovetail.wire.shape import Struct

RESOURCE_METADATA_PATH: Final = "/.well-known/oauth-protected-resource"

_DEFAULT_PORTS: Final = {"https": 443, "http": 80}


class ServerLocation(Struct, frozen=True):
    """A server's address, and that of its metadata."""

    base_url: str  # under which the application is reached
    path: str  # of the endpoint, below that

    @property
    def resource(self) -> str:
        """What the server is called in tokens and metadata. spec: authorization#canonical-server-uri"""
        return self.url_for(self.path)

    @property
    def metadata_url(self) -> str:
        """Where its metadata is. Below a prefix, for the root of the origin may be somebody else's."""
        return self.url_for(RESOURCE_METADATA_PATH + ("" if self.path == "/" else self.path))

    def serves_metadata_at(self, path: str) -> bool:
        """Whether the metadata is to be given at this path: in the place the RFC names, inside the prefix, or first."""
        resource_path = urlsplit(self.resource).path
        return path in (
            RESOURCE_METADATA_PATH,
            RESOURCE_METADATA_PATH + resource_path,
            RESOURCE_METADATA_PATH + self.path,
        )

    def url_for(self, path: str) -> str:
        """The address of a path of the application."""
        return self.base_url + ("" if path == "/" else path)


def location_from_public_url(public_url: str, path: str) -> ServerLocation:
    """The place behind a public URL: that of the endpoint, or that under which the whole application is reached."""
    parts = urlsplit(public_url)
    origin = f"{parts.scheme.lower()}://{parts.netloc.rpartition('@')[2].lower()}"
    prefix = parts.path.rstrip("/")
    if prefix.endswith(path):
        prefix = prefix.removesuffix(path)
    return ServerLocation(origin + prefix, path)


def location_from_request(scheme: str, host: str, port: int | None, root_path: str, path: str) -> ServerLocation:
    """The place by which a request came in; the host is a name, without its port."""
    host_part = f"[{host}]" if ":" in host else host
    port_suffix = "" if port is None or port == _DEFAULT_PORTS.get(scheme) else f":{port}"
    return ServerLocation(f"{scheme}://{host_part}{port_suffix}{root_path.rstrip('/')}", path)


def parse_host_name(header: Any) -> str:
    """The name in a Host header."""
    text = header.decode("latin-1").lower()
    return text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]
