"""Prompts: functions that return messages. The parameters of a function are the arguments of its prompt."""

from collections.abc import Callable, Collection
from typing import Any, Unpack

from dovetail.server.compiled_function import RunOptions, compile_function
from dovetail.server.invocation import get_description, get_function_name
from dovetail.server.item_options import build_meta
from dovetail.wire import prompts as wire
from dovetail.wire.codec import encode
from dovetail.wire.content import Icon


class Prompt:
    """A registered prompt."""

    __slots__ = ("declaration", "enabled", "runner", "signature", "tags", "version")

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        icons: list[Icon] | None = None,
        tags: Collection[str] = (),
        version: str | None = None,
        meta: dict[str, Any] | None = None,
        enabled: bool = True,
        **run_options: Unpack[RunOptions],
    ) -> None:
        # Clients send prompt arguments as strings. `lax` converts them to the annotated types.
        self.signature, self.runner = compile_function(function, lax=True, **run_options)
        self.declaration = wire.Prompt(
            name=name or get_function_name(function),
            title=title,
            description=description if description is not None else get_description(function),
            icons=icons,
            arguments=self._build_arguments() or None,
            meta=build_meta(meta, tags, version),
        )
        self.tags = frozenset(tags)
        self.version = version
        self.enabled = enabled

    def _build_arguments(self) -> list[wire.PromptArgument]:
        properties: dict[str, Any] = self.signature.schema.get("properties", {})
        return [
            wire.PromptArgument(
                name=name,
                title=properties[name].get("title"),
                description=_describe_argument(properties[name]),
                required=name not in self.signature.defaults,
            )
            for name in self.signature.parameters
        ]


def _describe_argument(schema: dict[str, Any]) -> str | None:
    """Return the description of an argument. For lists and objects, it says that the argument must be JSON."""
    description: str | None = schema.get("description")
    type_names = {alternative.get("type") for alternative in schema.get("anyOf", [schema])}
    if type_names.isdisjoint(("array", "object")) or "string" in type_names:
        return description
    bare_schema = {key: value for key, value in schema.items() if key not in ("description", "default")}
    return f"{description + ' ' if description else ''}As JSON text: {encode(bare_schema).decode()}"
