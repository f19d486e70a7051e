"""Prompts: functions that return messages. The parameters of a function are the arguments of its prompt."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Unpack

from dovetail.server.invocation import get_description, get_function_name
from dovetail.server.items.compiled_function import RunOptions, compile_function
from dovetail.server.items.item_options import build_meta
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
                description=_describe_argument(properties[name], self.signature.schema.get("$defs", {})),
                required=name not in self.signature.defaults,
            )
            for name in self.signature.parameters
        ]


def _describe_argument(schema: dict[str, Any], definitions: Mapping[str, Any]) -> str | None:
    """Return the description of an argument. For lists and objects, the description asks for JSON."""
    description: str | None = schema.get("description")
    bare_schema = {key: value for key, value in schema.items() if key not in ("description", "default")}
    type_names = _find_type_names(bare_schema, definitions)
    if type_names.isdisjoint(("array", "object")) or "string" in type_names:
        return description
    if definitions:
        # This import is here because only recursive types need the module.
        from dovetail.server.parameters.flat_schema import extract_schema

        bare_schema = extract_schema(bare_schema, definitions)
    note = f"As JSON text: {encode(bare_schema).decode()}"
    if not description:
        return note
    return f"{description}{'' if description.endswith(('.', '!', '?', ':')) else '.'} {note}"


def _find_type_names(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> set[str]:
    if (reference := schema.get("$ref")) is not None:
        name = reference.rpartition("/")[2]
        other_definitions = {key: value for key, value in definitions.items() if key != name}
        return _find_type_names(definitions.get(name, {}), other_definitions)
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if alternatives is not None:
        return set().union(*(_find_type_names(alternative, definitions) for alternative in alternatives))
    types = schema.get("type", ())
    return {types} if isinstance(types, str) else {*types}
