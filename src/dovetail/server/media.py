"""Media: pictures, sounds and files as content, from bytes, from paths, and from the objects of well-known libraries.

Those libraries are told by the names of their modules and never imported here.
"""

import base64
import io
import os
from typing import Any, Final

from dovetail.server.schema import is_path
from dovetail.wire.content import (
    Annotations,
    AudioContent,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
)

Source = bytes | bytearray | memoryview | str | os.PathLike[str]

_PNG_MODES: Final = ("1", "L", "LA", "I", "I;16", "P", "RGB", "RGBA")
BYTES: Final = (bytes, bytearray, memoryview)
_UNKNOWN: Final = "application/octet-stream"
_BEGINNINGS: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
)
_IN_RIFF: Final = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_TEXTUAL: Final = ("application/json", "application/xml", "application/javascript", "application/yaml", "image/svg+xml")


class Image:
    """A picture, from its bytes or from a file; what kind it is shows in the file's name or in the first bytes."""

    def __init__(
        self,
        source: Source,
        *,
        mime_type: str | None = None,
        annotations: Annotations | None = None,
        meta: dict[str, Any] | None = None,
    ) -> None:
        self.data, name = _read(source)
        self.mime_type = mime_type or _known(self.data, name, "image/")
        self.annotations = annotations
        self.meta = meta

    def block(self) -> ContentBlock:
        """As content."""
        return ImageContent(
            data=_base64(self.data), mime_type=self.mime_type, annotations=self.annotations, meta=self.meta
        )


class Audio:
    """A sound, from its bytes or from a file; what kind it is shows in the file's name or in the first bytes."""

    def __init__(
        self,
        source: Source,
        *,
        mime_type: str | None = None,
        annotations: Annotations | None = None,
        meta: dict[str, Any] | None = None,
    ) -> None:
        self.data, name = _read(source)
        self.mime_type = mime_type or _known(self.data, name, "audio/")
        self.annotations = annotations
        self.meta = meta

    def block(self) -> ContentBlock:
        """As content."""
        return AudioContent(
            data=_base64(self.data), mime_type=self.mime_type, annotations=self.annotations, meta=self.meta
        )


class File:
    """Any file, included whole, from its bytes or from a path. Only its name is told, not where it lay."""

    def __init__(
        self,
        source: Source,
        *,
        name: str | None = None,
        mime_type: str | None = None,
        uri: str | None = None,
        annotations: Annotations | None = None,
        meta: dict[str, Any] | None = None,
    ) -> None:
        self.data, own = _read(source)
        self.name = name or own or "data"
        self.mime_type = mime_type or _guessed(self.data, self.name) or _UNKNOWN
        self.uri = uri or _file_uri(self.name)
        self.annotations = annotations
        self.meta = meta

    def block(self) -> ContentBlock:
        """As content."""
        return EmbeddedResource(resource=self.contents(self.uri), annotations=self.annotations, meta=self.meta)

    def contents(self, uri: str, mime_type: str | None = None) -> ResourceContents:
        """As the contents of a resource: text, if that is what it is."""
        kind = mime_type or self.mime_type
        text = _text(self.data, kind)
        if text is not None:
            return ResourceContents(uri=uri, mime_type=kind, text=text)
        return ResourceContents(uri=uri, mime_type=kind, blob=_base64(self.data))


MEDIA: Final = (Image, Audio, File)


def is_media(kind: Any) -> bool:
    """Whether an annotation names something this module makes content of."""
    if not isinstance(kind, type):
        return False
    return issubclass(kind, MEDIA) or is_path(kind) or _is_picture(kind) or _is_figure(kind) or _is_axes(kind)


def to_media(value: Any) -> Image | Audio | File | None:
    """A value as one of the three, if it is a path, bytes, or an object of a library that draws."""
    if isinstance(value, MEDIA):
        return value
    if isinstance(value, BYTES):
        return _fitting(bytes(value), None)
    if is_path(type(value)):
        return _fitting(*_read(value))
    if _is_picture(type(value)):
        form = value.format if getattr(value, "format", None) in ("JPEG", "GIF", "WEBP") else "PNG"
        shown = value if form != "PNG" or value.mode in _PNG_MODES else value.convert("RGB")
        return Image(_saved(shown.save, format=form))
    if _is_axes(type(value)):
        value = value.figure
    if _is_figure(type(value)):
        return Image(_saved(value.savefig, format="png", bbox_inches="tight"))
    return None


def _file_uri(name: str) -> str:
    from pathlib import PurePath  # these two bring twenty modules, and few servers make files
    from urllib.parse import quote

    return "file:///" + quote(PurePath(name).name)


def _fitting(data: bytes, name: str | None) -> Image | Audio | File:
    kind = _guessed(data, name or "") or ""
    if kind.startswith("image/") and kind != "image/svg+xml":
        return Image(data, mime_type=kind)
    if kind.startswith("audio/"):
        return Audio(data, mime_type=kind)
    return File(data, name=name, mime_type=kind or None)


def _read(source: Source) -> tuple[bytes, str]:
    if isinstance(source, BYTES):
        return bytes(source), ""
    from pathlib import Path

    path = Path(source)
    return path.read_bytes(), path.name


def _known(data: bytes, name: str, family: str) -> str:
    kind = _guessed(data, name)
    if kind is None or not kind.startswith(family):
        raise ValueError(f"the data does not show what kind of {family}… it is: say mime_type=")
    return kind


def _guessed(data: bytes, name: str) -> str | None:
    kind = next((kind for beginning, kind in _BEGINNINGS if data.startswith(beginning)), None)
    if data.startswith(b"RIFF"):
        kind = _IN_RIFF.get(data[8:12])
    if kind is None and name:
        import mimetypes  # only those who have files with names pay for it

        kind = mimetypes.guess_type(name)[0]
    return kind


def _text(data: bytes, kind: str) -> str | None:
    if not kind.startswith("text/") and kind not in _TEXTUAL and not kind.endswith(("+json", "+xml")):
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _saved(save: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    save(buffer, **options)
    return buffer.getvalue()


def _is_picture(kind: type) -> bool:
    return any(one.__module__ == "PIL.Image" and one.__name__ == "Image" for one in kind.__mro__)


def _is_figure(kind: type) -> bool:
    return any(one.__module__ == "matplotlib.figure" and one.__name__ == "Figure" for one in kind.__mro__)


def _is_axes(kind: type) -> bool:
    return any(one.__module__.startswith("matplotlib.axes") and one.__name__ == "Axes" for one in kind.__mro__)
