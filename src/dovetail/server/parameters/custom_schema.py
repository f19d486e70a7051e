"""Tools with a custom input schema. The schema is published unchanged, and arguments are checked against it."""

import itertools
from copy import deepcopy
from typing import Any, Final, cast
from urllib.parse import unquote

from dovetail.error_context import clip
from dovetail.server.parameters.argument_errors import (
    describe_names,
    format_names,
    format_pattern_mismatch,
    format_type_mismatch,
    repair_arguments,
)
from dovetail.server.parameters.argument_messages import ArgumentMessage, format_path
from dovetail.server.parameters.signature import ArgumentNamer, InvalidArguments, Signature, rename_all
from dovetail.wire.codec import encode

# If the arguments have more members than this, only the first error is reported.
_MAX_MEMBERS_FOR_ALL_ERRORS: Final = 256
_MAX_SCHEMA_NODES: Final = 100_000  # the maximum number of schemas that one validation may visit
_DEFINITIONS: Final = ("$defs", "definitions")
_NO_MESSAGE: Final = ArgumentMessage("", "")


class CustomSchemaSignature:
    """The signature of a tool with a custom input schema. The function gets the arguments as one dict."""

    def __init__(self, inner: Signature, schema: dict[str, Any], *, passes_context: bool) -> None:
        if schema.get("type") != "object":
            raise ValueError(f"{inner.where}: input_schema must have the type 'object'")
        self.schema = schema
        self._validator = compile_schema(schema, inner.where)
        self._inner_context = inner.context
        self._passes_context = passes_context
        self.context = "" if passes_context and inner.context is None else inner.context
        self.returns = inner.returns
        self.where = inner.where
        self.parameters = names = inner.parameters
        is_open = inner.schema.get("additionalProperties") is not False
        if len(names) != 1 and not is_open:
            raise TypeError(
                f"{inner.where}: with input_schema=, the function must have one parameter for a dict of all arguments, "
                f"or **kwargs. Not counting a Context, this function has {len(names)} parameters"
            )
        self._parameter_name = names[0] if names else None
        self.choices: dict[str, tuple[str, ...]] = {}
        self.defaults: dict[str, Any] = {}

    def bind(self, arguments: dict[str, Any], context: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Check the arguments of a call, and return the arguments for the function."""
        if not self._validator.is_valid(arguments):
            arguments = repair_arguments(self.schema, arguments)
            self._check_arguments(arguments)
        # The function gets a copy of the arguments, because it may change them.
        # The requestState of the call still needs the original arguments.
        copied_arguments = deepcopy(arguments)
        kwargs: dict[str, Any] = (
            copied_arguments if self._parameter_name is None else {self._parameter_name: copied_arguments}
        )
        if self._inner_context is not None:
            kwargs[self._inner_context] = context
        return ((context,) if self._passes_context else ()), kwargs

    def _check_arguments(self, arguments: dict[str, Any]) -> None:
        if self._validator.is_valid(arguments):
            return
        # Finding all errors in large arguments takes seconds, so the search stops at the first error.
        is_small = encode(arguments).count(b",") < _MAX_MEMBERS_FOR_ALL_ERRORS
        all_errors = self._validator.iter_errors(arguments) if is_small else [self._find_first_error(arguments)]
        errors = [*itertools.islice(all_errors, 10)]
        raise InvalidArguments(lambda rename: [*filter(None, (format_error(error, rename) for error in errors))])

    def _find_first_error(self, arguments: dict[str, Any]) -> Any:
        try:
            self._validator.validate(arguments)
        except ValueError as error:
            return error


def format_error(error: Any, rename: ArgumentNamer = str) -> ArgumentMessage:
    """Format an error with its location and reason, but without the value.

    Return an empty message if `rename` hides the argument.
    """
    kind, path = error.kind, [*error.instance_path]
    outer_name = rename(str(path[0])) if path else ""
    if outer_name is None:
        return _NO_MESSAGE
    path[:1] = [outer_name] if path else []
    match str(error.schema_path[-1]) if error.schema_path else "":
        case "required" if path:
            return ArgumentMessage.about(format_path([*path, kind.property]), "missing")
        case "required":
            name = rename(kind.property)
            return _NO_MESSAGE if name is None else describe_names("Missing", [name])
        case "additionalProperties" if hasattr(kind, "unexpected"):
            if path:
                return ArgumentMessage.about(format_path(path), f"unknown {format_names(kind.unexpected)}")
            unknown = rename_all(kind.unexpected, rename)
            return describe_names("Unknown", unknown) if unknown else _NO_MESSAGE
        case "type":
            reason = format_type_mismatch(kind.types, error.instance)
        case "pattern":
            reason = format_pattern_mismatch(kind.pattern)
        case "enum":
            reason = "expected one of " + ", ".join(f"`{clip(str(option), 64)}`" for option in kind.options[:20])
        case _:
            reason = clip(error.message, 200)
    return ArgumentMessage.about(format_path(path), reason)


def compile_schema(schema: dict[str, Any], where: str) -> Any:
    """Compile a custom schema. If it is invalid, raise ValueError with a message that starts with `where`."""
    # This import is here because only custom schemas need the package.
    import jsonschema_rs

    _check_node_count(schema, where)
    try:
        # This regex engine runs in linear time. References to other documents are rejected.
        return jsonschema_rs.validator_for(
            schema, pattern_options=jsonschema_rs.RegexOptions(), retriever=_refuse_retrieval, mask="value"
        )
    except ValueError as exc:
        raise ValueError(f"{where}: invalid JSON Schema: {str(exc).splitlines()[0]}") from None


def _check_node_count(schema: dict[str, Any], where: str) -> None:
    """Raise ValueError if a schema and its references have too many parts. Validation would block the event loop."""
    try:
        node_count = _count_nodes(schema, schema, {})
    except RecursionError:
        raise ValueError(f"{where}: the schema is nested too deeply") from None
    if node_count > _MAX_SCHEMA_NODES:
        raise ValueError(f"{where}: the references in the schema lead to more than {_MAX_SCHEMA_NODES} schemas")


def _count_nodes(node: Any, root: dict[str, Any], count_by_ref: dict[str, int]) -> int:
    if isinstance(node, list):
        return sum(_count_nodes(item, root, count_by_ref) for item in cast("list[Any]", node))
    if not isinstance(node, dict):
        return 0
    schema = cast("dict[str, Any]", node)
    ref = schema.get("$ref")
    if isinstance(ref, str) and ref not in count_by_ref:
        # A recursive reference costs nothing here, because validation follows it only as deep as the value is nested.
        count_by_ref[ref] = 0
        count_by_ref[ref] = _count_nodes(_resolve_ref(root, ref), root, count_by_ref)
    referenced_count = count_by_ref[ref] if isinstance(ref, str) else 0
    return (
        1
        + referenced_count
        + sum(_count_nodes(value, root, count_by_ref) for name, value in schema.items() if name not in _DEFINITIONS)
    )


def _resolve_ref(root: dict[str, Any], ref: str) -> Any:
    node: Any = root if ref.startswith("#/") else None
    for step in ref.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        node = cast("dict[str, Any]", node).get(name) if isinstance(node, dict) else None
    return node


def _refuse_retrieval(uri: str) -> Any:
    raise ValueError(f"the schema refers to {clip(uri)}, but dovetail does not fetch other documents")
