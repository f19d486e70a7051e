"""Images, audio and files as content. They come from bytes, paths, or objects of well-known libraries.

Objects of these libraries are recognized by the name of their module, so the libraries need not be imported here.
"""

import base64
import io
import os
from typing import Any, Final

from dovetail.server.parameters.type_hints import is_path_type
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
BYTES_TYPES: Final = (bytes, bytearray, memoryview)
_DEFAULT_MIME_TYPE: Final = "application/octet-stream"
_MAGIC_PREFIXES: Final = (
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
_RIFF_MIME_TYPES: Final = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_TEXT_MIME_TYPES: Final = (
    "application/json",
    "application/xml",
    "application/javascript",
    "application/yaml",
    "image/svg+xml",
)


class Image:
    """An image, from bytes or a file. Its MIME type is detected from the file name or the first bytes.

    Args:
        source: The bytes, or the path of a file.
        mime_type: The MIME type. Defaults to the detected type.
        annotations: Annotations of the content block, such as its audience.
        meta: The `_meta` of the content block.
    """

    def __init__(
        self,
        source: Source,
        *,
        mime_type: str | None = None,
        annotations: Annotations | None = None,
        meta: dict[str, Any] | None = None,
    ) -> None:
        self.data, name = _read_source(source)
        self.mime_type = mime_type or _require_mime_type(self.data, name, "image/")
        self.annotations = annotations
        self.meta = meta


class Audio:
    """Audio, from bytes or a file. Its MIME type is detected from the file name or the first bytes.

    Args:
        source: The bytes, or the path of a file.
        mime_type: The MIME type. Defaults to the detected type.
        annotations: Annotations of the content block, such as its audience.
        meta: The `_meta` of the content block.
    """

    def __init__(
        self,
        source: Source,
        *,
        mime_type: str | None = None,
        annotations: Annotations | None = None,
        meta: dict[str, Any] | None = None,
    ) -> None:
        self.data, name = _read_source(source)
        self.mime_type = mime_type or _require_mime_type(self.data, name, "audio/")
        self.annotations = annotations
        self.meta = meta


class File:
    """A file with its contents, from bytes or a path. Clients see its name, but not its directory.

    Args:
        source: The bytes, or the path of a file.
        name: The name that clients see. Defaults to the name of the file.
        mime_type: The MIME type. Defaults to the detected type.
        uri: The URI of the embedded resource. Defaults to a `file:` URI with the name.
        annotations: Annotations of the content block, such as its audience.
        meta: The `_meta` of the content block.
    """

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
        self.data, source_name = _read_source(source)
        self.name = name or source_name or "data"
        self.mime_type = mime_type or _guess_mime_type(self.data, self.name) or _DEFAULT_MIME_TYPE
        self.uri = uri or _file_uri(self.name)
        self.annotations = annotations
        self.meta = meta


def build_block(media: "Image | Audio | File") -> ContentBlock:
    """Convert an image, audio or file to a content block."""
    if isinstance(media, File):
        contents = build_file_contents(media, media.uri)
        return EmbeddedResource(resource=contents, annotations=media.annotations, meta=media.meta)
    content_type = ImageContent if isinstance(media, Image) else AudioContent
    return content_type(
        data=_encode_base64(media.data), mime_type=media.mime_type, annotations=media.annotations, meta=media.meta
    )


def build_file_contents(file: File, uri: str, mime_type: str | None = None) -> ResourceContents:
    """Convert a file to resource contents. If the MIME type is a text type, the contents are text."""
    content_type = mime_type or file.mime_type
    text = _decode_text(file.data, content_type)
    if text is not None:
        return ResourceContents(uri=uri, mime_type=content_type, text=text)
    return ResourceContents(uri=uri, mime_type=content_type, blob=_encode_base64(file.data))


MEDIA_TYPES: Final = (Image, Audio, File)


def is_media_type(type_: Any) -> bool:
    """Return whether values of this type can become images, audio or files."""
    if not isinstance(type_, type):
        return False
    return (
        issubclass(type_, MEDIA_TYPES)
        or is_path_type(type_)
        or _is_pil_image_type(type_)
        or _is_figure_type(type_)
        or _is_axes_type(type_)
    )


def to_media(value: Any) -> Image | Audio | File | None:
    """Convert a path, bytes, an image or a plot to media. Return None for other values."""
    if isinstance(value, MEDIA_TYPES):
        return value
    if isinstance(value, BYTES_TYPES):
        return _make_media(bytes(value), None)
    if is_path_type(type(value)):
        return _make_media(*_read_source(value))
    if _is_pil_image_type(type(value)):
        image_format = value.format if getattr(value, "format", None) in ("JPEG", "GIF", "WEBP") else "PNG"
        image = value if image_format != "PNG" or value.mode in _PNG_MODES else value.convert("RGB")
        return Image(_save_to_bytes(image.save, format=image_format))
    if _is_axes_type(type(value)):
        value = value.figure
    if _is_figure_type(type(value)):
        return Image(_save_to_bytes(value.savefig, format="png", bbox_inches="tight"))
    return None


def _file_uri(name: str) -> str:
    # These imports are here because they are slow and few servers need them.
    from pathlib import PurePath
    from urllib.parse import quote

    return "file:///" + quote(PurePath(name).name)


def _make_media(data: bytes, name: str | None) -> Image | Audio | File:
    mime_type = _guess_mime_type(data, name or "") or ""
    if mime_type.startswith("image/") and mime_type != "image/svg+xml":
        return Image(data, mime_type=mime_type)
    if mime_type.startswith("audio/"):
        return Audio(data, mime_type=mime_type)
    return File(data, name=name, mime_type=mime_type or None)


def _read_source(source: Source) -> tuple[bytes, str]:
    if isinstance(source, BYTES_TYPES):
        return bytes(source), ""
    from pathlib import Path

    path = Path(source)
    return path.read_bytes(), path.name


def _require_mime_type(data: bytes, name: str, family: str) -> str:
    mime_type = _guess_mime_type(data, name)
    if mime_type is None or not mime_type.startswith(family):
        raise ValueError(f"cannot detect an {family}* MIME type from the data. Pass mime_type=")
    return mime_type


def _guess_mime_type(data: bytes, name: str) -> str | None:
    mime_type = next((kind for prefix, kind in _MAGIC_PREFIXES if data.startswith(prefix)), None)
    if data.startswith(b"RIFF"):
        mime_type = _RIFF_MIME_TYPES.get(data[8:12])
    if mime_type is None and name:
        # This import is here because only files with a name need the module.
        import mimetypes

        mime_type = mimetypes.guess_type(name)[0]
    return mime_type


def _decode_text(data: bytes, mime_type: str) -> str | None:
    if (
        not mime_type.startswith("text/")
        and mime_type not in _TEXT_MIME_TYPES
        and not mime_type.endswith(("+json", "+xml"))
    ):
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _save_to_bytes(save: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    save(buffer, **options)
    return buffer.getvalue()


def _is_pil_image_type(type_: type) -> bool:
    return any(class_type.__module__ == "PIL.Image" and class_type.__name__ == "Image" for class_type in type_.__mro__)


def _is_figure_type(type_: type) -> bool:
    return any(
        class_type.__module__ == "matplotlib.figure" and class_type.__name__ == "Figure" for class_type in type_.__mro__
    )


def _is_axes_type(type_: type) -> bool:
    return any(
        class_type.__module__.startswith("matplotlib.axes") and class_type.__name__ == "Axes"
        for class_type in type_.__mro__
    )
