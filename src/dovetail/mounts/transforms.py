"""Transforms change the names, descriptions and arguments of mounted items in lists.

In calls, this module restores the original names of renamed arguments and adds the arguments with fixed values.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from dovetail.error_context import clip
from dovetail.errors import ToolError
from dovetail.protocol.headers import HeaderPath
from dovetail.wire.base import UNSET, Struct, replace
from dovetail.wire.prompts import Prompt, PromptArgument
from dovetail.wire.tools import Tool


class ArgTransform(Struct, frozen=True, kw_only=True):
    """A change to one argument of a mounted tool or prompt: its name, its description, or a fixed value."""

    name: str | None = None  # The new name of the argument.
    description: str | None = None  # The new description of the argument.
    value: Any = UNSET  # A fixed value for the argument. Callers do not see an argument with a fixed value.


class Transform(Struct, frozen=True, kw_only=True):
    """A change to one mounted tool, prompt or resource."""

    name: str | None = None  # The new name of the item.
    title: str | None = None  # The new title of the item.
    description: str | None = None  # The new description of the item.
    hide: bool = False  # If True, the item is hidden from clients.
    arguments: Mapping[str, ArgTransform] | None = None  # Changes to arguments. The keys are the original names.


def transform_declaration(transform: Transform, declaration: Any) -> Any:
    """Change the title, description and arguments of a definition. `NameMap` changes the name."""
    updates: dict[str, Any] = {}
    if transform.title is not None:
        updates["title"] = transform.title
    if transform.description is not None:
        updates["description"] = transform.description
    if transform.arguments and isinstance(declaration, Tool):
        updates["input_schema"] = _transform_schema(transform.arguments, declaration.name, declaration.input_schema)
    if transform.arguments and isinstance(declaration, Prompt):
        arguments = [
            transformed
            for argument in declaration.arguments or ()
            if (transformed := _transform_argument(transform.arguments, argument))
        ]
        _check_unique_names(declaration.name, [argument.name for argument in arguments])
        updates["arguments"] = arguments or None
    return replace(declaration, **updates) if updates else declaration


def _transform_schema(arguments: Mapping[str, ArgTransform], tool_name: str, schema: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = schema.get("properties") or {}
    if unknown := arguments.keys() - properties.keys():
        raise ValueError(f"the tool {tool_name!r} has no argument {', '.join(sorted(unknown))}")
    outer_names = {name: _get_outer_name(arguments, name) for name in properties}
    _check_unique_names(tool_name, [name for name in outer_names.values() if name is not None])
    new_properties: dict[str, Any] = {}
    required: list[str] = []
    for name, property_schema in properties.items():
        outer_name = outer_names[name]
        if outer_name is None:
            continue
        description = arguments[name].description if name in arguments else None
        new_properties[outer_name] = (
            property_schema if description is None else {**property_schema, "description": description}
        )
        if name in (schema.get("required") or ()):
            required.append(outer_name)
    other_keywords = {name: value for name, value in schema.items() if name not in ("properties", "required")}
    return other_keywords | {"properties": new_properties} | ({"required": required} if required else {})


def _transform_argument(arguments: Mapping[str, ArgTransform], argument: PromptArgument) -> PromptArgument | None:
    outer_name = _get_outer_name(arguments, argument.name)
    if outer_name is None:
        return None
    description = arguments[argument.name].description if argument.name in arguments else None
    return replace(argument, name=outer_name, description=description or argument.description)


def _check_unique_names(item_name: str, names: list[str]) -> None:
    if duplicates := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(f"the item `{clip(item_name)}` would have two arguments named `{clip(duplicates[0])}`")


def find_transform_problems(transform: Transform, declaration: Any) -> Iterator[str]:
    """Yield a message for each argument transform that does not fit this tool or prompt."""
    try:
        transform_declaration(transform, declaration)
    except ValueError as exc:
        yield str(exc)
    fixed_values = _get_fixed_values(transform.arguments or {})
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


def restore_arguments(transform: Transform, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the arguments of a call to their names on the mounted server.

    Raises:
        ToolError: the caller passed an argument that is fixed or was renamed.
    """
    argument_transforms = transform.arguments
    if not argument_transforms:
        return dict(arguments)
    inner_names = _get_inner_names(argument_transforms)
    if unknown_names := [name for name in arguments if not is_outer_argument(transform, name)]:
        unknown = ", ".join(_format_unknown(argument_transforms[name], name) for name in unknown_names)
        raise ToolError(f"Invalid arguments. Unknown names: {unknown}.")
    restored = {inner_names.get(name, name): value for name, value in arguments.items()}
    return restored | _get_fixed_values(argument_transforms)


