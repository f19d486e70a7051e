"""Resources and resource templates: functions that return the contents of a URI, compiled at registration."""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Unpack

from dovetail.log import log
from dovetail.protocol.uri_key import uri_key
from dovetail.server.invocation import get_description, get_function_name
from dovetail.server.items.compiled_function import RunOptions, compile_function
from dovetail.server.items.item_options import CacheHint, build_meta, read_annotations
from dovetail.wire import resources as wire
from dovetail.wire.content import Annotations, Icon

_SCHEME_PATTERN: Final = r"[A-Za-z][A-Za-z0-9+.-]*:|\{"


class Resource:
    """A resource with a fixed URI."""

    __slots__ = ("cache_hint", "declaration", "enabled", "key", "runner", "signature", "tags", "version")

    def __init__(
        self,
        function: Callable[..., Any],
        uri: str,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
        size: int | None = None,
        icons: list[Icon] | None = None,
        annotations: Annotations | Mapping[str, Any] | None = None,
        tags: Collection[str] = (),
        version: str | None = None,
        meta: dict[str, Any] | None = None,
        cache_hint: CacheHint | None = None,
        enabled: bool = True,
        **run_options: Unpack[RunOptions],
    ) -> None:
        _check_uri(uri)
        self.signature, self.runner = compile_function(function, lax=True, **run_options)
        if self.signature.parameters:
            raise TypeError(
                f"{self.signature.where}: {uri} has no variables, so the function can take only the context, but "
                f"it takes {', '.join(self.signature.parameters)}"
            )
        self.key = uri_key(uri)
        self.cache_hint = cache_hint
        self.declaration = wire.Resource(
            uri=uri,
            name=name or get_function_name(function, uri),
            title=title,
            description=description if description is not None else get_description(function),
            mime_type=mime_type,
            size=size,
            icons=icons,
            annotations=read_annotations(annotations, Annotations),
            meta=build_meta(meta, tags, version),
        )
        self.tags = frozenset(tags)
        self.version = version
        self.enabled = enabled


class ResourceTemplate:
    """A URI template and the function that reads its resources. Each variable of the template is a parameter."""

    __slots__ = ("cache_hint", "declaration", "enabled", "runner", "signature", "tags", "template", "version")

    def __init__(
        self,
        function: Callable[..., Any],
        uri: str,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
        icons: list[Icon] | None = None,
        annotations: Annotations | Mapping[str, Any] | None = None,
        tags: Collection[str] = (),
        version: str | None = None,
        meta: dict[str, Any] | None = None,
        cache_hint: CacheHint | None = None,
        enabled: bool = True,
        **run_options: Unpack[RunOptions],
    ) -> None:
        # This import is here because only templates need the module.
        from dovetail.server.items.uri_template import URITemplate

        _check_uri(uri)
        self.template = URITemplate(uri)
        self.signature, self.runner = compile_function(function, lax=True, **run_options)
        variables, parameters = set(self.template.variables), set(self.signature.parameters)
        is_closed = self.signature.schema.get("additionalProperties") is False
        if (is_closed and variables - parameters) or parameters - variables - self.signature.defaults.keys():
            raise TypeError(
                f"{self.signature.where}: the variables of {uri} ({', '.join(self.template.variables)}) do not "
                f"match the parameters of the function ({', '.join(self.signature.parameters)})"
            )
        _warn_list_variables(uri, self.template.lists, self.signature.schema["properties"])
        self.cache_hint = cache_hint
        self.declaration = wire.ResourceTemplate(
            uri_template=uri,
            name=name or get_function_name(function, uri),
            title=title,
            description=description if description is not None else get_description(function),
            mime_type=mime_type,
            icons=icons,
            annotations=read_annotations(annotations, Annotations),
            meta=build_meta(meta, tags, version),
        )
        self.tags = frozenset(tags)
        self.version = version
        self.enabled = enabled


def _warn_list_variables(uri: str, list_variables: Collection[str], properties: Mapping[str, Any]) -> None:
    for name in list_variables:
        if properties.get(name, {}).get("type") == "string":
            log.warning(
                "%s: {%s*} is a list of values, but `%s` is a string. Use {+%s} for a value that may contain slashes",
                *(uri, name, name, name),
            )


def _check_uri(uri: str) -> None:
    if not re.match(_SCHEME_PATTERN, uri):
        raise ValueError(f"invalid URI {uri!r}: the scheme is missing (for example, `notes://today`)")
