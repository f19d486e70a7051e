"""Transforms: how something mounted differs from what it is at home, as data, worked out when it is listed.

A renamed argument is renamed back, and a fixed one added, on the way in.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from dovetail.errors import ToolError, clip
from dovetail.wire.prompts import Prompt, PromptArgument
from dovetail.wire.shape import UNSET, Struct, replace
from dovetail.wire.tools import Tool


class Argument(Struct, frozen=True, kw_only=True):
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
    arguments: Mapping[str, Argument] | None = None

    @property
    def _changes(self) -> Mapping[str, Argument]:
        return self.arguments or {}

    def declared(self, declaration: Any) -> Any:
        """The declaration as it is shown; its name is given elsewhere."""
        changes: dict[str, Any] = {}
        if self.title is not None:
            changes["title"] = self.title
        if self.description is not None:
            changes["description"] = self.description
        if self._changes and isinstance(declaration, Tool):
            changes["input_schema"] = self._schema(declaration.name, declaration.input_schema)
        if self._changes and isinstance(declaration, Prompt):
            shown = [one for given in declaration.arguments or () if (one := self._shown(given))]
            self._check_apart(declaration.name, [one.name for one in shown])
            changes["arguments"] = shown or None
        return replace(declaration, **changes) if changes else declaration

    def _schema(self, tool: str, schema: dict[str, Any]) -> dict[str, Any]:
        properties: dict[str, Any] = schema.get("properties") or {}
        if unknown := self._changes.keys() - properties.keys():
            raise ValueError(f"the tool {tool!r} has no argument {', '.join(sorted(unknown))}")
        self._check_apart(tool, [new for name in properties if (new := self.word(name)) is not None])
        shown: dict[str, Any] = {}
        required: list[str] = []
        for name, rule in properties.items():
            change = self._changes.get(name, _SAME)
            if change.value is not UNSET:
                continue
            new = change.name or name
            shown[new] = rule if change.description is None else {**rule, "description": change.description}
            if name in (schema.get("required") or ()):
                required.append(new)
        rest = {name: value for name, value in schema.items() if name not in ("properties", "required")}
        return rest | {"properties": shown} | ({"required": required} if required else {})

    def _check_apart(self, of: str, names: list[str]) -> None:
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise ValueError(f"`{clip(of)}` would have two arguments called `{clip(twice[0])}`")

    def complaints(self, declaration: Any) -> Iterator[str]:
        """What is said of arguments that something has, and cannot be, one line each."""
        try:
            self.declared(declaration)
        except ValueError as exc:
            yield str(exc)
        fixed = {name: change.value for name, change in self._changes.items() if change.value is not UNSET}
        if not fixed or not isinstance(declaration, Tool):
            return
        from dovetail.server.arguments import mended, misfits
        from dovetail.server.schema import to_json

        schema = declaration.input_schema
        for name, value in fixed.items():
            rule: dict[str, Any] = schema["properties"][name]
            shared: dict[str, Any] = schema.get("$defs") or {}
            read = mended(rule | {"$defs": shared}, to_json(value)[0])
            yield from (f"`{clip(declaration.name)}`: {line}" for line in misfits(rule, read, shared, name))

    def _shown(self, given: PromptArgument) -> PromptArgument | None:
        change = self._changes.get(given.name, _SAME)
        if change.value is not UNSET:
            return None
        return replace(given, name=change.name or given.name, description=change.description or given.description)

    def inward(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A call's arguments as they are at home; ToolError for one that is not the caller's to give."""
        if not self._changes:
            return dict(arguments)
        back = {change.name or name: name for name, change in self._changes.items() if change.value is UNSET}
        gone = self._changes.keys() - back.keys()
        if foreign := [name for name in arguments if name in gone]:
            raise ToolError(f"Invalid arguments. Unknown: {', '.join(self._unknown(name) for name in foreign)}.")
        fixed = {name: change.value for name, change in self._changes.items() if change.value is not UNSET}
        return {back.get(name, name): value for name, value in arguments.items()} | fixed

    def _unknown(self, name: str) -> str:
        """An argument that has left its name, and the name it has, unless it is kept from the caller."""
        change = self._changes[name]
        return f"`{clip(name)}`" + (
            f" (it is called `{clip(change.name)}`)" if change.value is UNSET and change.name else ""
        )

    def word(self, name: str) -> str | None:
        """What an argument is called here; None for one that is fixed, of which a caller knows nothing."""
        change = self._changes.get(name, _SAME)
        return None if change.value is not UNSET else change.name or name

    def inner_argument(self, name: str) -> str:
        """What an argument is called at home."""
        for inner, change in self._changes.items():
            if change.name == name:
                return inner
        return name


def arguments_of(declaration: Any) -> list[str]:
    """What a tool or a prompt takes."""
    if isinstance(declaration, Tool):
        return [*(declaration.input_schema.get("properties") or {})]
    return [one.name for one in declaration.arguments or ()] if isinstance(declaration, Prompt) else []


def checked(transforms: Any) -> dict[str, Transform]:
    """What was given as transforms, if it can be that.

    Raises:
        TypeError: something in it is of another type.
        ValueError: two things would have one name.
    """
    if not isinstance(transforms, Mapping):
        raise TypeError('transforms are by name: transforms={"search": Transform(...)}')
    found: dict[str, Transform] = {}
    names: dict[str, str] = {}
    for inner, change in cast("Mapping[str, Any]", transforms).items():
        if not isinstance(change, Transform):
            raise TypeError(f"the transform of {inner!r} must be a Transform(...), not {type(change).__name__}")
        for name, argument in cast("Mapping[str, Any]", change.arguments or {}).items():
            if not isinstance(argument, Argument):
                kind = type(argument).__name__
                raise TypeError(f"the argument {name!r} in the transform of {inner!r} must be an Argument, not {kind}")
        if change.name is not None and names.setdefault(change.name, inner) != inner:
            raise ValueError(f"{names[change.name]!r} and {inner!r} would both be called {change.name!r}")
        found[inner] = change
    return found


_SAME = Argument()
SAME = Transform()
