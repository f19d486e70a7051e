"""Options: everything that can be said about a tool, a resource or a prompt where it is registered."""

import logging
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any, Final, Literal, TypedDict, cast

from dovetail.protocol.principal import Principal
from dovetail.wire.content import Annotations, Icon
from dovetail.wire.shape import Struct
from dovetail.wire.tools import ToolAnnotations

log = logging.getLogger("dovetail")

_LONGEST: Final = 128  # characters of a tool's name
TAGS: Final = "dovetail/tags"
VERSION: Final = "dovetail/version"


class Lifetime(Struct, frozen=True):
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
    limit: int | None
    inline: bool
    reveal: type[Exception] | Collection[type[Exception]]
    scopes: Collection[str]
    visible: Callable[[Principal | None], bool] | None
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
    cache: Lifetime | None


_SHAPES: Final[dict[str, Any]] = {"tool": ToolOptions, "prompt": PromptOptions, "resource": ResourceOptions}
_KEPT: Final = ": how long clients keep lists is said by Server(cache=...); dovetail.middleware.Caching keeps results"
_ELSEWHERE: Final = {("tool", "cache"): _KEPT, ("prompt", "cache"): _KEPT}


_TEXT: Final = (str, "a text")
_FLAG: Final = (bool, "True or False")
_SCHEMA: Final = (dict, "a dict, as JSON Schema has it")
_EXPECTED: Final[dict[str, tuple[Any, str]]] = {
    "name": _TEXT,
    "title": _TEXT,
    "description": _TEXT,
    "version": _TEXT,
    "mime_type": _TEXT,
    "meta": (Mapping, "a dict"),
    "timeout": ((int, float, timedelta), "a number of seconds"),
    "limit": (int, "a whole number"),
    "size": (int, "a whole number"),
    "cache": (Lifetime, "a Lifetime(...), in milliseconds"),
    "inline": _FLAG,
    "enabled": _FLAG,
    "read_only": _FLAG,
    "destructive": _FLAG,
    "idempotent": _FLAG,
    "open_world": _FLAG,
    "input_schema": _SCHEMA,
    "output_schema": _SCHEMA,
}


def check_options(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a tool, a resource or a prompt, each in its one form.

    Raises:
        TypeError: one of them is none, and the text has the one that may have been meant; or it is of another kind.
    """
    known = _SHAPES[kind].__annotations__
    if unknown := [name for name in options if name not in known]:
        from dovetail.server.arguments import listed  # only the mistaken pay for it

        hint = _ELSEWHERE.get((kind, unknown[0]), "")
        raise TypeError(f"a {kind} has no option {listed(unknown, known)}{hint}")
    for name, value in options.items():
        if name in _EXPECTED:
            expect(f"{name}=", value, *_EXPECTED[name])
    check_icons(options.get("icons"))
    found = dict(options)
    if isinstance(found.get("timeout"), timedelta):
        found["timeout"] = found["timeout"].total_seconds()
    if isinstance(found.get("reveal"), type):
        found["reveal"] = (found["reveal"],)
    return found


def check_icons(icons: Any) -> None:
    """TypeError unless they are icons, or not given."""
    expect("icons=", icons, (list, tuple), "a list of Icon(...)")
    for one in icons or ():
        expect("icons=", one if one is not None else "None", Icon, "a list of Icon(...)")


def check_name(name: str) -> None:
    """Warn of a tool's name that clients may refuse. spec: tools#tool-names"""
    plain = name.translate({ord(one): "a" for one in "_-."})
    if len(name) > _LONGEST or not (plain.isascii() and plain.isalnum()):
        log.warning(
            "the tool name %r may be refused by clients: letters, digits, _, - and ., at most %d in all", name, _LONGEST
        )


def expect(option: str, value: Any, kind: type | tuple[type, ...], what: str) -> None:
    """TypeError unless a value is of this kind, or not given."""
    if value is not None and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
        raise TypeError(f"{option} must be {what}, not {value!r}")


def published(meta: Mapping[str, Any] | None, tags: Collection[str], version: str | None) -> dict[str, Any] | None:
    """The `_meta` of a declaration: the author's, with tags and version where there are any."""
    if isinstance(tags, str):
        raise TypeError(f"tags are several: write tags=[{tags!r}]")
    told = {TAGS: sorted(tags)} if tags else {}
    told |= {VERSION: version} if version is not None else {}
    return told | dict(meta or {}) or None


def hints(annotations: Any, **flags: bool | None) -> ToolAnnotations | None:
    """What a tool does to the world, by the short keywords or by a whole ToolAnnotations; they may not disagree.

    A mapping has the names of the specification: `{"readOnlyHint": True}`.
    """
    annotations = _annotations(annotations)
    said: dict[str, Any] = {f"{name}_hint": value for name, value in flags.items() if value is not None}
    if annotations is None:
        return ToolAnnotations(**said) if said else None
    for name, value in said.items():
        if getattr(annotations, name) not in (None, value):
            raise ValueError(f"{name.removesuffix('_hint')}={value} and annotations say different things")
    kept = {name: getattr(annotations, name) for name in annotations.__struct_fields__}
    return ToolAnnotations(**kept | said)


def _annotations(given: Any) -> ToolAnnotations | None:
    if given is None or isinstance(given, ToolAnnotations):
        return given
    if not isinstance(given, Mapping):
        raise TypeError(f"annotations= takes ToolAnnotations, or a dict of them, not {given!r}")
    said = cast("Mapping[str, Any]", given)
    known = dict(zip(ToolAnnotations.__struct_encode_fields__, ToolAnnotations.__struct_fields__, strict=True))
    if unknown := [name for name in said if name not in known]:
        from dovetail.server.arguments import listed

        raise TypeError(f"annotations= has no {listed(unknown, known)}; the specification has {', '.join(known)}")
    return ToolAnnotations(**{known[name]: value for name, value in said.items()})
