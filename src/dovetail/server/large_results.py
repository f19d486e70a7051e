"""Storage for parts of a result that are too large to send. The result contains links to the stored parts.

`Server(large_results=LargeResultSettings())` enables this feature. The parts are stored in the memory of this process,
or in the shared state of a cluster, for a limited time, under keys that cannot be guessed. Only the principal that made
the call can read the parts.
"""

import contextlib
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from dovetail.errors import ResourceNotFound, ServerBusy
from dovetail.keys import build_key
from dovetail.protocol.interfaces.shared_state import MAX_MESSAGE_BYTES, SharedState, SharedStateUnavailable
from dovetail.protocol.principal import Principal
from dovetail.protocol.versioned_codec import VersionedCodec
from dovetail.server.context import Context
from dovetail.wire.base import UNSET, Result, Struct, replace
from dovetail.wire.content import (
    AudioContent,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
)
from dovetail.wire.tools import WRAPPED_RESULT_KEYWORD, CallToolResult

# Marks the shortened text of a wrapped value, in the same way as fastmcp.
_WRAPPED_RESULT_META: Final = {"fastmcp": {"wrap_result": True}}
RESULT_URI_TEMPLATE: Final = "results://{key}"


class LargeResultSettings(Struct, frozen=True, kw_only=True):
    """The settings for large results. The server stores large parts and sends links to them."""

    max_text_chars: int = 50_000  # Maximum length of a text. Longer texts are stored on the server.
    # Maximum base64 length of an image, audio or file. Larger ones are stored on the server.
    max_base64_chars: int = 1_000_000
    preview_chars: int = 1_000  # The result contains this many characters of a stored text.
    ttl: float = 900.0  # Seconds until a stored part is deleted.
    # Maximum size of all stored parts of one process.
    # If this size is exceeded, the oldest parts of the caller with the most data are deleted.
    max_stored_chars: int = 64_000_000


class StoredResult(Struct, frozen=True):
    """One stored content block."""

    expires_at: float
    chars: int
    owner: Principal | None
    contents: ResourceContents | None  # the stored contents, or None if they are in the shared state of a cluster


class SharedResult(Struct, frozen=True):
    """One stored content block in the shared state of a cluster."""

    owner: str | None
    contents: ResourceContents


_shared_results: Final = VersionedCodec(SharedResult)


