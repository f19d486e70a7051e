"""Prompt: a function compiled at registration that gives messages; its parameters are the prompt's arguments."""

from collections.abc import Callable, Collection
from typing import Any

from dovetail.server.binding import bound
from dovetail.server.options import published
from dovetail.server.runner import describe, own_name
from dovetail.wire import prompts as wire
from dovetail.wire.codec import encode
from dovetail.wire.content import Icon


class Prompt:
    """One prompt, ready to run."""

    __slots__ = ("declaration", "enabled", "runner", "signature", "tags", "version")

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        icons: list[Icon] | None = None,
        tags: Collection[str] = (),
        version: str | None = None,
        meta: dict[str, Any] | None = None,
        timeout: float | None = None,
        limit: int | None = None,
        inline: bool = False,
        reveal: Collection[type[Exception]] = (),
        enabled: bool = True,
    ) -> None:
        # Prompt arguments are strings on the wire: they are read as what the annotation says.
        self.signature, self.runner = bound(
            function, lax=True, timeout=timeout, limit=limit, inline=inline, reveal=reveal
        )
        self.declaration = wire.Prompt(
            name=name or own_name(function),
            title=title,
            description=description if description is not None else describe(function),
            icons=icons,
            arguments=self._arguments() or None,
            meta=published(meta, tags, version),
        )
        self.tags = frozenset(tags)
        self.version = version
        self.enabled = enabled

    def _arguments(self) -> list[wire.PromptArgument]:
        properties: dict[str, Any] = self.signature.schema.get("properties", {})
        return [
            wire.PromptArgument(
                name=name,
                title=properties[name].get("title"),
                description=_told(properties[name]),
                required=name not in self.signature.defaults,
            )
            for name in self.signature.parameters
        ]


def _told(schema: dict[str, Any]) -> str | None:
    """What is said of an argument; how to write one that is no text but a list, say."""
    said: str | None = schema.get("description")
    kinds = {one.get("type") for one in schema.get("anyOf", [schema])}
    if kinds.isdisjoint(("array", "object")) or "string" in kinds:
        return said
    form = {key: value for key, value in schema.items() if key not in ("description", "default")}
    return f"{said + ' ' if said else ''}As JSON text: {encode(form).decode()}"
