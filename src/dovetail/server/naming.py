"""Names of mounted things: what each is called here, what it is called at home, and the links in results.

A prefix stands before the names of tools and prompts with an underscore, before URIs with a plus, so that a scheme
stays a scheme and every name can be told back.
"""

import logging
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from dovetail.errors import clip
from dovetail.protocol.mounting import Kind
from dovetail.protocol.uri_key import rule_keys, uri_key, uri_readings
from dovetail.server.options import TAGS, expect
from dovetail.server.templates import may_stand_for
from dovetail.server.transforms import SAME, Transform, arguments_of, checked
from dovetail.wire.content import EmbeddedResource, ResourceLink
from dovetail.wire.incoming import body
from dovetail.wire.inputs import InputRequiredResult
from dovetail.wire.methods import METHODS
from dovetail.wire.prompts import GetPromptResult, Prompt
from dovetail.wire.resources import ReadResourceResult, Resource, ResourceTemplate
from dovetail.wire.shape import Result, replace
from dovetail.wire.tools import CallToolResult, Tool

log = logging.getLogger("dovetail")

_SEEN: Final = ("tools/call", "prompts/get", "resources/read")
ASKS: Final = b'"input_required"'
_PREFIX: Final = re.compile(r"[A-Za-z][A-Za-z0-9.-]*")


class Names:
    """The names of one mount."""

    def __init__(self, prefix: str, transforms: Mapping[str, Transform], tags: Collection[str]) -> None:
        expect("prefix=", prefix, str, "a text")
        if prefix and not _PREFIX.fullmatch(prefix):
            raise ValueError(f"a prefix is letters, digits, dots and dashes, beginning with a letter, not {prefix!r}")
        if isinstance(tags, str):
            raise TypeError(f"tags are several: write tags=[{tags!r}]")
        self.prefix = prefix
        self._before = {"tool": f"{prefix}_", "prompt": f"{prefix}_"} if prefix else {}
        self._before |= {"resource": f"{prefix}+", "resource template": f"{prefix}+"} if prefix else {}
        self._transforms = checked(transforms)
        self._back = {change.name: inner for inner, change in transforms.items() if change.name is not None}
        self._hidden = [inner for inner, change in transforms.items() if change.hide and "{" in inner]
        # For URIs: the same by key, and the keys at which nothing is offered, because it is hidden or has moved.
        self._by_key = {uri_key(inner): inner for inner in self._transforms}
        self._back_by_key = {uri_key(name): inner for name, inner in self._back.items()}
        self._gone = frozenset(
            key
            for inner, change in transforms.items()
            if change.hide or change.name is not None
            for key in rule_keys(inner)
        )
        self._tags = frozenset(tags)

    def of(self, inner: str, kind: Kind | None = None) -> Transform:
        """What becomes of something."""
        if kind == "resource" and self._transforms and inner not in self._transforms:
            inner = self._by_key.get(uri_key(inner), inner)
        return self._transforms.get(inner, SAME)

    def complaints(self, declared: Mapping[Kind, Mapping[str, Any]]) -> Iterator[str]:
        """What the transforms say that does not fit what is there, one line each."""
        from dovetail.server.arguments import listed  # only mounts with transforms pay for it

        known = {name: 0 for items in declared.values() for name in items}
        if unknown := [inner for inner in self._transforms if inner not in known]:
            yield f"a transform is about {listed(unknown, known)}, which is not there"
        for inner, change in self._transforms.items():
            found = [items[inner] for items in declared.values() if inner in items]
            arguments = {name: 0 for one in found for name in arguments_of(one)}
            if found and (strange := [name for name in change.arguments or () if name not in arguments]):
                yield f"`{clip(inner)}` has no argument {listed(strange, arguments)}"
            else:
                yield from (line for one in found for line in change.complaints(one))
        for inner in known:
            if (other := self._stands_in(inner)) is not None:
                yield f"`{clip(other)}` would be called `{clip(inner)}`, which is there already: rename or hide it"

    def _stands_in(self, inner: str) -> str | None:
        """What has taken the name of something that has not left it."""
        change, other = self.of(inner), self._back.get(inner, inner)
        return None if change.hide or change.name is not None or other == inner else other

    @property
    def changes(self) -> bool:
        """Whether there are transforms."""
        return bool(self._transforms)

    def outward(self, kind: Kind, inner: str) -> str:
        """What it is called here."""
        return self._before.get(kind, "") + (self.of(inner, kind).name or inner)

    def inward(self, kind: Kind, name: str) -> str | None:
        """What it is called at home; None if it cannot be from there."""
        before = self._before.get(kind, "")
        if kind == "resource":
            return self._inward_uri(before, name)
        if not name.startswith(before):
            return None
        bare = name[len(before) :]
        inner = self._back.get(bare, bare)
        change = self.of(inner)
        if change.hide or (change.name is not None and change.name != bare):
            return None
        return inner

    def _inward_uri(self, before: str, uri: str) -> str | None:
        """Return what a URI is at home, in the spelling it came in unless it was renamed. None if not from there."""
        if uri[: len(before)].lower() != before.lower():  # part of the scheme, whose case has no meaning
            return None
        bare = uri[len(before) :]
        if not self._transforms:
            return bare
        moved = self._back.get(bare) or self._back_by_key.get(uri_key(bare))
        if moved is not None:
            return None if self._transforms[moved].hide else moved
        return bare if self._gone.isdisjoint(uri_readings(bare)) else None

    def matches_case(self, kind: Kind, name: str) -> bool:
        """Return whether a name has the prefix exactly as it was given, not only in another case."""
        return name.startswith(self._before.get(kind, ""))

    def hides(self, uri: str) -> bool:
        """Whether a resource of that URI is kept from being offered, or offered under another."""
        before = self._before.get("resource", "")
        if not self._gone or uri[: len(before)].lower() != before.lower():
            return False
        return not self._gone.isdisjoint(uri_readings(uri[len(before) :]))

    def covers(self, uri: str) -> bool:
        """Whether a URI is one of a template that is hidden, so that only a resource of that URI can be meant."""
        return any(may_stand_for(template, uri) for template in self._hidden)

    @property
    def certain(self) -> bool:
        """Whether a name with this prefix can only be from there, so that nobody need be asked."""
        return bool(self.prefix) and not self.picks

    @property
    def picks(self) -> bool:
        """Whether only some things are offered, by their tags."""
        return bool(self._tags)

    def allows(self, declaration: Any) -> bool:
        """Whether something is offered here, by its tags."""
        return not self._tags or not self._tags.isdisjoint(tags_of(declaration))

    def shown(self, kind: Kind, declarations: Mapping[str, Any]) -> dict[str, Any]:
        """What is listed here of what is listed there."""
        found: dict[str, Any] = {}
        for inner, declaration in declarations.items():
            change = self.of(inner, kind)
            if change.hide or not self.allows(declaration) or self._stands_in(inner) is not None:
                continue
            name = self.outward(kind, inner)
            try:
                found[name] = _called(change.declared(declaration), name)
            except ValueError as exc:  # one that cannot be shown must not cost the others their list
                log.error("%s is left out: %s", clip(name), exc)
        return found


