"""Options: everything that can be said about a tool, a resource or a prompt where it is registered."""

import logging
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any, Final, Literal, TypedDict, cast

from dovetail.protocol.principal import Principal
from dovetail.wire.base import Struct
from dovetail.wire.content import Annotations, Icon
from dovetail.wire.tools import ToolAnnotations

log = logging.getLogger("dovetail")

_MAX_TOOL_NAME_CHARS: Final = 128  # characters of a tool's name
TAGS_META_KEY: Final = "dovetail/tags"
VERSION_META_KEY: Final = "dovetail/version"


class CacheHint(Struct, frozen=True):
    """How long a client may keep a result, and whether it may share it. spec: caching#cacheable-model"""

    ttl_ms: int = 0
    scope: Literal["public", "private"] = "private"

    def __post_init__(self) -> None:
        if self.ttl_ms < 0:
            raise ValueError("ttl_ms must not be negative")
        if self.scope not in ("public", "private"):
            raise ValueError("scope must be 'public' or 'private'")


class PromptOptions(TypedDict, total=False):
    """What `@app.prompt` takes."""

    name: str | None
    title: str | None
    description: str | None
    icons: list[Icon] | None
    tags: Collection[str]
    version: str | None
    meta: dict[str, Any] | None
    timeout: float | timedelta | None
    max_concurrency: int | None
    run_in_thread: bool
    expose_errors: type[Exception] | Collection[type[Exception]]
    scopes: Collection[str]
    visible_to: Callable[[Principal | None], bool] | None
    enabled: bool


class ToolOptions(PromptOptions, total=False):
    """What `@app.tool` takes."""

    annotations: ToolAnnotations | Mapping[str, Any] | None
    read_only: bool | None
    destructive: bool | None
    idempotent: bool | None
    open_world: bool | None
    input_schema: dict[str, Any] | None
    output_schema: dict[str, Any] | None


class ResourceOptions(PromptOptions, total=False):
    """What `@app.resource` takes; a template has no size."""

    mime_type: str | None
    size: int | None
    annotations: Annotations | None
    cache_hint: CacheHint | None


_OPTIONS_BY_KIND: Final[dict[str, Any]] = {"tool": ToolOptions, "prompt": PromptOptions, "resource": ResourceOptions}
_NO_CACHE_OPTION_HINT: Final = (
    ". Set how long clients may cache lists with Server(cache_hints=...). "
    "Cache results on the server with dovetail.middleware.ResponseCache"
)
_HINT_BY_OPTION: Final = {(kind, "cache_hint"): _NO_CACHE_OPTION_HINT for kind in ("tool", "prompt")}


_TEXT_TYPE: Final = (str, "a text")
_FLAG_TYPE: Final = (bool, "True or False")
_SCHEMA_TYPE: Final = (dict, "a dict, as JSON Schema has it")
_EXPECTED_TYPES: Final[dict[str, tuple[Any, str]]] = {
    "name": _TEXT_TYPE,
    "title": _TEXT_TYPE,
    "description": _TEXT_TYPE,
    "version": _TEXT_TYPE,
    "mime_type": _TEXT_TYPE,
    "meta": (Mapping, "a dict"),
    "timeout": ((int, float, timedelta), "a number of seconds"),
    "max_concurrency": (int, "a whole number"),
    "size": (int, "a whole number"),
    "cache_hint": (CacheHint, "a CacheHint(...)"),
    "run_in_thread": _FLAG_TYPE,
    "enabled": _FLAG_TYPE,
    "read_only": _FLAG_TYPE,
    "destructive": _FLAG_TYPE,
    "idempotent": _FLAG_TYPE,
    "open_world": _FLAG_TYPE,
    "input_schema": _SCHEMA_TYPE,
    "output_schema": _SCHEMA_TYPE,
}


