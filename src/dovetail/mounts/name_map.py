"""Translation of names and URIs between a server (outer name) and a server mounted on it (inner name).

The prefix of tools and prompts ends with an underscore. The prefix of URIs ends with a plus sign, so that the result is
a valid URI scheme. Each outer name can be converted back to the inner name.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from dovetail.error_context import check_type, clip
from dovetail.log import log
from dovetail.mounts.transforms import (
    IDENTITY_TRANSFORM,
    Transform,
    check_transforms,
    find_transform_problems,
    get_argument_names,
    transform_declaration,
)
from dovetail.protocol.item_kinds import ItemKind
from dovetail.protocol.uri_key import template_key, uri_key
from dovetail.protocol.uri_readings import rule_keys, uri_readings
from dovetail.server.items.item_options import TAGS_META_KEY
from dovetail.server.items.uri_template import may_match_template
from dovetail.wire.base import Result, replace
from dovetail.wire.content import EmbeddedResource, ResourceLink
from dovetail.wire.methods import METHODS
from dovetail.wire.prompts import GetPromptResult, Prompt
from dovetail.wire.raw_message import decode_body, decode_input_required
from dovetail.wire.resources import ReadResourceResult, Resource, ResourceTemplate
from dovetail.wire.tools import CallToolResult, Tool

_URI_KINDS: Final = ("resource", "resource template")
_PARSED_METHODS: Final = ("tools/call", "prompts/get", "resources/read")
_PREFIX_PATTERN: Final = re.compile(r"[A-Za-z][A-Za-z0-9.-]*")


class NameMap:
    """Translates the names of items between this server and a mounted server."""

    def __init__(self, prefix: str, transforms: Mapping[str, Transform], tags: Collection[str]) -> None:
        check_type("prefix=", prefix, str, "a text")
        if prefix and not _PREFIX_PATTERN.fullmatch(prefix):
            raise ValueError(
                f"prefix= must start with a letter and contain only letters, digits, dots and dashes, not {prefix!r}"
            )
        if isinstance(tags, str):
            raise TypeError(f"tags= must be a list. Write tags=[{tags!r}]")
        self.prefix = prefix
        self._prefix_by_kind = {"tool": f"{prefix}_", "prompt": f"{prefix}_"} if prefix else {}
        self._prefix_by_kind |= {"resource": f"{prefix}+", "resource template": f"{prefix}+"} if prefix else {}
        self._transform_by_name = check_transforms(transforms)
        self._inner_by_new_name = {
            transform.name: inner_name for inner_name, transform in transforms.items() if transform.name is not None
        }
        self._hidden_templates = [
            inner_name for inner_name, transform in transforms.items() if transform.hide and "{" in inner_name
        ]
        # The keys of these mappings are normalized URIs and templates.
        # `_removed_keys` contains the hidden and the renamed resources.
        self._transformed_by_key = {template_key(inner_name): inner_name for inner_name in self._transform_by_name}
        self._inner_by_new_key = {
            template_key(name): inner_name for name, inner_name in self._inner_by_new_name.items()
        }
        self._removed_keys = frozenset(
            key
            for inner_name, transform in transforms.items()
            if transform.hide or transform.name is not None
            for key in rule_keys(inner_name)
        )
        self._tags = frozenset(tags)

    def get_transform(self, inner_name: str, kind: ItemKind | None = None) -> Transform:
        """Return the transform of an item. If it has none, return a transform that changes nothing."""
        if kind in _URI_KINDS and self._transform_by_name and inner_name not in self._transform_by_name:
            inner_name = self._transformed_by_key.get(template_key(inner_name), inner_name)
        return self._transform_by_name.get(inner_name, IDENTITY_TRANSFORM)

    def find_problems(self, declarations_by_kind: Mapping[ItemKind, Mapping[str, Any]]) -> Iterator[str]:
        """Yield a message for each transform that does not fit these items."""
        # This import is here because only mounts with transforms need the module.
        from dovetail.server.parameters.argument_errors import format_names

        item_names = {name: 0 for items in declarations_by_kind.values() for name in items}
        if unknown := [inner_name for inner_name in self._transform_by_name if inner_name not in item_names]:
            yield f"a transform is for {format_names(unknown, item_names)}, which does not exist"
        for inner_name, transform in self._transform_by_name.items():
            declarations = [items[inner_name] for items in declarations_by_kind.values() if inner_name in items]
            arguments = {name: 0 for declaration in declarations for name in get_argument_names(declaration)}
            if declarations and (
                unknown_arguments := [name for name in transform.arguments or () if name not in arguments]
            ):
                yield f"`{clip(inner_name)}` has no argument {format_names(unknown_arguments, arguments)}"
            else:
                for declaration in declarations:
                    yield from find_transform_problems(transform, declaration)
        for inner_name in item_names:
            if (conflicting_name := self._find_conflict(inner_name)) is not None:
                outer, inner = clip(conflicting_name), clip(inner_name)
                yield f"`{outer}` would be renamed to `{inner}`, which already exists. Rename or hide `{inner}`, too"

    def _find_conflict(self, inner_name: str) -> str | None:
        transform, conflicting_name = (
            self.get_transform(inner_name),
            self._inner_by_new_name.get(inner_name, inner_name),
        )
        return (
            None if transform.hide or transform.name is not None or conflicting_name == inner_name else conflicting_name
        )

    @property
    def has_transforms(self) -> bool:
        return bool(self._transform_by_name)

    def to_outer(self, kind: ItemKind, inner_name: str) -> str:
        return self._prefix_by_kind.get(kind, "") + (self.get_transform(inner_name, kind).name or inner_name)

    def to_inner(self, kind: ItemKind, name: str) -> str | None:
        """Return the name of an item on the mounted server. Return None if that server cannot have the item."""
        prefix = self._prefix_by_kind.get(kind, "")
        if kind == "resource":
            return self._to_inner_uri(prefix, name)
        if kind == "resource template":
            return self._to_inner_template(prefix, name)
        if not name.startswith(prefix):
            return None
        bare_name = name[len(prefix) :]
        inner_name = self._inner_by_new_name.get(bare_name, bare_name)
        transform = self.get_transform(inner_name)
        if transform.hide or (transform.name is not None and transform.name != bare_name):
            return None
        return inner_name

    def _to_inner_template(self, prefix: str, template: str) -> str | None:
        """Translate a template of the mounting server to the template of the mounted server.

        Return None if that server cannot have such a template.
        """
        if template[: len(prefix)].lower() != prefix.lower():
            return None
        bare_template = template[len(prefix) :]
        if not self._transform_by_name:
            return bare_template
        key = template_key(bare_template)
        inner_template = self._inner_by_new_key.get(key, bare_template)
        transform = self.get_transform(inner_template, "resource template")
        if transform.hide or (transform.name is not None and template_key(transform.name) != key):
            return None
        return inner_template

    def _to_inner_uri(self, prefix: str, uri: str) -> str | None:
        """Return the URI of a resource on the mounted server. Return None if that server cannot have such a URI.

        The spelling of the URI is kept, unless the resource is renamed.
        """
        # The prefix is part of the URI scheme, which is case-insensitive.
        if uri[: len(prefix)].lower() != prefix.lower():
            return None
        bare_uri = uri[len(prefix) :]
        if not self._transform_by_name:
            return bare_uri
        inner_uri = self._inner_by_new_name.get(bare_uri) or self._inner_by_new_key.get(template_key(bare_uri))
        if inner_uri is not None:
            return None if self._transform_by_name[inner_uri].hide else inner_uri
        return bare_uri if self._removed_keys.isdisjoint(uri_readings(bare_uri)) else None

    def needs_items(self, kind: ItemKind, name: str) -> bool:
        """Return whether the mounted server must list its items before a name can be translated."""
        return False

    def has_exact_prefix(self, kind: ItemKind, name: str) -> bool:
        return name.startswith(self._prefix_by_kind.get(kind, ""))

    def is_hidden(self, uri: str) -> bool:
        """Return whether a transform hides or renames the resource at a URI."""
        prefix = self._prefix_by_kind.get("resource", "")
        if not self._removed_keys or uri[: len(prefix)].lower() != prefix.lower():
            return False
        return not self._removed_keys.isdisjoint(uri_readings(uri[len(prefix) :]))

    def matches_hidden_template(self, uri: str) -> bool:
        """Return whether a URI matches a hidden template.

        If so, callers can read the URI only if a resource has exactly this URI.
        """
        return any(may_match_template(template, uri) for template in self._hidden_templates)

    @property
    def is_unambiguous(self) -> bool:
        """Return whether every name with this prefix belongs to this mount."""
        return bool(self.prefix) and not self.has_tag_filter

    @property
    def has_tag_filter(self) -> bool:
        return bool(self._tags)

    def is_allowed(self, declaration: Any) -> bool:
        """Return whether the mount offers an item with these tags."""
        return not self._tags or not self._tags.isdisjoint(get_tags(declaration))

    def rename_declarations(self, kind: ItemKind, declarations: Mapping[str, Any]) -> dict[str, Any]:
        """Return the items that the mount offers, with their names on this server."""
        renamed: dict[str, Any] = {}
        for inner_name, declaration in declarations.items():
            transform = self.get_transform(inner_name, kind)
            if transform.hide or not self.is_allowed(declaration) or self._find_conflict(inner_name) is not None:
                continue
            name = self.to_outer(kind, inner_name)
            try:
                renamed[name] = _rename_declaration(transform_declaration(transform, declaration), name)
            except ValueError as exc:  # One invalid item must not break the whole list.
                log.error("the mounted item %s is left out of the list: %s", clip(name), exc)
        return renamed


def get_tags(declaration: Any) -> list[str]:
    meta: dict[str, Any] = getattr(declaration, "meta", None) or {}
    return meta.get(TAGS_META_KEY) or []


def _rename_declaration(declaration: Any, name: str) -> Any:
    match declaration:
        case Tool() | Prompt():
            return replace(declaration, name=name)
        case Resource():
            return replace(declaration, uri=name)
        case ResourceTemplate():
            return replace(declaration, uri_template=name)
        case _:
            return declaration


def rewrite_links(result: Result | bytes, method: str, name_map: NameMap) -> Result | bytes:
    """Translate the links in a result. A result without links is returned unchanged."""
    if not name_map.prefix:
        return result
    if isinstance(result, bytes):
        method_spec = METHODS[method]
        if b'"uri"' not in result or method_spec.result is None or decode_input_required(result, method) is not None:
            return result
        result = decode_body(result, method_spec.result, f"the result of {method}")
    match result:
        case ReadResourceResult():
            contents = [replace(content, uri=name_map.to_outer("resource", content.uri)) for content in result.contents]
            return replace(result, contents=contents)
        case CallToolResult():
            return replace(result, content=[_rewrite_block_links(block, name_map) for block in result.content])
        case GetPromptResult():
            return replace(
                result,
                messages=[
                    replace(message, content=_rewrite_block_links(message.content, name_map))
                    for message in result.messages
                ],
            )
        case _:
            return result


def restore_uri(result: Result | bytes, name_map: NameMap, inner_uri: str, uri: str) -> Result | bytes:
    """Replace the URI in a read result with the URI that the caller sent."""
    outer_uri = name_map.to_outer("resource", inner_uri)
    if (outer_uri == uri and (name_map.prefix or outer_uri == inner_uri)) or (
        isinstance(result, bytes) and decode_input_required(result, "resources/read") is not None
    ):
        return result
    if isinstance(result, bytes):
        result = decode_body(result, ReadResourceResult, "the result of resources/read")
    if not isinstance(result, ReadResourceResult):
        return result
    keys = {uri_key(outer_uri), uri_key(inner_uri)}
    return replace(
        result,
        contents=[
            replace(content, uri=uri) if uri_key(content.uri) in keys else content for content in result.contents
        ],
    )


def parse_result(result: bytes, method: str) -> Result | bytes:
    """Decode the result of a mounted server."""
    method_spec = METHODS[method]
    if method not in _PARSED_METHODS or method_spec.result is None:
        return result
    input_required = decode_input_required(result, method)
    if input_required is not None:
        return input_required
    return decode_body(result, method_spec.result, f"the result of {method}")


def _rewrite_block_links(block: Any, name_map: NameMap) -> Any:
    match block:
        case ResourceLink() if not _is_web_uri(block.uri):
            return replace(block, uri=name_map.to_outer("resource", block.uri))
        case EmbeddedResource() if not _is_web_uri(block.resource.uri):
            return replace(
                block, resource=replace(block.resource, uri=name_map.to_outer("resource", block.resource.uri))
            )
        case _:
            return block


def _is_web_uri(uri: str) -> bool:
    return uri.partition(":")[0].lower() in ("http", "https")
