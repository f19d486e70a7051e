"""Import of an OpenAPI document: each operation becomes a tool, and its parameters become arguments."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol, Unpack, cast

from dovetail.error_context import check_type
from dovetail.log import log
from dovetail.openapi.document import OpenAPIOperation, iter_operations, parse_document, resolve_base_url
from dovetail.openapi.operation_call import MAX_RESPONSE_BYTES, Credentials, OperationCall
from dovetail.protocol.interfaces.http_types import SendRequest
from dovetail.server.items.item_options import ToolOptions

_ANNOTATIONS_BY_METHOD: Mapping[str, dict[str, Any]] = {
    "GET": {"read_only": True},
    "HEAD": {"read_only": True},
    "OPTIONS": {"read_only": True},
    "PUT": {"idempotent": True},
    "DELETE": {"idempotent": True, "destructive": True},
}


class ToolRegistrar(Protocol):
    """A server that can register tools."""

    def add_tool(self, function: Callable[..., Any], **options: Unpack[ToolOptions]) -> None: ...


def add_operations(
    app: ToolRegistrar,
    document: Any,
    send: SendRequest,
    *,
    service_url: str | None,
    headers: Credentials,
    client_base_url: str | None = None,
    include: Callable[[OpenAPIOperation], bool] | str | None = None,
    tool_names: Mapping[str, str] | None = None,
    validate_output: bool = True,
    max_response_bytes: int = MAX_RESPONSE_BYTES,
) -> None:
    """Register the selected operations of an OpenAPI document as tools. For the options, see `Server.from_openapi`.

    client_base_url: the base URL of the HTTP client. If it is set, requests never go to a host from the document,
    because the client may send credentials.
    """
    spec = parse_document(document)
    resolved_url = service_url or resolve_base_url(spec, client_base_url)
    if resolved_url is None:
        raise ValueError(
            "the OpenAPI document does not contain the URL of its server. Pass base_url=, or a client with a base_url"
        )
    is_included = _make_filter(include)
    all_operations = [*iter_operations(spec, () if callable(headers) else headers)]
    included = [operation for operation in all_operations if is_included(operation)]
    assigned_names = _assign_names(
        [operation.name for operation in included], [one.name for one in all_operations], tool_names or {}
    )
    for operation in included:
        # If the output schema is invalid, register the tool without an output schema.
        # If the tool cannot be registered without an output schema either, the operation is skipped.
        for output in (operation.output_schema if validate_output else None, None):
            try:
                app.add_tool(
                    OperationCall(
                        operation, resolved_url, send, headers, max_response_bytes, promises_json=output is not None
                    ),
                    name=assigned_names[operation.name],
                    description=operation.description,
                    input_schema=operation.input_schema,
                    output_schema=output,
                    tags=operation.tags,
                    open_world=True,
                    **_ANNOTATIONS_BY_METHOD.get(operation.method, {}),
                )
            except ValueError as exc:
                if output is None:
                    log.warning("skipped %s %s: %s", operation.method, operation.path, exc)
                    break
            else:
                break


def _assign_names(included: list[str], operation_names: list[str], tool_names: Mapping[str, str]) -> dict[str, str]:
    from dovetail.server.parameters.argument_errors import format_names

    check_type("tool_names=", tool_names, Mapping, "a dict from operations to tool names")
    if unknown := [name for name in tool_names if name not in operation_names]:
        raise ValueError(f"tool_names= contains unknown operations: {format_names(unknown, operation_names)}")
    assigned = {name: tool_names.get(name, name) for name in included}
    for operation_name, name in tool_names.items():
        if operation_name in assigned and (
            other := next(
                (candidate for candidate in included if candidate != operation_name and assigned[candidate] == name),
                None,
            )
        ):
            raise ValueError(f"tool_names= gives `{operation_name}` and `{other}` the same name `{name}`")
    return assigned


def _make_filter(include: Any) -> Callable[[OpenAPIOperation], bool]:
    if include is None:
        return lambda _: True
    if callable(include):
        return cast("Callable[[OpenAPIOperation], bool]", include)
    if not isinstance(include, str):
        raise TypeError(
            f'include= must be a pattern for "GET /path", or a function that takes an operation, not {include!r}'
        )
    try:
        pattern = re.compile(include)
    except re.error as exc:
        raise ValueError(f"include={include!r} is not a valid regular expression: {exc}") from None
    return lambda operation: pattern.search(f"{operation.method} {operation.path}") is not None
