"""Check every message of a server against the official schema of its version and the types of the official SDK.

Without the schema of a version, only the rules that need no schema apply (see `official_schemas`). The draft dialect
has no schema and is not checked.
"""

import functools
from typing import Any

import jsonschema_rs
from mcp_types import methods as sdk

from support.driver import PUBLISHED, STATELESS
from support.official_schemas import has_schema, load_schema

SDK_CHECKED_REVISIONS = ("2025-11-25", STATELESS)

# Codes of stateless servers: those of JSON-RPC and the three of the specification. Codes outside of JSON-RPC's range
# are also valid.
STATELESS_ERROR_CODES = {-32700, -32600, -32601, -32602, -32603, -32020, -32021, -32022}
STATELESS_ERROR_NAMES = {
    -32700: "ParseError",
    -32600: "InvalidRequestError",
    -32601: "MethodNotFoundError",
    -32602: "InvalidParamsError",
    -32603: "InternalError",
    -32020: "HeaderMismatchError",
    -32021: "MissingRequiredClientCapabilityError",
    -32022: "UnsupportedProtocolVersionError",
}
EXTENSION_PREFIX = "com.example/"  # the methods of the extensions in these tests
TASKS_PREFIX = "tasks/"
SKILL_METHODS = ("skills/list", "skills/get", "resources/directory/read")

# Before 2025-11-25 the schemas require an id in every error, even if the request has no readable id.
ID_REQUIRED_REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18")


@functools.cache
def schema(revision: str) -> dict[str, Any]:
    """Return the published schema of a version. The limits in NumberSchema may be any number."""
    loaded = load_schema(revision)
    number = definitions(loaded).get("NumberSchema", {}).get("properties", {})
    for name in ("minimum", "maximum", "default"):
        if number.get(name, {}).get("type") == "integer":
            number[name]["type"] = "number"
    return loaded


def definitions(loaded: dict[str, Any]) -> dict[str, Any]:
    return loaded.get("$defs") or loaded["definitions"]


@functools.cache
def validator(revision: str, name: str) -> Any:
    loaded = schema(revision)
    section = "$defs" if "$defs" in loaded else "definitions"
    return jsonschema_rs.validator_for({**loaded, "$ref": f"#/{section}/{name}"})


@functools.cache
def by_method(revision: str, union: str) -> dict[str, str]:
    """Map methods to the definitions in a union such as ServerNotification."""
    all_definitions = definitions(schema(revision))
    members = [member["$ref"].rsplit("/", 1)[1] for member in all_definitions.get(union, {}).get("anyOf", [])]
    return {all_definitions[name]["properties"]["method"]["const"]: name for name in members}


def result_name(revision: str, method: str, result: Any) -> str:
    if isinstance(result, dict) and result.get("resultType") == "input_required":
        return "InputRequiredResult"
    if method.startswith((EXTENSION_PREFIX, TASKS_PREFIX)) or method in SKILL_METHODS or is_task(method, result):
        return "Result"
    request = by_method(revision, "ClientRequest").get(method)
    assert request is not None, f"{revision} has no method {method}, but it has a result: {result}"
    name = request.removesuffix("Request") + "Result"
    return name if name in definitions(schema(revision)) else "EmptyResult"


def is_task(method: str, result: Any) -> bool:
    """Return whether a call became a task."""
    return method == "tools/call" and isinstance(result, dict) and result.get("resultType") == "task"


def check_result(revision: str, method: str, message: dict[str, Any]) -> None:
    """Check a successful response to a request of this method."""
    if revision not in PUBLISHED or method == "shutdown":  # shutdown is a dovetail extension
        return
    result = message["result"]
    if has_schema(revision):
        envelope = "JSONRPCResultResponse" if revision in SDK_CHECKED_REVISIONS else "JSONRPCResponse"
        _check(revision, envelope, message)
        _check(revision, result_name(revision, method, result), result)
    if revision == STATELESS and is_task(method, result):
        assert {"taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs"} <= result.keys(), f"not a task: {result}"
        return
    if revision == STATELESS:
        assert result.get("resultType") in ("complete", "input_required"), f"resultType is missing: {result}"
    if revision in SDK_CHECKED_REVISIONS and (method, revision) in sdk.SERVER_RESULTS:
        sdk.parse_server_result(method, revision, result)


def check_error(revision: str, message: dict[str, Any]) -> None:
    """Check an error response."""
    if revision not in PUBLISHED:
        return
    code = message["error"]["code"]
    assert type(code) is int, f"the code must be an integer, not {code!r}"
    if revision == STATELESS:
        assert code in STATELESS_ERROR_CODES or not -32768 <= code <= -32000, f"{code} is not a code of {revision}"
    if not has_schema(revision):
        return
    if revision in ID_REQUIRED_REVISIONS:
        _check(revision, "JSONRPCError", {"id": 0} | message)
    else:
        _check(revision, "JSONRPCErrorResponse", message)
    if revision == STATELESS and code in STATELESS_ERROR_NAMES:
        error_definition = definitions(schema(revision))[STATELESS_ERROR_NAMES[code]]
        _check(
            revision,
            STATELESS_ERROR_NAMES[code],
            message if "error" in error_definition.get("properties", {}) else message["error"],
        )


def check_notification(revision: str, message: dict[str, Any]) -> None:
    """Check a notification of the server. Extensions define their own notifications."""
    if revision not in PUBLISHED or message["method"].startswith(f"notifications/{EXTENSION_PREFIX}"):
        return
    if revision == STATELESS and message["method"] == "notifications/tasks":
        return
    method = message["method"]
    if has_schema(revision):
        name = by_method(revision, "ServerNotification").get(method)
        assert name is not None, f"a server of {revision} does not send {method}"
        _check(revision, "JSONRPCNotification", message)
        _check(revision, name, message)
    if revision in SDK_CHECKED_REVISIONS:
        sdk.parse_server_notification(method, revision, message.get("params"))


def check_server_request(revision: str, message: dict[str, Any]) -> None:
    """Check a request of the server."""
    if revision not in PUBLISHED:
        return
    assert revision != STATELESS, f"a server of {revision} sends no requests: {message}"
    method = message["method"]
    if has_schema(revision):
        name = by_method(revision, "ServerRequest").get(method)
        assert name is not None, f"a server of {revision} does not request {method}"
        _check(revision, "JSONRPCRequest", message)
        _check(revision, name, message)
    if revision in SDK_CHECKED_REVISIONS:
        sdk.parse_server_request(method, revision, message.get("params"))


def _check(revision: str, name: str, value: Any) -> None:
    for error in validator(revision, name).iter_errors(value):
        raise AssertionError(f"not a {name} of {revision}: {error.message} at {list(error.instance_path)}: {value}")
