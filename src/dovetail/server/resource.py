"""Resource and ResourceTemplate: functions compiled at registration that give contents for a URI."""

import logging
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from dovetail.protocol.uri_key import uri_key
from dovetail.server.binding import bound
from dovetail.server.options import Lifetime, published
from dovetail.server.runner import describe, own_name
from dovetail.wire import resources as wire
from dovetail.wire.content import Annotations, Icon

log = logging.getLogger("dovetail")

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|\{")


class Resource:
    """One fixed URI."""

    __slots__ = ("declaration", "enabled", "key", "lifetime", "runner", "signature", "tags", "version")

    def __init__(
        self,
        function: Callable[..., Any],
        uri: str,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
        size: int | None = None,
        icons: list[Icon] | None = None,
        annotations: Annotations | None = None,
        tags: Collection[str] = (),
        version: str | None = None,
        meta: dict[str, Any] | None = None,
        cache: Lifetime | None = None,
        timeout: float | None = None,
        limit: int | None = None,
        inline: bool = False,
        reveal: Collection[type[Exception]] = (),
        enabled: bool = True,
    ) -> None:
        _check_uri(uri)
        self.signature, self.runner = bound(
            function, lax=True, timeout=timeout, limit=limit, inline=inline, reveal=reveal
        )
        if self.signature.parameters:
            raise TypeError(
                f"{self.signature.where}: {uri} has no variables, so the function can take only the context; "
                f"it also takes {', '.join(self.signature.parameters)}"
            )
        self.key = uri_key(uri)
        self.lifetime = cache
        self.declaration = wire.Resource(
            uri=uri,
            name=name or own_name(function, uri),
            title=title,
            description=description if description is not None else describe(function),
            mime_type=mime_type,
            size=size,
            icons=icons,
            annotations=annotations,
            meta=published(meta, tags, version),
        )
        self.tags = frozenset(tags)
        self.version = version
        self.enabled = enabled


class ResourceTemplate:
    """A family of URIs; its variables are the function's parameters."""

    __slots__ = ("declaration", "enabled", "lifetime", "runner", "signature", "tags", "template", "version")

    def __init__(
        self,
        function: Callable[..., Any],
        uri: str,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
        icons: list[Icon] | None = None,
        annotations: Annotations | None = None,
        tags: Collection[str] = (),
        version: str | None = None,
        meta: dict[str, Any] | None = None,
        cache: Lifetime | None = None,
        timeout: float | None = None,
        limit: int | None = None,
        inline: bool = False,
        reveal: Collection[type[Exception]] = (),
        enabled: bool = True,
    ) -> None:
        from dovetail.server.templates import Template  # only servers with templates pay for it

        _check_uri(uri)
        self.template = Template(uri)
        self.signature, self.runner = bound(
            function, lax=True, timeout=timeout, limit=limit, inline=inline, reveal=reveal
        )
        variables, parameters = set(self.template.variables), set(self.signature.parameters)
        closed = self.signature.schema.get("additionalProperties") is False
        if (closed and variables - parameters) or parameters - variables - self.signature.defaults.keys():
            raise TypeError(
                f"{self.signature.where}: the variables of {uri} ({', '.join(self.template.variables)}) and the "
                f"function's parameters ({', '.join(self.signature.parameters)}) do not agree"
            )
        _check_lists(uri, self.template.lists, self.signature.schema["properties"])
        self.lifetime = cache
        self.declaration = wire.ResourceTemplate(
            uri_template=uri,
            name=name or own_name(function, uri),
            title=title,
            description=description if description is not None else describe(function),
            mime_type=mime_type,
            icons=icons,
            annotations=annotations,
            meta=published(meta, tags, version),
        )
        self.tags = frozenset(tags)
        self.version = version
        self.enabled = enabled


def _check_lists(uri: str, lists: Collection[str], rules: Mapping[str, Any]) -> None:
    """Warn of a list of values where one text is wanted, as whoever wants several segments of a path may write it."""
    for name in lists:
        if rules.get(name, {}).get("type") == "string":
            log.warning(
                "%s: {%s*} is a list of values, and `%s` takes one text: write {+%s} for one that may hold slashes",
                *(uri, name, name, name),
            )


def _check_uri(uri: str) -> None:
    if not _SCHEME.match(uri):
        raise ValueError(f"{uri!r} is no URI: it begins with a scheme, as `notes://today` does")
