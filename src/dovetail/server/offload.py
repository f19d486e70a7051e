"""Offloading: what is too large for a conversation stays here, and the result links to it.

Opt-in by `Server(offload=Offload())`. Kept in the memory of this process, for a while, under names nobody can guess,
for the principal whose call it came of and for no other.
"""

import secrets
import time
from collections import OrderedDict
from typing import Final

from dovetail.errors import ResourceNotFound
from dovetail.protocol.principal import Principal
from dovetail.server.context import Context
from dovetail.wire.content import (
    AudioContent,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
)
from dovetail.wire.shape import UNSET, Result, Struct, replace
from dovetail.wire.tools import CallToolResult

TEMPLATE: Final = "results://kept/{key}"


class Offload(Struct, frozen=True, kw_only=True):
    """When a block of a tool's result is kept back, and for how long it can be fetched."""

    text: int = 50_000  # characters that still travel
    binary: int = 1_000_000  # characters of base64 that still travel
    preview: int = 1_000  # characters of a text that is kept back that travel all the same
    seconds: float = 900.0
    memory: int = 64_000_000  # characters kept in all; beyond that the oldest go


class Kept(Struct, frozen=True):
    """One block that was kept back."""

    until: float
    size: int
    owner: Principal | None
    contents: ResourceContents


class Shelf:
    """What is kept."""

    def __init__(self, policy: Offload) -> None:
        self._policy = policy
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._size = 0

    def lighten(self, result: Result, owner: Principal | None, *, published: bool) -> Result:
        """The same result, with large blocks kept back for its owner.

        A published schema is kept: the structured value travels whole, and only its text becomes a link.
        """
        if not isinstance(result, CallToolResult) or result.is_error:
            return result
        content = [smaller for block in result.content for smaller in self._smaller(block, owner)]
        if content == result.content:
            return result
        return replace(result, content=content, structured_content=result.structured_content if published else UNSET)

    def fetch(self, key: str, ctx: Context) -> ResourceContents:
        """What was kept under a key; ResourceNotFound when its time is over, and for everyone but its owner."""
        self._forget()
        kept = self._kept.get(key)
        if kept is None or kept.owner != ctx.principal:
            raise ResourceNotFound(TEMPLATE.replace("{key}", key))
        return kept.contents

    def _smaller(self, block: ContentBlock, owner: Principal | None) -> list[ContentBlock]:
        match block:
            case TextContent() if len(block.text) > self._policy.text:
                kind = "application/json" if block.text[:1] in "{[" else "text/plain"
                link = self._keep(ResourceContents(uri="", mime_type=kind, text=block.text), len(block.text), owner)
                rest = len(block.text) - self._policy.preview
                told = f"{block.text[: self._policy.preview]}…\n\n[{rest} more characters at {link.uri}]"
                return [replace(block, text=told), link]
            case ImageContent() | AudioContent() if len(block.data) > self._policy.binary:
                kept = ResourceContents(uri="", mime_type=block.mime_type, blob=block.data)
                return [self._keep(kept, len(block.data), owner)]
            case EmbeddedResource(resource=resource):
                size, text = len(resource.text or resource.blob or ""), resource.text is not None
                large = size > (self._policy.text if text else self._policy.binary)
                return [self._keep(resource, size, owner)] if large else [block]
            case _:
                return [block]

    def _keep(self, contents: ResourceContents, size: int, owner: Principal | None) -> ResourceLink:
        key = secrets.token_urlsafe(16)
        uri = TEMPLATE.replace("{key}", key)
        until = time.monotonic() + self._policy.seconds
        self._kept[key] = Kept(until, size, owner, replace(contents, uri=uri))
        self._size += size
        self._forget()
        raw = size if contents.blob is None else size * 3 // 4
        return ResourceLink(uri=uri, name="result", mime_type=contents.mime_type, size=raw)

    def _forget(self) -> None:
        now = time.monotonic()
        while self._kept:
            key, oldest = next(iter(self._kept.items()))
            if oldest.until > now and self._size <= self._policy.memory:
                return
            del self._kept[key]
            self._size -= oldest.size
