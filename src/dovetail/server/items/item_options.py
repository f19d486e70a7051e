"""Options for the registration of tools, resources and prompts."""

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, TypeVar, cast

from dovetail.error_context import check_type, describe_value, find_similar
from dovetail.protocol.principal import Principal
from dovetail.wire.base import Struct
from dovetail.wire.content import Annotations, Icon
from dovetail.wire.tools import ToolAnnotations

if TYPE_CHECKING:
    from dovetail.tasks.task_options import TaskConfig

AnyAnnotations = TypeVar("AnyAnnotations", ToolAnnotations, Annotations)

TAGS_META_KEY: Final = "dovetail/tags"
VERSION_META_KEY: Final = "dovetail/version"


class CacheHint(Struct, frozen=True):
    """How long clients may cache a result, and whether users may share it. spec: caching#cacheable-model"""

    ttl_ms: int = 0  # Milliseconds for which clients may cache the result. 0 means no caching.
    # "private" lets only the same user reuse the cached result. "public" lets any user reuse it.
    scope: Literal["public", "private"] = "private"

    def __post_init__(self) -> None:
        if self.ttl_ms < 0:
            raise ValueError(f"ttl_ms of a CacheHint must be at least 0, not {self.ttl_ms}")
        if self.scope not in ("public", "private"):
            raise ValueError(f"scope of a CacheHint must be 'public' or 'private', not {self.scope!r}")


class PromptOptions(TypedDict, total=False):
    """Options of `Server.prompt`."""

    name: str | None  # The name that clients see. Defaults to the name of the function.
    title: str | None  # A display name for users.
    description: str | None  # A description for models and users. Defaults to the docstring of the function.
    icons: list[Icon] | None  # Icons that hosts may show.
    tags: Collection[str]  # Tags for selecting the item with `enable`, `disable`, `restrict` and `mount`
    version: str | None  # The version of the item, which clients see in `_meta`.
    meta: dict[str, Any] | None  # Additional values for `_meta`.
    timeout: float | timedelta | None  # Maximum seconds for a call. Defaults to `ServerLimits.call_timeout`.
    max_concurrency: int | None  # Maximum number of calls of this item at the same time. None means no limit.
    run_in_thread: bool  # True by default. If False, a function that is not async runs in the event loop.
    # Exceptions whose messages are sent to the caller. Messages of other exceptions are hidden.
    expose_errors: type[Exception] | Collection[type[Exception]]
    scopes: Collection[str]  # Scopes that a caller must have.
    # A function that takes the principal and returns True if this caller may see and use the item.
    visible_to: Callable[[Principal | None], bool] | None
    enabled: bool  # True by default. If False, the item is hidden until `enable` is called.


class SkillOptions(TypedDict, total=False):
    """Options of `Server.skill`."""

    name: str | None  # The name of the skill. Defaults to the name of the function, with hyphens.
    description: str | None  # Tells models when to use the skill. Defaults to the docstring of the function.
    front_matter: Mapping[str, object] | None  # Other fields of the front matter, such as `license` or `metadata`.
    # False by default. If True, the skill has no digests, because its content changes at each read.
    # Some hosts refuse skills without digests.
    dynamic: bool
    scopes: Collection[str]  # Scopes that a caller must have.
    # A function that takes the principal and returns True if this caller may see and use the skill.
    visible_to: Callable[[Principal | None], bool] | None


class ToolOptions(PromptOptions, total=False):
    """Options of `Server.tool`."""

    annotations: ToolAnnotations | Mapping[str, Any] | None  # All annotations of the tool in one object.
    read_only: bool | None  # Whether the tool only reads and changes nothing.
    destructive: bool | None  # Whether the tool may delete or overwrite something.
    idempotent: bool | None  # Whether a second call with the same arguments changes nothing.
    open_world: bool | None  # Whether the tool uses external systems, such as the web.
    # JSON Schema of the arguments. Defaults to a schema that is generated from the function's signature.
    input_schema: dict[str, Any] | None
    output_schema: dict[str, Any] | None  # JSON Schema of the result. None means no schema.
    # Whether a call may become a task, which continues in the background and survives restarts.
    # True turns every call into a task. "required" also refuses 2026-07 clients without support for tasks.
    task: "bool | Literal['required'] | TaskConfig | None"


class ResourceOptions(PromptOptions, total=False):
    """Options of `Server.resource`. `size` is only for resources, not for templates."""

    mime_type: str | None  # The MIME type of the contents.
    size: int | None  # The size in bytes. None means that it is unknown.
    annotations: Annotations | Mapping[str, Any] | None  # Metadata such as audience and priority.
    cache_hint: CacheHint | None  # How long clients may cache the contents.