class ResultStore:
    """Stores content that is too large for a result. Each server has its own store."""

    def __init__(self, settings: LargeResultSettings) -> None:
        self._settings = settings
        self._state: SharedState | None = None  # the shared state of the cluster, or None
        self._path = ""  # a name that identifies the server in the cluster
        self._entries: OrderedDict[str, StoredResult] = OrderedDict()
        self._keys_by_owner: dict[Principal | None, OrderedDict[str, None]] = {}
        self._chars_by_owner: Counter[Principal | None] = Counter()
        self._total_chars = 0

    def share(self, state: SharedState, path: str) -> None:
        """Store contents in the shared state of a cluster, so that all workers can read them."""
        self._state = state
        self._path = path

    async def store_large_parts(
        self, result: Result, owner: Principal | None, output_schema: Mapping[str, Any] | None
    ) -> Result:
        """Store the large blocks of a result and replace them with links. Only `owner` can read the blocks.

        If the tool has an output schema, the structured content is still sent in full, and only the text becomes a
        link.
        """
        if not isinstance(result, CallToolResult) or result.is_error:
            return result
        content = [part for block in result.content for part in await self._shrink_block(block, owner)]
        if content == result.content:
            return result
        if output_schema is None:
            return replace(result, content=content, structured_content=UNSET)
        is_wrapped = output_schema.get(WRAPPED_RESULT_KEYWORD) is True
        meta = (result.meta or {}) | _WRAPPED_RESULT_META if is_wrapped else result.meta
        return replace(result, content=content, meta=meta)

    async def fetch(self, key: str, ctx: Context) -> ResourceContents:
        """Return a stored block. Raise ResourceNotFound if it has expired or belongs to another caller."""
        if self._state is None:
            await self._evict()
            entry = self._entries.get(key)
        else:
            entry = await self._read(self._state, key)
        if entry is None or entry.owner != ctx.principal or entry.contents is None:
            raise ResourceNotFound(RESULT_URI_TEMPLATE.replace("{key}", key))
        return entry.contents

    async def _read(self, state: SharedState, key: str) -> SharedResult | None:
        try:
            value = await state.read(self._get_name(key))
        except SharedStateUnavailable:
            raise ServerBusy("The result is not available at the moment. Try again") from None
        return None if value is None else _shared_results.decode(value.data)

    def _get_name(self, key: str) -> str:
        return build_key("result", self._path, key)

    async def _shrink_block(self, block: ContentBlock, owner: Principal | None) -> list[ContentBlock]:
        match block:
            case TextContent() if len(block.text) > self._settings.max_text_chars:
                mime_type = "application/json" if block.text[:1] in "{[" else "text/plain"
                link = await self._store(
                    ResourceContents(uri="", mime_type=mime_type, text=block.text), len(block.text), owner
                )
                if link is None:
                    return [block]
                preview = block.text[: self._settings.preview_chars]
                note = f"[{len(block.text) - len(preview)} more characters at {link.uri}]"
                return [replace(block, text=f"{preview}…\n\n{note}"), link]
            case ImageContent() | AudioContent() if len(block.data) > self._settings.max_base64_chars:
                contents = ResourceContents(uri="", mime_type=block.mime_type, blob=block.data)
                return [await self._store(contents, len(block.data), owner) or block]
            case EmbeddedResource(resource=resource):
                is_text = resource.blob is None
                size = len(resource.text or "") + len(resource.blob or "")
                is_large = size > (self._settings.max_text_chars if is_text else self._settings.max_base64_chars)
                return [(await self._store(resource, size, owner) if is_large else None) or block]
            case _:
                return [block]

    async def _store(self, contents: ResourceContents, size: int, owner: Principal | None) -> ResourceLink | None:
        """Store a block and return a link to it. If this fails, return None, and the block is sent in full."""
        if size > self._settings.max_stored_chars:
            return None
        key = secrets.token_urlsafe(16)
        uri = RESULT_URI_TEMPLATE.replace("{key}", key)
        contents = replace(contents, uri=uri)
        if self._state is not None:
            data = _shared_results.encode(SharedResult(owner, contents))
            if len(data) > MAX_MESSAGE_BYTES:
                return None
            try:
                await self._state.write(self._get_name(key), data, self._settings.ttl)
            except SharedStateUnavailable:
                return None
        expires_at = time.monotonic() + self._settings.ttl
        self._entries[key] = StoredResult(expires_at, size, owner, contents if self._state is None else None)
        self._keys_by_owner.setdefault(owner, OrderedDict())[key] = None
        self._chars_by_owner[owner] += size
        self._total_chars += size
        await self._evict()
        size_bytes = size if contents.blob is None else size * 3 // 4
        return ResourceLink(uri=uri, name="result", mime_type=contents.mime_type, size=size_bytes)

    async def _evict(self) -> None:
        """Remove expired results. If the limit is exceeded, remove the oldest results of the caller with the most data.

        Therefore no caller can remove the results of others.
        """
        now = time.monotonic()
        while self._entries and next(iter(self._entries.values())).expires_at <= now:
            self._remove(next(iter(self._entries)))
        while self._total_chars > self._settings.max_stored_chars:
            [(largest_owner, _)] = self._chars_by_owner.most_common(1)
            key = next(iter(self._keys_by_owner[largest_owner]))
            self._remove(key)
            if self._state is not None:
                with contextlib.suppress(SharedStateUnavailable):  # A part that is not deleted stays until it expires.
                    await self._state.delete(self._get_name(key))

    def _remove(self, key: str) -> None:
        entry = self._entries.pop(key)
        owner = entry.owner
        self._total_chars -= entry.chars
        self._chars_by_owner[owner] -= entry.chars
        del self._keys_by_owner[owner][key]
        if not self._keys_by_owner[owner]:
            del self._keys_by_owner[owner], self._chars_by_owner[owner]
