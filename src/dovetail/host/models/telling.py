"""Telling: what every maker's adapter needs to put a conversation in its maker's words. Pure."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from dovetail.host.names import exposed
from dovetail.host.offers import Offered
from dovetail.wire.codec import plain
from dovetail.wire.content import (
    AudioContent,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    ToolResultContent,
)
from dovetail.wire.sampling import SamplingMessage
from dovetail.wire.shape import UNSET
from dovetail.wire.tools import Tool

_TAKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Names:
    """The names of tools as makers take them, and back."""

    def __init__(self) -> None:
        self._real: dict[str, str] = {}

    def told(self, name: str) -> str:
        """What a maker is told."""
        alias = name if _TAKEN.fullmatch(name) else exposed("", name)
        self._real[alias] = name
        return alias

    def meant(self, alias: str) -> str:
        """What a model meant."""
        return self._real.get(alias, alias)

    def offered(self, tools: Iterable[Tool]) -> list[Offered]:
        """Tools under the names that are told."""
        return [
            Offered(server="", name=one.name, full=one.name, exposed=self.told(one.name), declaration=one)
            for one in tools
        ]


def blocks(message: SamplingMessage) -> Sequence[Any]:
    """What a message holds, as a list."""
    return message.content if isinstance(message.content, list) else [message.content]


def words(content: Iterable[ContentBlock]) -> str:
    """The blocks of a result that can be said in words; pictures are told apart by `pictures`."""
    return "\n".join(said for one in content if (said := _word(one)) is not None)


def pictures(content: Iterable[ContentBlock]) -> list[ImageContent]:
    """The pictures of a result."""
    return [one for one in content if isinstance(one, ImageContent)]


def result_words(result: ToolResultContent) -> str:
    """What a tool answered, in words; its structured value where it has no other."""
    said = words(result.content)
    if not said and result.structured_content is not UNSET:
        return json.dumps(plain(result.structured_content), ensure_ascii=False)
    return said


def failing(exc: Exception) -> str:
    """What went wrong between a maker's client and the maker; where, if no answer came that would tell."""
    request = None if getattr(exc, "response", None) is not None else getattr(exc, "request", None)
    return str(exc) if request is None else f"{exc} ({request.url})"


def _word(block: ContentBlock) -> str | None:
    match block:
        case TextContent():
            return block.text
        case ImageContent():
            return None
        case AudioContent():
            return f"[a sound, {block.mime_type}]"
        case ResourceLink():
            return f"[{block.name}: {block.uri}]"
        case EmbeddedResource():
            held = block.resource
            return held.text if held.text is not None else f"[{held.uri}, {held.mime_type or 'bytes'}]"
