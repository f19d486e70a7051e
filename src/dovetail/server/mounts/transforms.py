"""Transforms: how something mounted differs from what it is at home, as data, worked out when it is listed.

A renamed argument is renamed back, and a fixed one added, on the way in.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from dovetail.error_context import clip
from dovetail.errors import ToolError
from dovetail.wire.base import UNSET, Struct, replace
from dovetail.wire.prompts import Prompt, PromptArgument
from dovetail.wire.tools import Tool


class ArgTransform(Struct, frozen=True, kw_only=True):
    """What becomes of one argument: other words, or a fixed value, which is then no longer asked for."""

    name: str | None = None
    description: str | None = None
    value: Any = UNSET


class Transform(Struct, frozen=True, kw_only=True):
    """What becomes of one tool, prompt or resource: other words, other arguments, or nothing at all."""

    name: str | None = None
    title: str | None = None
    description: str | None = None
    hide: bool = False
    arguments: Mapping[str, ArgTransform] | None = None

    @property
    def _argument_transforms(self) -> Mapping[str, ArgTransform]:
        return self.arguments or {}

    def declared(self, declaration: Any) -> Any:
        """The declaration as it is shown; its name is given elsewhere."""
        updates: dict[str, Any] = {}
        if self.title is not None:
            updates["title"] = self.title
        if self.description is not None:
            updates["description"] = self.description
        if self._argument_transforms and isinstance(declaration, Tool):
            updates["input_schema"] = self._transform_schema(declaration.name, declaration.input_schema)
        if self._argument_transforms and isinstance(declaration, Prompt):
            arguments = [
                transformed
                for argument in declaration.arguments or ()
                if (transformed := self._transform_argument(argument))
            ]
            self._check_unique_names(declaration.name, [argument.name for argument in arguments])
            updates["arguments"] = arguments or None
        return replace(declaration, **updates) if updates else declaration

    def _transform_schema(self, tool_name: str, schema: dict[str, Any]) -> dict[str, Any]:
        properties: dict[str, Any] = schema.get("properties") or {}
        if unknown := self._argument_transforms.keys() - properties.keys():
            raise ValueError(f"the tool {tool_name!r} has no argument {', '.join(sorted(unknown))}")
        self._check_unique_names(
            tool_name, [new_name for name in properties if (new_name := self.word(name)) is not None]
        )
        new_properties: dict[str, Any] = {}
        required: list[str] = []
        for name, property_schema in properties.items():
            transform = self._argument_transforms.get(name, _IDENTITY_ARGUMENT)
            if transform.value is not UNSET:
                continue
            new_name = transform.name or name
            new_properties[new_name] = (
                property_schema
                if transform.description is None
                else {**property_schema, "description": transform.description}
            )
            if name in (schema.get("required") or ()):
                required.append(new_name)
        other_keywords = {name: value for name, value in schema.items() if name not in ("properties", "required")}
        return other_keywords | {"properties": new_properties} | ({"required": required} if required else {})

    def _check_unique_names(self, item_name: str, names: list[str]) -> None:
        if duplicates := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise ValueError(f"`{clip(item_name)}` would have two arguments called `{clip(duplicates[0])}`")

    def complaints(self, declaration: Any) -> Iterator[str]:
        """What is said of arguments that something has, and cannot be, one line each."""
        try:
            self.declared(declaration)
        except ValueError as exc:
            yield str(exc)
        fixed_values = {
            name: transform.value
            for name, transform in self._argument_transforms.items()
            if transform.value is not UNSET
        }
        if not fixed_values or not isinstance(declaration, Tool):
            return
        from dovetail.server.parameters.annotations import to_json
        from dovetail.server.parameters.argument_errors import find_mismatches, repair_arguments

        schema = declaration.input_schema
        for name, value in fixed_values.items():
            property_schema: dict[str, Any] = schema["properties"][name]
            definitions: dict[str, Any] = schema.get("$defs") or {}
            repaired = repair_arguments(property_schema | {"$defs": definitions}, to_json(value)[0])
            yield from (
                f"`{clip(declaration.name)}`: {mismatch}"
                for mismatch in find_mismatches(property_schema, repaired, definitions, name)
            )

    def _transform_argument(self, argument: PromptArgument) -> PromptArgument | None:
        transform = self._argument_transforms.get(argument.name, _IDENTITY_ARGUMENT)
        if transform.value is not UNSET:
            return None
        return replace(
            argument, name=transform.name or argument.name, description=transform.description or argument.description
        )

    def inward(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A call's arguments as they are at home; ToolError for one that is not the caller's to give."""
        if not self._argument_transforms:
            return dict(arguments)
        inner_names = {
            transform.name or name: name
            for name, transform in self._argument_transforms.items()
            if transform.value is UNSET
        }
        removed_names = self._argument_transforms.keys() - inner_names.keys()
        if unknown_names := [name for name in arguments if name in removed_names]:
            raise ToolError(
                f"Invalid arguments. Unknown: {', '.join(self._format_unknown(name) for name in unknown_names)}."
            )
        fixed_values = {
            name: transform.value
            for name, transform in self._argument_transforms.items()
            if transform.value is not UNSET
        }
        return {inner_names.get(name, name): value for name, value in arguments.items()} | fixed_values

    def _format_unknown(self, name: str) -> str:
        """An argument that has left its name, and the name it has, unless it is kept from the caller."""
        transform = self._argument_transforms[name]
        return f"`{clip(name)}`" + (
            f" (it is called `{clip(transform.name)}`)" if transform.value is UNSET and transform.name else ""
        )

    def word(self, name: str) -> str | None:
        """What an argument is called here; None for one that is fixed, of which a caller knows nothing."""
        transform = self._argument_transforms.get(name, _IDENTITY_ARGUMENT)
        return None if transform.value is not UNSET else transform.name or name

    def inner_argument(self, name: str) -> str:
        """What an argument is called at home."""
        for inner_name, transform in self._argument_transforms.items():
            if transform.name == name:
                return inner_name
        return name


def get_argument_names(declaration: Any) -> list[str]:
    """What a tool or a prompt takes."""
    if isinstance(declaration, Tool):
        return [*(declaration.input_schema.get("properties") or {})]
    return [argument.name for argument in declaration.arguments or ()] if isinstance(declaration, Prompt) else []


def check_transforms(transforms: Any) -> dict[str, Transform]:
    """What was given as transforms, if it can be that.

    Raises:
        TypeError: something in it is of another type.
        ValueError: two things would have one name.
    """
    if not isinstance(transforms, Mapping):
        raise TypeError('transforms are by name: transforms={"search": Transform(...)}')
    valid_transforms: dict[str, Transform] = {}
    inner_by_new_name: dict[str, str] = {}
    for inner_name, transform in cast("Mapping[str, Any]", transforms).items():
        if not isinstance(transform, Transform):
            raise TypeError(f"the transform of {inner_name!r} must be a Transform(...), not {type(transform).__name__}")
        for name, argument in cast("Mapping[str, Any]", transform.arguments or {}).items():
            if not isinstance(argument, ArgTransform):
                type_name = type(argument).__name__
                raise TypeError(
                    f"the argument {name!r} in the transform of {inner_name!r} must be an Argument, not {type_name}"
                )
        if transform.name is not None and inner_by_new_name.setdefault(transform.name, inner_name) != inner_name:
            raise ValueError(
                f"{inner_by_new_name[transform.name]!r} and {inner_name!r} would both be called {transform.name!r}"
            )
        valid_transforms[inner_name] = transform
    return valid_transforms


_IDENTITY_ARGUMENT = ArgTransform()
IDENTITY_TRANSFORM = Transform()
