"""Verbatim: tools whose author gave the schema. It is published as it is, and arguments are held against it."""

import itertools
from copy import deepcopy
from typing import Any, Final, cast
from urllib.parse import unquote

from dovetail.errors import clip
from dovetail.server.arguments import cut, listed, mended, type_words, unlike
from dovetail.server.foreign import way
from dovetail.server.signature import BadArguments, Signature, Word, worded
from dovetail.wire.codec import encode

_FEW: Final = 256  # members of arguments whose every problem is looked for
_MOST: Final = 100_000  # schemas looked at to check one value
_DEFINITIONS: Final = ("$defs", "definitions")


class Verbatim:
    """A tool whose author gave the schema: arguments are checked against it and handed over as one dict."""

    def __init__(self, inner: Signature, schema: dict[str, Any], *, carries: bool) -> None:
        if schema.get("type") != "object":
            raise ValueError(f"{inner.where}: arguments are an object, so input_schema needs the type object")
        self.schema = schema
        self._validator = compile_schema(schema, inner.where)
        self._inner_context = inner.context
        self._carries = carries
        self.context = "" if carries and inner.context is None else inner.context
        self.returns = inner.returns
        self.where = inner.where
        self.parameters = names = inner.parameters
        is_open = inner.schema.get("additionalProperties") is not False
        if len(names) != 1 and not is_open:
            raise TypeError(
                f"{inner.where}: with input_schema= the function takes one parameter (a dict of the "
                f"arguments) or **kwargs, besides the context; it has {len(names)}"
            )
        self._name = names[0] if names else None
        self.choices: dict[str, tuple[str, ...]] = {}
        self.defaults: dict[str, Any] = {}

    def bind(self, arguments: dict[str, Any], context: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Check the arguments and place them."""
        if not self._validator.is_valid(arguments):
            arguments = mended(self.schema, arguments)
            self._check(arguments)
        own = deepcopy(arguments)  # the author may change them; a requestState is bound to those that were sent
        kwargs: dict[str, Any] = own if self._name is None else {self._name: own}
        if self._inner_context is not None:
            kwargs[self._inner_context] = context
        return ((context,) if self._carries else ()), kwargs

    def _check(self, arguments: dict[str, Any]) -> None:
        if self._validator.is_valid(arguments):
            return
        # All problems of a call are found at once: with many members that takes seconds, so there one must do.
        few = encode(arguments).count(b",") < _FEW
        found = self._validator.iter_errors(arguments) if few else [self._first(arguments)]
        errors = [*itertools.islice(found, 10)]
        raise BadArguments(lambda word: _told(errors, word))

    def _first(self, arguments: dict[str, Any]) -> Any:
        try:
            self._validator.validate(arguments)
        except ValueError as error:
            return error


def _told(errors: list[Any], word: Word) -> str:
    problems = [f"{line}." for one in errors if (line := problem(one, word))]
    return cut(f"Invalid arguments. {' '.join(problems)}") if problems else ""


def problem(error: Any, word: Word = str) -> str:
    """What a validator found, as other misfits are told: where, and why, without the value; empty if it is kept."""
    kind, path = error.kind, [*error.instance_path]
    first = word(str(path[0])) if path else ""
    if first is None:
        return ""
    path[:1] = [first] if path else []
    match str(error.schema_path[-1]) if error.schema_path else "":
        case "required" if path:
            return f"`{way([*path, kind.property])}`: missing"
        case "required":
            name = word(kind.property)
            return "" if name is None else f"Missing: `{clip(name, 64)}`"
        case "additionalProperties" if hasattr(kind, "unexpected"):
            if path:
                return f"`{way(path)}`: unknown {listed(kind.unexpected)}"
            unknown = worded(kind.unexpected, word)
            return f"Unknown: {listed(unknown)}" if unknown else ""
        case "type":
            why = type_words(kind.types, error.instance)
        case "pattern":
            why = unlike(kind.pattern)
        case "enum":
            why = "expected one of " + ", ".join(f"`{clip(str(one), 64)}`" for one in kind.options[:20])
        case _:
            why = clip(error.message, 200)
    return f"`{way(path)}`: {why}" if path else why


def compile_schema(schema: dict[str, Any], where: str) -> Any:
    """A validator for an author's schema; ValueError, beginning with `where`, if there is no such schema."""
    import jsonschema_rs  # only servers with schemas of their own pay for it

    _check_weight(schema, where)
    try:
        # A linear-time regex engine, and nothing is ever fetched for a $ref.
        return jsonschema_rs.validator_for(
            schema, pattern_options=jsonschema_rs.RegexOptions(), retriever=_no_retrieval, mask="value"
        )
    except ValueError as exc:
        raise ValueError(f"{where}: not a JSON Schema that can be checked: {str(exc).splitlines()[0]}") from None


def _check_weight(schema: dict[str, Any], where: str) -> None:
    """Refuse references that lead to so many schemas that checking one value would hold everyone up."""
    try:
        weight = _weight(schema, schema, {})
    except RecursionError:
        raise ValueError(f"{where}: the schema is nested too deeply") from None
    if weight > _MOST:
        raise ValueError(f"{where}: the references of the schema lead to more than {_MOST} schemas")


def _weight(node: Any, root: dict[str, Any], known: dict[str, int]) -> int:
    if isinstance(node, list):
        return sum(_weight(one, root, known) for one in cast("list[Any]", node))
    if not isinstance(node, dict):
        return 0
    schema = cast("dict[str, Any]", node)
    ref = schema.get("$ref")
    if isinstance(ref, str) and ref not in known:
        known[ref] = 0  # a loop goes only as deep as the value does
        known[ref] = _weight(_at(root, ref), root, known)
    named = known[ref] if isinstance(ref, str) else 0
    return 1 + named + sum(_weight(value, root, known) for name, value in schema.items() if name not in _DEFINITIONS)


def _at(root: dict[str, Any], ref: str) -> Any:
    node: Any = root if ref.startswith("#/") else None
    for step in ref.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        node = cast("dict[str, Any]", node).get(name) if isinstance(node, dict) else None
    return node


def _no_retrieval(uri: str) -> Any:
    raise ValueError(f"remote schema {clip(uri)} is not fetched")
