"""Choose the proxy for a host, from the caller or from the environment."""

import base64
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from dovetail.protocol.http_checks import is_on_this_machine


class Proxy(NamedTuple):
    """An HTTP proxy. `authorization` is the value of the Proxy-Authorization header, or b""."""

    host: str
    port: int
    authorization: bytes


def parse_proxy(url: str) -> Proxy:
    """Parse the URL of a proxy. Error messages do not contain the URL, because it may contain a password."""
    parts = urlsplit(url if "://" in url else "http://" + url)
    if parts.scheme != "http":
        raise ValueError(f"the scheme of a proxy must be http, not {parts.scheme}")
    if not parts.hostname:
        raise ValueError("a proxy URL must have a host, for example http://proxy.example:3128")
    authorization = b""
    if parts.username is not None:
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = b"Basic " + base64.b64encode(credentials.encode())
    return Proxy(parts.hostname, parts.port or 80, authorization)


def find_proxy_url(scheme: str, host: str, port: int, environment: Mapping[str, str]) -> str:
    """Return the proxy URL from HTTP_PROXY, HTTPS_PROXY or ALL_PROXY.

    Return an empty string if the target is local or no variable is set.
    """
    if is_on_this_machine(host) or _is_excluded(host, port, _get_variable("no_proxy", environment)):
        return ""
    return _get_variable(f"{scheme}_proxy", environment) or _get_variable("all_proxy", environment)


def _get_variable(name: str, environment: Mapping[str, str]) -> str:
    # A CGI program ignores HTTP_PROXY, because the variable may contain the Proxy header of the request.
    if name == "http_proxy" and "REQUEST_METHOD" in environment:
        return environment.get(name, "")
    return environment.get(name) or environment.get(name.upper()) or ""


def _is_excluded(host: str, port: int, exceptions: str) -> bool:
    return any(
        _matches(host, port, exception.strip().lower()) for exception in exceptions.split(",") if exception.strip()
    )


def _matches(host: str, port: int, exception: str) -> bool:
    if exception == "*":
        return True
    try:
        return ip_address(host) in ip_network(exception.strip("[]"), strict=False)
    except ValueError:
        pass
    name, _, port_text = exception.rpartition(":")
    if name and port_text.isdigit():
        return int(port_text) == port and _matches(host, port, name)
    name = exception.removeprefix("*").removeprefix(".")
    return host == name or host.endswith("." + name)