def tags_of(declaration: Any) -> list[str]:
    """The tags that something was published with."""
    meta: dict[str, Any] = getattr(declaration, "meta", None) or {}
    return meta.get(TAGS) or []


def _called(declaration: Any, name: str) -> Any:
    match declaration:
        case Tool() | Prompt():
            return replace(declaration, name=name)
        case Resource():
            return replace(declaration, uri=name)
        case ResourceTemplate():
            return replace(declaration, uri_template=name)
        case _:
            return declaration


def relinked(result: Result | bytes, method: str, names: Names) -> Result | bytes:
    """A result whose links are those of this server; what has none is left as it came, to the byte."""
    if not names.prefix:
        return result
    if isinstance(result, bytes):
        row = METHODS[method]
        if b'"uri"' not in result or row.result is None or ASKS in result:
            return result
        result = body(result, row.result, f"the result of {method}")
    match result:
        case ReadResourceResult():
            own = [replace(one, uri=names.outward("resource", one.uri)) for one in result.contents]
            return replace(result, contents=own)
        case CallToolResult():
            return replace(result, content=[_linked(one, names) for one in result.content])
        case GetPromptResult():
            return replace(
                result, messages=[replace(one, content=_linked(one.content, names)) for one in result.messages]
            )
        case _:
            return result


def echo_uri(result: Result | bytes, names: Names, inner: str, uri: str) -> Result | bytes:
    """Return the result of a read with the URI as the caller spelled it, where this server would spell it otherwise."""
    own = names.outward("resource", inner)
    if (own == uri and (names.prefix or own == inner)) or (isinstance(result, bytes) and ASKS in result):
        return result
    if isinstance(result, bytes):
        result = body(result, ReadResourceResult, "the result of resources/read")
    if not isinstance(result, ReadResourceResult):
        return result
    return replace(
        result, contents=[replace(one, uri=uri) if one.uri in (own, inner) else one for one in result.contents]
    )


def opened(result: bytes, method: str) -> Result | bytes:
    """What another server answered, as a value, for whoever looks at results here."""
    row = METHODS[method]
    if method not in _SEEN or row.result is None:
        return result
    what = f"the result of {method}"
    if ASKS in result and (asked := body(result, InputRequiredResult, what)).result_type == "input_required":
        return asked
    return body(result, row.result, what)


def _linked(block: Any, names: Names) -> Any:
    match block:
        case ResourceLink() if not block.uri.startswith(("http:", "https:")):
            return replace(block, uri=names.outward("resource", block.uri))
        case EmbeddedResource() if not block.resource.uri.startswith(("http:", "https:")):
            return replace(block, resource=replace(block.resource, uri=names.outward("resource", block.resource.uri)))
        case _:
            return block
