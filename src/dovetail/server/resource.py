"""Resource and ResourceTemplate: functions compiled at registration that give contents for a URI."""

from collections.abc import Callable
from typing import Any, Literal

from dovetail.server.context import Context
from dovetail.server.runner import Runner, describe, own_name
from dovetail.server.signature import compile_signature
from dovetail.wire import resources as wire
from dovetail.wire.content import Annotations, Icon
from dovetail.wire.shape import Struct


class Lifetime(Struct, frozen=True):
    """How long a client may keep a result, and whether it may share it. spec: caching#cacheable-model"""

    ttl_ms: int = 0
    scope: Literal["public", "private"] = "private"

    def __post_init__(self) -> None:
        if self.ttl_ms < 0:
            raise ValueError("ttl_ms must not be negative")
        if self.scope not in ("public", "private"):
            raise ValueError("scope must be 'public' or 'private'")


class Resource:
    """One fixed URI."""

    __slots__ = ("declaration", "lifetime", "runner", "signature")

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
        meta: dict[str, Any] | None = None,
        cache: Lifetime | None = None,
        timeout: float | None = None,
        inline: bool = False,
    ) -> None:
        self.signature = compile_signature(function, context_type=Context, lax=True)
        if self.signature.parameters:
            raise TypeError(
                f"{self.signature.where}: {uri} has no variables, so the function can take only the context; "
                f"it also takes {', '.join(self.signature.parameters)}"
            )
        self.runner = Runner(function, timeout=timeout, inline=inline)
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
            meta=meta,
        )


class ResourceTemplate:
    """A family of URIs; its variables are the function's parameters."""

    __slots__ = ("declaration", "lifetime", "runner", "signature", "template")

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
        meta: dict[str, Any] | None = None,
        cache: Lifetime | None = None,
        timeout: float | None = None,
        inline: bool = False,
    ) -> None:
        from dovetail.server.templates import Template  # only servers with templates pay for it

        self.template = Template(uri)
        self.signature = compile_signature(function, context_type=Context, lax=True)
        variables, parameters = set(self.template.variables), set(self.signature.parameters)
        closed = self.signature.schema.get("additionalProperties") is False
        if (closed and variables - parameters) or parameters - variables - self.signature.defaults.keys():
            raise TypeError(
                f"{self.signature.where}: the variables of {uri} ({', '.join(self.template.variables)}) and the "
                f"function's parameters ({', '.join(self.signature.parameters)}) do not agree"
            )
        self.runner = Runner(function, timeout=timeout, inline=inline)
        self.lifetime = cache
        self.declaration = wire.ResourceTemplate(
            uri_template=uri,
            name=name or own_name(function, uri),
            title=title,
            description=description if description is not None else describe(function),
            mime_type=mime_type,
            icons=icons,
            annotations=annotations,
            meta=meta,
        )