_OPTIONS_BY_KIND: Final[dict[str, Any]] = {"tool": ToolOptions, "prompt": PromptOptions, "resource": ResourceOptions}
_NO_CACHE_OPTION_HINT: Final = (
    ". Set how long clients may cache lists with Server(cache_hints=...). "
    "Cache results on the server with dovetail.middleware.ResponseCache"
)
_HINT_BY_OPTION: Final = {(kind, "cache_hint"): _NO_CACHE_OPTION_HINT for kind in ("tool", "prompt")}


_TEXT_TYPE: Final = (str, "a string")
_FLAG_TYPE: Final = (bool, "True or False")
_SCHEMA_TYPE: Final = (dict, "a dict with a JSON Schema")
_EXPECTED_TYPES: Final[dict[str, tuple[Any, str]]] = {
    "name": _TEXT_TYPE,
    "title": _TEXT_TYPE,
    "description": _TEXT_TYPE,
    "version": _TEXT_TYPE,
    "mime_type": _TEXT_TYPE,
    "meta": (Mapping, "a dict"),
    "timeout": ((int, float, timedelta), "a number of seconds"),
    "max_concurrency": (int, "an integer"),
    "size": (int, "an integer"),
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
    """Check the options of a tool, resource or prompt, and return them in a normalized form.

    Raises:
        TypeError: an option is unknown or has the wrong type. The message suggests a similar option.
    """
    allowed = _OPTIONS_BY_KIND[kind].__annotations__
    if unknown := [name for name in options if name not in allowed]:
        # This import is here because only the error needs the module.
        from dovetail.server.parameters.argument_errors import format_names

        hint = _HINT_BY_OPTION.get((kind, unknown[0]), "")
        raise TypeError(f"a {kind} has no option {format_names(unknown, allowed)}{hint}")
    for name, value in options.items():
        if name in _EXPECTED_TYPES:
            check_type(f"{name}=", value, *_EXPECTED_TYPES[name])
    check_icons(options.get("icons"))
    check_tags(options.get("tags", ()))
    normalized = dict(options)
    if isinstance(normalized.get("timeout"), timedelta):
        normalized["timeout"] = normalized["timeout"].total_seconds()
    if isinstance(normalized.get("expose_errors"), type):
        normalized["expose_errors"] = (normalized["expose_errors"],)
    return normalized


def check_icons(icons: Any) -> None:
    """Raise TypeError unless the value is None or a list of `Icon` objects."""
    check_type("icons=", icons, (list, tuple), "a list of Icon(...)")
    for icon in icons or ():
        if not isinstance(icon, Icon):
            raise TypeError(f"icons= must be a list of Icon(...), but contains {describe_value(icon)}")


def check_tags(tags: Any) -> None:
    """Raise TypeError if the tags are a string instead of a list of strings."""
    if isinstance(tags, str):
        raise TypeError(f"tags must be a list. Write tags=[{tags!r}]")


def build_meta(meta: Mapping[str, Any] | None, tags: Collection[str], version: str | None) -> dict[str, Any] | None:
    """Build the `_meta` of an item from the options `meta=`, `tags=` and `version=`."""
    item_meta = {TAGS_META_KEY: sorted(tags)} if tags else {}
    item_meta |= {VERSION_META_KEY: version} if version is not None else {}
    return item_meta | dict(meta or {}) or None


def read_annotations(annotations: Any, annotations_type: type[AnyAnnotations]) -> AnyAnnotations | None:
    """Convert annotations to a struct. Keep unknown names, but raise TypeError if a name looks misspelled."""
    if annotations is None or isinstance(annotations, annotations_type):
        return annotations
    if not isinstance(annotations, Mapping):
        raise TypeError(f"annotations= must be {annotations_type.__name__} or a dict, not {annotations!r}")
    values = cast("Mapping[str, Any]", annotations)
    field_by_wire_name = dict(
        zip(annotations_type.__struct_encode_fields__, annotations_type.__struct_fields__, strict=True)
    )
    fields = {field_by_wire_name[name]: value for name, value in values.items() if name in field_by_wire_name}
    extra = {name: value for name, value in values.items() if name not in field_by_wire_name}
    if not extra:
        return annotations_type(**fields)
    if misspelled := [name for name in extra if find_similar(name, field_by_wire_name)]:
        from dovetail.server.parameters.argument_errors import format_names

        raise TypeError(f"annotations= contains an unknown name: {format_names(misspelled, field_by_wire_name)}")
    # Only fields of the class are encoded, so custom fields need a subclass.
    attributes = {f"extra_{index}": name for index, name in enumerate(extra)}
    namespace = dict.fromkeys(attributes) | {"__annotations__": dict.fromkeys(attributes, Any)}
    metaclass: Any = type(annotations_type)
    extended_type = metaclass(annotations_type.__name__, (annotations_type,), namespace, rename=attributes)
    return extended_type(**fields, **{attribute: extra[name] for attribute, name in attributes.items()})