def check_options(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a tool, a resource or a prompt, each in its one form.

    Raises:
        TypeError: one of them is none, and the text has the one that may have been meant; or it is of another kind.
    """
    allowed = _OPTIONS_BY_KIND[kind].__annotations__
    if unknown := [name for name in options if name not in allowed]:
        from dovetail.server.parameters.argument_errors import format_names  # only the mistaken pay for it

        hint = _HINT_BY_OPTION.get((kind, unknown[0]), "")
        raise TypeError(f"a {kind} has no option {format_names(unknown, allowed)}{hint}")
    for name, value in options.items():
        if name in _EXPECTED_TYPES:
            check_type(f"{name}=", value, *_EXPECTED_TYPES[name])
    check_icons(options.get("icons"))
    normalized = dict(options)
    if isinstance(normalized.get("timeout"), timedelta):
        normalized["timeout"] = normalized["timeout"].total_seconds()
    if isinstance(normalized.get("expose_errors"), type):
        normalized["expose_errors"] = (normalized["expose_errors"],)
    return normalized


def check_icons(icons: Any) -> None:
    """TypeError unless they are icons, or not given."""
    check_type("icons=", icons, (list, tuple), "a list of Icon(...)")
    for icon in icons or ():
        check_type("icons=", icon if icon is not None else "None", Icon, "a list of Icon(...)")


def warn_tool_name(name: str) -> None:
    """Warn of a tool's name that clients may refuse. spec: tools#tool-names"""
    folded = name.translate({ord(char): "a" for char in "_-."})
    if len(name) > _MAX_TOOL_NAME_CHARS or not (folded.isascii() and folded.isalnum()):
        log.warning(
            "the tool name %r may be refused by clients: letters, digits, _, - and ., at most %d in all",
            name,
            _MAX_TOOL_NAME_CHARS,
        )


def check_type(option: str, value: Any, type_: type | tuple[type, ...], expected: str) -> None:
    """TypeError unless a value is of this kind, or not given."""
    if value is not None and (not isinstance(value, type_) or (isinstance(value, bool) and type_ is not bool)):
        raise TypeError(f"{option} must be {expected}, not {value!r}")


def build_meta(meta: Mapping[str, Any] | None, tags: Collection[str], version: str | None) -> dict[str, Any] | None:
    """The `_meta` of a declaration: the author's, with tags and version where there are any."""
    if isinstance(tags, str):
        raise TypeError(f"tags are several: write tags=[{tags!r}]")
    item_meta = {TAGS_META_KEY: sorted(tags)} if tags else {}
    item_meta |= {VERSION_META_KEY: version} if version is not None else {}
    return item_meta | dict(meta or {}) or None


def build_annotations(annotations: Any, **flags: bool | None) -> ToolAnnotations | None:
    """What a tool does to the world, by the short keywords or by a whole ToolAnnotations; they may not disagree.

    A mapping has the names of the specification: `{"readOnlyHint": True}`.
    """
    annotations = _to_tool_annotations(annotations)
    hint_values: dict[str, Any] = {f"{name}_hint": value for name, value in flags.items() if value is not None}
    if annotations is None:
        return ToolAnnotations(**hint_values) if hint_values else None
    for name, value in hint_values.items():
        if getattr(annotations, name) not in (None, value):
            raise ValueError(f"{name.removesuffix('_hint')}={value} and annotations say different things")
    existing = {name: getattr(annotations, name) for name in annotations.__struct_fields__}
    return ToolAnnotations(**existing | hint_values)


def _to_tool_annotations(annotations: Any) -> ToolAnnotations | None:
    if annotations is None or isinstance(annotations, ToolAnnotations):
        return annotations
    if not isinstance(annotations, Mapping):
        raise TypeError(f"annotations= takes ToolAnnotations, or a dict of them, not {annotations!r}")
    values = cast("Mapping[str, Any]", annotations)
    field_by_wire_name = dict(
        zip(ToolAnnotations.__struct_encode_fields__, ToolAnnotations.__struct_fields__, strict=True)
    )
    if unknown := [name for name in values if name not in field_by_wire_name]:
        from dovetail.server.parameters.argument_errors import format_names

        raise TypeError(
            f"annotations= has no {format_names(unknown, field_by_wire_name)}; "
            f"the specification has {', '.join(field_by_wire_name)}"
        )
    return ToolAnnotations(**{field_by_wire_name[name]: value for name, value in values.items()})