def is_outer_argument(transform: Transform, name: str) -> bool:
    """Return whether callers may pass an argument under this name. Fixed arguments and old names are rejected."""
    argument_transforms = transform.arguments or {}
    return name not in argument_transforms or name in _get_inner_names(argument_transforms)


def _get_inner_names(arguments: Mapping[str, ArgTransform]) -> dict[str, str]:
    return {argument.name or name: name for name, argument in arguments.items() if argument.value is UNSET}


def _get_fixed_values(arguments: Mapping[str, ArgTransform]) -> dict[str, Any]:
    return {name: argument.value for name, argument in arguments.items() if argument.value is not UNSET}


def _format_unknown(argument: ArgTransform, name: str) -> str:
    hint = f" (use `{clip(argument.name)}`)" if argument.value is UNSET and argument.name else ""
    return f"`{clip(name)}`{hint}"


def get_outer_argument(transform: Transform, name: str) -> str | None:
    """Return the name that callers use for an argument, or None if the argument has a fixed value."""
    return _get_outer_name(transform.arguments or {}, name)


def _get_outer_name(arguments: Mapping[str, ArgTransform], name: str) -> str | None:
    argument = arguments.get(name)
    if argument is None:
        return name
    return None if argument.value is not UNSET else argument.name or name


def get_inner_argument(transform: Transform, name: str) -> str:
    """Return the name that an argument has on the mounted server."""
    return _get_inner_names(transform.arguments or {}).get(name, name)


def rename_header_paths(transform: Transform, paths: Sequence[HeaderPath]) -> Sequence[HeaderPath]:
    """Return the headers that callers send. An argument with a fixed value has no header."""
    if not transform.arguments:
        return paths
    outer_names = {row.path[0]: get_outer_argument(transform, row.path[0]) for row in paths}
    return [
        replace(row, path=(outer_name, *row.path[1:]))
        for row in paths
        if (outer_name := outer_names[row.path[0]]) is not None
    ]


def get_argument_names(declaration: Any) -> list[str]:
    if isinstance(declaration, Tool):
        return [*(declaration.input_schema.get("properties") or {})]
    return [argument.name for argument in declaration.arguments or ()] if isinstance(declaration, Prompt) else []


def check_transforms(transforms: Any) -> dict[str, Transform]:
    """Check the types and names of transforms.

    Raises:
        TypeError: a transform or a name has the wrong type.
        ValueError: two items would have the same name.
    """
    if not isinstance(transforms, Mapping):
        raise TypeError(
            'transforms= must be a dict from names to transforms, such as transforms={"search": Transform(...)}'
        )
    valid_transforms: dict[str, Transform] = {}
    inner_by_new_name: dict[str, str] = {}
    for inner_name, transform in cast("Mapping[str, Any]", transforms).items():
        if not isinstance(transform, Transform):
            raise TypeError(f"the transform of {inner_name!r} must be a Transform(...), not {type(transform).__name__}")
        for name, argument in cast("Mapping[str, Any]", transform.arguments or {}).items():
            if not isinstance(argument, ArgTransform):
                type_name = type(argument).__name__
                raise TypeError(
                    f"the argument {name!r} in the transform of {inner_name!r} must be an ArgTransform, not {type_name}"
                )
        if transform.name is not None and inner_by_new_name.setdefault(transform.name, inner_name) != inner_name:
            raise ValueError(
                f"{inner_by_new_name[transform.name]!r} and {inner_name!r} would have the same name {transform.name!r}"
            )
        valid_transforms[inner_name] = transform
    return valid_transforms


IDENTITY_TRANSFORM = Transform()
